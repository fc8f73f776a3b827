"""The guarantees of the transport on uvloop, which the program uses if it is installed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from paygw_batch.gateway.address import Connections
from paygw_batch.gateway.message import FaultKind, RawReply
from tests.support.gateway_server import (
    BODY,
    HUGE,
    REPLY,
    Peer,
    Script,
    answer,
    hang_up,
    line_to_script,
    pause_reading,
    stay_silent,
    summary,
)

uvloop = pytest.importorskip("uvloop", reason="uvloop is an extra")

T = TypeVar("T")
Channel = dict[str, Any]


def play(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


async def deliver_once(script: Script, *, body: bytes | None = None, **changes: Any) -> tuple[FaultKind, bool] | bytes:
    async with line_to_script(script, **changes) as line:
        result = await line.deliver(body=body)
    return summary(result)


async def read_little_and_wait(peer: Peer) -> None:
    await peer.reader.readexactly(1000)
    pause_reading(peer)
    await asyncio.Event().wait()


async def read_little_and_reset(peer: Peer) -> None:
    await peer.reader.readexactly(1000)
    peer.reset()


async def read_little_and_answer(peer: Peer) -> None:
    await peer.reader.readexactly(1000)
    pause_reading(peer)
    peer.writer.write(REPLY)
    await asyncio.Event().wait()


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("script", "expected", "changes"),
    [
        (answer, BODY, {}),
        (hang_up, (FaultKind.CONNECTION_LOST, True), {}),
        (stay_silent, (FaultKind.READ_TIMEOUT, True), {"read_timeout_s": 0.05}),
        (stay_silent, (FaultKind.TOTAL_TIMEOUT, True), {"total_timeout_s": 0.3}),
        (read_little_and_reset, (FaultKind.WRITE_FAILED, True), {"body": HUGE}),
        (read_little_and_wait, (FaultKind.WRITE_TIMEOUT, True), {"body": HUGE, "read_timeout_s": 0.3}),
        (read_little_and_answer, (FaultKind.EARLY_REPLY, True), {"body": HUGE}),
    ],
)
def test_uvloop_exchange_has_usual_result(
    channel: Channel, script: Script, expected: object, changes: dict[str, Any]
) -> None:
    assert play(deliver_once(script, **channel, **changes)) == expected


def test_uvloop_reuses_only_open_connection(channel: Channel) -> None:
    async def scenario() -> None:
        ended = asyncio.Event()
        used_twice = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.answer()
            if peer.number == 0:
                await peer.answer()
                await used_twice.wait()
                peer.cut()
                ended.set()
            else:
                await peer.until_closed()

        async with line_to_script(script, connections=Connections.REUSE, **channel) as line:
            replies = [await line.deliver() for _ in range(2)]
            used_twice.set()
            await ended.wait()
            replies.append(await line.deliver())
        reused = [isinstance(reply, RawReply) and reply.reused_connection for reply in replies]
        assert reused == [False, True, False]

    play(scenario())
