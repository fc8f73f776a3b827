"""One request over a fresh connection: what leaves, what comes back, and every way in which it does not."""

import asyncio
import socket
from typing import Any

import pytest
from gateway_cases import head_and_body
from gateway_server import (
    BODY,
    PATH,
    REPLY,
    JumpingLoop,
    Peer,
    Script,
    deliver_once,
    jump,
    play,
    request_to,
    serving,
    settings_for,
    turns,
)

from paygw_batch.errors import InternalError
from paygw_batch.gateway.endpoint import gateway_origin
from paygw_batch.gateway.http1 import payout_request
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from paygw_batch.gateway.transport import PayoutTransport

HUGE = b"x" * 2**25
"""More than the kernel takes at once, so that a write has to wait for its reader."""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2e\r\n" + BODY + b"\r\n0\r\n\r\n"
UNTIL_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY

Channel = dict[str, Any]


async def silence(peer: Peer) -> None:
    await peer.until_closed()


def summary(result: RawReply | TransportFault) -> tuple[FaultKind, bool] | bytes:
    return result.body if isinstance(result, RawReply) else (result.kind, result.first_byte_left)


# What leaves.


def test_the_bytes_that_arrive_are_the_whole_request_once_and_then_nothing(channel: Channel):
    async def scenario() -> None:
        heard: list[bytes] = []

        async def script(peer: Peer) -> None:
            heard.append(await peer.answer())
            heard.append(await peer.until_closed())

        async with serving(script, tls=channel["tls"]) as server:
            async with PayoutTransport(settings_for(server.url, ca_bundle=channel.get("ca_bundle"))) as transport:
                reply = await transport.deliver(request_to(server.url))
            await server.finished()
            origin, _ = gateway_origin(server.url)
            assert heard == [payout_request(request_to(server.url), origin, close=True), b""]
            first, headers, body = head_and_body(heard[0])
            assert (first, headers["connection"], body) == (
                f"POST {PATH} HTTP/1.1",
                "close",
                b'{"client_orderid":"PAY-1"}',
            )
            assert headers["host"] == f"localhost:{server.port}"
            assert reply == RawReply(
                200, (("content-type", "application/json"), ("content-length", str(len(BODY)))), BODY
            )
            assert len(server.peers) == 1

    play(scenario())


def test_head_and_body_leave_in_one_piece():
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            first_read = await peer.reader.read(2**16)
            assert first_read.endswith(b'{"client_orderid":"PAY-1"}')
            await peer.send(REPLY)

        async with serving(script) as server, PayoutTransport(settings_for(server.url)) as transport:
            assert isinstance(await transport.deliver(request_to(server.url)), RawReply)

    play(scenario())


def test_a_request_signed_for_another_place_is_not_sent():
    async def scenario() -> None:
        async with serving(silence) as server, PayoutTransport(settings_for(server.url)) as transport:
            for url in ("https://elsewhere.example", f"{server.url}0", server.url.removesuffix(PATH)[:-1]):
                with pytest.raises(InternalError):
                    await transport.deliver(request_to(url))
            assert server.peers == []

    play(scenario())


# What comes back.


@pytest.mark.parametrize("reply", [REPLY, CHUNKED, b"HTTP/1.1 102 Processing\r\n\r\n" + REPLY], ids=["1", "2", "3"])
def test_a_reply_that_comes_byte_by_byte_is_a_reply(channel: Channel, reply: bytes):
    async def script(peer: Peer) -> None:
        await peer.request()
        for index in range(len(reply)):
            await peer.send(reply[index : index + 1])

    assert summary(play(deliver_once(script, **channel))) == BODY


def test_a_reply_may_end_with_its_stream(channel: Channel):
    async def script(peer: Peer) -> None:
        await peer.answer(UNTIL_END)
        peer.writer.close()

    assert summary(play(deliver_once(script, **channel))) == BODY


@pytest.mark.parametrize("http_status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_redirect_is_handed_over_and_never_followed(http_status: int, *, elsewhere: bool):
    async def scenario() -> None:
        async with serving(silence) as other:

            async def script(peer: Peer) -> None:
                place = other.url if elsewhere else ""
                head = f"HTTP/1.1 {http_status} Moved\r\nLocation: {place}{PATH}\r\nSet-Cookie: a=b\r\n"
                await peer.answer(f"{head}Content-Length: 0\r\n\r\n".encode())

            async with serving(script) as server, PayoutTransport(settings_for(server.url)) as transport:
                for _ in range(2):
                    reply = await transport.deliver(request_to(server.url))
                    assert isinstance(reply, RawReply)
                    assert reply.http_status == http_status
                assert (len(server.peers), len(other.peers)) == (2, 0)

    play(scenario())


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (REPLY + REPLY, FaultKind.PROTOCOL_ERROR),
        (REPLY + b"x", FaultKind.PROTOCOL_ERROR),
        (b"garbage\r\n\r\n", FaultKind.PROTOCOL_ERROR),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", FaultKind.PROTOCOL_ERROR),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, FaultKind.PROTOCOL_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", FaultKind.REPLY_ENCODED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n", FaultKind.REPLY_TOO_LARGE),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000, FaultKind.REPLY_TOO_LARGE),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, FaultKind.REPLY_TOO_LARGE),
    ],
    ids=["two", "surplus", "garbage", "101", "1xx", "lengths", "gzip", "length", "10 MB", "head"],
)
def test_what_is_no_single_plain_reply_is_a_fault_after_the_first_byte(channel: Channel, reply: bytes, kind: FaultKind):
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(reply)
        await peer.until_closed()

    result = play(deliver_once(script, **channel))
    assert summary(result) == (kind, True)
    assert isinstance(result, TransportFault)
    assert result.bytes_read < 400_000


# The connection ends too early.


@pytest.mark.parametrize("reply", [REPLY, CHUNKED], ids=["length", "chunks"])
def test_a_reply_cut_at_any_byte_leaves_the_request_in_doubt(channel: Channel, reply: bytes):
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            await peer.answer(reply[: peer.number])
            peer.writer.close()

        async with (
            serving(script, tls=channel["tls"]) as server,
            PayoutTransport(settings_for(server.url, ca_bundle=channel.get("ca_bundle"))) as transport,
        ):
            for cut in range(len(reply)):
                result = await transport.deliver(request_to(server.url))
                assert summary(result) == (FaultKind.CONNECTION_LOST, True), cut
            assert isinstance(await transport.deliver(request_to(server.url)), RawReply)

    play(scenario())


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_connection_that_ends_after_any_part_of_the_request_leaves_it_in_doubt(
    channel: Channel, share: float, *, reset: bool
):
    size = len(b'{"client_orderid":"PAY-1"}')

    async def script(peer: Peer) -> None:
        if share:
            await peer.reader.readexactly(round(share * size))
        (peer.reset if reset else peer.cut)()

    result = play(deliver_once(script, **channel))
    assert isinstance(result, TransportFault)
    assert result.kind in {FaultKind.CONNECTION_LOST, FaultKind.WRITE_FAILED, FaultKind.CONNECT_FAILED}
    # Accepted and cut at once, the client may learn of it before it writes. Then, and only then, nothing has left.
    assert result.first_byte_left or (result.bytes_written == 0 and share == 0.0)


def test_a_reset_while_the_request_is_being_written_is_a_failed_write(channel: Channel):
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        peer.reset()

    result = play(deliver_once(script, body=HUGE, **channel))
    assert summary(result) == (FaultKind.WRITE_FAILED, True)
    assert isinstance(result, TransportFault)
    assert result.bytes_written < len(HUGE)


def test_a_reply_that_begins_before_the_whole_request_has_left_is_no_reply(channel: Channel):
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        await peer.send(REPLY)
        await asyncio.Event().wait()

    assert summary(play(deliver_once(script, body=HUGE, **channel))) == (FaultKind.EARLY_REPLY, True)


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


# Time.


def test_silence_of_59_seconds_is_waited_for_and_of_61_is_not(channel: Channel):
    def script_of(silence_s: float) -> Script:
        async def script(peer: Peer) -> None:
            await peer.request()
            jump(silence_s)
            await turns()
            await peer.send(REPLY)
            await peer.until_closed()

        return script

    assert summary(play(deliver_once(script_of(59), **channel))) == BODY
    assert summary(play(deliver_once(script_of(61), **channel))) == (FaultKind.READ_TIMEOUT, True)


def test_a_reply_that_drips_is_waited_for_until_the_total_time_is_over(channel: Channel):
    def script_of(pause_s: float) -> Script:
        async def script(peer: Peer) -> None:
            await peer.request()
            for piece in (REPLY[:10], REPLY[10:20], REPLY[20:]):
                jump(pause_s)
                await turns()
                await peer.send(piece)
            await peer.until_closed()

        return script

    assert summary(play(deliver_once(script_of(39), **channel))) == BODY
    assert summary(play(deliver_once(script_of(41), **channel))) == (FaultKind.TOTAL_TIMEOUT, True)


def test_interim_replies_without_end_are_bounded_by_the_total_time():
    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in b"HTTP/1.1 100 Continue\r\n\r\n" * 8:
            jump(1)
            await peer.send(bytes([byte]))
        await peer.until_closed()

    assert summary(play(deliver_once(script))) == (FaultKind.TOTAL_TIMEOUT, True)


def test_a_gateway_that_takes_nothing_more_of_the_request_is_given_up(channel: Channel):
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        jump(61)
        await asyncio.Event().wait()

    result = play(deliver_once(script, body=HUGE, **channel))
    assert summary(result) == (FaultKind.WRITE_TIMEOUT, True)
    assert isinstance(result, TransportFault)
    assert result.bytes_written < len(HUGE)


def test_the_silence_of_a_reply_is_counted_from_the_end_of_the_write():
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        pause_reading(peer)
        jump(50)
        await turns()
        resume_reading(peer)
        await peer.reader.readuntil(b"xxx\r")
        jump(50)
        await turns()
        await peer.send(REPLY)

    assert summary(play(deliver_once(script, body=HUGE + b"\r", limit=2**26))) == BODY


def test_time_outs_that_are_shorter_than_the_one_before_are_kept():
    async def script(peer: Peer) -> None:
        await peer.request()
        jump(0.2)
        await peer.until_closed()

    assert summary(play(deliver_once(script, read_timeout_s=0.1))) == (FaultKind.READ_TIMEOUT, True)
    assert summary(play(deliver_once(script, total_timeout_s=0.1))) == (FaultKind.TOTAL_TIMEOUT, True)


# Opening: nothing has left.


def open_to(url: str, *, names: dict[str, Any] | None = None, **changes: Any) -> RawReply | TransportFault:
    """Send one payout to `url`, which never answers, while the clock runs on."""

    async def scenario() -> RawReply | TransportFault:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        loop.names.update(names or {})
        async with PayoutTransport(settings_for(url, **changes)) as transport:
            delivery = asyncio.create_task(transport.deliver(request_to(url)))
            while not delivery.done():
                await asyncio.sleep(0.01)
                jump(1)
            assert transport._living == set()
            return await delivery

    return play(scenario())


def test_a_name_without_an_address_is_not_sent():
    names = {"gateway.example": socket.gaierror(socket.EAI_NONAME, "Name or service not known")}
    result = open_to("https://gateway.example", names=names)
    assert summary(result) == (FaultKind.NAME_NOT_RESOLVED, False)
    assert summary(open_to("https://gateway.example", names={"gateway.example": []})) == (
        FaultKind.NAME_NOT_RESOLVED,
        False,
    )


def test_a_refused_connection_is_not_sent():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert summary(open_to(f"http://127.0.0.1:{port}")) == (FaultKind.CONNECT_REFUSED, False)
        assert summary(open_to(f"https://localhost:{port}")) == (FaultKind.CONNECT_REFUSED, False)


def test_a_connection_that_cannot_be_made_is_not_sent():
    assert summary(open_to("https://255.255.255.255")) == (FaultKind.CONNECT_FAILED, False)


@pytest.fixture
def blackhole():
    """Return the port of a listener whose queue is full: it answers no further connection."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_connection_that_is_not_answered_is_not_sent(blackhole: int):
    assert summary(open_to(f"http://127.0.0.1:{blackhole}")) == (FaultKind.CONNECT_TIMEOUT, False)
    assert summary(open_to(f"http://127.0.0.1:{blackhole}", total_timeout_s=20)) == (FaultKind.TOTAL_TIMEOUT, False)


def test_the_next_address_of_a_name_is_tried_when_one_refuses():
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            await peer.answer()

        async with serving(script) as server, PayoutTransport(settings_for(server.url)) as transport:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, JumpingLoop)
            loop.names["localhost"] = ["127.0.0.2", "127.0.0.1"]
            assert isinstance(await transport.deliver(request_to(server.url)), RawReply)
            assert len(server.peers) == 1

    play(scenario())


# Giving up.


def test_a_cancelled_delivery_cuts_its_connection_and_goes_on_being_cancelled(channel: Channel):
    async def scenario() -> None:
        asked = asyncio.Event()
        after: list[bytes] = []

        async def script(peer: Peer) -> None:
            await peer.request()
            asked.set()
            after.append(await peer.until_closed())

        async with serving(script, tls=channel["tls"]) as server:
            transport = PayoutTransport(settings_for(server.url, ca_bundle=channel.get("ca_bundle")))
            delivery = asyncio.create_task(transport.deliver(request_to(server.url)))
            await asked.wait()
            delivery.cancel()
            with pytest.raises(asyncio.CancelledError):
                await delivery
            await turns()
            assert transport._living == set()
            await server.finished()
            assert after == [b""]
            await transport.aclose()

    play(scenario())


def test_a_cancelled_delivery_writes_nothing_more_of_its_request():
    async def scenario() -> None:
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
        async with serving(script) as server, PayoutTransport(settings_for(server.url)) as transport:
            delivery = asyncio.create_task(transport.deliver(request_to(server.url, body=HUGE)))
            await taken.wait()
            delivery.cancel()
            with pytest.raises(asyncio.CancelledError):
                await delivery
            cancelled.set()
            await server.finished()
            assert 1000 + len(rest[0]) < len(HUGE)

    play(scenario())


def test_a_delivery_cancelled_in_the_handshake_cuts_its_connection():
    async def scenario() -> None:
        met = asyncio.Event()
        heard: list[bytes] = []

        async def script(peer: Peer) -> None:
            await peer.reader.read(100)
            met.set()
            heard.append(await peer.until_closed())

        async with serving(script) as server:
            url = server.url.replace("http:", "https:")
            async with PayoutTransport(settings_for(url)) as transport:
                delivery = asyncio.create_task(transport.deliver(request_to(url)))
                await met.wait()
                delivery.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await delivery
                await server.finished()
                assert transport._living == set()
                assert b"PAY-1" not in heard[0]

    play(scenario())


def test_a_delivery_cancelled_while_it_connects_leaves_nothing_open(blackhole: int):
    async def scenario() -> None:
        url = f"http://127.0.0.1:{blackhole}"
        transport = PayoutTransport(settings_for(url))
        delivery = asyncio.create_task(transport.deliver(request_to(url)))
        await turns()
        delivery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivery
        assert transport._living == set()

    play(scenario())


def test_closing_the_transport_ends_what_is_under_way_with_its_true_witness(channel: Channel):
    async def scenario() -> None:
        asked = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            asked.set()
            await peer.until_closed()

        async with serving(script, tls=channel["tls"]) as server:
            transport = PayoutTransport(settings_for(server.url, ca_bundle=channel.get("ca_bundle")))
            delivery = asyncio.create_task(transport.deliver(request_to(server.url)))
            await asked.wait()
            await transport.aclose()
            assert summary(await delivery) == (FaultKind.CANCELLED, True)
            with pytest.raises(InternalError):
                await transport.deliver(request_to(server.url))

    play(scenario())


def test_closing_the_transport_while_a_connection_opens_sends_nothing():
    async def scenario() -> None:
        met = asyncio.Event()

        async def script(peer: Peer) -> None:
            met.set()
            assert b"PAY-1" not in await peer.until_closed()

        async with serving(script) as server:
            url = server.url.replace("http:", "https:")
            transport = PayoutTransport(settings_for(url))
            delivery = asyncio.create_task(transport.deliver(request_to(url)))
            await met.wait()
            await transport.aclose()
            assert summary(await delivery) == (FaultKind.CANCELLED, False)

    play(scenario())


def test_closing_the_transport_while_a_name_is_looked_up_sends_nothing(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        asked, told = asyncio.Event(), asyncio.Event()

        async def slow_answer(_self: JumpingLoop, _host: str, port: int, **_options: Any) -> list[Any]:
            asked.set()
            await told.wait()
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(JumpingLoop, "getaddrinfo", slow_answer)

        async def script(peer: Peer) -> None:
            assert await peer.until_closed() == b""

        async with serving(script) as server:
            transport = PayoutTransport(settings_for(server.url))
            delivery = asyncio.create_task(transport.deliver(request_to(server.url)))
            await asked.wait()
            await transport.aclose()
            told.set()
            assert summary(await delivery) == (FaultKind.CANCELLED, False)
            await turns()
            assert transport._living == set()

    play(scenario())


def test_sixty_four_at_once_each_get_their_own_reply(channel: Channel):
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            request = await peer.request()
            order_id = request.rpartition(b":")[2].strip(b'"}')
            await turns(int(order_id) % 7)
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(order_id), order_id))

        async with serving(script, tls=channel["tls"]) as server:
            async with PayoutTransport(settings_for(server.url, ca_bundle=channel.get("ca_bundle"))) as transport:
                results = await asyncio.gather(
                    *[transport.deliver(request_to(server.url, str(number))) for number in range(64)]
                )
            assert [summary(result) for result in results] == [str(number).encode() for number in range(64)]
            assert len(server.peers) == 64

    play(scenario())
