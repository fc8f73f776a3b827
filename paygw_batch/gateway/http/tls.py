"""Runs our side of a TLS connection in memory, without sockets, and loads the trusted certificates.

asyncio's own TLS does not report how much of a request is still buffered, or whether the peer ended the stream properly
(close_notify). It also cannot resume sessions, which matters with a connection for each payout.
"""

import contextlib
import ssl
from pathlib import Path

import certifi

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say

_MAX_READ_BYTES = 64 * 1024
_HEADER_BYTES = 5
"""The length of a TLS record header: type, version and, in the last two bytes, the length of the record."""


def client_context(
    ca_bundle: Path | None, *, key: str = "gateway.ca_bundle", protocol: str | None = "http/1.1"
) -> ssl.SSLContext:
    """Build a context that requires TLS 1.2 or later, and verifies the server's certificate and host name.

    It does not use `ssl.create_default_context`, which reads SSL_CERT_FILE, SSL_CERT_DIR and SSLKEYLOGFILE from the
    environment. The certificate authorities are those in `ca_bundle` or, by default, Mozilla's (certifi). `protocol` is
    requested through ALPN. Raises `ConfigurationError`, naming the setting `key`, if `ca_bundle` cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if protocol is not None:
        context.set_alpn_protocols([protocol])
    try:
        context.load_verify_locations(cafile=ca_bundle or certifi.where())
    except (OSError, ValueError):
        raise ConfigurationError(
            say("The certificate authorities in {ca_bundle} cannot be read.", ca_bundle=ca_bundle or certifi.where()),
            hint=say("{key} must be a PEM file with certificates.", key=key),
        ) from None
    return context


class TlsChannel:
    """Encrypts and decrypts the bytes of one TLS connection.

    The caller passes all received bytes to `handshake` or `decrypt`, and sends all bytes that `read_outgoing` returns.
    `handshake` and `encrypt` raise `ssl.SSLError`, or `SSLCertVerificationError` for an untrusted peer.
    """

    def __init__(self, context: ssl.SSLContext, host: str, session: ssl.SSLSession | None = None) -> None:
        self.is_ended = False
        """Whether the peer has ended its side (close_notify)."""
        self.failure: ssl.SSLError | None = None
        """The TLS error that made the stream unreadable, if any."""
        self._header = b""
        self._remaining_bytes = 0
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host, session=session)

    @property
    def session(self) -> ssl.SSLSession | None:
        """The session that later connections can resume, or None before the server sends a ticket."""
        session = self._ssl.session
        return session if session is not None and session.has_ticket else None

    @property
    def is_resumed(self) -> bool:
        return bool(self._ssl.session_reused)

    @property
    def is_inside_record(self) -> bool:
        """Whether a record has only partly arrived, so that its content is still unknown."""
        return bool(self._header) or self._remaining_bytes > 0

    def handshake(self, data: bytes = b"") -> bool:
        """Continue the handshake with received bytes. Returns whether it is complete."""
        if data:
            self._receive(data)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes) -> None:
        """Encrypt application data. `read_outgoing` returns the result."""
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[self._ssl.write(remaining) :]

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt received bytes. Sets `is_ended` or `failure` if the stream ends or fails."""
        self._receive(data)
        chunks = []
        try:
            while chunk := self._ssl.read(_MAX_READ_BYTES):
                chunks.append(chunk)
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.failure = error
        return b"".join(chunks)

    def _receive(self, data: bytes) -> None:
        """Pass received bytes to the library, and track record boundaries (RFC 8446 section 5.1)."""
        self._incoming.write(data)
        position = 0
        while position < len(data):
            if self._remaining_bytes:
                count = min(self._remaining_bytes, len(data) - position)
                self._remaining_bytes -= count
            else:
                count = min(_HEADER_BYTES - len(self._header), len(data) - position)
                self._header += data[position : position + count]
                if len(self._header) == _HEADER_BYTES:
                    self._remaining_bytes = int.from_bytes(self._header[3:])
                    self._header = b""
            position += count

    def read_outgoing(self) -> bytes:
        """Return the bytes to send now."""
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Return the bytes that end our half of the connection (close_notify)."""
        # `unwrap` raises if the peer's close_notify has not arrived or the connection has failed. Ignore both.
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
        return self._outgoing.read()
