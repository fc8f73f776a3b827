"""Serves the listener on a loopback port until a signal; then it closes all connections."""

import asyncio
from collections.abc import Callable
from contextlib import closing

from uvicorn.protocols.http.h11_impl import H11Protocol

from paygw_batch.listener.listener_app import ListenerApp
from paygw_batch.web_server import LocalServer, listen_on_loopback

MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024
_BACKLOG = 2048


async def serve(app: ListenerApp, port: int, *, client_timeout_s: float, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM, both of which end it in order from before it can be connected to.

    `ready` is called with the port once it listens; 0 asks for any free one. A connection carries one request and ends
    within `client_timeout_s`. Raises `ConfigurationError` when the port cannot be had.
    """
    server = LocalServer(
        app,
        http=_bounded(client_timeout_s),
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        grace_s=int(client_timeout_s) + 1,
    )
    hint = "Choose another [notifications] port."
    with server.stopped_by_signals(), closing(listen_on_loopback(port, backlog=_BACKLOG, hint=hint)) as listener:
        ready(listener.getsockname()[1])
        await server.serve(sockets=[listener])


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
