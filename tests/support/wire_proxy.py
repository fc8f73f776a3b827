"""A TCP proxy between the program and a database, which loses messages, falls silent, or acts as a pooler."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from enum import Enum

DELAY_S = 0.05


class ProxyFault(Enum):
    NONE = "none"
    LOSE_ANSWER = "lose_answer"  # the next request reaches the server; its answer is lost, and the connection with it
    LOSE_REQUEST = "lose_request"  # the next request is lost, and the connection with it
    SILENCE = "silence"  # from the next request on this connection says nothing: what the server answers is swallowed
    DELAY = "delay"  # from the next request on the answers of this connection come late
    POOLER = "pooler"  # new connections are told another process id than the server's, as a pooler does


class WireProxy:
    """Relays to `port`. `trouble` affects the next request that contains `only`, once."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.trouble = ProxyFault.NONE
        self.only = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        return url.replace(f":{self._target}/", f":{self.port}/")

    def close(self) -> None:
        for item in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

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
                state = {"trouble": ProxyFault.NONE}
                threading.Thread(target=self._relay_requests, args=(client, server, state), daemon=True).start()
                threading.Thread(target=self._relay_answers, args=(client, server, state), daemon=True).start()

    def _relay_requests(self, client: socket.socket, server: socket.socket, state: dict[str, ProxyFault]) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                with self._lock:
                    if self.trouble not in {ProxyFault.NONE, ProxyFault.POOLER} and self.only in data:
                        state["trouble"], self.trouble = self.trouble, ProxyFault.NONE
                if state["trouble"] is ProxyFault.LOSE_REQUEST:
                    break
                server.sendall(data)
        self._close_all(client, server)

    def _relay_answers(self, client: socket.socket, server: socket.socket, state: dict[str, ProxyFault]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if state["trouble"] is ProxyFault.LOSE_ANSWER:
                    break
                if state["trouble"] is ProxyFault.SILENCE:
                    continue
                if state["trouble"] is ProxyFault.DELAY:
                    time.sleep(DELAY_S)
                client.sendall(_rewrite_process_id(data) if self.trouble is ProxyFault.POOLER else data)
        self._close_all(client, server)

    def _close_all(self, *both: socket.socket) -> None:
        for item in both:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)


def _rewrite_process_id(data: bytes) -> bytes:
    """Return the server's bytes with another process id in its BackendKeyData."""
    mark = b"K\x00\x00\x00\x0c"
    before, result, after = data.partition(mark)
    return before + result + b"\x00\x00\x00\x07" + after[4:] if result else data


@contextlib.contextmanager
def wire_proxy(port: int) -> Iterator[WireProxy]:
    proxy = WireProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
