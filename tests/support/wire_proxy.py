"""A TCP proxy between the program and a database: it loses answers or requests, falls silent, or plays a pooler."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from enum import Enum

DELAY_S = 0.05


class Trouble(Enum):
    NONE = "none"
    LOSE_ANSWER = "lose_answer"
    """The next request reaches the server; its answer is lost, and the connection with it."""
    LOSE_REQUEST = "lose_request"
    """The next request is lost, and the connection with it."""
    SILENCE = "silence"
    """From the next request on this connection says nothing: what the server answers is swallowed."""
    DELAY = "delay"
    """From the next request on the answers of this connection come late."""
    POOLER = "pooler"
    """New connections are told another process id than the server's, as a pooler does."""


class WireProxy:
    """Relays to `port`; `trouble` is what happens next, once: to the next request in which `only` is."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.trouble = Trouble.NONE
        self.only = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        return url.replace(f":{self._target}/", f":{self.port}/")

    def close(self) -> None:
        for one in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the server is down
                    client.close()
                    continue
                self._sockets += [client, server]
                state = {"trouble": Trouble.NONE}
                threading.Thread(target=self._up, args=(client, server, state), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, state), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, state: dict[str, Trouble]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                with self._lock:
                    if self.trouble not in {Trouble.NONE, Trouble.POOLER} and self.only in data:
                        state["trouble"], self.trouble = self.trouble, Trouble.NONE
                if state["trouble"] is Trouble.LOSE_REQUEST:
                    break
                server.sendall(data)
        self._cut(client, server)

    def _down(self, client: socket.socket, server: socket.socket, state: dict[str, Trouble]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if state["trouble"] is Trouble.LOSE_ANSWER:
                    break
                if state["trouble"] is Trouble.SILENCE:
                    continue
                if state["trouble"] is Trouble.DELAY:
                    time.sleep(DELAY_S)
                client.sendall(_as_pooler(data) if self.trouble is Trouble.POOLER else data)
        self._cut(client, server)

    def _cut(self, *both: socket.socket) -> None:
        for one in both:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _as_pooler(data: bytes) -> bytes:
    """Return what the server says with another process id in its BackendKeyData."""
    mark = b"K\x00\x00\x00\x0c"
    before, found, after = data.partition(mark)
    return before + found + b"\x00\x00\x00\x07" + after[4:] if found else data


@contextlib.contextmanager
def wire_proxy(port: int) -> Iterator[WireProxy]:
    proxy = WireProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
