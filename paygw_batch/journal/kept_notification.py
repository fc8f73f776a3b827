"""Encodes a notification as it is kept: byte for byte as it came, and the claim that was read from it.

The answer to an enquiry that a notification led to is kept in the same way, with a separate source.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof, Span, StatedTimes
from paygw_batch.errors import InboxDamaged
from paygw_batch.journal.facts.inbox_chain import InboxEntry
from paygw_batch.journal.values import canonical
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification that was kept. `received_at` is UTC, ISO 8601 with `Z`.

    `problem` is the cause why it could not be read, and empty otherwise; of one that could not be read `body` may be
    only the beginning, `length` bytes long in all. Nothing of it is shown: it may name a payee.
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
    """Those that matter, names in lower case."""
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
    """Return the notification that `text` encodes. Raises `InboxDamaged` when `text` encodes none."""
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
        raise InboxDamaged(say("A notification in the inbox cannot be read.")) from None


def evidence_of(entry: InboxEntry) -> Evidence:
    """Return a notification of the inbox as evidence. Raises `InboxDamaged` when it does not read as one."""
    kept = decode_notification(entry.content)
    return Evidence(kept.source, kept.claim, entry.content, entry.number, entry.hash)


def _times(stated: Mapping[str, Any]) -> StatedTimes:
    sent_at = stated["sent_at"]
    true_at = tuple(Span(**span) for span in stated["true_at"])
    return StatedTimes(true_at, None if sent_at is None else Span(**sent_at))
