"""Taking notifications from the inbox into the journal: by whoever holds it, and each of them once."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.evidence import Evidence, Finding
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal import InboxReader, Journal, decode_notification, inbox_path

AT_ONCE = 200
"""How many notifications one transaction takes in."""


class NotificationReader:
    """Takes in what waits in the inbox of the journal at `journal_path`. `words` is the operator's `[outcomes]`."""

    def __init__(self, journal_path: Path, words: Mapping[str, OutcomeKind], now: Now) -> None:
        self._reader = InboxReader(inbox_path(journal_path))
        self._words = words
        self._now = now

    def take(self, journal: Journal, *, at_most: int | None = None) -> Counter[Finding]:
        """Take in all that waits (or so many), up to the first about a row in flight; return what came of them.

        Raises `InboxDamaged`; what was taken in by then is in the journal.
        """
        findings: Counter[Finding] = Counter()
        while at_most is None or findings.total() < at_most:
            waiting = self._reader.after(journal.inbox_end(), limit=AT_ONCE)
            evidence = [_evidence_of(one.content, one.number, one.hash) for one in waiting]
            if not evidence:
                break
            taken = journal.take_in(evidence, self._words, at=timestamp(self._now()))
            findings.update(taken)
            if len(taken) < len(evidence):
                break
        return findings


def _evidence_of(content: str, number: int, digest: str) -> Evidence:
    kept = decode_notification(content)
    return Evidence(kept.source, kept.claim, content, number, digest)
