"""Status enquiries over httpx: the request, the accepted answers, and the faults. The environment affects nothing."""

import gzip
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.load import load_operation
from paygw_batch.errors import ConfigurationError, InternalError
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.http.enquiry_client import EnquiryClient
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_cases import split_request
from tests.support.gateway_server import (
    BODY,
    PATH,
    REPLY,
    Peer,
    Script,
    advance_clock,
    answer,
    build_request,
    deliver_once,
    expect_no_data,
    replying,
    run_test,
    serving,
    settings_for,
    stay_silent,
    summary,
)

Channel = dict[str, Any]
WORDS = {"approved": OutcomeKind.PAID, "declined": OutcomeKind.REJECTED}
OK = b"HTTP/1.1 200 OK\r\n"
GZIP = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
PACKED, BOMB = gzip.compress(BODY), gzip.compress(bytes(10_000_000))


async def ask_once(script: Script, *, tls: ssl.SSLContext | None = None, **changes: Any) -> RawReply | TransportFault:
    async with serving(script, tls=tls) as server, EnquiryClient(settings_for(server.url, **changes)) as client:
        return await client.send(build_request(server.url))


async def test_enquiry_is_sent_as_signed_and_reply_returned(channel: Channel) -> None:
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        received.append(await peer.answer(REPLY.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b\r\n\r\n")))
        assert await peer.until_closed() == b""

    async with serving(script, tls=channel["tls"]) as server:
        enquiry = build_request(server.url)
        async with EnquiryClient(settings_for(server.url, ca_bundle=channel.get("ca_bundle"))) as client:
            replies = [await client.send(enquiry) for _ in range(2)]
        await server.finished()
    assert [summary(reply) for reply in replies] == [BODY, BODY]
    assert len(received) == 2
    for request in received:
        first, headers, body = split_request(request)
        assert first == f"POST {PATH} HTTP/1.1"
        assert body == enquiry.body
        assert headers == {
            "host": f"localhost:{server.port}",
            "user-agent": "paygw-batch",
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
            "content-type": "application/json",
            "authorization": enquiry.authorization,
            "content-length": str(len(body)),
        }


@pytest.mark.parametrize("http_status", [301, 307])
async def test_redirect_is_returned_and_never_followed(http_status: int) -> None:
    async with serving(stay_silent) as other:

        async def script(peer: Peer) -> None:
            head = f"HTTP/1.1 {http_status} Moved\r\nLocation: {other.url}{PATH}\r\nContent-Length: 0\r\n\r\n"
            await peer.answer(head.encode())

        result = await ask_once(script)
        assert isinstance(result, RawReply)
        assert (result.http_status, other.peers) == (http_status, [])


@pytest.mark.parametrize(
    ("reply", "comes"),
    [
        (GZIP % len(PACKED) + PACKED, BODY),
        (b"garbage\r\n\r\n", (FaultKind.PROTOCOL_ERROR, True)),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", (FaultKind.PROTOCOL_ERROR, True)),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", (FaultKind.PROTOCOL_ERROR, True)),
        (GZIP % 2 + b"\x1f\x8b", (FaultKind.REPLY_ENCODED, True)),
        (GZIP % len(BOMB) + BOMB, (FaultKind.REPLY_TOO_LARGE, True)),
        (OK + b"Content-Length: 10000000\r\n\r\n", (FaultKind.REPLY_TOO_LARGE, True)),
        (OK + b"\r\n" + b"x" * 10_000_000, (FaultKind.REPLY_TOO_LARGE, True)),
        (OK + b"X: " + b"x" * 1_000_000, (FaultKind.PROTOCOL_ERROR, True)),
    ],
    ids=["unrequested gzip", "garbage", "lengths", "length and chunks", "gzip", "gzip bomb", "length", "10 MB", "head"],
)
def test_enquiry_reply_is_unpacked_or_reported(channel: Channel, reply: bytes, comes: object) -> None:
    assert summary(run_test(ask_once(replying(reply), **channel))) == comes


@pytest.mark.parametrize("cut", [0, 10, len(REPLY) - 1])
def test_truncated_enquiry_reply_has_no_effect(channel: Channel, cut: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(REPLY[:cut])
        peer.writer.close()

    faults = {(kind, True) for kind in (FaultKind.CONNECTION_LOST, FaultKind.PROTOCOL_ERROR)}
    assert summary(run_test(ask_once(script, **channel))) in faults


@pytest.mark.parametrize("said", [b'{"status": "declined"}', b"null"])
def test_early_reply_to_enquiry_has_no_effect(said: bytes) -> None:
    """Httpx cannot detect that the reply is early, but the reply does not name the order."""

    async def script(peer: Peer) -> None:
        peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
        await peer.until_closed()

    result = run_test(ask_once(script))
    verdict = classify(result, build_request("").expected, WORDS, load_operation("payout"))
    assert verdict.outcome.kind is OutcomeKind.UNKNOWN


def test_enquiry_silence_and_total_time_are_bounded() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        advance_clock(61)
        await peer.until_closed()

    async def drip(peer: Peer) -> None:
        await peer.request()
        for byte in REPLY:
            await peer.send(bytes([byte]))
            advance_clock(50)

    assert summary(run_test(ask_once(silent))) == (FaultKind.READ_TIMEOUT, True)
    assert summary(run_test(ask_once(drip))) == (FaultKind.TOTAL_TIMEOUT, True)


async def test_failed_connection_is_reported_as_unsent(
    server_tls: ssl.SSLContext, ca_bundle: Path, authority: trustme.CA
) -> None:
    async def client_at(url: str, **changes: Any) -> tuple[FaultKind, bool] | bytes:
        async with EnquiryClient(settings_for(url, ca_bundle=ca_bundle, **changes)) as client:
            return summary(await client.send(build_request(url)))

    async with serving(stay_silent) as gone:
        pass
    assert await client_at(gone.url) == (FaultKind.CONNECT_REFUSED, False)
    through = await client_at("https://gateway.example", proxy=f"http://localhost:{gone.port}")
    assert through == (FaultKind.PROXY_FAILED, False)
    elsewhere = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("gateway.example").configure_cert(elsewhere)
    async with serving(stay_silent, tls=elsewhere) as server:
        assert await client_at(server.url) == (FaultKind.TLS_UNTRUSTED, False)
    assert summary(await ask_once(stay_silent, tls=server_tls)) == (FaultKind.TLS_UNTRUSTED, False)


async def test_enquiries_refuse_unsafe_settings_and_other_gateways() -> None:
    for settings in (settings_for("http://gateway.example"), settings_for("http://localhost", proxy="http://p:1")):
        with pytest.raises(ConfigurationError):
            EnquiryClient(settings)
    async with EnquiryClient(settings_for("https://gateway.example")) as client:
        for place in ("https://elsewhere.example", "http://gateway.example", "https://gateway.example:444"):
            with pytest.raises(InternalError):
                await client.send(build_request(place))


# The environment affects neither payouts nor enquiries.
either_client = pytest.mark.parametrize("send", [deliver_once, ask_once])
Send = Callable[..., Coroutine[Any, Any, RawReply | TransportFault]]


@either_client
@pytest.mark.parametrize("proxies", ["HTTP_PROXY HTTPS_PROXY ALL_PROXY", "http_proxy https_proxy all_proxy"])
async def test_proxy_variables_are_ignored(
    send: Send, proxies: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(expect_no_data) as proxy:
        for variable in proxies.split():
            monkeypatch.setenv(variable, proxy.url)
        assert summary(await send(answer, **channel)) == BODY
        assert proxy.peers == []


UNSAFE = ("NO_PROXY=*", "no_proxy=*", "PYTHONHTTPSVERIFY=0", "HTTPX_LOG_LEVEL=trace")


@either_client
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", *UNSAFE])
def test_enquiries_ignore_environment_and_keep_no_secret(
    send: Send,
    variable: str,
    server_tls: ssl.SSLContext,
    ca_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value or str(ca_bundle.parent if variable == "SSL_CERT_DIR" else ca_bundle))
    assert summary(run_test(send(expect_no_data, tls=server_tls))) == (FaultKind.TLS_UNTRUSTED, False)
    monkeypatch.setenv(name, value or str(tmp_path))
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys.log"))
    assert summary(run_test(send(answer, tls=server_tls, ca_bundle=ca_bundle))) == BODY
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
