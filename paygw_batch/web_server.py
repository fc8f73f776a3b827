"""Serves applications over HTTP on loopback, with settings shared by all our servers."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say

LOOPBACK = "127.0.0.1"
_TICK_S = 0.1
"""The interval at which uvicorn does its housekeeping, such as updating the date in responses."""
_TICKS_PER_DAY = 864_000

# Without this handler, uvicorn's warnings would go to standard error, and they may quote a request.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


def listen_on_loopback(port: int, *, backlog: int, hint: str = "", who: str = "") -> socket.socket:
    """Open a listening socket on the loopback address. Port 0 means any free port.

    Raises `ConfigurationError` with `hint` if the port cannot be used. `who` names the server in the message.
    """
    try:
        return socket.create_server((LOOPBACK, port), backlog=backlog)
    except OSError as error:
        values = {"address": LOOPBACK, "port": port, "reason": say(str(error.strerror))}
        raise ConfigurationError(
            say("{who} cannot listen on {address}:{port}: {reason}.", who=who, **values)
            if who
            else say("Cannot listen on {address}:{port}: {reason}.", **values),
            hint=hint or say("Choose another port: --port N."),
        ) from None


class LocalServer(uvicorn.Server):
    """A uvicorn server that does not log, trust proxy headers or handle signals."""

    def __init__(self, app: Callable[..., Any], *, grace_s: int, **limits: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                lifespan="off",
                ws="none",
                workers=1,
                proxy_headers=False,
                server_header=False,
                log_config=None,
                log_level="critical",
                access_log=False,
                timeout_graceful_shutdown=grace_s,
                **limits,
            )
        )
        self._end_requested = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """Stop the server without waiting for its next tick. Can be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop is already closed
                self._loop.call_soon_threadsafe(self._end_requested.set)

    async def main_loop(self) -> None:
        """Serve until `end` is called. The base class would notice it only at its next tick."""
        self._loop = asyncio.get_running_loop()
        ticks = 0
        while not await self.on_tick(ticks):
            ticks = (ticks + 1) % _TICKS_PER_DAY
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._end_requested.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals, unlike the base class."""
        yield

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM shut down the server. The block must run in the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def bounded_protocol(limit_s: float, *, heads_only: bool = False) -> type[asyncio.Protocol]:
    """Return a protocol class that closes each connection after `limit_s` seconds, even if data is still arriving.

    With `heads_only`, the limit applies only to the head of each request.
    """

    class _BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
            super().connection_made(transport)
            self._start_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if heads_only:
                cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
                if cycle is not None and not cycle.response_complete:
                    self._stop_timer()
                elif self._deadline is None:
                    self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _start_timer(self) -> None:
            self._deadline = self.loop.call_later(limit_s, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return _BoundedProtocol
