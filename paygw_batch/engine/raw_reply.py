"""Keeps raw replies: the status line, the headers that matter, and the body."""

from dataclasses import replace

from paygw_batch.core.outcome import OutcomeKind, Verdict
from paygw_batch.gateway.message import RawReply, TransportFault
from paygw_batch.journal import KeptReply

HEADERS_KEPT = frozenset(
    {
        *("content-type", "content-length", "date", "server", "via", "location", "retry-after", "www-authenticate"),
        *("x-request-id", "x-correlation-id", "request-id", "cf-ray", "x-amzn-requestid", "x-amzn-trace-id"),
    }
)
"""The headers that say who answered, when, and under which number of theirs. No cookie is kept."""
MAX_HEADER_CHARACTERS = 1000
MAX_BODY_BYTES = 65_536


def kept_reply(came_back: RawReply | TransportFault, verdict: Verdict) -> tuple[KeptReply | None, Verdict]:
    """Return the kept part of a reply, and the verdict with its digest; None for a payout that is paid, or no reply."""
    if isinstance(came_back, TransportFault) or verdict.outcome.kind is OutcomeKind.PAID:
        return None, verdict
    headers = [f"{name}: {value[:MAX_HEADER_CHARACTERS]}" for name, value in came_back.headers if name in HEADERS_KEPT]
    head = "\n".join([f"HTTP/1.1 {came_back.http_status}", *headers])
    kept = KeptReply(head.encode("utf-8", "backslashreplace").decode(), came_back.body[:MAX_BODY_BYTES])
    return kept, replace(verdict, outcome=verdict.outcome._replace(reply_sha256=kept.sha256))
