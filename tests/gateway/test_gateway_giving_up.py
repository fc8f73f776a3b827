"""Cancelled deliveries, and transports that are closed during a delivery."""

import asyncio
import socket
from typing import Any

import pytest

from paygw_batch.errors import InternalError
from paygw_batch.gateway.http.connection import Connection
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import FaultKind
from tests.support.gateway_server import (
    HUGE,
    JumpingLoop,
    Peer,
    always,
    build_request,
    line_to_script,
    pause_reading,
    resume_reading,
    run_loop,
    settings_for,
    summary,
)

Channel = dict[str, Any]


async def cancel(delivery: asyncio.Task[Any]) -> None:
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery


async def test_cancelled_delivery_closes_connection_and_raises_cancellation(channel: Channel) -> None:
    requested = asyncio.Event()
    after: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        requested.set()
        after.append(await peer.until_closed())

    async with line_to_script(script, **channel) as line:
        delivery = asyncio.create_task(line.deliver())
        await requested.wait()
        await cancel(delivery)
        await run_loop()
        assert line.transport._open_connections == set()
        await line.server.finished()
        assert after == [b""]


async def test_cancelled_delivery_writes_no_more_of_request() -> None:
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


async def test_closing_transport_reports_request_as_sent(channel: Channel) -> None:
    requested = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        requested.set()
        await peer.until_closed()

    async with line_to_script(script, **channel) as line:
        delivery = asyncio.create_task(line.deliver())
        await requested.wait()
        await line.transport.aclose()
        assert summary(await delivery) == (FaultKind.CANCELLED, True)
        with pytest.raises(InternalError):
            await line.deliver()


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


async def test_sixty_four_deliveries_each_get_own_reply(channel: Channel) -> None:
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
