"""Requests, replies and faults as frozen values without behaviour."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from paygw_batch.core.batch import Instruction

SendGuard = Callable[[], bool]
"""Returns whether a request may still be sent. It is called just before the first byte, and never waits."""


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """The values that a reply about this payout must repeat, if it repeats any."""

    order_id: str
    amount: Decimal
    currency: str
    own_urls: tuple[str, ...] = ()
    """The operator's own addresses in the request. If a reply repeats them, they are not a page for the customer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to deliver one instruction, with the values from which its request is built."""

    instruction: Instruction = field(repr=False)
    order_id: str
    nonce: str = field(repr=False)
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A signed request, ready to be sent. `body` has exactly the bytes that were signed.

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
    """A complete HTTP reply as received, with a decompressed body. `headers` has lower-case names."""

    http_status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    reused_connection: bool = False


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request from the gateway to us, as received. Its repr shows no text that may name a payee.

    `query` is the text after the `?`, not decoded. `headers` has lower-case names.
    """

    method: str
    content_type: str
    query: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class FaultKind(StrEnum):
    """The reason why there is no complete reply. The value becomes the outcome's `cause`, so it must never change."""

    NAME_NOT_RESOLVED = "connect.name"
    CONNECT_REFUSED = "connect.refused"
    CONNECT_TIMEOUT = "connect.timeout"
    CONNECT_FAILED = "connect.failed"
    PROXY_FAILED = "connect.proxy"
    TLS_FAILED = "tls.failed"
    TLS_UNTRUSTED = "tls.untrusted"
    """The certificate, host name or key is wrong, so another try would not help."""
    WRITE_FAILED = "write.failed"
    WRITE_TIMEOUT = "write.timeout"
    READ_TIMEOUT = "read.timeout"
    TOTAL_TIMEOUT = "total.timeout"
    CONNECTION_LOST = "read.closed"
    PROTOCOL_ERROR = "reply.protocol"
    EARLY_REPLY = "reply.early"
    """The gateway sent bytes too early: before the request if the witness is unset, otherwise during the request."""
    REPLY_TOO_LARGE = "reply.too_large"
    REPLY_ENCODED = "reply.encoded"
    CANCELLED = "cancelled"
    INTENT_STALE = "intent.stale"
    """The request could no longer be sent: its intent was too old, or the journal can no longer be written."""


@dataclass(frozen=True, slots=True)
class TransportFault:
    """The reason why there is no complete reply, and whether bytes of the request may have been sent.

    `first_byte_sent` is the first-byte witness. It is set before the first byte of the request is passed to the socket
    or TLS layer, so only False proves that nothing was sent. `detail` is for the log and contains no
    payee's data.
    """

    kind: FaultKind
    first_byte_sent: bool
    bytes_written: int = 0
    bytes_read: int = 0
    detail: str = ""
