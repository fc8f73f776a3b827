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


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """A statement that was carried out for a batch: its file's name and SHA-256, by whom and when.

    `at` is empty for one that is about to be.
    """

    batch: str
    name: str
    sha256: str
    by: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """Our clock beside the `Date` of a reply: `ahead_s` is how far ours was ahead, below zero where it was behind."""

    our_time: str
    gateway_date: str
    ahead_s: int


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

    def spool_end(self) -> tuple[int, str]:
        """Return number and hash of the last notification taken from the spool; 0 and nothing before the first."""
        ...
