"""Serves the pages on a loopback port or a Unix socket until a signal."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from paygw_batch.console.console_app import console_app, console_of
from paygw_batch.console.web_guard import AsgiApp, AsgiReceive, AsgiScope, AsgiSend
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.web_server import LOOPBACK, LocalServer, bounded, listen_on_loopback

MAX_CONNECTIONS = 256
_BACKLOG = 256
_MAX_HEAD_BYTES = 32 * 1024
_GRACE_S = 10
HEAD_LIMIT_S = 5.0
"""How long the head of a request may take to arrive. A browser, or the proxy before it, sends it at once."""


def serve_console(
    settings: Settings,
    config: Path | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    read_again: Callable[[], Settings],
) -> None:
    """Serve the pages by the settings of the file `config` until SIGINT or SIGTERM; `tell` is called with the place.

    `read_again` reads that file: people get their keys while the pages are served.
    """
    section = settings.console
    with ExitStack() as stack:
        if section.socket is None:
            listener = stack.enter_context(closing(listen_on_port(section.port)))
            port = int(listener.getsockname()[1])
            place = section.origin or f"http://{LOOPBACK}:{port}"
        elif section.origin is None:
            raise ConfigurationError(say("console.socket needs console.origin: the address that browsers see."))
        else:
            listener, port = stack.enter_context(listen_on_socket(section.socket)), 0
            place = say("{socket}, for {origin}", socket=section.socket, origin=section.origin)

        def served(settings: Settings) -> AsgiApp:
            found = console_of(settings, config=config, environ=environ, port=port)
            return console_app(stack.enter_context(closing(found)))

        app = CurrentPages(config, served(settings), lambda: served(read_again()), tell)
        asyncio.run(serve_pages(app, listener, ready=lambda: tell(say("The pages are at {place}.", place=place))))


class CurrentPages:
    """The pages by the configuration as it is: after a change of its file they are built again.

    A file that cannot be used changes nothing, and `tell` is called with the reason.
    """

    def __init__(
        self, config: Path | None, pages: AsgiApp, build: Callable[[], AsgiApp], tell: Callable[[str], None]
    ) -> None:
        self._config, self._pages, self._build, self._tell = config, pages, build, tell
        self._built_of = self._mark()
        self._building = asyncio.Lock()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Answer one request."""
        if self._mark() != self._built_of:
            async with self._building:
                if (mark := self._mark()) != self._built_of:
                    self._built_of = mark
                    await asyncio.to_thread(self._read_again)
        await self._pages(scope, receive, send)

    def _read_again(self) -> None:
        try:
            self._pages = self._build()
        except PaygwError as error:
            self._tell(
                say(
                    "The changed configuration cannot be used: {reason} The pages continue as before.",
                    reason=error.message,
                )
            )

    def _mark(self) -> tuple[int, int] | None:
        """Return a mark that another version of the file does not have; None while there is none."""
        if self._config is None:
            return None
        with suppress(OSError):
            found = self._config.stat()
            return found.st_mtime_ns, found.st_size
        return None


def listen_on_port(port: int) -> socket.socket:
    """Return a socket on loopback; 0 asks for any free port. The pages are never on another address."""
    return listen_on_loopback(port, backlog=_BACKLOG)


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
        raise ConfigurationError(
            say("Cannot listen on {path}: {reason}.", path=path, reason=say(str(problem.strerror))),
            hint=say("Name another place."),
        ) from None
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
        http=bounded(HEAD_LIMIT_S, heads_alone=True),
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        grace_s=_GRACE_S,
    )
    with server.stopped_by_signals():
        ready()
        await server.serve(sockets=[listener])
