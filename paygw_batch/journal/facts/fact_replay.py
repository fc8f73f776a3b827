"""Replays the facts of instructions; each store's `verify` compares the result with its tables."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paygw_batch.core.lifecycle import Concluded, IllegalMove, Released, Replaced
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.codec import decode
from paygw_batch.journal.facts.progress import RowProgress, advance, succeed
from paygw_batch.language import say

StoredFact = tuple[int, str, str, int, str | None, str]
"""A stored fact about an instruction: number, time, kind, attempt, the state it contradicts, details."""


class NamedReply(NamedTuple):
    """A fact, by its position among those of its instruction (from 0), and the SHA-256 of the reply that it names."""

    place: int
    seq: int
    sha256: str


class Replayed(NamedTuple):
    """Holds the results of replaying an instruction: its progress, its order ids, the named replies."""

    progress: RowProgress
    order_ids: set[str]
    replies: Sequence[NamedReply]


@dataclass(slots=True)
class _Handover:
    """The progress and order ids that a replaced instruction left to its successor."""

    progress: RowProgress
    order_ids: set[str]
    batch: str
    row: int


class InstructionReplay:
    """Replays instructions one after another, in the order of their numbers, and counts facts that contradict."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._handovers: dict[int, _Handover] = {}

    def replay(
        self,
        number: int,
        row: int,
        batch: str,
        client_orderid: str,
        replaces: int | None,
        facts: Iterable[StoredFact],
    ) -> Replayed:
        """Replay `facts` in order. Raises `JournalCorrupt` for one that was never appended so."""
        progress, order_ids = self._start(client_orderid, replaces, batch, row)
        replies = []
        for place, (seq, at, kind, attempt, contradicts, details) in enumerate(facts):
            try:
                fact = decode(kind, details)
            except JournalCorrupt as error:
                raise JournalCorrupt(say("Fact {number}: {reason}", number=seq, reason=error.message)) from None
            if isinstance(fact, Concluded) and fact.outcome.reply_sha256 is not None:
                replies.append(NamedReply(place, seq, fact.outcome.reply_sha256))
            after = advance(progress, fact, attempt, at)
            if isinstance(after, IllegalMove):
                if contradicts != after.state.value:
                    raise JournalCorrupt(
                        say("Fact {fact} does not fit the state of instruction {number}.", fact=seq, number=number)
                    )
                self._counts["contradictions"] += 1
                continue
            if contradicts is not None:
                raise JournalCorrupt(
                    say(
                        "Fact {fact} fits the state of instruction {number}, but is marked as a contradiction.",
                        fact=seq,
                        number=number,
                    )
                )
            if isinstance(fact, Released):
                order_ids.add(fact.order_id)
            if isinstance(fact, Replaced):
                moved = {client_orderid, progress.order_id}
                order_ids -= moved
                self._handovers[number] = _Handover(progress, moved, fact.batch, fact.row)
            progress = after
        return Replayed(progress, order_ids, replies)

    def _start(self, client_orderid: str, replaces: int | None, batch: str, row: int) -> tuple[RowProgress, set[str]]:
        """Return an instruction's initial progress, and its own order ids."""
        if replaces is None:
            return RowProgress(client_orderid), {client_orderid}
        handover = self._handovers.pop(replaces, None)
        if handover is None or (handover.batch, handover.row) != (batch, row):
            raise JournalCorrupt(
                say(
                    "Row {row} of batch {batch} replaces instruction {number}, but no fact records that.",
                    row=row,
                    batch=batch,
                    number=replaces,
                )
            )
        return succeed(handover.progress), handover.order_ids


class LinesByInstruction:
    """Groups lines by their first column, an instruction's number; groups are requested in ascending order."""

    def __init__(self, lines: Iterator[tuple[Any, ...]], what: str) -> None:
        self._lines = lines
        self._next = next(lines, None)
        self._what = what

    def of(self, number: int) -> list[tuple[Any, ...]]:
        """Return the lines of instruction `number`, without that number.

        Raises `JournalCorrupt` if lines of another instruction were skipped.
        """
        group = []
        line = self._next
        while line is not None and line[0] == number:
            group.append(line[1:])
            line = next(self._lines, None)
        self._next = line
        if line is not None and line[0] < number:
            self.end()
        return group

    def end(self) -> None:
        """Raise `JournalCorrupt` if lines are left."""
        if self._next is not None:
            raise JournalCorrupt(
                say(
                    "{line} refers to instruction {number}, which the journal does not have.",
                    line=say(self._what),
                    number=self._next[0],
                )
            )
