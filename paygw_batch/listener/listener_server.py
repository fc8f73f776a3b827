"""Serves the listener on a loopback port until a signal; then it closes all connections."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from paygw_batch.errors import ConfigurationError
from paygw_batch.listener.listener_app import ListenerApp

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024
_BACKLOG = 2048

# Without a handler of its own the library's warnings would go to standard error, with whatever they quote.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


async def serve(app: ListenerApp, port: int, *, client_timeout_s: float, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM, both of which end it in order from before it can be connected to.

    `ready` is called with the port once it listens; 0 asks for any free one. A connection carries one request and ends
    within `client_timeout_s`. Raises `ConfigurationError` when the port cannot be had.
    """
    server = _server(app, client_timeout_s)

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        with closing(_listen_on(port)) as listener:
            ready(listener.getsockname()[1])
            await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _listen_on(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
    except OSError as problem:
        raise ConfigurationError(
            f"Cannot listen on {LOOPBACK}:{port}: {problem.strerror}.", hint="Choose another [notifications] port."
        ) from None


class _ListenerServer(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: ListenerApp, client_timeout_s: float) -> _ListenerServer:
    return _ListenerServer(
        uvicorn.Config(
            app,
            http=_bounded(client_timeout_s),
            interface="asgi3",
            lifespan="off",
            ws="none",
            workers=1,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            log_config=None,
            log_level="critical",
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=int(client_timeout_s) + 1,
        )
    )


def _bounded(limit_s: float) -> type[asyncio.Protocol]:
    """Return a protocol that cuts a connection after `limit_s`, also when bytes still arrive."""

    class _BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
            self._deadline = self.loop.call_later(limit_s, transport.abort)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            super().connection_lost(exc)

    return _BoundedProtocol
