"""The null gateway if nginx is missing: a minimal HTTP/1.1 server, on uvloop if installed."""

import argparse
import asyncio
import re
import signal
import ssl
from pathlib import Path
from typing import cast

from benchmarks.loops import loop_factory

_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_ORDER_ID = re.compile(rb'"client_orderid": ?"([^"]+)"')


class RequestAssembler(asyncio.Protocol):
    """Assembles the requests of one connection in order, and writes their answers."""

    def __init__(self) -> None:
        self._unread = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of a new connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is compatible, but not a subclass

    def data_received(self, data: bytes) -> None:
        """Pass a request on once its whole body has arrived."""
        self._unread += data
        head, blank, body = self._unread.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not blank or length is None or len(body) < int(length[1]):
            return
        self._unread = b""
        self.handle_request(body, _CLOSE.search(head) is not None)

    def handle_request(self, body: bytes, closes: bool) -> None:
        """Handle the body of a request. `answer` answers it, now or later."""
        raise NotImplementedError

    def answer(self, content: bytes | None, closes: bool) -> None:
        """Write an answer with this JSON, or close the connection if it is None."""
        if self._transport is None or self._transport.is_closing():
            return
        if content is None:
            self._transport.abort()
            return
        self._transport.write(_REPLY % (len(content), content))
        if closes:
            self._transport.close()


class ApprovingProtocol(RequestAssembler):
    """Answers each request with an approval that echoes the order id."""

    def __init__(self, latency_s: float) -> None:
        super().__init__()
        self._latency_s = latency_s

    def handle_request(self, body: bytes, closes: bool) -> None:
        """Approve an order."""
        order_id = _ORDER_ID.search(body)
        content = b'{"status":"approved","client_orderid":"%b"}' % (order_id[1] if order_id else b"")
        if self._latency_s:
            asyncio.get_running_loop().call_later(self._latency_s, self.answer, content, closes)
        else:
            self.answer(content, closes)


async def serve(port: int, tls_port: int, directory: Path, latency_s: float) -> None:
    """Serve on both loopback ports until SIGTERM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certificate.pem", directory / "certificate.key")
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    for item, ssl_context in ((port, None), (tls_port, context)):
        await loop.create_server(
            lambda: ApprovingProtocol(latency_s), "127.0.0.1", item, backlog=4096, ssl=ssl_context, reuse_address=True
        )
    await stopped.wait()


def main() -> None:
    """Run the server with the options of the command line."""
    parser = argparse.ArgumentParser(description="A gateway that answers at once.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tls-port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="where certificate.pem and .key are")
    parser.add_argument("--latency-s", type=float, default=0.0)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(arguments.port, arguments.tls_port, arguments.directory, arguments.latency_s))


if __name__ == "__main__":
    main()
