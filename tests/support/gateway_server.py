"""A gateway that follows a test's script byte by byte, and a clock that a test can advance.

Servers and client share one event loop, so a test runs in one thread. `JumpingLoop` makes timeouts of a minute instant:
nothing here sleeps, and nothing measures time.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeVar, cast

from paygw_batch.gateway.address import Connections, TransportSettings
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import ExpectedReply, FaultKind, PreparedRequest, RawReply, TransportFault
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
Script = Callable[["Peer"], Awaitable[None]]

PATH = "/paynet/api/v4/payout/1234"
BODY = b'{"status":"approved","client_orderid":"PAY-1"}'
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be advanced, and whose DNS lookups can be scripted."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self.names: dict[str, list[str] | OSError] = {"localhost": ["127.0.0.1"]}
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead_s

    def advance_clock(self, seconds: float) -> None:
        self._ahead_s += seconds

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        results = self.names.get(host)
        if isinstance(results, OSError):
            raise results
        if results is not None:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in results]
        return await super().getaddrinfo(host, port, **options)


def run_test(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test on a `JumpingLoop`. Fails if an exception was unhandled, or if tasks were left in the loop."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        result = runner.run(coroutine)
    assert unhandled == []
    return result


def advance_clock(seconds: float) -> None:
    cast("JumpingLoop", asyncio.get_running_loop()).advance_clock(seconds)


@dataclass
class Peer:
    """The server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int  # 0 for the first connection to the server

    async def request(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        return head + await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        """Write data, and wait until the client has seen it."""
        self.writer.write(data)
        await self.writer.drain()
        await run_loop()

    async def answer(self, reply: bytes = REPLY) -> bytes:
        """Answer one request, and wait for the client to close the connection."""
        request = await self.request()
        await self.send(reply)
        return request

    def reset(self) -> None:
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def cut(self) -> None:
        """End the TCP stream, without close_notify under TLS."""
        self.writer.transport.abort()

    async def until_closed(self) -> bytes:
        """Read until the client ends the connection, and return the received bytes."""
        try:
            return await self.reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""


async def run_loop(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Server:
    port: int
    tls: bool
    peers: list[Peer] = field(default_factory=list)
    scripts: set[asyncio.Task[None]] = field(default_factory=set)

    async def finished(self) -> None:
        if self.scripts:
            _, unfinished = await asyncio.wait(self.scripts, timeout=PATIENCE_S)
            assert not unfinished

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None, limit: int = 2**16) -> AsyncIterator[Server]:
    """Serve every connection with `script`, whose errors fail the test. At most `limit` bytes are read ahead."""
    problems: list[BaseException] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, len(server.peers))
        server.peers.append(peer)
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("no task")
        server.scripts.add(task)
        try:
            await script(peer)
        except (asyncio.CancelledError, ConnectionError, ssl.SSLError):
            pass  # the test is over, or the client has disconnected
        except Exception as problem:  # noqa: BLE001 (told at the end)
            problems.append(problem)
        finally:
            writer.transport.abort()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, limit=limit)
    server = Server(listener.sockets[0].getsockname()[1], tls is not None)
    try:
        yield server
    finally:
        listener.close()
        for task in server.scripts:
            task.cancel()
        await asyncio.gather(*server.scripts, return_exceptions=True)
        await run_loop()
    assert problems == []


def settings_for(url: str, **changes: Any) -> TransportSettings:
    return replace(TransportSettings(url), **changes)


def always() -> bool:
    return True


def build_request(url: str, order_id: str = "PAY-1", body: bytes | None = None) -> PreparedRequest:
    """Return a request for a server at `url`, as a signer would prepare it."""
    return PreparedRequest(
        url=url + PATH,
        authorization='OAuth oauth_nonce="0"',
        body=body if body is not None else b'{"client_orderid":"%s"}' % order_id.encode(),
        body_sha256="",
        nonce="0",
        timestamp_s=0,
        purpose=None,
        endpoint_id="1234",
        expected=ExpectedReply(order_id, Decimal(1), "KES"),
    )


@dataclass
class Line:
    server: Server
    url: str
    transport: PayoutTransport

    async def deliver(self, order_id: str = "PAY-1", body: bytes | None = None) -> RawReply | TransportFault:
        return await self.transport.deliver(build_request(self.url, order_id, body), always)


@asynccontextmanager
async def line_to_script(
    script: Script, *, tls: ssl.SSLContext | None = None, by_hand: bool = False, **changes: Any
) -> AsyncIterator[Line]:
    """Serve with `script`, and yield a transport to it. With `by_hand`, the script handles TLS itself."""
    async with serving(script, tls=tls) as server:
        url = server.url.replace("http:", "https:") if by_hand else server.url
        async with PayoutTransport(settings_for(url, **changes)) as transport:
            yield Line(server, url, transport)
        assert transport._open_connections == set()


async def deliver_once(
    script: Script, *, tls: ssl.SSLContext | None = None, body: bytes | None = None, limit: int = 2**16, **changes: Any
) -> RawReply | TransportFault:
    """Send one payout to a server that follows `script`, and assert that no connection stays open."""
    async with serving(script, tls=tls, limit=limit) as server:
        transport = PayoutTransport(settings_for(server.url, **changes))
        result = await transport.deliver(build_request(server.url, body=body), always)
        if changes.get("connections") is not Connections.REUSE:
            await run_loop()
            assert transport._open_connections == set()
        await transport.aclose()
        assert transport._open_connections == set()
        return result


HUGE = b"x" * 2**25  # more than the kernel accepts at once, so that a write has to wait for its reader


def summary(result: RawReply | TransportFault) -> tuple[FaultKind, bool] | bytes:
    """Return the body of a reply, or the kind and witness of a fault."""
    return result.body if isinstance(result, RawReply) else (result.kind, result.first_byte_sent)


async def answer(peer: Peer) -> None:
    """Answer one request, and wait for the client to close."""
    await peer.answer()
    await peer.until_closed()


async def stay_silent(peer: Peer) -> None:
    await peer.until_closed()


def replying(reply: bytes) -> Script:
    """Return a script that answers one request with these bytes, and waits for the client to close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(reply)
        await peer.until_closed()

    return script


async def expect_no_data(peer: Peer) -> None:
    raise AssertionError(f"a request came: {await peer.reader.read()!r}")


async def hang_up(peer: Peer) -> None:
    await peer.reader.read(100)
    peer.cut()


async def reset(peer: Peer) -> None:
    """Take the first bytes and reset the connection."""
    await peer.reader.read(100)
    peer.reset()


def pause_reading(peer: Peer) -> None:
    """Stop reading from the connection, so that the client's write cannot finish."""
    transport = peer.writer.transport
    if isinstance(transport, asyncio.ReadTransport) and transport.is_reading():
        transport.pause_reading()


def resume_reading(peer: Peer) -> None:
    transport = peer.writer.transport
    if isinstance(transport, asyncio.ReadTransport) and not transport.is_reading():
        transport.resume_reading()
