"""Serves the sandbox on a loopback port: in a thread during a run, or in the foreground for its own command."""

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paygw_batch.errors import ConfigurationError, InternalError
from paygw_batch.sandbox.record import Record
from paygw_batch.sandbox.sandbox_app import SandboxApp, SandboxConfig

_LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
_START_LIMIT_S = 30
_STOP_LIMIT_S = 10

# Without this handler the library's warnings would go to standard error.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


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
        listener = _listen(port)
        server = _server(app)
        thread = threading.Thread(target=server.run, args=([listener],), name="paygw-sandbox", daemon=True)
        thread.start()
        try:
            _wait_until_started(server, thread)
            yield f"http://{_LOOPBACK}:{listener.getsockname()[1]}"
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


class _SandboxServer(uvicorn.Server):
    """Cuts the open connections when it stops: a silent or dripping answer would otherwise delay the stop."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


def _server(app: SandboxApp) -> _SandboxServer:
    return _SandboxServer(
        uvicorn.Config(
            app,
            http=_DroppableProtocol,
            interface="asgi3",
            lifespan="off",
            ws="none",
            workers=1,
            proxy_headers=False,
            server_header=False,
            log_config=None,
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=0,
        )
    )


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, port), backlog=_BACKLOG)
    except OSError as problem:
        raise ConfigurationError(
            f"The sandbox cannot listen on {_LOOPBACK}:{port}: {problem.strerror}.", hint="Choose another --port."
        ) from None


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    give_up_at_s = time.monotonic() + _START_LIMIT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > give_up_at_s:
            raise InternalError("The sandbox did not start.")
        time.sleep(0.002)
