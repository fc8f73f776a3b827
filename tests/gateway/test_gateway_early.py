"""Bytes that arrive before, between and during the bytes of the request.

Every gateway here uses a real socket. Its bytes would be accepted as a reply if they came after the request.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from paygw_batch.gateway.address import Connections
from paygw_batch.gateway.http import connection, transport
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import FaultKind, RawReply, SendGuard, TransportFault
from tests.support.gateway_server import (
    BODY,
    HUGE,
    REPLY,
    Peer,
    Script,
    advance_clock,
    always,
    answer,
    build_request,
    deliver_once,
    hang_up,
    line_to_script,
    pause_reading,
    resume_reading,
    run_loop,
    run_test,
    settings_for,
    stay_silent,
    summary,
)
from tests.support.patience import PATIENCE_S

Channel = dict[str, Any]
Gateway = Callable[[socket.socket], None]
NewLoop = Callable[[], asyncio.AbstractEventLoop]

DECLINED = b'{"status": "declined"}'
NO = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(DECLINED), DECLINED)
NOT_SENT = (FaultKind.EARLY_REPLY, False)
IN_DOUBT = (FaultKind.EARLY_REPLY, True)


# Before the request.
@pytest.mark.usefixtures("patient_connections")
@pytest.mark.parametrize("said", [REPLY, NO, REPLY[:1], b"H", b"\r\n"], ids=["yes", "no", "byte", "H", "blank line"])
def test_gateway_sending_on_connect_receives_no_request(channel: Channel, said: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(said)
        assert await peer.until_closed() == b""

    assert summary(run_test(deliver_once(script, **channel))) == NOT_SENT


def test_early_unread_bytes_are_detected_without_waiting(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has received the bytes, but the event loop has not seen them when the request is sent."""
    monkeypatch.setattr(transport, "FIRST_SILENCE_S", 0)
    monkeypatch.setattr(connection.Connection, "round_trip_s", lambda _: 0.0)
    listen = connection.Connection.wait_for_silence
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        opened.append(peer)
        received.append(await peer.until_closed())

    async def listen_after_bytes(self: connection.Connection, listening_s: float, until_s: float) -> None:
        while not opened:
            await run_loop(1)
        # The bytes go to the raw socket immediately, without an iteration of the event loop.
        opened[0].writer.write(NO)
        await listen(self, listening_s, until_s)

    opened: list[Peer] = []
    monkeypatch.setattr(connection.Connection, "wait_for_silence", listen_after_bytes)
    assert summary(run_test(deliver_once(script, **channel))) == NOT_SENT
    assert received == [b""]


@pytest.mark.parametrize("connections", list(Connections))
async def test_bytes_arriving_before_write_prevent_request(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, connections: Connections
) -> None:
    exchange = connection.Connection.exchange

    async def script(peer: Peer) -> None:
        peers.append(peer)
        if connections is Connections.REUSE:
            await peer.answer()
        assert await peer.until_closed() == b""

    def send_before_request(self: connection.Connection, request: bytes, may_send: SendGuard, **bounds: float) -> Any:
        if connections is Connections.FRESH or self._has_served:
            peers[0].writer.write(NO)
        return exchange(self, request, may_send, **bounds)

    peers: list[Peer] = []
    monkeypatch.setattr(connection.Connection, "exchange", send_before_request)
    async with line_to_script(script, connections=connections, **channel) as line:
        if connections is Connections.REUSE:
            assert summary(await line.deliver()) == BODY
        result = await line.deliver()
        await line.server.finished()
    assert isinstance(result, TransportFault)
    assert not result.first_byte_sent


@pytest.mark.parametrize("said", [REPLY, NO, REPLY[:1]], ids=["yes", "no", "byte"])
@pytest.mark.parametrize("reads_on", [True, False])
def test_reply_beginning_during_request_is_in_doubt(channel: Channel, said: bytes, *, reads_on: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        await peer.send(said)
        if reads_on:
            resume_reading(peer)
            while await peer.reader.read(2**20):
                pass
        await asyncio.Event().wait()

    assert summary(run_test(deliver_once(script, body=HUGE, **channel))) == IN_DOUBT


# The same tests against a gateway in another thread, on every event loop.
def loops() -> Iterator[Any]:
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 (an extra)

        yield pytest.param(uvloop.new_event_loop, id="uvloop")


every_loop = pytest.mark.parametrize("new_loop", list(loops()))


@contextmanager
def gateway_in_thread(said: Gateway, tls: ssl.SSLContext | None, *, receive_buffer: int | None = None) -> Iterator[str]:
    """Serve connections one after another with `said`, once each is open, and yield the address."""

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), taken:
                taken.settimeout(30)
                if tls is None:
                    said(taken)
                else:
                    with tls.wrap_socket(taken, server_side=True) as secured:
                        said(secured)

    with socket.socket() as listener:
        if receive_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        serving_thread = threading.Thread(target=serve)
        serving_thread.start()
        yield f"{'http' if tls is None else 'https'}://localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        serving_thread.join()


def deliver_to(new_loop: NewLoop, url: str, channel: Channel, count: int = 1, size: int = 20) -> list[Any]:
    async def scenario() -> list[RawReply | TransportFault]:
        async with PayoutTransport(settings_for(url, ca_bundle=channel.get("ca_bundle"))) as at_work:
            body = b'{"client_orderid":"PAY-1"}'.ljust(size)
            return [await at_work.deliver(build_request(url, body=body), always) for _ in range(count)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(scenario())


@pytest.mark.share(3)
@every_loop
@pytest.mark.usefixtures("patient_connections")
def test_gateway_refusing_connection_receives_no_rows(channel: Channel, new_loop: NewLoop) -> None:
    received: list[bytes] = []

    def reject_at_once(taken: socket.socket) -> None:
        taken.sendall(NO)
        with suppress(OSError):
            while data := taken.recv(2**16):
                received.append(data)

    with gateway_in_thread(reject_at_once, channel["tls"]) as url:
        results = deliver_to(new_loop, url, channel, 60)
    assert {summary(result) for result in results} == {NOT_SENT}
    assert received == []


@every_loop
def test_reply_before_request_end_is_in_doubt(channel: Channel, new_loop: NewLoop) -> None:
    """The program has written the whole request, but the kernel still holds it for a slow peer."""

    def answer_first_bytes(taken: socket.socket) -> None:
        taken.recv(1)
        taken.sendall(REPLY)
        ended.wait(PATIENCE_S)

    ended = threading.Event()
    with gateway_in_thread(answer_first_bytes, channel["tls"], receive_buffer=4096) as url:
        (result,) = deliver_to(new_loop, url, channel, size=400_000)
        ended.set()
    assert summary(result) == IN_DOUBT


@every_loop
def test_reply_to_slow_reader_is_accepted(channel: Channel, new_loop: NewLoop) -> None:
    def read_slowly(taken: socket.socket) -> None:
        left, seen = 400_000, b""
        while b"\r\n\r\n" not in seen:
            seen += taken.recv(1)
        while left:
            left -= len(taken.recv(min(left, 1000)))
        taken.sendall(REPLY)

    with gateway_in_thread(read_slowly, channel["tls"], receive_buffer=4096) as url:
        (result,) = deliver_to(new_loop, url, channel, size=400_000)
    assert summary(result) == BODY


# How long is listened.
async def test_first_connection_waits_longer_than_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    listened: list[float] = []
    listen = connection.Connection.wait_for_silence

    async def record_listening(self: connection.Connection, listening_s: float, until_s: float) -> None:
        listened.append(listening_s)
        await listen(self, 0, until_s)

    async def script(peer: Peer) -> None:
        await peer.request()
        advance_clock(took_s[peer.number])
        await peer.send(REPLY)

    took_s = [5.0, 0.0, 0.5, 0.0]
    monkeypatch.setattr(connection.Connection, "wait_for_silence", record_listening)
    monkeypatch.setattr(connection.Connection, "round_trip_s", lambda _: 0.2)
    async with line_to_script(script) as line:
        for _ in took_s:
            assert summary(await line.deliver()) == BODY
    assert listened[:2] == [0.2 + transport.FIRST_SILENCE_S, 0.2]
    assert 0.05 <= listened[3] < 0.2


# The other results of an exchange on uvloop, which the program uses if it is installed.
async def read_little(peer: Peer, then: Callable[[Peer], object] = lambda _: None) -> None:
    await peer.reader.readexactly(1000)
    pause_reading(peer)
    then(peer)
    await asyncio.Event().wait()


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("script", "comes", "changes"),
    [
        (answer, BODY, {}),
        (hang_up, (FaultKind.CONNECTION_LOST, True), {}),
        (stay_silent, (FaultKind.READ_TIMEOUT, True), {"read_timeout_s": 0.05}),
        (stay_silent, (FaultKind.TOTAL_TIMEOUT, True), {"total_timeout_s": 0.3}),
        (partial(read_little, then=Peer.reset), (FaultKind.WRITE_FAILED, True), {"body": HUGE}),
        (read_little, (FaultKind.WRITE_TIMEOUT, True), {"body": HUGE, "read_timeout_s": 0.3}),
        (partial(read_little, then=lambda peer: peer.writer.write(REPLY)), IN_DOUBT, {"body": HUGE}),
    ],
)
def test_uvloop_exchanges_as_usual(channel: Channel, script: Script, comes: object, changes: dict[str, Any]) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is an extra")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert summary(runner.run(deliver_once(script, **channel, **changes))) == comes


def test_uvloop_reuses_only_open_connection(channel: Channel) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is an extra")

    async def scenario() -> list[bool]:
        used_twice, ended = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.answer()
            if peer.number == 0:
                await peer.answer()
                await used_twice.wait()
                peer.cut()
                ended.set()
            await peer.until_closed()

        async with line_to_script(script, connections=Connections.REUSE, **channel) as line:
            replies = [await line.deliver() for _ in range(2)]
            used_twice.set()
            await ended.wait()
            replies.append(await line.deliver())
        return [isinstance(reply, RawReply) and reply.reused_connection for reply in replies]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scenario()) == [False, True, False]
