"""The same history in both stores, entry by entry."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof
from paygw_batch.core.lifecycle import IllegalMove, Intended, Resolution, Returned, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import CODED, kept
from paygw_batch.errors import InternalError, RowsMoved
from paygw_batch.journal import states as journal_states
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.values import LINE_COLUMNS, Amendment, Entry, MoveResult, NewBatch, RowState, TallyKind
from tests.journal.model import ModelJournal
from tests.support.journal_rows import AT, OPERATION, all_due, at, intent, new_instruction, outcome_of, resolved
from tests.support.row_progress import advance
from tests.support.tested_journal import Journal

BY_STATE = set(State) - {State.READY}


IDS = ["A", "B", "C", "A-r2", "B-r2", "A-r3"]


WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}


EVIDENCE = st.builds(
    lambda source, order_id, amount, word, proof: Evidence(
        source, Claim(order_id, amount, "KES", word, None, proof, is_current=source is EvidenceSource.STATEMENT), word
    ),
    st.sampled_from([EvidenceSource.NOTIFICATION, EvidenceSource.STATEMENT]),
    st.sampled_from(IDS),
    st.sampled_from(["1", "2.00"]),
    st.sampled_from(sorted(WORDS)),
    st.sampled_from([Proof.PROVEN, Proof.PROVEN, Proof.UNPROVEN]),
)


def moves(results: Sequence[MoveResult]) -> list[bool]:
    return [result is MoveResult.MOVED for result in results]


def plain(text: Any) -> Any:
    """A kept text whose codes are spelled alike: one store writes a blank after a comma, another one doesn't.

    Of evidence the number of its fact is left out: in a database there may be gaps.
    """
    if not isinstance(text, str) or not text.startswith(CODED):
        return text
    code, *values = json.loads(text)
    return kept(code) if code in set(EvidenceSource) else kept(code, *map(plain, values))


def read(row: RowState) -> RowState:
    return replace(row, message=plain(row.message))


class Pair:
    """A journal and its model: both get the same entries, and must give the same answers.

    A journal that is shared by processes leaves gaps in the numbers of its facts, and takes an outcome only from the
    process that sent the row.
    """

    def __init__(self, opens: Callable[[], Journal], *, is_shared: bool = False) -> None:
        self._opens = opens
        self._is_shared = is_shared
        self._sent: set[tuple[int, int]] = set()
        """Number of the instruction and attempt of what this process has sent."""
        self.disk = opens()
        self.model = ModelJournal()

    def append(self, entries: list[Entry]) -> None:
        moved = moves(self.disk.append(entries))
        assert moved == self.model.append(entries)
        sent = [entry for entry, has_moved in zip(entries, moved, strict=True) if has_moved]
        self._sent |= {(entry.instruction, entry.attempt) for entry in sent if isinstance(entry.fact, Intended)}

    def answer(self, outcome: Entry) -> None:
        """Record an outcome, unless the journal refuses it because another process sent the row."""
        progress = self.model.instruction(outcome.instruction).progress
        would_move = not isinstance(advance(progress, outcome.fact, outcome.attempt, outcome.at), IllegalMove)
        if self._is_shared and would_move and (outcome.instruction, outcome.attempt) not in self._sent:
            with pytest.raises(InternalError, match="another process sent"):
                self.disk.append([outcome])
        else:
            self.append([outcome])

    def take_in(self, evidence: list[Evidence], when: str) -> None:
        assert list(self.disk.record_evidence(evidence, WORDS, at=when)) == self.model.record_evidence(
            evidence, WORDS, at=when
        )

    def person_says(self, entry: Entry) -> None:
        """Settle a row, as the program does it: one that is ready only when it is held, and that lifts the hold."""
        if entry.instruction > self.instructions():
            return self.append([entry])
        one = self.model.instruction(entry.instruction)
        if one.progress.standing.state is not State.READY:
            return self.append([entry])
        if not one.is_contested:
            with pytest.raises(RowsMoved):
                self.disk.settle([entry])
            return None
        entry = replace(entry, attempt=one.progress.standing.attempt)
        self.disk.settle([entry])
        self.model.settle(entry)
        return None

    def instructions(self) -> int:
        return len(self.model.instructions)

    def open_batch(self, rows: list[tuple[str, str]], when: str) -> None:
        """Submit rows of (order id, amount) as the program does: known ones known, what may be amended amended."""
        news = [new_instruction(row, order_id, amount=amount) for row, (order_id, amount) in enumerate(rows, start=2)]
        asked = [(new.row, new.client_orderid, new.content) for new in news]
        known, clashes = self.disk.compare(OPERATION, asked)
        assert (known, clashes) == self.model.compare(asked)
        out = {one.row for one in known} | {one.row for one in clashes if not one.amendable}
        batch = f"b{len(self.model.covered) + 1}"
        amendments = [Amendment(one.row, one.instruction) for one in clashes if one.amendable]
        brought = [new for new in news if new.row not in out]
        self.disk.open_batch(
            NewBatch(batch, OPERATION, "s.csv", batch, len(rows), 0),
            parts=[BatchPart([batch.encode()], InstructionRows(brought))],
            known=known,
            amendments=amendments,
            at=when,
        )
        self.model.open_batch(brought, known, amendments, when)

    def reopen(self) -> None:
        self.disk.close()
        self.disk = self._opens()
        self._sent.clear()
        assert getattr(self.disk, "notes", ()) == ()

    def rows(self, batch: int, **wanted: Any) -> list[RowState]:
        return [read(one) for one in self.disk.rows(batch, **wanted)]

    def check(self) -> None:
        """Hold both to the same answers, and both to the promise."""
        for number in range(1, len(self.model.covered) + 1):
            standings = self.rows(number)
            assert standings == [read(one) for one in self.model.standings(number)]
            assert list(self.disk.tallies(number)) == self.model.tallies(number)
            self.check_states(number)
            assert self.rows(number, after=2, limit=2) == [one for one in standings if one.row > 2][:2]
            numbers = [one.row for one in standings[::2]]
            assert self.rows(number, numbers=[*reversed(numbers), 99]) == standings[::2]
            assert (
                self.rows(number, numbers=numbers, after=2, limit=1)
                == [one for one in standings[::2] if one.row > 2][:1]
            )
            place = LINE_COLUMNS.index("message")
            told = [line for some in self.disk.standing_lines(number) for line in some]
            lines = [(*line[:place], plain(line[place]), *line[place + 1 :]) for line in told]
            assert lines == [
                tuple(one.state.value if name == "state" else getattr(one, name) for name in LINE_COLUMNS)
                for one in standings
            ]
            assert [due.row for due in all_due(self.disk, number)] == self.model.due(number)
            assert self.disk.holds(number).keys() == self.model.holds(number)
        facts = [(one.seq, one.state, one.kind, one.attempt) for one in self.disk.messages().contradictions]
        wanted = [(seq, *rest) for seq, _, *rest in self.model.contradictions()]
        if self._is_shared:
            assert [seq for seq, *_ in facts] == sorted({seq for seq, *_ in facts})
            assert [one[1:] for one in facts] == [one[1:] for one in wanted]
        else:
            assert facts == wanted
        assert self.disk.head().seq == self.model.facts

    def check_states(self, batch: int) -> None:
        """Hold both to the same rows of every state, and what is due to its counts."""
        assert sum(tally.count for tally in self.disk.tallies(batch, kind=TallyKind.DUE)) == len(self.model.due(batch))
        for states in [{state} for state in BY_STATE] + [set(BY_STATE)]:
            for until in (None, at(0), at(3)):
                rows = self.rows(batch, states=states, accepted_until=until)
                tallies = self.disk.tallies(batch, accepted_until=until)
                assert rows == [read(one) for one in self.model.standings_in(batch, states, accepted_until=until)]
                assert sum(tally.count for tally in tallies if tally.state in states) == len(rows)
                assert sum(tally.minor for tally in tallies if tally.state in states) == sum(row.minor for row in rows)
                for common in (1, 20_000) if until is None else (1,):  # rows of a common state are found in another way
                    with mock.patch.object(journal_states, "_COMMON_ROWS", common):
                        first = self.rows(batch, states=states, accepted_until=until, limit=2)
                        after = self.rows(batch, states=states, accepted_until=until, after=3, limit=2)
                    assert first == rows[:2]
                    assert after == [row for row in rows if row.row > 3][:2]
                named = self.rows(batch, states=states, accepted_until=until, numbers=[7, 4, 2, 4])
                assert named == [row for row in rows if row.row in {2, 4, 7}]


def act(both: Pair, data: st.DataObject, minute: int) -> None:
    """Do one thing that a run, a gateway or a person could do; sensible or not."""
    when = at(minute)
    draw = data.draw
    what = draw(
        st.sampled_from(["sheet", "intend", "outcome", "outcome", "person", "release", "crash", "returned", "evidence"])
    )
    some = st.integers(1, max(both.instructions(), 1))
    attempt = st.integers(0, 4)
    match what:
        case "sheet":
            ids = draw(st.lists(st.sampled_from(IDS), unique=True, min_size=1))
            both.open_batch([(order_id, draw(st.sampled_from(["1.00", "2.00"]))) for order_id in ids], when)
        case "intend":
            batch = draw(st.integers(1, len(both.model.covered)))
            due = all_due(both.disk, batch)
            chosen = draw(st.lists(st.sampled_from(due), max_size=4)) if due else []
            both.append([intent(one, when) for one in chosen])
        case "outcome":
            kind = draw(st.sampled_from(OutcomeKind))
            both.answer(outcome_of(draw(some), draw(attempt), kind, when, gateway_reference="R"))
        case "person":
            both.person_says(resolved(draw(some), draw(attempt), draw(st.sampled_from(Resolution)), when))
        case "evidence":
            both.take_in(draw(st.lists(EVIDENCE, min_size=1, max_size=3)), when)
        case "returned":
            both.append([Entry(draw(some), draw(attempt), Returned("letter of the bank"), when)])
        case "release":
            batch = draw(st.integers(1, len(both.model.covered)))
            rows, suffix = draw(st.none() | st.lists(st.integers(2, 6))), draw(st.booleans())
            released = [
                store.release(batch, rows, suffix=suffix, by="amina", at=when) for store in (both.disk, both.model)
            ]
            assert released[0] == released[1]
        case _:
            both.reopen()
            assert both.disk.mark_interrupted(when) == both.model.interrupt(when)


def go_through(both: Pair, data: st.DataObject, *, steps: int) -> None:
    """Go through a history of up to so many steps, and hold the journal to the model after each."""
    both.open_batch([("A", "1.00"), ("B", "1.00"), ("C", "1.00")], AT)
    for minute in range(1, 1 + data.draw(st.integers(1, steps))):
        act(both, data, minute)
        both.check()
    counts = both.disk.verify()
    assert {state.value: counts[state.value] for state in State} == {
        state.value: both.model.counts()[state.value] for state in State
    }
    assert (counts["facts"], counts["evidence"]) == (both.model.facts, both.model.evidence)
