"""One request over a new or reused connection: the bytes sent, the reply, every failure, and giving up."""

import asyncio
import socket
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any
from unittest.mock import Mock, call

import pytest

from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import Connections, parse_gateway_url
from paygw_batch.gateway.http.connection import ConnectFailed, Connection, _Stage
from paygw_batch.gateway.http.http1 import build_payout_request
from paygw_batch.gateway.http.transport import ADDRESS_LIFETIME_S, PayoutTransport
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_cases import split_request
from tests.support.gateway_server import (
    BODY,
    HUGE,
    PATH,
    REPLY,
    JumpingLoop,
    Line,
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
    replying,
    resume_reading,
    run_loop,
    run_test,
    serving,
    settings_for,
    stay_silent,
    summary,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2e\r\n" + BODY + b"\r\n0\r\n\r\n"

Channel = dict[str, Any]


# What leaves.
async def test_whole_request_arrives_exactly_once(channel: Channel) -> None:
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        received.append(await peer.answer())
        received.append(await peer.until_closed())

    async with line_to_script(script, **channel) as line:
        reply = await line.deliver()
        await line.server.finished()
        origin, _ = parse_gateway_url(line.server.url)
        assert received == [build_payout_request(build_request(line.server.url), origin, close=True), b""]
        first, headers, body = split_request(received[0])
        assert (first, headers["connection"], body) == (f"POST {PATH} HTTP/1.1", "close", b'{"client_orderid":"PAY-1"}')
        assert headers["host"] == f"localhost:{line.server.port}"
        assert reply == RawReply(200, (("content-type", "application/json"), ("content-length", str(len(BODY)))), BODY)
        assert len(line.server.peers) == 1


@pytest.mark.parametrize("connections", list(Connections))
async def test_stale_request_is_not_sent(channel: Channel, connections: Connections) -> None:
    """`may_send` is called last, after the connection was opened or reused and the handshake is over."""
    answers: list[bool] = []
    open_when_asked: list[bool] = []
    received: list[bytes] = []

    def may_send() -> bool:
        (connection,) = line.transport._open_connections
        open_when_asked.append(connection._stage is _Stage.EXCHANGE)
        return answers.pop()

    async def script(peer: Peer) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                received.append(await peer.answer())

    results = []
    async with line_to_script(script, connections=connections, **channel) as line:
        for may in (False, True, False, True):
            answers.append(may)
            results.append(summary(await line.transport.deliver(build_request(line.server.url), may_send)))
        await line.transport.aclose()
        await line.server.finished()
    stale = (FaultKind.INTENT_STALE, False)
    assert results == [stale, BODY, stale, BODY]
    assert open_when_asked == [True] * 4, "once for each request, and not before the connection is there"
    assert len(received) == 2


async def test_one_write_follows_last_check_immediately(channel: Channel) -> None:
    steps: list[str] = []

    def may_send() -> bool:
        asyncio.get_running_loop().call_soon(steps.append, "another turn of the event loop")
        (connection,) = line.transport._open_connections
        assert connection._transport is not None
        write = connection._transport.write

        def noted(data: bytes) -> None:
            is_whole = channel["tls"] is not None or (data.startswith(b"POST ") and data.endswith(b'"PAY-1"}'))
            steps.append("written whole" if is_whole else "written in part")
            write(data)

        connection._transport.write = noted  # type: ignore[method-assign, assignment]
        return True

    async with line_to_script(answer, **channel) as line:
        assert isinstance(await line.transport.deliver(build_request(line.server.url), may_send), RawReply)
    assert steps[:2] == ["written whole", "another turn of the event loop"]


async def test_request_signed_for_other_url_is_not_sent() -> None:
    async with line_to_script(stay_silent) as line:
        for url in ("https://elsewhere.example", f"{line.server.url}0", line.server.url.removesuffix(PATH)[:-1]):
            with pytest.raises(InternalError):
                await line.transport.deliver(build_request(url), always)
        assert line.server.peers == []


# What comes back.
@pytest.mark.parametrize("reply", [REPLY, CHUNKED, b"HTTP/1.1 102 Processing\r\n\r\n" + REPLY], ids=["1", "2", "3"])
def test_reply_arriving_byte_by_byte_is_accepted(channel: Channel, reply: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for index in range(len(reply)):
            await peer.send(reply[index : index + 1])

    assert summary(run_test(deliver_once(script, **channel))) == BODY


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (REPLY + b"x", FaultKind.PROTOCOL_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", FaultKind.REPLY_ENCODED),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000, FaultKind.REPLY_TOO_LARGE),
    ],
    ids=["surplus", "gzip", "10 MB"],
)
def test_malformed_reply_is_fault_after_first_byte(channel: Channel, reply: bytes, kind: FaultKind) -> None:
    result = run_test(deliver_once(replying(reply), **channel))
    assert summary(result) == (kind, True)
    assert isinstance(result, TransportFault)
    assert result.bytes_read < 400_000


@pytest.mark.parametrize(
    ("broken_before", "fault", "written"),
    [
        (True, TransportFault(FaultKind.CONNECT_FAILED, first_byte_sent=False, detail="closed too soon"), 0),
        (False, TransportFault(FaultKind.WRITE_FAILED, first_byte_sent=True, detail="the connection was closed"), 1),
    ],
)
async def test_broken_socket_is_reported_exactly(fault: TransportFault, written: int, *, broken_before: bool) -> None:
    """The socket breaks before the write, or during it."""
    loop = asyncio.get_running_loop()
    end, other_end = socket.socketpair()
    transport = Mock(asyncio.Transport)
    transport.get_extra_info.return_value = end
    transport.is_closing.side_effect = lambda: broken_before or transport.write.called
    connection = Connection(loop, set())
    connection.connection_made(transport)
    with suppress(ConnectFailed):
        await connection.wait_for_silence(0, loop.time() + 30)
    assert await connection.exchange(b"request", always, read_timeout_s=60, deadline_s=loop.time() + 120) == fault
    assert transport.write.mock_calls == [call(b"request")] * written
    end.close()
    other_end.close()


async def answer_every_request(peer: Peer) -> None:
    while True:
        try:
            await peer.answer()
        except asyncio.IncompleteReadError:
            return


def reusing_line(script: Script, channel: Channel) -> AbstractAsyncContextManager[Line]:
    return line_to_script(script, connections=Connections.REUSE, **channel)


async def deliver(line: Line) -> RawReply:
    reply = await line.deliver()
    assert isinstance(reply, RawReply), reply
    return reply


async def test_silent_connection_is_reused_and_marked(channel: Channel) -> None:
    heads: list[dict[str, str]] = []

    async def script(peer: Peer) -> None:
        heads.extend([split_request(await peer.answer())[1] for _ in range(5)])

    async with reusing_line(script, channel) as line:
        replies = [await deliver(line) for _ in range(5)]
        assert [reply.reused_connection for reply in replies] == [False, True, True, True, True]
        assert len(line.server.peers) == 1
    assert all("connection" not in head for head in heads)


@pytest.mark.parametrize("reply", [REPLY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), REPLY + b"\r\n"])
async def test_connection_closes_after_reply_asking_for_it(channel: Channel, reply: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(reply)
        assert await peer.until_closed() == b""

    async with reusing_line(script, channel) as line:
        for _ in range(3):
            assert not (await deliver(line)).reused_connection
        assert len(line.server.peers) == 3


@pytest.mark.parametrize(
    "event",
    [b"x", b"\r\n", REPLY, Peer.cut, Peer.reset, lambda peer: peer.writer.close()],
    ids=["letter", "blank line", "second reply", "cut", "reset", "close"],
)
@pytest.mark.parametrize("seen", [True, False], ids=["seen by the loop", "still in the kernel"])
async def test_disturbed_idle_connection_is_not_reused(channel: Channel, event: Any, *, seen: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer()
        if peer.number == 0:
            await answered.wait()
            peer.writer.write(event) if isinstance(event, bytes) else event(peer)
            happened.set()
        assert await peer.until_closed() == b""

    answered, happened = asyncio.Event(), asyncio.Event()
    async with reusing_line(script, channel) as line:
        await deliver(line)
        answered.set()
        await happened.wait()
        if seen:
            await run_loop()
        second = await deliver(line)
        assert (second.reused_connection, second.body, len(line.server.peers)) == (False, BODY, 2)


async def test_request_on_closing_connection_is_in_doubt(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer()
        await peer.request()
        peer.cut()

    async with reusing_line(script, channel) as line:
        await deliver(line)
        assert summary(await line.deliver()) == (FaultKind.CONNECTION_LOST, True)
        assert len(line.server.peers) == 1


async def test_idle_or_surplus_connection_is_closed(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paygw_batch.gateway.http.transport.MAX_IDLE_S", 1_000.0)  # far above any delay of its own
    async with reusing_line(answer_every_request, channel) as line:
        await deliver(line)
        advance_clock(900)
        assert (await deliver(line)).reused_connection
        advance_clock(1_000)
        assert not (await deliver(line)).reused_connection
        await run_loop()
        assert len(line.transport._open_connections) == 1
    async with reusing_line(answer_every_request, channel) as line:
        await asyncio.gather(*[deliver(line) for _ in range(8)])
        for _ in range(4):
            advance_clock(400)
            await deliver(line)
        await run_loop()
        assert len(line.transport._open_connections) == 1


async def test_fault_closes_connection(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(REPLY + REPLY if peer.number == 0 else REPLY)
        await peer.until_closed()

    async with reusing_line(script, channel) as line:
        assert isinstance(await line.deliver(), TransportFault)
        assert not (await deliver(line)).reused_connection


async def cancel(delivery: asyncio.Task[Any]) -> None:
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery


@pytest.mark.parametrize("closed", [True, False], ids=["transport closed", "delivery cancelled"])
async def test_abandoned_delivery_closes_connection(channel: Channel, *, closed: bool) -> None:
    requested = asyncio.Event()
    after: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        requested.set()
        after.append(await peer.until_closed())

    async with line_to_script(script, **channel) as line:
        delivery = asyncio.create_task(line.deliver())
        await requested.wait()
        if closed:
            await line.transport.aclose()
            assert summary(await delivery) == (FaultKind.CANCELLED, True)
            with pytest.raises(InternalError):
                await line.deliver()
        else:
            await cancel(delivery)
            await run_loop()
        assert line.transport._open_connections == set()
        await line.server.finished()
        assert after == [b""]


async def test_cancelled_delivery_stops_writing_request() -> None:
    taken = asyncio.Event()
    rest: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        taken.set()
        await cancelled.wait()
        resume_reading(peer)
        rest.append(await peer.until_closed())

    cancelled = asyncio.Event()
    async with line_to_script(script) as line:
        delivery = asyncio.create_task(line.deliver(body=HUGE))
        await taken.wait()
        await cancel(delivery)
        cancelled.set()
        await line.server.finished()
        assert 1000 + len(rest[0]) < len(HUGE)


async def test_delivery_cancelled_while_connecting_leaves_no_connection(blackhole: int) -> None:
    url = f"http://127.0.0.1:{blackhole}"
    transport = PayoutTransport(settings_for(url))
    delivery = asyncio.create_task(transport.deliver(build_request(url), always))
    await run_loop()
    await cancel(delivery)
    assert transport._open_connections == set()


async def test_closing_transport_during_name_lookup_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    requested, released = asyncio.Event(), asyncio.Event()

    async def slow_answer(_self: JumpingLoop, _host: str, port: int, **_options: Any) -> list[Any]:
        requested.set()
        await released.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(JumpingLoop, "getaddrinfo", slow_answer)

    async def script(peer: Peer) -> None:
        assert await peer.until_closed() == b""

    async with line_to_script(script) as line:
        delivery = asyncio.create_task(line.deliver())
        await requested.wait()
        await line.transport.aclose()
        released.set()
        assert summary(await delivery) == (FaultKind.CANCELLED, False)
        await run_loop()
        assert line.transport._open_connections == set()


async def test_concurrent_deliveries_each_get_own_reply(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        request = await peer.request()
        order_id = request.rpartition(b":")[2].strip(b'"}')
        await run_loop(int(order_id) % 7)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(order_id), order_id))

    async with line_to_script(script, **channel) as line:
        results = await asyncio.gather(*[line.deliver(str(number)) for number in range(64)])
        assert [summary(result) for result in results] == [str(number).encode() for number in range(64)]
        assert len(line.server.peers) == 64


async def test_closing_transport_never_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uvloop never reports the end of a connection that times out in the iteration in which it was made."""
    monkeypatch.setattr("paygw_batch.gateway.http.transport.CLOSE_TIMEOUT_S", 0.01)
    transport = PayoutTransport(settings_for("http://127.0.0.1:1"))
    transport._open_connections.add(Connection(asyncio.get_running_loop(), set()))
    await transport.aclose()


@pytest.mark.parametrize(
    ("pieces", "pause_s", "comes"),
    [
        ([REPLY], 59, BODY),
        ([REPLY], 61, (FaultKind.READ_TIMEOUT, True)),
        ([REPLY[:10], REPLY[10:20], REPLY[20:]], 39, BODY),
        ([REPLY[:10], REPLY[10:20], REPLY[20:]], 41, (FaultKind.TOTAL_TIMEOUT, True)),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 4, 31, (FaultKind.TOTAL_TIMEOUT, True)),
    ],
)
def test_silence_ends_after_timeouts(channel: Channel, pieces: list[bytes], pause_s: float, comes: object) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in pieces:
            advance_clock(pause_s)
            await run_loop()
            await peer.send(piece)
        await peer.until_closed()

    assert summary(run_test(deliver_once(script, **channel))) == comes


@pytest.mark.parametrize(("resets", "kind"), [(True, FaultKind.WRITE_FAILED), (False, FaultKind.WRITE_TIMEOUT)])
def test_reset_or_stalled_write_is_reported(channel: Channel, kind: FaultKind, *, resets: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        if resets:
            peer.reset()
            return
        pause_reading(peer)
        advance_clock(61)
        await asyncio.Event().wait()

    result = run_test(deliver_once(script, body=HUGE, **channel))
    assert isinstance(result, TransportFault)
    assert (result.kind, result.first_byte_sent) == (kind, True)
    assert result.bytes_written < len(HUGE)


def test_read_timeout_starts_after_write() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        advance_clock(50)
        await run_loop()
        resume_reading(peer)
        await peer.reader.readuntil(b"xxx\r")
        advance_clock(50)
        await run_loop()
        await peer.send(REPLY)

    assert summary(run_test(deliver_once(script, body=HUGE + b"\r", limit=2**26))) == BODY


def test_configured_shorter_timeouts_apply() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        advance_clock(0.2)
        await peer.until_closed()

    assert summary(run_test(deliver_once(script, read_timeout_s=0.1))) == (FaultKind.READ_TIMEOUT, True)
    assert summary(run_test(deliver_once(script, total_timeout_s=0.1))) == (FaultKind.TOTAL_TIMEOUT, True)


# Opening: nothing has left.
def open_connection_to(url: str, *, names: dict[str, Any] | None = None, **changes: Any) -> RawReply | TransportFault:
    """Send one payout to `url`, which never answers, while the clock advances."""

    async def scenario() -> RawReply | TransportFault:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        loop.names.update(names or {})
        async with PayoutTransport(settings_for(url, **changes)) as transport:
            delivery = asyncio.create_task(transport.deliver(build_request(url), always))
            while not delivery.done():
                await asyncio.sleep(0.01)
                advance_clock(1)
            assert transport._open_connections == set()
            return await delivery

    return run_test(scenario())


def test_unreachable_host_is_reported_as_unsent(blackhole: int) -> None:
    named, silent = "https://gateway.example", f"http://127.0.0.1:{blackhole}"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        places: list[tuple[str, dict[str, Any], FaultKind]] = [
            (named, {"names": {"gateway.example": unknown}}, FaultKind.NAME_NOT_RESOLVED),
            (named, {"names": {"gateway.example": []}}, FaultKind.NAME_NOT_RESOLVED),
            (f"http://127.0.0.1:{port}", {}, FaultKind.CONNECT_REFUSED),
            (f"https://localhost:{port}", {}, FaultKind.CONNECT_REFUSED),
            ("https://255.255.255.255", {}, FaultKind.CONNECT_FAILED),
            (silent, {}, FaultKind.CONNECT_TIMEOUT),
            (silent, {"total_timeout_s": 20}, FaultKind.TOTAL_TIMEOUT),
        ]
        for url, options, kind in places:
            assert summary(open_connection_to(url, **options)) == (kind, False), url


def set_addresses(addresses: list[str] | OSError) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.names["localhost"] = addresses


async def test_name_lookup_is_cached_for_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    look_up = JumpingLoop.getaddrinfo

    async def count_lookup(self: JumpingLoop, host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        return await look_up(self, host, port, **options)

    monkeypatch.setattr(JumpingLoop, "getaddrinfo", count_lookup)
    set_addresses(["127.0.0.2", "127.0.0.1"])  # the first refuses
    async with line_to_script(answer) as line:
        for count in (1, 2):
            for _ in range(3):
                assert isinstance(await line.deliver(), RawReply)
            assert (asked.count("localhost"), len(line.server.peers)) == (count, 3 * count)
            advance_clock(ADDRESS_LIFETIME_S)


async def test_unanswered_or_unresolved_name_is_looked_up_again() -> None:
    failures: list[tuple[list[str] | OSError, FaultKind]] = [
        (["127.0.0.2"], FaultKind.CONNECT_REFUSED),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), FaultKind.NAME_NOT_RESOLVED),
        ([], FaultKind.NAME_NOT_RESOLVED),
    ]
    for names, kind in failures:
        async with line_to_script(answer) as line:
            set_addresses(names)
            assert summary(await line.deliver()) == (kind, False)
            set_addresses(["127.0.0.1"])
            assert isinstance(await line.deliver(), RawReply)


async def test_probe_connects_and_sends_nothing(channel: Channel) -> None:
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        received.append(await peer.until_closed())

    async with line_to_script(script, **channel) as line:
        assert await line.transport.probe() is None
        await run_loop()
        assert line.transport._open_connections == set()
        await line.server.finished()
        assert received == [b""]
    async with serving(hang_up) as server:
        async with PayoutTransport(settings_for(server.url.replace("http:", "https:"))) as transport:
            fault = await transport.probe()
        assert fault == TransportFault(FaultKind.TLS_FAILED, first_byte_sent=False, detail="the connection was closed")
