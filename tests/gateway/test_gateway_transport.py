"""One request over a new or reused connection: the bytes sent, the reply, and every possible failure."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any
from unittest.mock import Mock, call

import pytest

from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import Connections, parse_gateway_url
from paygw_batch.gateway.http.connection import ConnectFailed, Connection, _Stage
from paygw_batch.gateway.http.http1 import payout_request
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_cases import split_request
from tests.support.gateway_server import (
    BODY,
    HUGE,
    PATH,
    REPLY,
    Line,
    Peer,
    Script,
    advance_clock,
    always,
    answer,
    build_request,
    deliver_once,
    line_to_script,
    replying,
    run_loop,
    run_test,
    serving,
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
        assert received == [payout_request(build_request(line.server.url), origin, close=True), b""]
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


def test_reply_may_end_with_stream(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)
        peer.writer.close()

    assert summary(run_test(deliver_once(script, **channel))) == BODY


@pytest.mark.parametrize("http_status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_redirect_is_returned_and_never_followed(http_status: int, *, elsewhere: bool) -> None:
    async with serving(stay_silent) as other:

        async def script(peer: Peer) -> None:
            place = other.url if elsewhere else ""
            head = f"HTTP/1.1 {http_status} Moved\r\nLocation: {place}{PATH}\r\nSet-Cookie: a=b\r\n"
            await peer.answer(f"{head}Content-Length: 0\r\n\r\n".encode())

        async with line_to_script(script) as line:
            for _ in range(2):
                reply = await line.deliver()
                assert isinstance(reply, RawReply)
                assert reply.http_status == http_status
            assert (len(line.server.peers), len(other.peers)) == (2, 0)


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


# The connection ends too early.
@pytest.mark.parametrize(
    "reply", [pytest.param(REPLY, id="length", marks=pytest.mark.long), pytest.param(CHUNKED, id="chunks")]
)
async def test_truncated_reply_is_in_doubt(channel: Channel, reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before the first answer, every connection must stay silent as long as the first one.
    monkeypatch.setattr("paygw_batch.gateway.http.transport.FIRST_SILENCE_S", 0)

    async def script(peer: Peer) -> None:
        await peer.answer(reply[: peer.number])
        peer.writer.close()

    async with line_to_script(script, **channel) as line:
        for cut in range(len(reply)):
            result = await line.deliver()
            assert summary(result) == (FaultKind.CONNECTION_LOST, True), cut
        assert isinstance(await line.deliver(), RawReply)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_connection_ended_during_request_is_in_doubt(channel: Channel, share: float, *, reset: bool) -> None:
    size = len(b'{"client_orderid":"PAY-1"}')

    async def script(peer: Peer) -> None:
        if share:
            await peer.reader.readexactly(round(share * size))
        (peer.reset if reset else peer.cut)()

    result = run_test(deliver_once(script, **channel))
    assert isinstance(result, TransportFault)
    assert result.kind in {FaultKind.CONNECTION_LOST, FaultKind.WRITE_FAILED, FaultKind.CONNECT_FAILED}
    # The client may notice the cut before it writes. Only in that case nothing was sent.
    assert result.first_byte_sent or (result.bytes_written == 0 and share == 0.0)


def test_reset_during_write_is_write_failure(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        peer.reset()

    result = run_test(deliver_once(script, body=HUGE, **channel))
    assert summary(result) == (FaultKind.WRITE_FAILED, True)
    assert isinstance(result, TransportFault)
    assert result.bytes_written < len(HUGE)


@pytest.mark.parametrize(
    ("broken_before", "fault", "written"),
    [
        (True, TransportFault(FaultKind.CONNECT_FAILED, first_byte_sent=False, detail="closed too soon"), 0),
        (False, TransportFault(FaultKind.WRITE_FAILED, first_byte_sent=True, detail="the connection was closed"), 1),
    ],
)
async def test_broken_socket_sends_nothing_or_is_reported(
    fault: TransportFault, written: int, *, broken_before: bool
) -> None:
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


@pytest.mark.parametrize(
    "reply",
    [REPLY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), REPLY + b"\r\n"],
    ids=["asked to close", "blank line behind"],
)
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
async def test_disturbed_idle_connection_is_not_reused(
    channel: Channel, event: bytes | Callable[[Peer], None], *, seen: bool
) -> None:
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


async def test_idle_or_surplus_connection_is_closed(channel: Channel) -> None:
    async with reusing_line(answer_every_request, channel) as line:
        await deliver(line)
        advance_clock(0.9)
        assert (await deliver(line)).reused_connection
        advance_clock(1)
        assert not (await deliver(line)).reused_connection
        await run_loop()
        assert len(line.transport._open_connections) == 1
    async with reusing_line(answer_every_request, channel) as line:
        await asyncio.gather(*[deliver(line) for _ in range(8)])
        for _ in range(4):
            advance_clock(0.4)
            await deliver(line)
        await run_loop()
        assert len(line.transport._open_connections) == 1


async def test_most_recently_used_connection_is_reused_first(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        while True:
            try:
                await peer.request()
            except asyncio.IncompleteReadError:
                return
            order.append(peer.number)
            await run_loop(peer.number + 1)
            await peer.send(REPLY)

    order: list[int] = []
    async with reusing_line(script, channel) as line:
        for _ in range(3):
            await asyncio.gather(*[deliver(line) for _ in range(8)])
        assert len(line.server.peers) == 8
        order.clear()
        for _ in range(4):
            assert (await deliver(line)).reused_connection
        assert len(set(order)) == 1
        assert len(line.server.peers) == 8


async def test_fault_closes_connection(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(REPLY + REPLY if peer.number == 0 else REPLY)
        await peer.until_closed()

    async with reusing_line(script, channel) as line:
        assert isinstance(await line.deliver(), TransportFault)
        assert not (await deliver(line)).reused_connection
