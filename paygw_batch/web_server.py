"""Serves an application over HTTP on this machine alone. All servers of the program share these settings."""

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

# Without this handler the warnings of uvicorn, which may quote a request, would go to standard error.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


def listen_on_loopback(port: int, *, backlog: int, hint: str = "", who: str = "") -> socket.socket:
    """Return a socket that listens on the loopback address. Port 0 means any free port.

    Raises `ConfigurationError` with `hint` if the port cannot be used. `who` names the server in its message.
    """
    try:
        return socket.create_server((LOOPBACK, port), backlog=backlog)
    except OSError as problem:
        where = {"address": LOOPBACK, "port": port, "reason": say(str(problem.strerror))}
        raise ConfigurationError(
            say("{who} cannot listen on {address}:{port}: {reason}.", who=who, **where)
            if who
            else say("Cannot listen on {address}:{port}: {reason}.", **where),
            hint=hint or say("Choose another port: --port N."),
        ) from None


_TICK_S = 0.1
"""The interval in seconds at which uvicorn does its regular work, such as renewing the date in answers."""
_TICKS_OF_A_DAY = 864_000


class LocalServer(uvicorn.Server):
    """A uvicorn server for one application, without a log, trust in proxies' headers, or uvicorn's signal handlers."""

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
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """Make the server stop now rather than at its next tick. May be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended already
                self._loop.call_soon_threadsafe(self._ended.set)

    async def main_loop(self) -> None:
        """Serve until `end` is called. Without this override, uvicorn would notice that only at its next tick."""
        self._loop = asyncio.get_running_loop()
        ticks = 0
        while not await self.on_tick(ticks):
            ticks = (ticks + 1) % _TICKS_OF_A_DAY
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._ended.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signal. Without this override, uvicorn would."""
        yield

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop the server in order during the block. The block must run in the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def bounded(limit_s: float, *, heads_alone: bool = False) -> type[asyncio.Protocol]:
    """Return a protocol that cuts a connection after `limit_s` seconds, even while bytes still arrive.

    With `heads_alone` the time runs only until the head of a request is complete. A client that never finishes a head
    then loses its connection, while bodies and answers, which have separate limits, may take longer.
    """

    class _BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
            super().connection_made(transport)
            self._start()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if heads_alone:
                cycle = cast("RequestResponseCycle | None", self.cycle)  # the cycle is None before the first request
                if cycle is not None and not cycle.response_complete:
                    self._stop()
                elif self._deadline is None:
                    self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _start(self) -> None:
            self._deadline = self.loop.call_later(limit_s, self.transport.abort)

        def _stop(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return _BoundedProtocol
