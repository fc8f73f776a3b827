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
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.gateway.address import Connections
from paygw_batch.gateway.http import connection, transport
from paygw_batch.gateway.http.tls import TlsChannel, client_context
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


@pytest.fixture
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait on each new connection until the gateway has sent its bytes, so that no test depends on speed."""
    monkeypatch.setattr(transport, "FIRST_SILENCE_S", 25)


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

    def send_just_before_request(
        self: connection.Connection, request: bytes, may_send: SendGuard, **bounds: float
    ) -> Any:
        if connections is Connections.FRESH or self._has_served:
            peers[0].writer.write(NO)
        return exchange(self, request, may_send, **bounds)

    peers: list[Peer] = []
    monkeypatch.setattr(connection.Connection, "exchange", send_just_before_request)
    async with line_to_script(script, connections=connections, **channel) as line:
        if connections is Connections.REUSE:
            assert summary(await line.deliver()) == BODY
        result = await line.deliver()
        await line.server.finished()
    assert isinstance(result, TransportFault)
    assert not result.first_byte_sent


class ScriptedTls:
    """The gateway's side of TLS, which lets a test cut and send records as it likes."""

    def __init__(self, context: ssl.SSLContext, peer: Peer) -> None:
        self.arriving, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.side = context.wrap_bio(self.arriving, self.leaving, server_side=True)
        self.peer = peer

    async def shake_hands(self) -> None:
        while True:
            try:
                self.side.do_handshake()
            except ssl.SSLWantReadError:
                self.send(self.leaving.read())
                self.arriving.write(await self.peer.reader.read(2**14))
            else:
                self.send(self.leaving.read())
                return

    async def request(self) -> bytes:
        while True:
            try:
                return self.side.read()
            except ssl.SSLWantReadError:
                if not (data := await self.peer.reader.read(2**14)):
                    return b""
                self.arriving.write(data)

    def build_record(self, data: bytes) -> bytes:
        self.side.write(data)
        return self.leaving.read()

    def send(self, data: bytes) -> None:
        self.peer.writer.write(data)


async def deliver_over_tls(script: Script, ca_bundle: Path) -> RawReply | TransportFault:
    async with line_to_script(script, by_hand=True, ca_bundle=ca_bundle) as line:
        result = await line.deliver()
        await line.server.finished()
        return result


@pytest.mark.usefixtures("patient_connections")
@pytest.mark.parametrize("cut", [1, 4, 5, 6, 30])
@pytest.mark.parametrize("goes_on", [True, False])
def test_tls_record_started_before_request_is_rejected(
    server_tls: ssl.SSLContext, ca_bundle: Path, cut: int, *, goes_on: bool
) -> None:
    async def script(peer: Peer) -> None:
        tls = ScriptedTls(server_tls, peer)
        await tls.shake_hands()
        record = tls.build_record(NO)
        tls.send(record[:cut])
        await run_loop(100)
        advance_clock(26)
        if goes_on:
            await run_loop(100)
            tls.send(record[cut:])
        else:
            advance_clock(31)
        assert await tls.request() == b""

    assert summary(run_test(deliver_over_tls(script, ca_bundle))) == NOT_SENT


@pytest.mark.usefixtures("patient_connections")
def test_split_session_ticket_is_not_an_early_reply(server_tls: ssl.SSLContext, ca_bundle: Path) -> None:
    async def script(peer: Peer) -> None:
        tls = ScriptedTls(server_tls, peer)
        pieces: list[bytes] = []
        tls.send = pieces.append  # type: ignore[assignment, method-assign]
        handshake = asyncio.ensure_future(tls.shake_hands())
        while not handshake.done():
            await run_loop()
            if not handshake.done() and pieces:
                peer.writer.write(pieces.pop(0))
        tickets = b"".join(pieces)
        del tls.send
        assert len(tickets) > 100
        tls.send(tickets[:50])
        await run_loop(100)
        advance_clock(26)
        await run_loop(100)
        tls.send(tickets[50:])
        assert b"PAY-1" in await tls.request()
        tls.send(tls.build_record(REPLY))
        await peer.until_closed()

    assert summary(run_test(deliver_over_tls(script, ca_bundle))) == BODY


def test_tls_record_boundaries_are_found_in_any_chunks(ca_bundle: Path) -> None:
    records = b"".join(b"\x17\x03\x03" + size.to_bytes(2) + b"x" * size for size in (1, 300, 0, 7))
    ends = {6, 6 + 305, 6 + 305 + 5, len(records)}
    for step in (1, 2, 3, 5, 7, 400):
        channel = TlsChannel(client_context(ca_bundle), "localhost")
        for start in range(0, len(records), step):
            channel._receive(records[start : start + step])
            position = min(start + step, len(records))
            assert channel.is_inside_record is (position not in ends), (step, position)


# While the request leaves.


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


def deliver_to(
    new_loop: NewLoop, url: str, channel: Channel, count: int = 1, size: int = 20
) -> list[RawReply | TransportFault]:
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
    ("script", "expected", "changes"),
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
def test_uvloop_exchange_has_usual_result(
    channel: Channel, script: Script, expected: object, changes: dict[str, Any]
) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is an extra")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert summary(runner.run(deliver_once(script, **channel, **changes))) == expected


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
