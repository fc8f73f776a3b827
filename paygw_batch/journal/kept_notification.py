"""Encodes a notification that waits to be judged: the exact bytes received, and the claim read from them.

The answer to an enquiry caused by a notification is stored in the same way, with a separate source.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof, Span, StatedTimes
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.values import canonical
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class Notification:
    """A stored notification. `received_at` is UTC, ISO 8601 with `Z`.

    `problem` is why it could not be read; empty if it could. The `body` of an unreadable one may be only its beginning,
    `length` bytes long in all. None of it is shown, because it may name a payee.
    """

    received_at: str
    method: str
    content_type: str
    query: str = field(repr=False)
    body: bytes = field(repr=False)
    length: int
    problem: str
    claim: Claim = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The relevant headers, with names in lower case."""
    source: EvidenceSource = EvidenceSource.NOTIFICATION


def encode_notification(notification: Notification) -> str:
    """Return `notification` as one line of text."""
    fields = {
        name: getattr(notification, name) for name in ("received_at", "method", "content_type", "query", "length")
    }
    said = asdict(notification.claim) | {"proof": notification.claim.proof.value}
    body = base64.b64encode(notification.body).decode("ascii")
    more = {"headers": notification.headers, "source": notification.source.value}
    return canonical(fields | more | {"body": body, "problem": notification.problem, "said": said})


def decode_notification(text: str) -> Notification:
    """Return the notification encoded in `text`. Raises `JournalCorrupt` if there is none."""
    try:
        fields = json.loads(text)
        said = fields.pop("said")
        claim = Claim(**{**said, "proof": Proof(said["proof"]), "times": _times(said["times"])})
        read = {
            "body": base64.b64decode(fields["body"], validate=True),
            "claim": claim,
            "headers": tuple((name, value) for name, value in fields["headers"]),
            "source": EvidenceSource(fields["source"]),
        }
        return Notification(**{**fields, **read})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JournalCorrupt(say("A notification that was received cannot be read.")) from None


def evidence_of(arrival: int, content: str) -> Evidence:
    """Return a notification that arrived as evidence. What we cannot have written says nothing, and stops no other."""
    try:
        kept = decode_notification(content)
    except JournalCorrupt:
        return Evidence(EvidenceSource.NOTIFICATION, Claim(None), content, arrival)
    return Evidence(kept.source, kept.claim, content, arrival)


def _times(stated: Mapping[str, Any]) -> StatedTimes:
    sent_at = stated["sent_at"]
    true_at = tuple(Span(**span) for span in stated["true_at"])
    return StatedTimes(true_at, None if sent_at is None else Span(**sent_at))
