"""TLS: trusted peers, handshakes, the end of a stream, and tunnels through a proxy."""

import asyncio
import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.http.http1 import TunnelReader
from paygw_batch.gateway.http.tls import TlsChannel, client_context
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_server import (
    BODY,
    REPLY,
    Peer,
    Script,
    Server,
    advance_clock,
    always,
    answer,
    build_request,
    deliver_once,
    expect_no_data,
    hang_up,
    line_to_script,
    reset,
    run_loop,
    run_test,
    serving,
    settings_for,
    summary,
)


def server_context(certificate: trustme.LeafCert, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


class ScriptedTls:
    """The gateway's side of TLS, which lets a test cut and send records as it likes."""

    was_cut = False
    """Whether the client ended the stream without close_notify."""

    def __init__(self, context: ssl.SSLContext, peer: Peer) -> None:
        self.arriving, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.side = context.wrap_bio(self.arriving, self.leaving, server_side=True)
        self.peer = peer

    async def shake_hands(self, then: bytes = b"") -> None:
        """Complete the handshake, and send `then` in the same flight."""
        while True:
            try:
                self.side.do_handshake()
            except ssl.SSLWantReadError:
                self.send(self.leaving.read())
                self.arriving.write(await self.peer.reader.read(2**14))
            else:
                self.send(self.build_record(then) if then else self.leaving.read())
                return

    async def request(self) -> bytes:
        while True:
            try:
                return self.side.read()
            except ssl.SSLWantReadError:
                if not (data := await self.peer.reader.read(2**14)):
                    self.was_cut = True
                    return b""
                self.arriving.write(data)

    def build_record(self, data: bytes) -> bytes:
        self.side.write(data)
        return self.leaving.read()

    def send(self, data: bytes) -> None:
        self.peer.writer.write(data)


@pytest.mark.parametrize("case", ["unknown authority", "self-signed", "expired", "other name", "default authorities"])
def test_invalid_certificate_is_untrusted_and_nothing_sent(case: str, authority: trustme.CA, ca_bundle: Path) -> None:
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    context = server_context(
        {
            "unknown authority": trustme.CA().issue_cert("localhost"),
            "expired": authority.issue_cert("localhost", not_after=yesterday),
            "other name": authority.issue_cert("gateway.example"),
        }.get(case, authority.issue_cert("localhost"))
    )
    if case == "self-signed":
        own = trustme.CA()
        with own.cert_pem.tempfile() as cert, own.private_key_pem.tempfile() as private:
            context.load_cert_chain(cert, private)
    bundle = None if case == "default authorities" else ca_bundle
    result = run_test(deliver_once(expect_no_data, tls=context, ca_bundle=bundle))
    assert isinstance(result, TransportFault)
    assert (result.kind, result.first_byte_sent, result.bytes_written) == (FaultKind.TLS_UNTRUSTED, False, 0)
    assert result.detail


async def test_certificate_must_match_host(authority: trustme.CA, ca_bundle: Path) -> None:
    for name, comes in (("127.0.0.1", BODY), ("localhost", (FaultKind.TLS_UNTRUSTED, False))):
        async with serving(answer, tls=server_context(authority.issue_cert(name))) as server:
            url = f"https://127.0.0.1:{server.port}"
            async with PayoutTransport(settings_for(url, ca_bundle=ca_bundle)) as transport:
                assert summary(await transport.deliver(build_request(url), always)) == comes


def test_tls_1_2_or_later_is_required(ca_bundle: Path) -> None:
    for context in (client_context(None), client_context(ca_bundle)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.keylog_filename is None
    assert len(client_context(ca_bundle).get_ca_certs()) == 1
    assert len(client_context(None).get_ca_certs()) > 50


async def test_http_2_is_never_negotiated(authority: trustme.CA, ca_bundle: Path) -> None:
    agreed: list[str | None] = []

    async def script(peer: Peer) -> None:
        agreed.append(peer.writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await peer.answer()

    for offered in (["h2", "http/1.1"], ["h2"]):
        context = server_context(authority.issue_cert("localhost"))
        context.set_alpn_protocols(offered)
        assert summary(await deliver_once(script, tls=context, ca_bundle=ca_bundle)) == BODY
    assert agreed == ["http/1.1", None]


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_unreadable_bundle_is_refused_before_sending(tmp_path: Path, content: bytes | None) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"bundle\.pem cannot be read"):
        PayoutTransport(settings_for("https://gateway.example", ca_bundle=bundle))


# The handshake.
def saying(data: bytes) -> Script:
    """Return a server that answers the first bytes with `data`, or never if it is empty."""

    async def script(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.send(data)
        if not data:
            advance_clock(31)
        await peer.until_closed()

    return script


@pytest.mark.parametrize(
    "script",
    [hang_up, reset, saying(b""), saying(b"HTTP/1.1 400 Plain\r\n\r\n"), saying(b"\x15\x03\x03\x00\x02\x02\x28")],
    ids=["hangs up", "resets", "stalls", "plain HTTP", "a fatal alert: handshake_failure"],
)
async def test_failed_handshake_sends_nothing(script: Script, ca_bundle: Path) -> None:
    async with line_to_script(script, by_hand=True, ca_bundle=ca_bundle) as line:
        assert summary(await line.deliver()) == (FaultKind.TLS_FAILED, False)


# With TLS 1.3 the server refuses after our side of the handshake, so the test waits for it.
@pytest.mark.usefixtures("patient_connections")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificate_is_never_sent(version: ssl.TLSVersion, authority: trustme.CA, ca_bundle: Path) -> None:
    context = server_context(authority.issue_cert("localhost"), version)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    result = summary(run_test(deliver_once(expect_no_data, tls=context, ca_bundle=ca_bundle)))
    assert result in {(FaultKind.TLS_FAILED, False), (FaultKind.CONNECT_FAILED, False)}


async def test_gateway_sending_after_handshake_gets_no_request(authority: trustme.CA, ca_bundle: Path) -> None:
    context = server_context(authority.issue_cert("localhost"), ssl.TLSVersion.TLSv1_2)

    async def script(peer: Peer) -> None:
        await ScriptedTls(context, peer).shake_hands(then=REPLY)
        await peer.until_closed()

    assert summary(await deliver_over_tls(script, ca_bundle)) == (FaultKind.EARLY_REPLY, False)


# The end of the stream.
@pytest.mark.parametrize("said", [True, False])
def test_unframed_reply_requires_close_notify_under_tls(channel: dict[str, Any], *, said: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)
        peer.writer.close() if said else peer.cut()

    result = summary(run_test(deliver_once(script, **channel)))
    assert result == (BODY if said or channel["tls"] is None else (FaultKind.CONNECTION_LOST, True))


def test_corrupted_tls_reply_leaves_outcome_unknown(server_tls: ssl.SSLContext, ca_bundle: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(REPLY[:30])
        # Past the TLS layer, onto the wire itself.
        peer.writer.transport._ssl_protocol._transport.write(REPLY[30:])  # type: ignore[attr-defined]
        await peer.until_closed()

    assert summary(run_test(deliver_once(script, tls=server_tls, ca_bundle=ca_bundle))) == (FaultKind.TLS_FAILED, True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_finished_connection_is_closed(version: ssl.TLSVersion, authority: trustme.CA, ca_bundle: Path) -> None:
    async def script(peer: Peer) -> None:
        tls = ScriptedTls(server_context(authority.issue_cert("localhost"), version), peer)
        await tls.shake_hands()
        assert b"PAY-1" in await tls.request()
        tls.send(tls.build_record(REPLY))
        assert (await tls.request(), tls.was_cut) == (b"", False)

    assert summary(await deliver_over_tls(script, ca_bundle)) == BODY


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_next_connection_resumes_session(version: ssl.TLSVersion, authority: trustme.CA, ca_bundle: Path) -> None:
    context = server_context(authority.issue_cert("localhost"), version)
    resumed: list[bool] = []

    async def script(peer: Peer) -> None:
        resumed.append(peer.writer.get_extra_info("ssl_object").session_reused)
        await peer.answer()

    async with line_to_script(script, tls=context, ca_bundle=ca_bundle) as line:
        for _ in range(3):
            assert summary(await line.deliver()) == BODY
    assert resumed == [False, True, True]


async def test_resumed_session_still_checks_certificate(authority: trustme.CA, ca_bundle: Path) -> None:
    contexts = [server_context(authority.issue_cert("localhost")), server_context(trustme.CA().issue_cert("localhost"))]
    async with (
        serving(answer, tls=contexts[0]) as server,
        serving(expect_no_data, tls=contexts[1]) as impostor,
        PayoutTransport(settings_for(server.url, ca_bundle=ca_bundle)) as transport,
    ):
        assert summary(await transport.deliver(build_request(server.url), always)) == BODY
        transport._origin = type(transport._origin)("https", "localhost", impostor.port)
        result = await transport.deliver(build_request(impostor.url), always)
        assert summary(result) == (FaultKind.TLS_UNTRUSTED, False)
        assert transport._session is None, "a session that may have been the trouble is not offered again"


# A proxy.
OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
    writer.close()


def tunnel(heard: list[bytes], opened: bytes = OPENED) -> Script:
    """Return a proxy that works, but only to this machine, and records its requests."""

    async def script(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        heard.append(head)
        port = int(head.split()[1].rpartition(b":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for index in range(len(opened)):
            await peer.send(opened[index : index + 1])
        try:
            await asyncio.gather(relay(peer.reader, writer), relay(reader, peer.writer))
        finally:
            writer.transport.abort()

    return script


async def deliver_through(proxy: Server, gateway: Server, ca_bundle: Path) -> RawReply | TransportFault:
    url = gateway.url if gateway.tls else gateway.url.replace("http:", "https:")
    settings = settings_for(url, ca_bundle=ca_bundle, proxy=f"http://127.0.0.1:{proxy.port}")
    async with PayoutTransport(settings) as transport:
        result = await transport.deliver(build_request(url), always)
        await run_loop()
        assert transport._open_connections == set()
        return result


@pytest.mark.parametrize("opened", [OPENED, b"HTTP/1.0 200 OK\r\nVia: x\r\nContent-Length: 5\r\n\r\n"])
async def test_proxy_carries_tls_and_sees_no_payout(opened: bytes, server_tls: ssl.SSLContext, ca_bundle: Path) -> None:
    heard: list[bytes] = []
    async with serving(answer, tls=server_tls) as gateway, serving(tunnel(heard, opened)) as proxy:
        assert summary(await deliver_through(proxy, gateway, ca_bundle)) == BODY
        place = b"localhost:%d" % gateway.port
        assert heard == [b"CONNECT " + place + b" HTTP/1.1\r\nHost: " + place + b"\r\nUser-Agent: paygw-batch\r\n\r\n"]


async def test_proxy_fault_reports_whether_request_was_sent(server_tls: ssl.SSLContext, ca_bundle: Path) -> None:
    async def drop_connection(peer: Peer) -> None:
        await peer.request()
        peer.cut()

    async with serving(drop_connection, tls=server_tls) as gateway, serving(tunnel([])) as proxy:
        assert summary(await deliver_through(proxy, gateway, ca_bundle)) == (FaultKind.CONNECTION_LOST, True)
    async with serving(hang_up) as gateway, serving(tunnel([])) as proxy:
        assert summary(await deliver_through(proxy, gateway, ca_bundle)) == (FaultKind.TLS_FAILED, False)
    async with serving(expect_no_data) as proxy:
        pass
    async with serving(expect_no_data) as gateway:
        assert summary(await deliver_through(proxy, gateway, ca_bundle)) == (FaultKind.PROXY_FAILED, False)


@pytest.mark.parametrize(
    "script",
    [
        *(hang_up, reset, saying(b""), saying(OPENED + b"more"), saying(b"SSH-2.0-OpenSSH\r\n\r\n")),
        *(saying(b"HTTP/1.1 %b\r\n\r\n" % said) for said in (b"407 No", b"100 Continue", b"301 Moved\r\nLocation: /")),
        *(saying(b"HTTP/1.1 502 Bad\r\n\r\n<html>"), saying(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000)),
    ],
    ids=["hangs up", "resets", "stalls", "surplus", "ssh", "407", "100", "301", "502", "endless"],
)
async def test_proxy_without_tunnel_leaves_request_unsent(script: Script, ca_bundle: Path) -> None:
    async with serving(expect_no_data) as gateway, serving(script) as proxy:
        assert summary(await deliver_through(proxy, gateway, ca_bundle)) == (FaultKind.PROXY_FAILED, False)
        assert gateway.peers == []


def test_proxy_reply_length_is_limited() -> None:
    reader = TunnelReader()
    for _ in range(2000):
        if not reader.problem:
            reader.feed(b"X: y\r\n")
    assert reader.problem
    assert not reader.is_open


async def deliver_over_tls(script: Script, ca_bundle: Path) -> RawReply | TransportFault:
    async with line_to_script(script, by_hand=True, ca_bundle=ca_bundle) as line:
        result = await line.deliver()
        await line.server.finished()
        return result


@pytest.mark.usefixtures("patient_connections")
@pytest.mark.parametrize("cut", [1, 4, 5, 6, 30])
@pytest.mark.parametrize("goes_on", [True, False])
def test_early_tls_record_is_rejected(server_tls: ssl.SSLContext, ca_bundle: Path, cut: int, *, goes_on: bool) -> None:
    async def script(peer: Peer) -> None:
        tls = ScriptedTls(server_tls, peer)
        await tls.shake_hands()
        record = tls.build_record(REPLY)
        tls.send(record[:cut])
        await run_loop(100)
        advance_clock(26)
        if goes_on:
            await run_loop(100)
            tls.send(record[cut:])
        else:
            advance_clock(31)
        assert await tls.request() == b""

    assert summary(run_test(deliver_over_tls(script, ca_bundle))) == (FaultKind.EARLY_REPLY, False)


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
