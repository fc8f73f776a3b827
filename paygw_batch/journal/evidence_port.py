"""What the rest of the program asks of a journal about evidence: a part of `port.JournalReader`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paygw_batch.core.evidence import Candidate, Finding, Source
from paygw_batch.core.lifecycle import State


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A fact that did not fit where its instruction stood: kept, and changed nothing."""

    seq: int
    batch: str
    row: int
    client_orderid: str
    state: State
    kind: str
    attempt: int
    at: str


@dataclass(frozen=True, slots=True)
class WaitingEvidence:
    """Evidence about a row that a person has to look at. `said` is what its word means, None where that is not listed.

    The row has not moved since the evidence was taken in, at `taken_at`.
    """

    number: int
    batch: str
    row: int
    client_orderid: str
    state: State
    finding: Finding
    said: str | None
    source: Source
    taken_at: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a row that is ready is sent by no run: evidence number `number`, taken in at `taken_at`, speaks against it.

    `said` is what the evidence's word means: paid or accepted.
    """

    number: int
    source: Source
    said: str | None
    taken_at: str


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

    def spool_end(self) -> tuple[int, str]:
        """Return number and hash of the last notification taken from the spool; 0 and nothing before the first."""
        ...
