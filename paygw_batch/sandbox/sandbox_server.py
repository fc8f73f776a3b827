"""Serves the sandbox on a loopback port: in a thread during a run, or in the foreground for its own command."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paygw_batch.errors import InternalError
from paygw_batch.sandbox.record import Record
from paygw_batch.sandbox.sandbox_app import SandboxApp, SandboxConfig
from paygw_batch.web_server import LOOPBACK, LocalServer, listen_on_loopback

_BACKLOG = 2048
_START_LIMIT_S = 30
_STOP_LIMIT_S = 10


class _DroppableProtocol(HttpToolsProtocol):
    """Hands every request its transport, in the scope's `state`, so that the application can drop the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


@contextmanager
def running_sandbox(config: SandboxConfig, *, port: int = 0) -> Iterator[str]:
    """Run the sandbox in a thread of this process while the context lasts, and yield its base URL.

    It listens on loopback only, on a free port unless `port` names one; it installs no signal handler and prints
    nothing. At the end every connection that is still open is cut. Raises `ConfigurationError` (a port in use, a record
    or key that cannot be used).
    """
    with ExitStack() as stack:
        records = {each.operation.name: stack.enter_context(Record(each.record_path)) for each in config.served}
        app = SandboxApp(config, records)
        listener = listen_on_loopback(port, backlog=_BACKLOG, hint="Choose another --port.", who="The sandbox")
        server = _SandboxServer(app, http=_DroppableProtocol, grace_s=0)
        thread = threading.Thread(target=server.run, args=([listener],), name="paygw-sandbox", daemon=True)
        thread.start()
        try:
            _wait_until_started(server, thread)
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_STOP_LIMIT_S)
            listener.close()


def serve(config: SandboxConfig, port: int, *, ready: Callable[[str], None]) -> None:
    """Run the sandbox until SIGINT or SIGTERM, and return. `ready` is called with the base URL once it answers."""
    stop = threading.Event()

    def leave(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with running_sandbox(config, port=port) as base_url:
            ready(base_url)
            stop.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _SandboxServer(LocalServer):
    """Cuts the open connections when it stops: a silent or dripping answer would otherwise delay the stop."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


def _wait_until_started(server: LocalServer, thread: threading.Thread) -> None:
    give_up_at_s = time.monotonic() + _START_LIMIT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > give_up_at_s:
            raise InternalError("The sandbox did not start.")
        time.sleep(0.002)
