"""Reused connections: which of them may carry another payout."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from paygw_batch.gateway.address import Connections
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_cases import split_request
from tests.support.gateway_server import BODY, REPLY, Line, Peer, Script, advance_clock, line_to_script, run_loop

Channel = dict[str, Any]


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


async def test_quiet_connection_is_reused_and_marked(channel: Channel) -> None:
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
    [
        REPLY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        REPLY.replace(b"HTTP/1.1", b"HTTP/1.0"),
        REPLY.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"),
        REPLY + b"\r\n",
    ],
    ids=["asked to close", "HTTP/1.0", "HTTP/1.0 that would stay", "blank line behind"],
)
async def test_closing_reply_is_last_on_connection(channel: Channel, reply: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(reply)
        assert await peer.until_closed() == b""

    async with reusing_line(script, channel) as line:
        for _ in range(3):
            assert not (await deliver(line)).reused_connection
        assert len(line.server.peers) == 3


@pytest.mark.parametrize("surplus", [REPLY, b"x", b"\r\n"], ids=["second reply", "letter", "blank line"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen by the loop", "still in the kernel"])
async def test_stray_byte_on_idle_connection_is_not_reply(channel: Channel, surplus: bytes, *, seen: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer()
        if peer.number == 0:
            await answered.wait()
            peer.writer.write(surplus)
            spoken.set()
        assert await peer.until_closed() == b""

    answered, spoken = asyncio.Event(), asyncio.Event()
    async with reusing_line(script, channel) as line:
        await deliver(line)
        answered.set()
        await spoken.wait()
        if seen:
            await run_loop()
        second = await deliver(line)
        assert (second.reused_connection, second.body) == (False, BODY)
        assert len(line.server.peers) == 2


@pytest.mark.parametrize("end", ["cut", "reset", "close"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen by the loop", "still in the kernel"])
async def test_ended_connection_carries_no_further_request(channel: Channel, end: str, *, seen: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer()
        if peer.number == 0:
            await answered.wait()
            {"cut": peer.cut, "reset": peer.reset, "close": peer.writer.close}[end]()
            ended.set()
        await peer.until_closed()

    answered, ended = asyncio.Event(), asyncio.Event()
    async with reusing_line(script, channel) as line:
        await deliver(line)
        answered.set()
        await ended.wait()
        if seen:
            await run_loop()
        assert not (await deliver(line)).reused_connection


async def test_request_on_ending_connection_is_doubtful_and_unrepeated(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer()
        await peer.request()
        peer.cut()

    async with reusing_line(script, channel) as line:
        await deliver(line)
        result = await line.deliver()
        assert isinstance(result, TransportFault)
        assert (result.kind, result.first_byte_left) == (FaultKind.CONNECTION_LOST, True)
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
