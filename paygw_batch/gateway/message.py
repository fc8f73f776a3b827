"""Defines requests, replies and faults as immutable values."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from paygw_batch.core.batch import Instruction

SendGuard = Callable[[], bool]
"""Returns whether a request may still be sent. It is called just before the first byte, and never blocks."""


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """The values in a request that its reply must not contradict."""

    order_id: str
    amount: Decimal
    currency: str
    own_urls: tuple[str, ...] = ()
    """The operator's own URLs in the request. A reply may repeat them, but they are not pages for the customer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to deliver an instruction, with the values that go into its request."""

    instruction: Instruction = field(repr=False)
    order_id: str
    nonce: str = field(repr=False)
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A signed request, ready to be sent. `body` holds exactly the bytes that were signed.

    The repr omits header and body, because they contain a signature and a payee's data.
    """

    url: str
    authorization: str = field(repr=False)
    body: bytes = field(repr=False)
    body_sha256: str
    nonce: str = field(repr=False)
    timestamp_s: int
    purpose: str | None
    endpoint_id: str
    expected: ExpectedReply = field(repr=False)


@dataclass(frozen=True, slots=True)
class RawReply:
    """A complete HTTP reply, with the body decompressed and header names in lower case."""

    http_status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    reused_connection: bool = False


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request from the gateway to us, with header names in lower case.

    `query` is the undecoded text after the `?`. The repr omits anything that may identify a payee.
    """

    method: str
    content_type: str
    query: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class FaultKind(StrEnum):
    """Why there is no complete reply. The value is stored as the outcome's `cause`, so it must never change."""

    NAME_NOT_RESOLVED = "connect.name"
    CONNECT_REFUSED = "connect.refused"
    CONNECT_TIMEOUT = "connect.timeout"
    CONNECT_FAILED = "connect.failed"
    PROXY_FAILED = "connect.proxy"
    TLS_FAILED = "tls.failed"
    TLS_UNTRUSTED = "tls.untrusted"
    """The certificate, host name or key is wrong, so a retry would not help."""
    WRITE_FAILED = "write.failed"
    WRITE_TIMEOUT = "write.timeout"
    READ_TIMEOUT = "read.timeout"
    TOTAL_TIMEOUT = "total.timeout"
    CONNECTION_LOST = "read.closed"
    PROTOCOL_ERROR = "reply.protocol"
    EARLY_REPLY = "reply.early"
    """The gateway replied during the request, or even before it if `first_byte_sent` is False."""
    REPLY_TOO_LARGE = "reply.too_large"
    REPLY_ENCODED = "reply.encoded"
    CANCELLED = "cancelled"
    INTENT_STALE = "intent.stale"
    """The request was not sent, because its intent was too old or the journal was no longer writable."""


@dataclass(frozen=True, slots=True)
class TransportFault:
    """Why there is no complete reply, and whether bytes of the request may have been sent.

    `first_byte_sent` is the first-byte witness. It is set before the first byte of the request is passed to the socket
    or TLS layer, so only False proves that nothing was sent. `detail` is for the log and contains no personal data.
    """

    kind: FaultKind
    first_byte_sent: bool
    bytes_written: int = 0
    bytes_read: int = 0
    detail: str = ""
