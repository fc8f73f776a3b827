"""The listener on a loopback port, until a signal: then it takes no new connection and ends those that are open."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from paygw_batch.errors import ConfigurationError
from paygw_batch.listener.app import ListenerApp

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024
_BACKLOG = 2048

# Without a handler of its own the library's warnings would go to standard error, with whatever they quote.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


def listen_on(port: int) -> socket.socket:
    """Return a socket that listens on loopback. Raises `ConfigurationError`."""
    try:
        return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
    except OSError as problem:
        raise ConfigurationError(
            f"Cannot listen on {LOOPBACK}:{port}: {problem.strerror}.", hint="Choose another [notifications] port."
        ) from None


async def serve(app: ListenerApp, listener: socket.socket, *, client_timeout_s: float) -> None:
    """Serve until SIGINT or SIGTERM. A connection carries one request and ends within `client_timeout_s`."""
    server = _Server(
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

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bounded(limit_s: float) -> type[asyncio.Protocol]:
    """Return a protocol whose connections are cut after `limit_s`, whatever drips."""

    class _BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
            self._deadline = self.loop.call_later(limit_s, transport.abort)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            super().connection_lost(exc)

    return _BoundedProtocol
