"""What the rest of the program asks of a journal about evidence: a part of `port.JournalReader`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from paygw_batch.core.evidence import Candidate
from paygw_batch.journal.values import CarriedOut, ClockSeen, Contradiction, Hold, InboxEnd, WaitingEvidence


class EvidenceReader(Protocol):
    """The evidence of a journal, and what speaks against its rows."""

    def holds(self, batch: int) -> Mapping[int, Hold]:
        """Return what holds rows of a batch that are ready, by row: no run sends them."""
        ...

    def candidates(self, order_id: str) -> Sequence[Candidate]:
        """Return the instructions of every operation that go, or went, by an order id."""
        ...

    def contradictions(self, batch: int | None = None) -> Sequence[Contradiction]:
        """Return the facts that changed nothing, of one batch or of all, but those a person has answered since."""
        ...

    def evidence_waiting(self, batch: int | None = None) -> Sequence[WaitingEvidence]:
        """Return the evidence that waits for a person, of one batch or of all."""
        ...

    def evidence_counts(self, batch: int | None = None) -> Mapping[str, int]:
        """Return how much evidence there is of each finding, about the rows of one batch or in all."""
        ...

    def carried_out(self, batch: str) -> Sequence[CarriedOut]:
        """Return the statements that were carried out for a batch (its id), oldest first."""
        ...

    def clock_seen(self) -> ClockSeen | None:
        """Return how far our clock was from the gateway's when that was last noted; None: no reply had a `Date`."""
        ...

    def newest_time(self) -> str:
        """Return the newest time in the journal: the clock had come so far."""
        ...

    def inbox_end(self) -> InboxEnd:
        """Return how far the notifications of the inbox were taken in."""
        ...
