"""Serves the pages on a loopback port or a Unix socket until a signal."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from paygw_batch.console.console_app import console_app, console_of
from paygw_batch.console.web_guard import AsgiApp
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.web_server import LOOPBACK, LocalServer, listen_on_loopback

MAX_CONNECTIONS = 256
_BACKLOG = 256
_MAX_HEAD_BYTES = 32 * 1024
_GRACE_S = 10


def serve_console(
    settings: Settings, config: Path | None, environ: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    """Serve the pages by the settings of the file `config` until SIGINT or SIGTERM; `tell` is called with the place."""
    section = settings.console
    with ExitStack() as stack:
        if section.socket is None:
            listener = stack.enter_context(closing(listen_on_port(section.port)))
            port = int(listener.getsockname()[1])
            place = section.origin or f"http://{LOOPBACK}:{port}"
        elif section.origin is None:
            raise ConfigurationError("console.socket needs console.origin: the address that browsers see.")
        else:
            listener, port = stack.enter_context(listen_on_socket(section.socket)), 0
            place = say("{socket}, for {origin}", socket=section.socket, origin=section.origin)
        console = stack.enter_context(closing(console_of(settings, config=config, environ=environ, port=port)))
        app = console_app(console)
        asyncio.run(serve_pages(app, listener, ready=lambda: tell(say("The pages are at {place}.", place=place))))


def listen_on_port(port: int) -> socket.socket:
    """Return a socket on loopback; 0 asks for any free port. The pages are never on another address."""
    return listen_on_loopback(port, backlog=_BACKLOG, hint="Choose another port: --port N.")


@contextmanager
def listen_on_socket(path: Path) -> Iterator[socket.socket]:
    """Yield a Unix socket, for its owner and group alone; a proxy in front of it speaks TLS."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(_BACKLOG)
    except OSError as problem:
        listener.close()
        raise ConfigurationError(f"Cannot listen on {path}: {problem.strerror}.", hint="Name another place.") from None
    try:
        yield listener
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink()


async def serve_pages(app: AsgiApp, listener: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. Runs are other processes, and go on."""
    server = LocalServer(
        app,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        grace_s=_GRACE_S,
    )
    with server.stopped_by_signals():
        ready()
        await server.serve(sockets=[listener])
