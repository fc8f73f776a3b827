"""Builds HTTP/1.1 requests and parses replies, without sockets.

Source: RFC 9112. The parser is httptools (llhttp) in strict mode: it refuses two lengths, a length with chunks, bare
line feeds and folded lines. This module also refuses other unreliable replies.

The module also builds the CONNECT request to a proxy and parses its reply (RFC 9110 section 9.3.6). CONNECT contains no
part of a payout, so it never sets the witness.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import httptools

from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import Origin
from paygw_batch.gateway.message import FaultKind, PreparedRequest, RawReply

MAX_BODY_BYTES = 64 * 1024
MAX_REPLY_BYTES = MAX_BODY_BYTES + 16 * 1024
"""The maximum size of a reply with its head, interim replies and chunk framing."""
MAX_INTERIM_REPLIES = 8
_ZLIB_WINDOWS = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}
"""Content codings that some gateways use even though we accept none, with the zlib windows to try for each.

Some servers send deflate without the frame that RFC 9110 (section 8.4.1.2) prescribes.
"""


def build_payout_request(request: PreparedRequest, origin: Origin, *, close: bool) -> bytes:
    """Return the bytes of a request, with the headers in section 5 of the gateway's interface.

    Raises `InternalError` if the request was signed for another origin, or if a header contains a line break.
    """
    prefix = _request_head_prefix(request.url, origin)
    suffix = f"Content-Length: {len(request.body)}\r\n" + ("Connection: close\r\n\r\n" if close else "\r\n")
    return f"{prefix}Authorization: {_single_line(request.authorization)}\r\n{suffix}".encode("latin-1") + request.body


@lru_cache(maxsize=8)
def _request_head_prefix(url: str, origin: Origin) -> str:
    """Return the part of the head before the Authorization header, which is the same for all payouts."""
    base_url = str(origin)
    target = url.removeprefix(base_url)
    if len(target) == len(url) or not target.startswith("/"):
        raise InternalError("a request was signed for another place than the one it would be sent to")
    return (
        f"POST {_single_line(target)} HTTP/1.1\r\nHost: {origin.authority}\r\nUser-Agent: paygw-batch\r\n"
        "Accept-Encoding: identity\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
    )


def _single_line(text: str) -> str:
    if "\r" in text or "\n" in text or "\0" in text:
        raise InternalError("a request would have had a line break inside a header")
    return text


@dataclass(frozen=True, slots=True)
class BrokenReply:
    """Why a reply cannot be used."""

    kind: FaultKind
    detail: str


def framing_fault(version: str, headers: Sequence[tuple[str, str]]) -> BrokenReply | None:
    """Return why a reply with these headers has no reliable body, or None if it has one."""
    transfer_codings = _header_elements(headers, "transfer-encoding")
    lengths = _header_elements(headers, "content-length")
    if version not in {"1.0", "1.1"}:
        return BrokenReply(FaultKind.PROTOCOL_ERROR, f"HTTP/{version}")
    codings = _content_codings(headers)
    if len(codings) > 1 or any(coding not in _ZLIB_WINDOWS for coding in codings):
        return BrokenReply(FaultKind.REPLY_ENCODED, "Content-Encoding")
    if transfer_codings and (lengths or version == "1.0"):
        return BrokenReply(FaultKind.PROTOCOL_ERROR, "Transfer-Encoding beside a length, or in HTTP/1.0")
    if transfer_codings not in ([], ["chunked"]):
        return BrokenReply(FaultKind.REPLY_ENCODED, "Transfer-Encoding")
    if lengths and int(lengths[0]) > MAX_BODY_BYTES:
        return BrokenReply(FaultKind.REPLY_TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes")
    return None


def _content_codings(headers: Iterable[tuple[str, str]]) -> list[str]:
    return [coding for coding in _header_elements(headers, "content-encoding") if coding not in {"", "identity"}]


def decompress_body(headers: Iterable[tuple[str, str]], body: bytes) -> bytes | BrokenReply:
    """Return the decompressed body, or a `BrokenReply` if it is damaged or exceeds `MAX_BODY_BYTES`."""
    for window in (window for coding in _content_codings(headers) for window in _ZLIB_WINDOWS[coding]):
        stream = zlib.decompressobj(window)
        try:
            decompressed = stream.decompress(body, MAX_BODY_BYTES + 1)  # a zip bomb must not fill the memory
        except zlib.error:
            continue
        if len(decompressed) > MAX_BODY_BYTES:
            return BrokenReply(FaultKind.REPLY_TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes")
        if stream.eof and not stream.unused_data:
            return decompressed
    return BrokenReply(FaultKind.REPLY_ENCODED, "Content-Encoding") if _content_codings(headers) else body


def _header_elements(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [element.strip().lower() for header, value in headers if header == name for element in value.split(",")]


class ReplyReader:
    """Parses the final reply to one request, fed in chunks of any size.

    `result` is None until the reply is complete (RFC 9112 section 6.3) or broken. Interim (1xx) replies are skipped.
    Status 101 counts as broken, because we never ask for it. So does a reply followed by more bytes: they may be a
    second reply, and either could answer the request.
    """

    def __init__(self, *, reused_connection: bool = False) -> None:
        self.result: RawReply | BrokenReply | None = None
        self.is_reusable = False
        """Whether the connection can carry another request after this reply."""
        self.bytes_read = 0
        self._is_reused = reused_connection
        self._parser = httptools.HttpResponseParser(self)
        self._fault: BrokenReply | None = None
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._status = 0
        self._interim_replies = 0
        self._has_head = False
        self._ends_with_stream = False
        self._is_complete = False
        self._is_chunked = False
        self._last_chunk = b""

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the stream. Raises `InternalError` if there is already a result."""
        if self.result is not None:
            raise InternalError("bytes were fed to a reply that was complete")
        if self.bytes_read == 0 and data[:1] != b"H":
            # llhttp would skip blank lines, and would accept RTSP as HTTP.
            self._set_fault(FaultKind.PROTOCOL_ERROR, "does not start with HTTP/")
        self.bytes_read += len(data)
        if self.bytes_read > MAX_REPLY_BYTES:
            self._set_fault(FaultKind.REPLY_TOO_LARGE, f"more than {MAX_REPLY_BYTES} bytes")
        if self._fault is None:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                # The parser's message is a constant that never quotes the reply.
                self._set_fault(FaultKind.PROTOCOL_ERROR, str(error))
        if self._fault is not None:
            self._set_result(self._fault)
        elif self._is_complete:
            self.is_reusable = self.is_reusable and self._reply_ends_with(data)
            self._set_result(self._build_reply())

    def end(self, *, is_clean: bool) -> None:
        """Handle the end of the stream. `is_clean` means that the peer certainly ended it on purpose."""
        if self.result is not None:
            return
        if self._has_head and self._ends_with_stream and is_clean:
            self._set_result(self._build_reply())
        else:
            self._set_result(BrokenReply(FaultKind.CONNECTION_LOST, f"ended after {self.bytes_read} bytes"))

    def _reply_ends_with(self, data: bytes) -> bool:
        """Return whether the reply certainly ends with the last byte of `data`.

        The parser silently skips blank lines after a reply. Such a reply is accepted, but its connection is not reused.
        """
        last_bytes = b"0\r\n\r\n" if self._is_chunked else self._last_chunk
        return bool(last_bytes.strip()) and data.endswith(last_bytes)

    def _set_result(self, result: RawReply | BrokenReply) -> None:
        self.result = result
        # This breaks the reference cycle with the parser, so that memory is freed without garbage collection.
        del self._parser

    def _set_fault(self, kind: FaultKind, detail: str) -> None:
        if self._fault is None:
            self._fault = BrokenReply(kind, detail)

    def _build_reply(self) -> RawReply | BrokenReply:
        body = decompress_body(self._headers, b"".join(self._body))
        if isinstance(body, BrokenReply):
            return body
        return RawReply(self._status, tuple(self._headers), body, reused_connection=self._is_reused)

    # Callbacks for the parser:

    def on_message_begin(self) -> None:
        """Treat a second reply as a fault."""
        if self._is_complete:
            self._set_fault(FaultKind.PROTOCOL_ERROR, "bytes after the reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers after a chunked body are ignored."""
        if not self._has_head:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:  # noqa: PLR2004 (Switching Protocols)
            self._set_fault(FaultKind.PROTOCOL_ERROR, "switched protocols")
        elif status < 200:  # noqa: PLR2004 (interim)
            self._interim_replies += 1
            self._headers.clear()
            if self._interim_replies > MAX_INTERIM_REPLIES:
                self._set_fault(FaultKind.PROTOCOL_ERROR, f"more than {MAX_INTERIM_REPLIES} interim replies")
        else:
            self._status = status
            self._has_head = True
            if (fault := framing_fault(self._parser.get_http_version(), self._headers)) is not None:
                self._set_fault(fault.kind, fault.detail)
            self._is_chunked = bool(_header_elements(self._headers, "transfer-encoding"))
            self._ends_with_stream = not self._is_chunked and not _header_elements(self._headers, "content-length")

    def on_body(self, chunk: bytes) -> None:
        self._body_bytes += len(chunk)
        if self._body_bytes > MAX_BODY_BYTES:
            self._set_fault(FaultKind.REPLY_TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes")
        self._body.append(chunk)
        self._last_chunk = chunk

    def on_message_complete(self) -> None:
        """Mark the reply as complete, unless it is interim."""
        if self._has_head:
            self._is_complete = True
            self.is_reusable = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"


_MAX_HEAD_BYTES = 8 * 1024
_END_OF_HEAD = b"\r\n\r\n"


def build_connect_request(destination: str) -> bytes:
    """Return the bytes of a CONNECT request for a tunnel to `destination` (host:port)."""
    return f"CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\nUser-Agent: paygw-batch\r\n\r\n".encode("ascii")


class TunnelReader:
    """Parses a proxy's reply to CONNECT, fed in chunks of any size."""

    def __init__(self) -> None:
        self.is_open = False
        self.problem = ""
        """Why no tunnel was opened, if the proxy refused."""
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        self._received += data
        head, end, surplus = bytes(self._received).partition(_END_OF_HEAD)
        if not end:
            if len(self._received) > _MAX_HEAD_BYTES:
                self.problem = "the head of the proxy's reply is too long"
            return
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(head + end)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.problem = f"the proxy does not speak HTTP: {error}"
            return
        status = parser.get_status_code()
        if not 200 <= status < 300:  # noqa: PLR2004 (any success opens the tunnel)
            self.problem = f"the proxy answered {status}"
        elif surplus:
            self.problem = "the proxy sent bytes after its reply"
        else:
            self.is_open = True
