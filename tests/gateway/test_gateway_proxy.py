"""Proxies and the environment: which of them can affect a payout."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.gateway.http.http1 import TunnelReader
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from tests.support.gateway_server import (
    BODY,
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
    reset,
    run_loop,
    run_test,
    serving,
    settings_for,
    summary,
)

# The proxy.

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


def proxy_with_reply(reply: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(reply)
        await peer.until_closed()

    return script


async def stalling_proxy(peer: Peer) -> None:
    await peer.reader.readuntil(b"\r\n\r\n")
    advance_clock(31)
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "script",
    [
        hang_up,
        reset,
        stalling_proxy,
        proxy_with_reply(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"),
        proxy_with_reply(b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>"),
        proxy_with_reply(b"HTTP/1.1 100 Continue\r\n\r\n"),
        proxy_with_reply(b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1/\r\n\r\n"),
        proxy_with_reply(OPENED + b"more"),
        proxy_with_reply(b"SSH-2.0-OpenSSH\r\n\r\n"),
        proxy_with_reply(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000),
    ],
    ids=["hangs up", "resets", "stalls", "407", "502", "100", "301", "surplus", "ssh", "endless"],
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


# The environment.


PROXY_VARIABLES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
BUNDLE_VARIABLES = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]
OTHER_VARIABLES = {"NO_PROXY": "*", "no_proxy": "*", "PYTHONHTTPSVERIFY": "0", "HTTPX_LOG_LEVEL": "trace"}


@pytest.mark.parametrize("variable", PROXY_VARIABLES)
async def test_environment_proxy_is_ignored(
    variable: str, channel: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(expect_no_data) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        assert summary(await deliver_once(answer, **channel)) == BODY
        assert proxy.peers == []


@pytest.mark.parametrize("variable", BUNDLE_VARIABLES)
def test_certificate_authority_from_environment_is_ignored(
    variable: str, server_tls: ssl.SSLContext, ca_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = ca_bundle.parent if variable == "SSL_CERT_DIR" else ca_bundle
    monkeypatch.setenv(variable, str(trusted))
    untrusted = run_test(deliver_once(expect_no_data, tls=server_tls))
    assert summary(untrusted) == (FaultKind.TLS_UNTRUSTED, False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert summary(run_test(deliver_once(answer, tls=server_tls, ca_bundle=ca_bundle))) == BODY


@pytest.mark.parametrize("variable", OTHER_VARIABLES)
def test_environment_cannot_disable_certificate_checks(
    variable: str, server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, OTHER_VARIABLES[variable])
    assert summary(run_test(deliver_once(expect_no_data, tls=server_tls))) == (FaultKind.TLS_UNTRUSTED, False)
    assert capfd.readouterr() == ("", "")


def test_sslkeylogfile_variable_is_ignored(
    server_tls: ssl.SSLContext, ca_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys.log"))
    assert summary(run_test(deliver_once(answer, tls=server_tls, ca_bundle=ca_bundle))) == BODY
    assert list(tmp_path.iterdir()) == []
