"""Deliveries that are given up: cancelled, closed, out of time, or without a connection."""

import asyncio
import socket
from typing import Any

import pytest

from paygw_batch.errors import InternalError
from paygw_batch.gateway.http.connection import Connection
from paygw_batch.gateway.http.transport import ADDRESS_LIFETIME_S, PayoutTransport
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_server import (
    BODY,
    HUGE,
    REPLY,
    JumpingLoop,
    Peer,
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
    serving,
    settings_for,
    summary,
)

Channel = dict[str, Any]


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


# Time.
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


def test_stalled_request_write_times_out(channel: Channel) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        advance_clock(61)
        await asyncio.Event().wait()

    result = run_test(deliver_once(script, body=HUGE, **channel))
    assert isinstance(result, TransportFault)
    assert (result.kind, result.first_byte_sent) == (FaultKind.WRITE_TIMEOUT, True)
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
    """Set what the running loop's lookup of localhost returns."""
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
