"""TLS: trusted peers, handshakes, and the end of a stream."""

import asyncio
import contextlib
import datetime as dt
import ssl
from pathlib import Path

import pytest
import trustme

from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.http import transport
from paygw_batch.gateway.http.tls import client_context
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_server import (
    BODY,
    REPLY,
    Peer,
    Script,
    advance_clock,
    always,
    answer,
    build_request,
    deliver_once,
    expect_no_data,
    hang_up,
    line_to_script,
    reset,
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


# Trust.
@pytest.mark.parametrize("case", ["unknown authority", "self-signed", "expired", "other name", "default authorities"])
def test_invalid_certificate_is_untrusted_and_nothing_sent(case: str, authority: trustme.CA, ca_bundle: Path) -> None:
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    good = authority.issue_cert("localhost")
    certificate: trustme.CA | trustme.LeafCert
    certificate = {  # type: ignore[assignment]  # mypy joins the two to object
        "unknown authority": trustme.CA().issue_cert("localhost"),
        "self-signed": trustme.CA(),
        "expired": authority.issue_cert("localhost", not_after=yesterday),
        "other name": authority.issue_cert("gateway.example"),
        "default authorities": good,
    }[case]
    if isinstance(certificate, trustme.CA):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with certificate.cert_pem.tempfile() as cert, certificate.private_key_pem.tempfile() as private:
            context.load_cert_chain(cert, private)
    else:
        context = server_context(certificate)
    bundle = None if case == "default authorities" else ca_bundle
    result = run_test(deliver_once(expect_no_data, tls=context, ca_bundle=bundle))
    assert summary(result) == (FaultKind.TLS_UNTRUSTED, False)
    assert isinstance(result, TransportFault)
    assert result.bytes_written == 0
    assert result.detail


def test_certificate_must_match_host(authority: trustme.CA, ca_bundle: Path) -> None:
    async def scenario(certificate: trustme.LeafCert) -> RawReply | TransportFault:
        async with serving(answer, tls=server_context(certificate)) as server:
            url = f"https://127.0.0.1:{server.port}"
            async with PayoutTransport(settings_for(url, ca_bundle=ca_bundle)) as transport:
                return await transport.deliver(build_request(url), always)

    assert summary(run_test(scenario(authority.issue_cert("127.0.0.1")))) == BODY
    assert summary(run_test(scenario(authority.issue_cert("localhost")))) == (FaultKind.TLS_UNTRUSTED, False)


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
async def reply_in_plain_http(peer: Peer) -> None:
    await peer.reader.read(100)
    await peer.send(b"HTTP/1.1 400 This is plain HTTP\r\n\r\n")


async def never_answer(peer: Peer) -> None:
    await peer.reader.read(100)
    advance_clock(31)
    await asyncio.Event().wait()


async def send_fatal_alert(peer: Peer) -> None:
    await peer.reader.read(100)
    await peer.send(b"\x15\x03\x03\x00\x02\x02\x28")  # a fatal alert: handshake_failure


@pytest.mark.parametrize("script", [hang_up, reset, reply_in_plain_http, never_answer, send_fatal_alert])
async def test_failed_handshake_sends_nothing(script: Script, ca_bundle: Path) -> None:
    async with line_to_script(script, by_hand=True, ca_bundle=ca_bundle) as line:
        assert summary(await line.deliver()) == (FaultKind.TLS_FAILED, False)


def test_gateway_requiring_client_certificate_gets_no_request(
    authority: trustme.CA, ca_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With TLS 1.3 the server refuses after our side of the handshake, so the test waits for it.
    monkeypatch.setattr(transport, "FIRST_SILENCE_S", 25)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = server_context(authority.issue_cert("localhost"), version)
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
        result = run_test(deliver_once(expect_no_data, tls=context, ca_bundle=ca_bundle))
        assert isinstance(result, TransportFault)
        assert not result.first_byte_sent
        assert result.kind in {FaultKind.TLS_FAILED, FaultKind.CONNECT_FAILED}


async def test_gateway_sending_after_handshake_gets_no_request(authority: trustme.CA, ca_bundle: Path) -> None:
    context = server_context(authority.issue_cert("localhost"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def script(peer: Peer) -> None:
        # TLS is handled by hand here, so that the early bytes are in the same flight as the end of the handshake.
        arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        side = context.wrap_bio(arriving, leaving, server_side=True)
        has_spoken = False
        while not has_spoken:
            arriving.write(await peer.reader.read(2**14))
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                side.write(REPLY)
                has_spoken = True
            peer.writer.write(leaving.read())
        await peer.until_closed()

    async with line_to_script(script, by_hand=True, ca_bundle=ca_bundle) as line:
        assert summary(await line.deliver()) == (FaultKind.EARLY_REPLY, False)


# The end of the stream.
def test_unframed_tls_reply_requires_close_notify(server_tls: ssl.SSLContext, ca_bundle: Path) -> None:
    def build_script(*, said: bool) -> Script:
        async def script(peer: Peer) -> None:
            await peer.answer(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)
            if said:
                peer.writer.close()
            else:
                peer.cut()

        return script

    assert summary(run_test(deliver_once(build_script(said=True), tls=server_tls, ca_bundle=ca_bundle))) == BODY
    cut = run_test(deliver_once(build_script(said=False), tls=server_tls, ca_bundle=ca_bundle))
    assert summary(cut) == (FaultKind.CONNECTION_LOST, True)


def test_corrupted_tls_reply_leaves_outcome_unknown(server_tls: ssl.SSLContext, ca_bundle: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(REPLY[:30])
        # Past the TLS layer, onto the wire itself.
        peer.writer.transport._ssl_protocol._transport.write(REPLY[30:])  # type: ignore[attr-defined]
        await peer.until_closed()

    assert summary(run_test(deliver_once(script, tls=server_tls, ca_bundle=ca_bundle))) == (FaultKind.TLS_FAILED, True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_finished_tls_connection_is_closed(
    version: ssl.TLSVersion, authority: trustme.CA, ca_bundle: Path
) -> None:
    context = server_context(authority.issue_cert("localhost"), version)
    said: list[bytes] = []

    async def script(peer: Peer) -> None:
        # TLS is handled by hand here, because asyncio's own does not distinguish an ended stream from a cut one.
        arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        side = context.wrap_bio(arriving, leaving, server_side=True)
        steps = [side.do_handshake, side.read, lambda: side.write(REPLY), side.read]
        while steps:
            try:
                said.append(steps[0]())  # type: ignore[operator]
                del steps[0]
            except ssl.SSLWantReadError:
                peer.writer.write(leaving.read())
                arriving.write(await peer.reader.read(2**14))
            peer.writer.write(leaving.read())

    async with line_to_script(script, by_hand=True, ca_bundle=ca_bundle) as line:
        assert summary(await line.deliver()) == BODY
        await line.server.finished()
    assert said[-1] == b""


# Sessions.
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_later_connection_resumes_tls_session(
    version: ssl.TLSVersion, authority: trustme.CA, ca_bundle: Path
) -> None:
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
