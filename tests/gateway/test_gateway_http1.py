"""HTTP/1.1 as bytes: one table of replies, fed whole, byte by byte, and with surplus bytes."""

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import parse_gateway_url
from paygw_batch.gateway.http.http1 import MAX_INTERIM_REPLIES, MAX_REPLY_BYTES, ReplyReader, build_payout_request
from paygw_batch.gateway.message import FaultKind, RawReply
from tests.support.gateway_server import build_request

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH_2 = b"Content-Length: 2\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
REST = LENGTH_2 + b"\r\n{}"
REPLY = OK + REST


def packed(coding: bytes, body: bytes) -> bytes:
    return OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(body)) + body


BOMB = gzip.compress(bytes(10_000_000))
GZIPPED = gzip.compress(b"{}")
RAW_DEFLATE = zlib.compress(b'{"a": 1}', wbits=-15)

WHOLE = {
    "length": (REPLY, 200, b"{}"),
    "no reason": (b"HTTP/1.1 200\r\n" + REST, 200, b"{}"),
    "another reason": (b"HTTP/1.1 404 \xff odd\r\n" + REST, 404, b"{}"),
    "length nought": (OK + b"Content-Length: 0\r\n\r\n", 200, b""),
    "one chunk": (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n", 200, b"{}"),
    "chunks of one": (OK + CHUNKED + b"\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 200, b"{}"),
    "chunk extension": (OK + b"transfer-encoding: Chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n", 200, b"{}"),
    "trailers": (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nX-Trailer: 9\r\n\r\n", 200, b"{}"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + REST, 200, b"{}"),
    "identity": (OK + b"Content-Encoding: identity\r\n" + REST, 200, b"{}"),
    "interim replies": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + REPLY, 200, b"{}"),
    "upgrade offered": (OK + b"Upgrade: h2c\r\nConnection: upgrade\r\n" + REST, 200, b"{}"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "empty header": (OK + b"X-Empty:\r\n" + REST, 200, b"{}"),
    "gzip that nobody asked for": (packed(b"gzip", GZIPPED), 200, b"{}"),
    "x-gzip beside identity": (packed(b"identity, X-GZIP", GZIPPED), 200, b"{}"),
    "deflate": (packed(b"deflate", zlib.compress(b"{}")), 200, b"{}"),
    "deflate without a frame": (packed(b"deflate", RAW_DEFLATE), 200, b'{"a": 1}'),
    "gzip in chunks": (
        OK + b"Content-Encoding: gzip\r\n" + CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(GZIPPED), GZIPPED),
        200,
        b"{}",
    ),
    "largest body unpacked": (packed(b"gzip", gzip.compress(b"x" * 65536)), 200, b"x" * 65536),
    "largest body": (OK + b"Content-Length: 65536\r\n\r\n" + b"x" * 65536, 200, b"x" * 65536),
}
"""Replies that are complete by their own framing: bytes, HTTP status, body."""

BROKEN = {
    "two lengths": (OK + LENGTH_2 + REST, FaultKind.PROTOCOL_ERROR),
    "list of lengths": (OK + b"Content-Length: 2, 2\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "no length": (OK + b"Content-Length: \r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "signed length": (OK + b"Content-Length: +2\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "negative length": (OK + b"Content-Length: -2\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "hexadecimal length": (OK + b"Content-Length: 0x2\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "length beyond all": (OK + b"Content-Length: 99999999999999999999999\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "length and chunks": (OK + LENGTH_2 + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "length in a trailer": (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + LENGTH_2 + b"\r\n", FaultKind.PROTOCOL_ERROR),
    "bad chunk": (OK + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "chunk too long": (OK + CHUNKED + b"\r\n2\r\n{}x\r\n0\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "chunked twice": (OK + CHUNKED + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n", FaultKind.REPLY_ENCODED),
    "chunks in HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "gzip twice": (packed(b"gzip, gzip", gzip.compress(GZIPPED)), FaultKind.REPLY_ENCODED),
    "gzip cut": (packed(b"gzip", GZIPPED[:-1]), FaultKind.REPLY_ENCODED),
    "gzip with another sum": (packed(b"gzip", GZIPPED[:-8] + bytes(8)), FaultKind.REPLY_ENCODED),
    "gzip and more": (packed(b"gzip", GZIPPED + b"{}"), FaultKind.REPLY_ENCODED),
    "gzip of nothing sent": (packed(b"gzip", b""), FaultKind.REPLY_ENCODED),
    "gzip too large": (packed(b"gzip", gzip.compress(b"x" * 65537)), FaultKind.REPLY_TOO_LARGE),
    "gzip bomb": (packed(b"gzip", BOMB), FaultKind.REPLY_TOO_LARGE),
    "deflate bomb": (packed(b"deflate", zlib.compress(bytes(10_000_000))), FaultKind.REPLY_TOO_LARGE),
    "gzip": (OK + b"Content-Encoding: gzip\r\n" + REST, FaultKind.REPLY_ENCODED),
    "identity, then br": (OK + b"Content-Encoding: identity, BR\r\n" + REST, FaultKind.REPLY_ENCODED),
    "gzip by transfer": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", FaultKind.REPLY_ENCODED),
    "bare line feeds": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", FaultKind.PROTOCOL_ERROR),
    "folded header": (OK + b"X: y\r\n z\r\n" + REST, FaultKind.PROTOCOL_ERROR),
    "blank in a name": (OK + b"Content-Length : 2\r\n\r\n{}", FaultKind.PROTOCOL_ERROR),
    "nul in a header": (OK + b"X: \0\r\n" + REST, FaultKind.PROTOCOL_ERROR),
    "HTTP/0.9": (b"HTTP/0.9 200 OK\r\n" + REST, FaultKind.PROTOCOL_ERROR),
    "HTTP/2 in text": (b"HTTP/2.0 200 OK\r\n" + REST, FaultKind.PROTOCOL_ERROR),
    "HTTP/2 frames": (b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x80", FaultKind.PROTOCOL_ERROR),
    "RTSP": (b"RTSP/1.0 200 OK\r\n" + REST, FaultKind.PROTOCOL_ERROR),
    "blank line first": (b"\r\n" + REPLY, FaultKind.PROTOCOL_ERROR),
    "status of two digits": (b"HTTP/1.1 99 Low\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "status of four digits": (b"HTTP/1.1 2000 High\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "JSON alone": (b'{"status":"approved"}', FaultKind.PROTOCOL_ERROR),
    "TLS alert": (b"\x15\3\1\0\2\2\x16", FaultKind.PROTOCOL_ERROR),
    "switching protocols": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "switching to HTTP/2": (b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", FaultKind.PROTOCOL_ERROR),
    "interim without end": (b"HTTP/1.1 102 Processing\r\n\r\n" * (MAX_INTERIM_REPLIES + 1), FaultKind.PROTOCOL_ERROR),
    "length too large": (OK + b"Content-Length: 65537\r\n\r\n", FaultKind.REPLY_TOO_LARGE),
    "chunks too large": (OK + CHUNKED + b"\r\n10001\r\n" + b"x" * 65537, FaultKind.REPLY_TOO_LARGE),
    "until too large": (OK + b"\r\n" + b"x" * 65537, FaultKind.REPLY_TOO_LARGE),
    "head too large": (OK + b"X: " + b"x" * MAX_REPLY_BYTES, FaultKind.REPLY_TOO_LARGE),
    "chunk extension too large": (OK + CHUNKED + b"\r\n2;" + b"x" * MAX_REPLY_BYTES, FaultKind.REPLY_TOO_LARGE),
    "all framing": (OK + CHUNKED + b"\r\n" + b"1\r\nx\r\n" * (MAX_REPLY_BYTES // 6), FaultKind.REPLY_TOO_LARGE),
}
"""Bytes that can never become a reply, whatever follows."""

UNTIL_END = {
    "HTTP/1.1": (OK + b"\r\n{}", b"{}"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\n{}", b"{}"),
    "with nothing": (OK + b"\r\n", b""),
}
"""Replies that only the end of the stream completes: bytes, body."""


def feed_reader(pieces: Iterable[bytes]) -> ReplyReader:
    reader = ReplyReader()
    for piece in pieces:
        if piece and reader.result is None:
            reader.feed(piece)
    return reader


def byte_by_byte(data: bytes) -> Iterable[bytes]:
    return (data[index : index + 1] for index in range(len(data)))


def fault_kind(reader: ReplyReader) -> Any:
    return getattr(reader.result, "kind", None)


@pytest.mark.parametrize(("data", "status", "body"), WHOLE.values(), ids=WHOLE)
def test_reply_is_complete_only_after_last_byte(data: bytes, status: int, body: bytes) -> None:
    for reader in (feed_reader([data]), feed_reader(byte_by_byte(data))):
        assert isinstance(reader.result, RawReply)
        assert (reader.result.http_status, reader.result.body) == (status, body)
        assert reader.bytes_read == len(data)
    for cut in range(len(data)) if len(data) < 1000 else [0, 1, 17, 40, len(data) // 2, len(data) - 1]:
        reader = feed_reader(byte_by_byte(data[:cut]) if cut % 2 else [data[:cut]])
        assert reader.result is None
        reader.end(is_clean=True)
        assert fault_kind(reader) is FaultKind.CONNECTION_LOST, cut


@pytest.mark.parametrize(("data", "kind"), BROKEN.values(), ids=BROKEN)
def test_malformed_reply_is_detected_in_any_chunks(data: bytes, kind: FaultKind) -> None:
    assert fault_kind(feed_reader([data])) is kind
    if len(data) < 1000:
        assert fault_kind(feed_reader(byte_by_byte(data))) is kind


@pytest.mark.parametrize("data", [data for data, _, _ in WHOLE.values()], ids=WHOLE)
@pytest.mark.parametrize(
    "surplus",
    [b"x", b"\0", b"{}", REPLY, b"\r\n" + OK, b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["letter", "nul", "body", "second reply", "blank line and reply", "interim"],
)
def test_reply_with_extra_bytes_is_refused(data: bytes, surplus: bytes) -> None:
    assert fault_kind(feed_reader([data + surplus])) in {FaultKind.PROTOCOL_ERROR, FaultKind.REPLY_TOO_LARGE}


@pytest.mark.parametrize(("data", "body"), UNTIL_END.values(), ids=UNTIL_END)
def test_unframed_reply_is_complete_only_at_clean_end(data: bytes, body: bytes) -> None:
    for pieces in ([data], byte_by_byte(data)):
        reader = feed_reader(pieces)
        assert reader.result is None
        reader.end(is_clean=True)
        assert isinstance(reader.result, RawReply)
        assert reader.result.body == body
        assert not reader.is_reusable
    head = len(data) - len(body)
    for cut in (len(data), *range(head)):
        reader = feed_reader(byte_by_byte(data[:cut]) if cut % 2 else [data[:cut]])
        reader.end(is_clean=cut < head)
        assert fault_kind(reader) is FaultKind.CONNECTION_LOST


def test_complete_reply_has_headers_and_refuses_bytes() -> None:
    head = b"HTTP/1.1 103 Hints\r\nA: 1\r\n\r\n" + OK + b"X-Two:  b c \r\nx-two: d\r\n"
    reply = feed_reader([head + CHUNKED + b"\r\n0\r\nE: f\r\n\r\n"]).result
    assert isinstance(reply, RawReply)
    assert reply.headers == (("x-two", "b c"), ("x-two", "d"), ("transfer-encoding", "chunked"))
    reader = feed_reader([REPLY])
    with pytest.raises(InternalError):
        reader.feed(b"x")
    reader.end(is_clean=False)
    assert isinstance(reader.result, RawReply)


MAY_SERVE_ON = {
    "length": (REPLY, True),
    "body that ends its line": (OK + b"Content-Length: 3\r\n\r\n{}\n", True),
    "chunks": (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n", True),
    "asked to close": (OK + b"Connection: close\r\n" + REST, False),
    "asked to close among others": (OK + b"Connection: x, Close\r\n" + REST, False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + REST, False),
    "HTTP/1.0 that would stay": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + REST, False),
    "blank line behind": (OK + LENGTH_2 + b"\r\n{}\r\n", False),
    "line feed behind": (OK + LENGTH_2 + b"\r\n{}\n", False),
    "blank line behind a body that ends its line": (OK + b"Content-Length: 3\r\n\r\n{}\n\r\n", False),
    "blank line behind chunks": (OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n\r\n", False),
}


@pytest.mark.parametrize(("data", "expected"), MAY_SERVE_ON.values(), ids=MAY_SERVE_ON)
def test_connection_is_reusable_only_after_clean_reply(data: bytes, expected: bool) -> None:
    reader = feed_reader([data])
    assert isinstance(reader.result, RawReply)
    assert reader.is_reusable is expected


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_reader_never_raises_and_returns_only_complete_replies(data: bytes, cuts: list[int]) -> None:
    for prefix in (b"", OK, OK + LENGTH_2, OK + CHUNKED + b"\r\n"):
        whole = prefix + data
        bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
        reader = feed_reader([whole[a:b] for a, b in pairwise(bounds) if a < b])
        reader.end(is_clean=False)
        if isinstance(reader.result, RawReply):
            assert 200 <= reader.result.http_status <= 999


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb", "a\0b"])
def test_header_with_line_break_is_refused(value: str) -> None:
    request, origin = build_request("http://localhost"), parse_gateway_url("http://localhost")[0]
    with pytest.raises(InternalError):
        build_payout_request(replace(request, authorization=value), origin, close=True)
    with pytest.raises(InternalError):
        build_payout_request(replace(request, url=f"http://localhost/{value}"), origin, close=True)
