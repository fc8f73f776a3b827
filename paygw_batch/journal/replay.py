"""Replays the journal and compares the tables with its facts: once for every store.

Lines are read side by side in the order of instructions (what they are, their facts, their order ids), so that memory
does not grow with the journal. What only one store has, its own `verify` checks.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts.codec import BatchOpened
from paygw_batch.journal.facts.digest import OpeningDigests
from paygw_batch.journal.facts.progress import InstructionReplay, LinesByInstruction, NamedReply, columns_of
from paygw_batch.journal.port import VerifyProgress
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import Known, NewBatch, reply_sha256
from paygw_batch.language import mark, say

_ROWS_A_STEP = 1_000
"""The number of rows between two reports of a replay's progress."""


class Opening(NamedTuple):
    """A batch as the fact that opened it says, and the time of that fact."""

    opened: BatchOpened
    at: str


def check_batches(tables: Tables, openings: Mapping[int, Opening], forgotten: Collection[int] = ()) -> None:
    """Hold every batch, with its pages, instructions and known rows, against the fact that opened it.

    Of `forgotten` ones the sheet is gone.
    """
    if [number for number, *_ in tables.run("batch_ids")] != sorted(openings):
        raise JournalCorrupt(say("The batches of the journal do not match the facts that opened them."))
    for number, (opened, at) in openings.items():
        ((opened_at, plan_sha256, *about),) = tables.run("opened_batch", batch=number)
        if opened_at != at or plan_sha256 not in {None, opened.plan_sha256}:
            raise JournalCorrupt(
                say(
                    "Batch {batch} was changed after it was opened: {part} differs.",
                    batch=opened.batch,
                    part="opened_at",
                )
            )
        # Who opened and approved it is in the fact alone.
        batch = replace(NewBatch(*about), by=opened.by, approvals=opened.approvals, plan_sha256=opened.plan_sha256)
        found = _digested(tables, number, OpeningDigests(batch, opened.first_instruction))
        if number in forgotten and found.pages == 0:
            found = replace(found, pages=opened.pages, pages_sha256=opened.pages_sha256)
        for part in BatchOpened.__dataclass_fields__:
            if getattr(found, part) != getattr(opened, part):
                raise JournalCorrupt(
                    say("Batch {batch} was changed after it was opened: {part} differs.", batch=opened.batch, part=part)
                )


def _digested(tables: Tables, number: int, digests: OpeningDigests) -> BatchOpened:
    for place, content in tables.stream("pages", batch=number):
        if place != digests.pages:
            raise JournalCorrupt(say("A page of batch number {batch} is missing.", batch=number))
        digests.page(content)
    for row, instruction in tables.stream("known_rows", batch=number):
        digests.known(Known(row, instruction, State.READY))
    try:
        digests.stored(tables.stream("instructions", batch=number))
        return digests.opened()
    except InternalError:
        raise JournalCorrupt(say("An instruction of batch number {batch} was changed.", batch=number)) from None


def no_counts() -> Counter[str]:
    """Return the counts of a journal before anything of it is counted."""
    return Counter(dict.fromkeys((*map(str, State), "instructions", "order_ids", "contradictions"), 0))


@dataclass(frozen=True, slots=True)
class PlainRows:
    """The rows that a store has found right by itself, counted by states, and the numbers of the others, in order.

    Each of the first has two facts and one order id.
    """

    states: Mapping[str, int]
    left: Sequence[int]


@dataclass(slots=True)
class RowReplay:
    """Replays every instruction's facts, in the order of their numbers, and compares the result with the stored one."""

    tables: Tables
    progress: VerifyProgress
    counts: Counter[str] = field(default_factory=no_counts)
    replies: int = 0

    def run(self, plain: PlainRows | None = None) -> Counter[str]:
        """Return the counts. Raises `JournalCorrupt` at the first instruction that is not where its facts lead.

        Those of `plain` are replayed only if there is more in the tables than was compared.
        """
        if plain is None or not self._is_whole_with(plain):
            self.counts, self.replies = no_counts(), 0
            self._replay(None)
        if self.tables.run("count_replies") != [(self.replies,)]:
            raise JournalCorrupt(say("The journal has a reply that no fact names."))
        return self.counts

    def _is_whole_with(self, plain: PlainRows) -> bool:
        rows = sum(plain.states.values())
        self.counts.update(plain.states)
        self._count(rows, rows)
        facts = 2 * rows + (self._replay(plain.left) if plain.left else 0)
        return self.tables.run("count_all") == [(self.counts["instructions"], facts, self.counts["order_ids"])]

    def _count(self, rows: int, order_ids: int) -> None:
        self.counts["instructions"] += rows
        self.counts["order_ids"] += order_ids

    def _replay(self, numbers: Sequence[int] | None) -> int:
        """Replay some instructions, or all, and return how many facts they have."""
        run, stream, counts = self.tables.run, self.tables.stream, self.counts
        chosen = {"numbers": list(numbers or [0]), "every": numbers is None}
        batches = {number: (batch, operation) for number, batch, operation in run("batch_ids")}
        ((rows,),) = run("count_instructions")
        facts = LinesByInstruction(stream("facts_by_instruction", **chosen), mark("A fact"))
        order_ids = LinesByInstruction(stream("order_ids_by_instruction", **chosen), mark("An order id"))
        replay = InstructionReplay(counts)
        told = 0
        for line in stream("all_progress", **chosen):
            number, batch, row, client_orderid, replaces = line[:5]
            if batch not in batches:
                raise JournalCorrupt(
                    say("Instruction {number} belongs to a batch that the journal does not have.", number=number)
                )
            batch_id, operation = batches[batch]
            own = facts.of(number)
            found = replay.replay(number, row, batch_id, client_orderid, replaces, own)
            for reply in found.replies:
                self._check_reply(number, reply)
            progress = columns_of(found.progress)
            if progress != line[5:] and self.tables.storable(progress) != line[5:]:
                raise JournalCorrupt(
                    say(
                        "Instruction {number} (row {row} of batch {batch}) does not match its facts.",
                        number=number,
                        row=row,
                        batch=batch_id,
                    )
                )
            if set(order_ids.of(number)) != {(operation, order_id) for order_id in found.order_ids}:
                raise JournalCorrupt(
                    say("The order ids of instruction {number} do not match its facts.", number=number)
                )
            told += len(own)
            counts[found.progress.standing.state] += 1
            self._count(1, len(found.order_ids))
            if counts["instructions"] % _ROWS_A_STEP == 0:
                self.progress(counts["instructions"], rows)
        facts.end()
        order_ids.end()
        return told

    def _check_reply(self, number: int, named: NamedReply) -> None:
        """Raise `JournalCorrupt` unless the reply that a fact names is the one that is kept."""
        kept = self.tables.run("reply_of", fact=named.seq, instruction=number, nth=named.place + 1)
        if [(instruction, reply_sha256(head.decode(), body)) for instruction, head, body in kept] != [
            (number, named.sha256)
        ]:
            raise JournalCorrupt(say("The reply kept for fact {number} was changed.", number=named.seq))
        self.replies += 1
