"""Serves the pages on a real port for a real browser."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socket import create_server, socket

from paygw_batch.console.console_app import build_console, console_app
from paygw_batch.settings.configuration import load_settings
from paygw_batch.web_server import LocalServer
from tests.support.program import Program


def free_listener() -> socket:
    return create_server(("127.0.0.1", 0))


@contextmanager
def serve_pages(program: Program, listener: socket) -> Iterator[None]:
    settings = load_settings(program.config, environ=program.environ)
    port = listener.getsockname()[1]
    environ = {**program.environ, "PATH": os.defpath}
    console = build_console(settings, config=program.config, environ=environ, port=port)
    server = LocalServer(console_app(console), grace_s=30)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.dup()]})
    thread.start()
    try:
        yield
    finally:
        server.end()
        thread.join()
        console.sessions.close()
