"""Carries requests and replies over a connection to the gateway, and sets the first-byte witness."""

import asyncio
import fcntl
import os
import select
import socket
import ssl
import struct
import sys
import termios
from contextlib import suppress
from enum import Enum, auto
from typing import cast

from paygw_batch.errors import InternalError
from paygw_batch.gateway.http.http1 import BrokenReply, ReplyReader, TunnelReader, build_connect_request
from paygw_batch.gateway.http.tls import TlsChannel
from paygw_batch.gateway.message import FaultKind, RawReply, SendGuard, TransportFault

_INT = struct.Struct("i")
_ROUND_TRIP_US = struct.Struct("68xI")
"""The round trip in microseconds, from `struct tcp_info` in linux/tcp.h, a stable kernel interface."""


class SocketStatus:
    """Reports the kernel's view of a connected socket. Never reads from it or blocks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def has_unread_bytes(self) -> bool:
        """Return whether bytes, the end of the stream or an error can be read."""
        return bool(self._poll.poll(0))

    def has_unacknowledged_bytes(self) -> bool:
        """Return whether the peer has not yet acknowledged all written bytes. Only Linux reports this.

        Every packet acknowledges the bytes that its sender has received (RFC 9293 section 3.10.7.4). So a reply that
        arrives while part of the request is unacknowledged was sent before that part was received.
        """
        count = bytearray(_INT.size)
        try:
            fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, count)
        except OSError:
            return False
        return bool(_INT.unpack(count)[0] > 0)

    def round_trip_s(self) -> float:
        """Return the round-trip time, or 0 if the system does not report it."""
        if sys.platform != "linux":
            return 0.0
        # Closing this second descriptor does not close the connection.
        with socket.socket(fileno=os.dup(self._descriptor)) as connection_socket:
            info = connection_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_US.size)
        return float(_ROUND_TRIP_US.unpack(info)[0]) / 1_000_000


RECORD_POLL_INTERVAL_S = 0.002
"""How often to check for the rest of a TLS record that has partly arrived on an idle connection."""


class ConnectFailed(Exception):
    """A connection could not be opened. No byte of a request was sent."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


_EARLY_BYTES = (FaultKind.EARLY_REPLY, "the gateway sent bytes before the request")


class _Stage(Enum):
    OPENING = auto()
    """The tunnel and the TLS handshake are in progress, and no application data may pass."""
    QUIET = auto()
    """The connection is ready for an exchange. Any byte that arrives now makes it unusable."""
    EXCHANGE = auto()
    SPENT = auto()
    """The connection can only be closed."""


class Connection(asyncio.Protocol):
    """A connection to the gateway, for one exchange at a time.

    The caller opens it (proxy, TLS) within its own time limit, and closes it. Each exchange has a read timeout and a
    deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, open_connections: set["Connection"]) -> None:
        self.idle_since_s = 0.0
        self.open_fault = FaultKind.CONNECT_TIMEOUT
        """The kind of fault if the current step of opening the connection fails or times out."""
        self.closed = asyncio.Event()
        """Set once the connection is closed."""
        self._loop = loop
        self._open_connections = open_connections
        self._transport: asyncio.Transport | None = None
        self._stage = _Stage.OPENING
        self._spent_reason = (FaultKind.CONNECT_FAILED, "the connection was closed")
        self._status: SocketStatus | None = None
        # Used while the connection opens:
        self._opening: asyncio.Future[ConnectFailed | None] | None = None
        self._tunnel: TunnelReader | None = None
        self._tunnel_s = 0.0
        self._tls: TlsChannel | None = None
        # Used during an exchange:
        self._has_served = False
        self._reader = ReplyReader()
        self._result: asyncio.Future[RawReply | TransportFault] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first_byte_sent = False
        self._request_bytes = 0
        self._bytes_written = 0
        self._reply_is_early = False
        """Whether the peer certainly began to reply before it had received the whole request."""
        self._read_timeout_s = 0.0
        self._silent_since_s = 0.0
        self._deadline_s = 0.0

    # Methods for the transport:

    async def open_tunnel(self, destination: str) -> None:
        """Open a tunnel through the proxy to `destination` (host:port). Raises `ConnectFailed`."""
        self.open_fault = FaultKind.PROXY_FAILED
        self._tunnel = TunnelReader()
        started_s = self._loop.time()
        await self._wait_for_peer(build_connect_request(destination))
        self._tunnel = None
        self._tunnel_s = self._loop.time() - started_s

    async def open_tls(self, channel: TlsChannel) -> None:
        """Perform the TLS handshake. All later bytes are encrypted. Raises `ConnectFailed`."""
        self.open_fault = FaultKind.TLS_FAILED
        self._tls = channel
        try:
            channel.handshake()
        except ssl.SSLError as error:
            raise ConnectFailed(FaultKind.TLS_FAILED, _tls_error_name(error)) from None
        await self._wait_for_peer(channel.read_outgoing())

    def round_trip_s(self) -> float:
        """Return the round-trip time, or 0 if it is unknown. With a proxy, it is the duration of CONNECT."""
        return self._tunnel_s or (self._status.round_trip_s() if self._status is not None else 0.0)

    async def wait_for_silence(self, silence_s: float, deadline_s: float) -> None:
        """Wait `silence_s` seconds. Raises `ConnectFailed` if the peer sends anything but TLS tickets.

        Do not `await` anything between this and the exchange. Otherwise bytes that arrive before the request could be
        mistaken for its reply. Tickets may arrive until `deadline_s` by the loop's clock.
        """
        self._stage = _Stage.QUIET if self._stage is _Stage.OPENING else self._stage
        while silence_s or not self.is_ready():
            with suppress(TimeoutError):
                async with asyncio.timeout(silence_s or RECORD_POLL_INTERVAL_S):
                    await self.closed.wait()
            silence_s = 0
            if self._stage is not _Stage.QUIET or self._transport is None or self._transport.is_closing():
                raise ConnectFailed(*self._spent_reason)
            if self._loop.time() >= deadline_s and not self.is_ready():
                raise ConnectFailed(FaultKind.EARLY_REPLY, "the gateway kept sending bytes before the request")

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is reusable after the last exchange. Does not check for unread bytes."""
        return self._stage is _Stage.QUIET

    def is_ready(self) -> bool:
        """Return whether an exchange may start: nothing has arrived since the last one, read or unread."""
        if self._stage is not _Stage.QUIET or self._transport is None or self._transport.is_closing():
            return False
        return not self._has_unread_bytes() and not (self._tls is not None and self._tls.is_inside_record)

    def exchange(
        self, request: bytes, may_send: SendGuard, *, read_timeout_s: float, deadline_s: float
    ) -> "asyncio.Future[RawReply | TransportFault]":
        """Send a request once. Returns a future for the reply or fault.

        `may_send` is called immediately before the first byte. If it returns False, nothing is sent (INTENT_STALE).
        The exchange ends after `read_timeout_s` of silence, and at the latest at `deadline_s` by the loop's clock.
        """
        result = self._result = self._loop.create_future()
        transport = self._transport
        # This is the last check: bytes already received cannot be the reply. Do not `await` anything before the write.
        if transport is None or not self.is_ready():
            self._stage = _Stage.SPENT
            result.set_result(TransportFault(FaultKind.CONNECT_FAILED, first_byte_sent=False, detail="closed too soon"))
            return result
        self._stage = _Stage.EXCHANGE
        if self._has_served:
            self._reader = ReplyReader(reused_connection=True)
        self._has_served = True
        self._reply_is_early = False
        # No byte of this request has been sent. Earlier requests on this connection do not count.
        self._first_byte_sent, self._bytes_written = False, 0
        self._request_bytes = len(request)
        self._read_timeout_s, self._deadline_s = read_timeout_s, deadline_s
        self._silent_since_s = self._loop.time()
        self._set_timer()
        self._send_request(transport, request, may_send)
        return result

    def _send_request(self, transport: asyncio.Transport, request: bytes, may_send: SendGuard) -> None:
        # After the intent was committed, this process may have been suspended, or the connection may have opened
        # slowly, and another process may have taken the row. Do not `await` anything between this check and the write.
        if not may_send():
            self._end_with_fault(FaultKind.INTENT_STALE, "it was too late to send the request")
            return
        # The first-byte witness: from here on, a byte may have been sent. No byte of the request is written before
        # this line, and only the next exchange resets the witness.
        self._first_byte_sent = True
        if self._tls is not None:
            try:
                self._tls.encrypt(request)
            except ssl.SSLError as error:
                self._end_with_fault(FaultKind.TLS_FAILED, _tls_error_name(error))
                return
            transport.write(self._tls.read_outgoing())
        else:
            transport.write(request)
        if transport.is_closing():
            self._end_with_fault(FaultKind.WRITE_FAILED, "the connection was closed")
        else:
            self._bytes_written = max(0, self._request_bytes - transport.get_write_buffer_size())

    def session(self) -> ssl.SSLSession | None:
        """Return the TLS session for later connections. This takes half as long as a handshake."""
        return self._tls.session if self._tls is not None else None

    def close(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tls is not None and self._stage is not _Stage.OPENING:
            transport.write(self._tls.close_notify())
        self._stage = _Stage.SPENT
        transport.close()

    def abort(self, kind: FaultKind = FaultKind.CANCELLED, detail: str = "cancelled") -> None:
        """Close the connection immediately. An exchange in progress ends with this fault."""
        if self._stage is _Stage.EXCHANGE:
            self._end_with_fault(kind, detail)
            return
        self._fail_opening(kind, detail)
        self._stage, self._spent_reason = _Stage.SPENT, (kind, detail)
        if self._transport is not None:
            self._transport.abort()

    # Callbacks for asyncio:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._status = SocketStatus(transport.get_extra_info("socket").fileno())
        # With a limit of 0, asyncio calls `resume_writing` when the kernel has accepted the whole request.
        self._transport.set_write_buffer_limits(0)
        self._open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        match self._stage:
            case _Stage.OPENING:
                self._continue_opening(data)
            case _Stage.EXCHANGE:
                if self._tls is None:
                    self._detect_early_bytes()
                    self._read_reply(data)
                else:
                    self._read_encrypted(self._tls, data)
            case _Stage.QUIET:
                # Only TLS session tickets may arrive between exchanges.
                if self._tls is None or self._tls.decrypt(data):
                    self.abort(*_EARLY_BYTES)
                elif self._tls.is_ended or self._tls.failure:
                    self.abort(FaultKind.TLS_FAILED, "the connection was closed")
            case _Stage.SPENT:
                pass

    def eof_received(self) -> None:
        """Handle the end of the peer's stream. asyncio then closes the connection, because this returns None."""
        if self._stage is _Stage.EXCHANGE:
            # Under TLS, a proper end begins with close_notify, so the connection was interrupted.
            self._end_stream(is_clean=self._tls is None)
        elif self._stage is _Stage.OPENING:
            self._fail_opening(self.open_fault, "the connection was closed")
        else:
            self._stage = _Stage.SPENT

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.discard(self)
        self.closed.set()
        detail = type(exc).__name__ if exc is not None else "closed"
        if self._stage is _Stage.EXCHANGE:
            is_complete = self._bytes_written >= self._request_bytes
            self._end_with_fault(FaultKind.CONNECTION_LOST if is_complete else FaultKind.WRITE_FAILED, detail)
        else:
            self._fail_opening(self.open_fault, detail)
            self._stage = _Stage.SPENT

    def resume_writing(self) -> None:
        """Start the read timeout: the kernel has now accepted the whole request."""
        if self._stage is _Stage.EXCHANGE and self._bytes_written < self._request_bytes:
            # Unread bytes may have arrived before the event loop wrote the last part of the request.
            self._reply_is_early = self._reply_is_early or self._has_unread_bytes()
        self._bytes_written = self._request_bytes
        self._silent_since_s = self._loop.time()

    # Opening the connection:

    async def _wait_for_peer(self, first_bytes: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectFailed(self.open_fault, "the connection was closed")
        self._opening = self._loop.create_future()
        self._transport.write(first_bytes)
        if (error := await self._opening) is not None:
            raise error

    def _fail_opening(self, kind: FaultKind, detail: str) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(ConnectFailed(kind, detail))

    def _continue_opening(self, data: bytes) -> None:
        if self._opening is None or self._opening.done():
            # A gateway must not send anything before the request.
            self.abort(*_EARLY_BYTES)
        elif self._tunnel is not None:
            self._tunnel.feed(data)
            if self._tunnel.problem:
                self._fail_opening(FaultKind.PROXY_FAILED, self._tunnel.problem)
            elif self._tunnel.is_open:
                self._opening.set_result(None)
        elif self._tls is not None:
            self._continue_handshake(self._tls, data)

    def _continue_handshake(self, tls: TlsChannel, data: bytes) -> None:
        try:
            is_complete = tls.handshake(data)
        except ssl.SSLCertVerificationError as error:
            self._fail_opening(FaultKind.TLS_UNTRUSTED, error.verify_message)
        except ssl.SSLError as error:
            self._fail_opening(FaultKind.TLS_FAILED, _tls_error_name(error))
        else:
            if is_complete and tls.decrypt(b""):
                self._fail_opening(*_EARLY_BYTES)
            elif is_complete and self._opening is not None:
                self._opening.set_result(None)
        if self._transport is not None:
            self._transport.write(tls.read_outgoing())

    # Running an exchange:

    def _has_unread_bytes(self) -> bool:
        return self._status is not None and self._status.has_unread_bytes()

    def _read_encrypted(self, tls: TlsChannel, data: bytes) -> None:
        self._detect_early_bytes()
        decrypted = tls.decrypt(data)
        if decrypted:
            self._read_reply(decrypted)
        elif not tls.is_inside_record:
            # The early bytes were a complete TLS ticket, not a reply.
            self._reply_is_early = False
        if self._stage is _Stage.EXCHANGE:
            if tls.failure is not None:
                self._end_with_fault(FaultKind.TLS_FAILED, _tls_error_name(tls.failure))
            elif tls.is_ended:
                self._end_stream(is_clean=True)

    def _detect_early_bytes(self) -> None:
        if self._transport is None or self._status is None:
            raise InternalError("bytes came from a connection that was never made")
        self._reply_is_early = (
            self._reply_is_early
            or self._transport.get_write_buffer_size() > 0
            or (self._reader.bytes_read == 0 and self._status.has_unacknowledged_bytes())
        )

    def _read_reply(self, data: bytes) -> None:
        self._silent_since_s = self._loop.time()
        if self._reply_is_early:
            self._end_with_fault(FaultKind.EARLY_REPLY, "a reply began before the whole request was sent")
            return
        self._bytes_written = self._request_bytes
        self._reader.feed(data)
        self._handle_result()

    def _end_stream(self, *, is_clean: bool) -> None:
        self._reader.end(is_clean=is_clean)
        self._reader.is_reusable = False
        self._handle_result()

    def _handle_result(self) -> None:
        match self._reader.result:
            case RawReply() as reply:
                self._stage = _Stage.QUIET if self._reader.is_reusable else _Stage.SPENT
                self.idle_since_s = self._silent_since_s
                self._set_result(reply)
            case BrokenReply(kind, detail):
                self._end_with_fault(kind, detail)
            case None:
                pass

    def _end_with_fault(self, kind: FaultKind, detail: str) -> None:
        self._stage = _Stage.SPENT
        fault = TransportFault(kind, self._first_byte_sent, self._bytes_written, self._reader.bytes_read, detail)
        self._set_result(fault)
        if self._transport is not None:
            self._transport.abort()

    def _set_result(self, result: RawReply | TransportFault) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._result is not None and not self._result.done():
            self._result.set_result(result)

    def _set_timer(self) -> None:
        due_s = min(self._silent_since_s + self._read_timeout_s, self._deadline_s)
        self._timer = self._loop.call_at(due_s, self._check_time_limits)

    def _check_time_limits(self) -> None:
        """End the exchange if it has timed out. Otherwise set the timer to the next limit."""
        now_s = self._loop.time()
        is_writing = self._transport is not None and self._transport.get_write_buffer_size() > 0
        if now_s >= self._deadline_s:
            self._end_with_fault(FaultKind.TOTAL_TIMEOUT, "the whole request took too long")
        elif now_s < self._silent_since_s + self._read_timeout_s:
            self._set_timer()
        elif is_writing:
            self._end_with_fault(FaultKind.WRITE_TIMEOUT, "the gateway stopped reading the request")
        else:
            self._end_with_fault(FaultKind.READ_TIMEOUT, "the gateway sent nothing")


def _tls_error_name(error: ssl.SSLError) -> str:
    """Return the TLS library's name for an error, which contains no transmitted data."""
    return error.reason or type(error).__name__
