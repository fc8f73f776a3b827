"""Planted bugs of the transport: each is active only here, and the test that must detect it does."""

import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from paygw_batch.gateway.http import transport
from paygw_batch.gateway.http.connection import Connection
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import PreparedRequest, RawReply, SendGuard, TransportFault
from tests.gateway import test_gateway_reuse, test_gateway_tls, test_gateway_transport
from tests.support.gateway_server import run_test

PLAIN: dict[str, Any] = {"tls": None}


def expect_failure(story: Callable[..., Coroutine[Any, Any, None]], *arguments: object, **options: object) -> None:
    """Run a test that must fail now."""
    with pytest.raises((AssertionError, ssl.SSLError, ExceptionGroup)):
        run_test(story(*arguments, **options))


@pytest.fixture
def skip_reuse_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reuse any open connection without checks."""
    monkeypatch.setattr(
        Connection, "is_fit", lambda self: self._transport is not None and not self._transport.is_closing()
    )


@pytest.mark.usefixtures("skip_reuse_checks")
def test_unchecked_keep_alive_is_detected_by_stray_byte() -> None:
    story = test_gateway_reuse.test_stray_byte_on_idle_connection_is_not_reply
    expect_failure(story, PLAIN, b"x", seen=False)


@pytest.mark.usefixtures("skip_reuse_checks")
def test_unchecked_keep_alive_is_detected_by_ended_connection() -> None:
    expect_failure(test_gateway_reuse.test_ended_connection_carries_no_further_request, PLAIN, "cut", seen=False)


def test_planted_http_2_is_detected(authority: trustme.CA, ca_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context_of = transport.client_context  # type: ignore[attr-defined]

    def allow_http2(bundle: Path | None) -> ssl.SSLContext:
        context: ssl.SSLContext = context_of(bundle)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

    monkeypatch.setattr(transport, "client_context", allow_http2)
    expect_failure(test_gateway_tls.test_http_2_is_never_negotiated, authority, ca_bundle)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_planted_redirect_following_is_detected(monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool) -> None:
    deliver = PayoutTransport.deliver

    async def follow_redirects(
        self: PayoutTransport, request: PreparedRequest, may_leave: SendGuard
    ) -> RawReply | TransportFault:
        result = await deliver(self, request, may_leave)
        if not isinstance(result, RawReply) or not 300 <= result.http_status < 400:
            return result
        place = dict(result.headers)["location"]
        if place.startswith("/"):
            return await deliver(self, request, may_leave)
        other = PayoutTransport(replace(self._settings, base_url=place.partition("/paynet")[0], read_timeout_s=0.01))
        return await deliver(other, replace(request, url=place), may_leave)

    monkeypatch.setattr(PayoutTransport, "deliver", follow_redirects)
    expect_failure(test_gateway_transport.test_redirect_is_returned_and_never_followed, 307, elsewhere=elsewhere)
