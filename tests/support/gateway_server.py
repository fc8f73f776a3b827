"""A gateway that does what a test scripts, byte by byte, and a clock that a test moves on.

Servers and client share one event loop, so a test plays in one thread. `JumpingLoop` makes time-outs of a minute
testable in no time: nothing here sleeps, and nothing measures.
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
from paygw_batch.gateway.message import Expected, FaultKind, PreparedRequest, RawReply, TransportFault
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
Script = Callable[["Peer"], Awaitable[None]]

PATH = "/paynet/api/v4/payout/1234"
BODY = b'{"status":"approved","client_orderid":"PAY-1"}'
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved on, and whose name service can be scripted."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self.names: dict[str, list[str] | OSError] = {"localhost": ["127.0.0.1"]}
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead_s

    def jump(self, seconds: float) -> None:
        """Let `seconds` go by at once."""
        self._ahead_s += seconds

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        found = self.names.get(host)
        if isinstance(found, OSError):
            raise found
        if found is not None:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]
        return await super().getaddrinfo(host, port, **options)


def play(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test on a `JumpingLoop`, and fail it if anything went unhandled or was left behind in the loop."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        result = runner.run(coroutine)
    assert unhandled == []
    return result


def jump(seconds: float) -> None:
    """Move the clock of the running loop on."""
    cast("JumpingLoop", asyncio.get_running_loop()).jump(seconds)


@dataclass
class Peer:
    """The server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    """0 for the first connection to the server."""

    async def request(self) -> bytes:
        """Read one whole request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        return head + await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        """Write, and let the client see it before anything else is written."""
        self.writer.write(data)
        await self.writer.drain()
        await turns()

    async def answer(self, reply: bytes = REPLY) -> bytes:
        """Read one request and answer it."""
        request = await self.request()
        await self.send(reply)
        return request

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def cut(self) -> None:
        """End the TCP stream; under TLS without saying so first."""
        self.writer.transport.abort()

    async def until_closed(self) -> bytes:
        """Read until the client ends the connection, and return what came."""
        try:
            return await self.reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""


async def turns(count: int = 10) -> None:
    """Let the loop go round a few times."""
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Server:
    """A listening server: where it is, and what has come to it."""

    port: int
    tls: bool
    peers: list[Peer] = field(default_factory=list)
    scripts: set[asyncio.Task[None]] = field(default_factory=set)

    async def finished(self) -> None:
        """Wait until every script has come to its end."""
        if self.scripts:
            _, unfinished = await asyncio.wait(self.scripts, timeout=PATIENCE_S)
            assert not unfinished

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None, limit: int = 2**16) -> AsyncIterator[Server]:
    """Serve every connection with `script`; what it raises fails the test. No more than `limit` is read ahead of it."""
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
            pass  # the test is over, or the client has gone
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
        await turns()
    assert problems == []


def settings_for(url: str, **changes: Any) -> TransportSettings:
    """Return the settings as shipped, for a server at `url`."""
    return replace(TransportSettings(url), **changes)


def at_any_time() -> bool:
    """Let a request leave whenever it is ready."""
    return True


def request_to(url: str, order_id: str = "PAY-1", body: bytes | None = None) -> PreparedRequest:
    """Return a request as a signer would have prepared it, for a server at `url`."""
    return PreparedRequest(
        url=url + PATH,
        authorization='OAuth oauth_nonce="0"',
        body=body if body is not None else b'{"client_orderid":"%s"}' % order_id.encode(),
        body_sha256="",
        nonce="0",
        timestamp_s=0,
        purpose=None,
        endpoint_id="1234",
        expected=Expected(order_id, Decimal(1), "KES"),
    )


@dataclass
class Line:
    """A server, and a transport that sends to it."""

    server: Server
    url: str
    transport: PayoutTransport

    async def deliver(self, order_id: str = "PAY-1", body: bytes | None = None) -> RawReply | TransportFault:
        return await self.transport.deliver(request_to(self.url, order_id, body), at_any_time)


@asynccontextmanager
async def sending(
    script: Script, *, tls: ssl.SSLContext | None = None, by_hand: bool = False, **changes: Any
) -> AsyncIterator[Line]:
    """Serve with `script`, which speaks TLS `by_hand`, and send on settings with `changes`; nothing is left open."""
    async with serving(script, tls=tls) as server:
        url = server.url.replace("http:", "https:") if by_hand else server.url
        async with PayoutTransport(settings_for(url, **changes)) as transport:
            yield Line(server, url, transport)
        assert transport._living == set()


async def deliver_once(
    script: Script, *, tls: ssl.SSLContext | None = None, body: bytes | None = None, limit: int = 2**16, **changes: Any
) -> RawReply | TransportFault:
    """Send one payout to a server that follows `script`, on settings with `changes`; nothing may be left open."""
    async with serving(script, tls=tls, limit=limit) as server:
        transport = PayoutTransport(settings_for(server.url, **changes))
        result = await transport.deliver(request_to(server.url, body=body), at_any_time)
        if changes.get("connections") is not Connections.REUSE:
            await turns()
            assert transport._living == set()
        await transport.aclose()
        assert transport._living == set()
        return result


# What scripts have in common.

HUGE = b"x" * 2**25
"""More than the kernel takes at once, so that a write has to wait for its reader."""


def summary(result: RawReply | TransportFault) -> tuple[FaultKind, bool] | bytes:
    """Return the body of a reply, or kind and witness of a fault."""
    return result.body if isinstance(result, RawReply) else (result.kind, result.first_byte_left)


async def answer(peer: Peer) -> None:
    """Answer one request, and wait for the client to close."""
    await peer.answer()
    await peer.until_closed()


async def silence(peer: Peer) -> None:
    """Never say anything."""
    await peer.until_closed()


async def never_asked(peer: Peer) -> None:
    """Fail the test: no byte of the application was to come here."""
    raise AssertionError(f"a request came: {await peer.reader.read()!r}")


async def hang_up(peer: Peer) -> None:
    """Take the first bytes and end the stream."""
    await peer.reader.read(100)
    peer.cut()


async def reset(peer: Peer) -> None:
    """Take the first bytes and reset the connection."""
    await peer.reader.read(100)
    peer.reset()


def pause_reading(peer: Peer) -> None:
    """Take nothing more from the connection, so that the client's write cannot end."""
    transport = peer.writer.transport
    if isinstance(transport, asyncio.ReadTransport) and transport.is_reading():
        transport.pause_reading()


def resume_reading(peer: Peer) -> None:
    """Take from the connection again."""
    transport = peer.writer.transport
    if isinstance(transport, asyncio.ReadTransport) and not transport.is_reading():
        transport.resume_reading()
