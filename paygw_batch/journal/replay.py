"""Replays a journal's facts and compares the result with the tables, for all stores.

Instructions, their facts and their order ids are read side by side, so memory use does not grow with the journal. Each
store's `verify` module checks the tables specific to that store.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from paygw_batch.core.lifecycle import MOVES, FactKind, IllegalMove, Standing, State, next_standing
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.audit import AuditEntry, verify_trail
from paygw_batch.journal.facts import BATCH_OPENED, PersonalData, decode_batch, decode_forgetting, personal_data_digest
from paygw_batch.journal.forget import check_forgotten
from paygw_batch.journal.new_batch import OpeningDigests
from paygw_batch.journal.port import VerifyProgress
from paygw_batch.journal.tables import MOVE_LINES, Tables
from paygw_batch.journal.values import BatchForgotten, BatchOpened, KnownRow, NewBatch, reply_sha256
from paygw_batch.language import mark, say

_ROWS_PER_REPORT = 1_000


def check_batches(tables: Tables) -> Mapping[str, int]:
    """Check all batches' pages, instructions and known rows against the facts. Returns counts by name.

    Raises `JournalCorrupt` if they differ, or if personal data that was not forgotten is missing.
    """
    openings: dict[int, tuple[BatchOpened, str]] = {}
    forgettings: list[tuple[int, BatchForgotten]] = []
    for batch, at, kind, details in tables.run("facts_of_batches"):
        if kind == BATCH_OPENED:
            openings[batch] = decode_batch(details), at
        else:
            forgettings.append((batch, decode_forgetting(details)))
    _check_openings(tables, openings, {batch for batch, _ in forgettings})
    check_forgotten(tables, forgettings)
    check_evidence(tables, [fact for _, fact in forgettings])
    return {"batches": len(openings), "pages": sum(opening.pages for opening, _ in openings.values())}


def _check_openings(
    tables: Tables, openings: Mapping[int, tuple[BatchOpened, str]], forgotten_batches: Collection[int]
) -> None:
    """Check batches against the facts that opened them. `openings` maps each batch's number to its fact and time."""
    if [number for number, *_ in tables.run("batch_ids")] != sorted(openings):
        raise JournalCorrupt(say("The journal's batches do not match the facts that opened them."))
    for number, (opened, at) in openings.items():
        ((opened_at, plan_sha256, *columns),) = tables.run("opened_batch", batch=number)
        if opened_at != at or plan_sha256 not in {None, opened.plan_sha256}:
            raise _changed_batch_error(opened.batch, "opened_at")
        # Only the fact records who opened and approved a batch.
        batch = replace(NewBatch(*columns), by=opened.by, approvals=opened.approvals, plan_sha256=opened.plan_sha256)
        rebuilt = _rebuild_opening(tables, number, OpeningDigests(batch, opened.first_instruction))
        if number in forgotten_batches and rebuilt.pages == 0:
            rebuilt = replace(rebuilt, pages=opened.pages, pages_sha256=opened.pages_sha256)
        for name in BatchOpened.__dataclass_fields__:
            if getattr(rebuilt, name) != getattr(opened, name):
                raise _changed_batch_error(opened.batch, name)


def _changed_batch_error(batch: str, part: str) -> JournalCorrupt:
    return JournalCorrupt(say("Batch {batch} was changed after it was opened: {part} differs.", batch=batch, part=part))


def _rebuild_opening(tables: Tables, number: int, digests: OpeningDigests) -> BatchOpened:
    for page_number, content in tables.stream("pages", batch=number):
        if page_number != digests.pages:
            raise JournalCorrupt(say("A page of batch number {batch} is missing.", batch=number))
        digests.add_page(content)
    for row, instruction in tables.stream("known_rows", batch=number):
        digests.add_known(KnownRow(row, instruction, State.READY))
    try:
        digests.add_stored(tables.stream("instructions", batch=number))
        return digests.opening()
    except InternalError:
        raise JournalCorrupt(say("An instruction of batch number {batch} was changed.", batch=number)) from None


KINDS: Mapping[str, FactKind] = {kind.value: kind for kind in FactKind}


def check_personal_data(number: int, digest: bytes | None, salt: bytes | None, *texts: str | None) -> None:
    """Raise `JournalCorrupt` if a fact's personal data is present but does not match its digest."""
    if salt is not None and personal_data_digest(salt, PersonalData(*texts)) != digest:
        raise JournalCorrupt(say("Personal data in fact {number} of the journal was changed.", number=number))


def check_state_machine(tables: Tables) -> None:
    """Raise `JournalCorrupt` unless the table of allowed moves matches `core/lifecycle.py`."""
    if set(tables.run("moves")) != set(MOVE_LINES):
        raise JournalCorrupt(say("The journal's state machine was altered."))


def check_trail(tables: Tables) -> int:
    """Verify the audit trail and return its number of entries. Raises `JournalCorrupt` at the first wrong entry."""
    return verify_trail((AuditEntry(*line) for line in tables.stream("whole_trail")), tables.identity.journal_id)


def check_evidence(tables: Tables, forgettings: Sequence[BatchForgotten]) -> None:
    """Raise `JournalCorrupt` if personal data was removed but not forgotten, or a finding does not match its effect."""
    before = max((fact.before for fact in forgettings), default="")
    orders = [0, *(number for fact in forgettings for number in fact.orders)]
    if lines := tables.run("missing_personal_data", before=before, orders=orders):
        raise JournalCorrupt(say("Personal data in fact {number} of the journal was removed.", number=lines[0][0]))
    if mismatches := tables.run("wrong_findings"):
        raise JournalCorrupt(say("Fact {number} does not match its effect on its row.", number=mismatches[0][0]))


class _Row(NamedTuple):
    """An instruction's state according to its facts, with the columns of the table `state`."""

    standing: Standing = Standing()
    inherited: int = 0
    order_id: str | None = None
    intent: int | None = None
    first_sent: int | None = None
    fact: int | None = None

    def columns(self) -> tuple[Any, ...]:
        return (*self.standing, *self[1:])


_NEW_ROW = _Row()
_INTENDED, _RELEASED, _REPLACED = FactKind.INTENDED.value, FactKind.RELEASED.value, FactKind.REPLACED.value
"""Reading an enum member's `value` costs a function call in Python 3.11, so it is done only once."""


class _ReplayResult(NamedTuple):
    """The result of replaying an instruction's facts: the row's standing after and before its last move.

    `refused_states` contains, for each fact, None if it moved the row, or the state that it did not fit. The other
    fields are the indexes of the latest intent, of the first intent that may have been sent, and of the last move.
    """

    standing: Standing
    before: Standing
    refused_states: tuple[State | None, ...]
    intent: int | None
    first_sent: int | None
    newest: int | None


@lru_cache(maxsize=1_024)
def _replay_facts(start: Standing, facts: tuple[tuple[str, int], ...]) -> _ReplayResult:
    """Replay an instruction's facts (kind, attempt). Cached, because most instructions share a few histories."""
    current = previous = start
    refused_states: list[State | None] = []
    intent = first_sent = newest = None
    for index, (kind_name, attempt) in enumerate(facts):
        if (kind := KINDS.get(kind_name)) is None:
            raise JournalCorrupt(say("A fact of the kind {kind!r} cannot be read.", kind=str(kind_name)[:40]))
        result = next_standing(current, kind, attempt)
        if isinstance(result, IllegalMove):
            refused_states.append(result.state)
            continue
        refused_states.append(None)
        move = MOVES[current.state, kind]
        if move.is_sending and first_sent is None:
            first_sent = intent
        if move.attempts:
            intent = index
        current, previous, newest = result, current, index
    return _ReplayResult(current, previous, tuple(refused_states), intent, first_sent, newest)


@dataclass(slots=True)
class RowReplay:
    """Replays each instruction's facts and compares the result with the tables."""

    tables: Tables
    progress: VerifyProgress
    counts: Counter[str] = field(
        default_factory=lambda: Counter(
            dict.fromkeys((*map(str, State), "instructions", "order_ids", "contradictions"), 0)
        )
    )
    _handovers: dict[int, tuple[_Row, set[str]]] = field(default_factory=dict)
    """For each replaced instruction, the state and order ids that its successor takes over."""

    def run(self) -> Counter[str]:
        """Replay all facts and return counts. Raises `JournalCorrupt` at the first difference."""
        run, stream, counts = self.tables.run, self.tables.stream, self.counts
        batches = {number: (batch, operation) for number, batch, operation in run("batch_ids")}
        ((total,),) = run("count_instructions")
        facts = LinesByInstruction(stream("facts_by_instruction"), mark("A fact"))
        order_ids = LinesByInstruction(stream("order_ids_by_instruction"), mark("An order id"))
        states, instruction_count, order_id_count = dict.fromkeys(State, 0), 0, 0
        for number, batch, row, client_orderid, replaces, state_batch, matches_row, *state in stream("all_states"):
            if batch not in batches:
                message = say("Instruction {number} belongs to a batch that the journal does not have.", number=number)
                raise JournalCorrupt(message)
            batch_id, operation = batches[batch]
            replayed, ids = self._replay_row(number, client_orderid, replaces, facts.read_group(number))
            if not matches_row or state_batch != batch or replayed.columns() != tuple(state):
                values = {"number": number, "row": row, "batch": batch_id}
                message = say("Instruction {number} (row {row} of batch {batch}) does not match its facts.", **values)
                raise JournalCorrupt(message)
            if set(order_ids.read_group(number)) != {(number, operation, order_id) for order_id in ids}:
                message = say("The order ids of instruction {number} do not match its facts.", number=number)
                raise JournalCorrupt(message)
            states[replayed.standing.state] += 1
            order_id_count += len(ids)
            instruction_count += 1
            if instruction_count % _ROWS_PER_REPORT == 0:
                self.progress(instruction_count, total)
        facts.require_end()
        order_ids.require_end()
        counts.update(states, instructions=instruction_count, order_ids=order_id_count)
        replies = self._check_replies()
        expected = {"state": instruction_count, "contradiction": counts["contradictions"], "reply": replies, "said": 0}
        for (table, count), actual in zip(expected.items(), *run("count_dependent_lines"), strict=True):
            if count != actual:
                raise JournalCorrupt(say("A line of table {table} refers to missing data.", table=table))
        return counts

    def _replay_row(
        self, number: int, client_orderid: str, replaces: int | None, facts: Sequence[tuple[Any, ...]]
    ) -> tuple[_Row, set[str]]:
        if replaces is not None and replaces not in self._handovers:
            values = {"number": number, "other": replaces}
            message = say("Instruction {number} replaces instruction {other}, but no fact records that.", **values)
            raise JournalCorrupt(message)
        start, ids = (_NEW_ROW, {client_orderid}) if replaces is None else self._handovers.pop(replaces)
        result = _replay_facts(start.standing, tuple([(kind, attempt) for _, _, kind, attempt, _, _ in facts]))
        order_id = start.order_id
        for (_, fact, kind, _, fact_order_id, refused), state in zip(facts, result.refused_states, strict=True):
            has_own_order_id = kind != _INTENDED or fact_order_id == (order_id or client_orderid)
            if refused != state or not (has_own_order_id or state):
                message = say("Fact {fact} does not fit the state of instruction {number}.", fact=fact, number=number)
                raise JournalCorrupt(message)
            if state is not None:
                self.counts["contradictions"] += 1
            elif kind == _RELEASED:
                order_id = fact_order_id
                ids.add(fact_order_id)
            elif kind == _REPLACED:
                inherited_ids = {client_orderid, order_id or client_orderid}
                ids -= inherited_ids
                self._handovers[number] = _Row(result.before, result.before.attempt, order_id), inherited_ids
        numbers = [None if index is None else facts[index][1] for index in result[3:]]
        return _Row(result.standing, start.inherited, order_id, *numbers), ids

    def _check_replies(self) -> int:
        """Count the stored replies. Raises `JournalCorrupt` unless they are exactly those that facts refer to."""
        count = 0
        for fact, belongs_to_row, head, body, digest in self.tables.stream("all_replies"):
            count += 1
            if not belongs_to_row or reply_sha256(bytes(head).decode(), bytes(body)) != digest:
                raise JournalCorrupt(say("The stored reply of fact {number} was changed.", number=fact))
        if self.tables.run("count_expected_replies") != [(count,)]:
            raise JournalCorrupt(say("A reply is missing from the journal, although a fact refers to it."))
        if changed_facts := self.tables.run("facts_with_none_text"):
            raise JournalCorrupt(
                say("Fact {number} or the one before it was changed: its hash is wrong.", number=changed_facts[0][0])
            )
        return count


class LinesByInstruction:
    """Groups lines by instruction (the first column). Groups must be read in ascending order."""

    def __init__(self, lines: Iterator[tuple[Any, ...]], noun: str) -> None:
        self._lines = lines
        self._next = next(lines, None)
        self._noun = noun

    def read_group(self, number: int) -> list[tuple[Any, ...]]:
        """Return an instruction's lines. Raises `JournalCorrupt` if the next line belongs to an earlier instruction."""
        group = []
        line = self._next
        while line is not None and line[0] == number:
            group.append(line)
            line = next(self._lines, None)
        self._next = line
        if line is not None and line[0] < number:
            self.require_end()
        return group

    def require_end(self) -> None:
        if self._next is not None:
            values = {"line": say(self._noun), "number": self._next[0]}
            message = say("{line} refers to instruction {number}, which the journal does not have.", **values)
            raise JournalCorrupt(message)
