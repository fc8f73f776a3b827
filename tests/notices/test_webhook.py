"""Webhooks: signatures that the Standard Webhooks library accepts, and distinguished bad receivers."""

import socket
import time
from base64 import b64encode
from collections.abc import Callable

import pytest
import standardwebhooks

from paygw_batch.gateway.http.tls import client_context
from paygw_batch.notices.webhook import Webhook, decode_secret
from paygw_batch.notices.words import DeliveryFailure, FailureKind
from tests.support.receivers import SECRET, Trust, running_peer, stay_silent, webhook

BODY = '{"type": "run_ended", "data": {"sheet": "été.csv"}}'.encode()


def build_webhook(url: str, trust: Trust | None = None, *, timeout_s: float = 60.0, is_signed: bool = True) -> Webhook:
    context = client_context(trust.bundle if trust else None)
    return Webhook(url, context, decode_secret(SECRET) if is_signed else None, timeout_s)


def test_standard_webhooks_library_verifies_posts(trust: Trust) -> None:
    with webhook(trust.context()) as posts:
        for is_signed in (True, False):
            assert build_webhook(posts.url, trust, is_signed=is_signed).post("notice_1", BODY, int(time.time())) is None
    (headers, body), (unsigned, _) = posts.got
    assert headers["webhook-id"] == "notice_1"
    assert standardwebhooks.Webhook(SECRET).verify(body, dict(headers))["data"] == {"sheet": "été.csv"}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(body + b" ", dict(headers))
    assert "webhook-signature" not in unsigned


@pytest.mark.parametrize("status", [302, 307, 400, 410, 429, 500, 503])
def test_webhook_redirect_is_reported_and_not_followed(status: int) -> None:
    with webhook() as posts, webhook() as elsewhere:
        posts.status, posts.answer = status, {"Location": elsewhere.url}
        assert build_webhook(posts.url).post("notice_1", BODY, 1) == DeliveryFailure(FailureKind.REFUSED, status)
    assert elsewhere.got == []


def test_webhook_ignores_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as posts, webhook() as elsewhere:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, elsewhere.url)
        assert build_webhook(posts.url).post("notice_1", BODY, 1) is None
    assert (len(posts.got), elsewhere.got) == (1, [])


@pytest.mark.parametrize("case", ["another name", "an unknown authority", "no TLS"])
def test_unauthenticated_webhook_receiver_gets_nothing(trust: Trust, case: str) -> None:
    context = None if case == "no TLS" else trust.context("hooks.example" if case == "another name" else "127.0.0.1")
    with webhook(context) as posts:
        client = build_webhook(posts.url.replace("http:", "https:"), trust if case == "another name" else None)
        failure = client.post("notice_1", BODY, 1)
    assert failure == DeliveryFailure(FailureKind.NOT_ENCRYPTED if case == "no TLS" else FailureKind.UNTRUSTED)
    assert posts.got == []


def answering(*parts: bytes, times: int = 1) -> Callable[[socket.socket], None]:
    """Return a server that sends the parts, repeats the last one, and then hangs up, or waits if `times` is 0."""

    def serve(connection: socket.socket) -> None:
        connection.recv(10_000)
        for part in (*parts, *parts[-1:] * (times - 1)):
            connection.sendall(part)
        if not times:
            stay_silent(connection)

    return serve


@pytest.mark.parametrize(
    "serve",
    [answering(), answering(b"\0\xff\r\n\r\n"), answering(b"x-header: " + b"x" * 10_000 + b"\r\n", times=1_000)],
    ids=["hang-up", "nonsense", "endless"],
)
def test_broken_webhook_receiver_is_reported_as_unreadable(serve: Callable[[socket.socket], None]) -> None:
    with running_peer(serve) as port:
        failure = build_webhook(f"http://127.0.0.1:{port}/").post("notice_1", BODY, 1)
    assert failure == DeliveryFailure(FailureKind.BROKEN)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n"


@pytest.mark.parametrize(
    "serve", [answering(OK, b"x" * 10_000, times=10**6), answering(OK, times=0)], ids=["endless", "owed"]
)
def test_webhook_response_body_is_not_read(serve: Callable[[socket.socket], None]) -> None:
    with running_peer(serve) as port:  # whoever waited for the rest would report no answer
        assert build_webhook(f"http://127.0.0.1:{port}/").post("notice_1", BODY, 1) is None


def test_silent_and_missing_webhook_receivers_are_distinguished() -> None:
    with running_peer(stay_silent) as port:
        silent = build_webhook(f"http://127.0.0.1:{port}/", timeout_s=0.05).post("notice_1", BODY, 1)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    missing = build_webhook(f"http://127.0.0.1:{port}/").post("notice_1", BODY, 1)
    assert (silent, missing) == (DeliveryFailure(FailureKind.NO_ANSWER), DeliveryFailure(FailureKind.NOT_REACHED))


@pytest.mark.parametrize("secret", ["whsec_", "whsec_!", "whsec_" + b64encode(b"short").decode(), "é" * 40])
def test_weak_webhook_secret_is_refused_and_hidden(secret: str) -> None:
    with pytest.raises(ValueError, match=r"base64|bytes") as caught:
        decode_secret(secret)
    assert secret.removeprefix("whsec_") not in str(caught.value) or secret == "whsec_"


def test_webhook_repr_hides_url_and_secret() -> None:
    shown = repr(build_webhook("https://hooks.example/T0/B0/secret"))
    assert ("secret" in shown, "hooks.example" in shown) == (False, False)
