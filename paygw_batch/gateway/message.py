"""Requests, replies and faults as frozen values without behaviour."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from paygw_batch.core.batch import Instruction

MayLeave = Callable[[], bool]
"""Whether a request may still leave: asked at the last moment before its first byte. It never waits."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that an echo in the reply must equal for the reply to be about this payout."""

    order_id: str
    amount: Decimal
    currency: str
    own_urls: tuple[str, ...] = ()
    """The operator's own addresses in the request: echoed in a reply, they are not a page for the customer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to deliver one instruction: the values that its request is made of."""

    instruction: Instruction = field(repr=False)
    order_id: str
    nonce: str = field(repr=False)
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A signed request, ready to leave. The bytes of `body` are the bytes that were signed.

    Header and body are left out of the representation: they hold a signature and a payee's data.
    """

    url: str
    authorization: str = field(repr=False)
    body: bytes = field(repr=False)
    body_sha256: str
    nonce: str = field(repr=False)
    timestamp_s: int
    purpose: str | None
    endpoint_id: str
    expected: Expected = field(repr=False)


@dataclass(frozen=True, slots=True)
class RawReply:
    """A complete HTTP reply, as it came, but for a packed body. `headers` has lower-case names."""

    http_status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    reused_connection: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """A request of the gateway's as it came. `query` is the text after the `?`, undecoded; header names are lower-case.

    Its repr shows no text that may name a payee.
    """

    method: str
    content_type: str
    query: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class FaultKind(StrEnum):
    """Why there is no complete reply. The value is the stable `cause` of the outcome."""

    NAME_NOT_RESOLVED = "connect.name"
    CONNECT_REFUSED = "connect.refused"
    CONNECT_TIMEOUT = "connect.timeout"
    CONNECT_FAILED = "connect.failed"
    PROXY_FAILED = "connect.proxy"
    TLS_FAILED = "tls.failed"
    TLS_UNTRUSTED = "tls.untrusted"
    """The certificate, host name or key is wrong: trying again cannot help."""
    WRITE_FAILED = "write.failed"
    WRITE_TIMEOUT = "write.timeout"
    READ_TIMEOUT = "read.timeout"
    TOTAL_TIMEOUT = "total.timeout"
    CONNECTION_LOST = "read.closed"
    PROTOCOL_ERROR = "reply.protocol"
    EARLY_REPLY = "reply.early"
    """The gateway sent bytes before we asked: before the request if the witness is unset, otherwise during it."""
    REPLY_TOO_LARGE = "reply.too_large"
    REPLY_ENCODED = "reply.encoded"
    CANCELLED = "cancelled"
    INTENT_STALE = "intent.stale"
    """The request could no longer be sent: its intent was too old, or the journal can no longer be written."""


@dataclass(frozen=True, slots=True)
class TransportFault:
    """The reason why there is no complete reply, and whether bytes of the request may have left.

    `first_byte_left` is the witness: set before the first byte of the request is handed to the socket or TLS layer.
    Only when it is False is it proven that nothing left. `detail` is for the log and holds no payee's data.
    """

    kind: FaultKind
    first_byte_left: bool
    bytes_written: int = 0
    bytes_read: int = 0
    detail: str = ""
