"""The shutdown of the listener, from the moment that clients can connect."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from unittest.mock import AsyncMock

import pytest

from paygw_batch.errors import ConfigurationError
from paygw_batch.listener import Limits, ListenerApp, serve
from paygw_batch.web_server import LOOPBACK
from tests.support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _restore_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def listen(port: int, on_ready: Callable[[int], None]) -> None:
    app = ListenerApp(
        "/paygw/token",
        read_claim=lambda _received: "nothing is sent to it",
        store=AsyncMock(),
        limits=Limits(max_body_bytes=1024, rate_per_s=10.0),
        now=lambda: "2026-01-31T12:00:00Z",
        monotonic_s=time.monotonic,
    )
    asyncio.run(asyncio.wait_for(serve(app, port, client_timeout_s=1.0, on_ready=on_ready), timeout=PATIENCE_S))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_on_first_connection_ends_listener_cleanly(number: signal.Signals) -> None:
    ports: list[int] = []

    def on_ready(port: int) -> None:
        with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S):
            ports.append(port)
        signal.raise_signal(number)

    listen(0, on_ready)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, ports[0]), timeout=PATIENCE_S)


def test_port_in_use_error_names_setting() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"Cannot listen on {LOOPBACK}:{port}") as refused:
            listen(port, lambda _port: pytest.fail("it listens"))
    assert "[notifications] port" in refused.value.hint
