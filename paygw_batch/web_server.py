"""Serves an application over HTTP on this machine alone: the settings of every server of the program, once."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from paygw_batch.errors import ConfigurationError

LOOPBACK = "127.0.0.1"

# Without this handler the library's warnings would go to standard error, with any text that they quote.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


def listen_on_loopback(port: int, *, backlog: int, hint: str, who: str = "") -> socket.socket:
    """Return a socket on loopback; 0 asks for any free port. Raises `ConfigurationError` with `hint` for one in use."""
    try:
        return socket.create_server((LOOPBACK, port), backlog=backlog)
    except OSError as problem:
        raise ConfigurationError(
            f"{f'{who} cannot' if who else 'Cannot'} listen on {LOOPBACK}:{port}: {problem.strerror}.", hint=hint
        ) from None


class LocalServer(uvicorn.Server):
    """Serves one application in one process: without a log, believing no proxy's headers, leaving signals to us."""

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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signal, as the library would."""
        yield

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the serving in order while the block lasts. To be entered in the event loop."""

        def stop() -> None:
            self.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
