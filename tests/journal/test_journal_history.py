"""Random histories: the journal agrees with its model after every step."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof
from paygw_batch.core.lifecycle import IllegalMove, Intended, Resolution, Returned, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import CODE_START, encode_record
from paygw_batch.errors import InternalError, StaleRows
from paygw_batch.journal import states as journal_states
from paygw_batch.journal.values import LINE_COLUMNS, Amendment, Entry, MoveResult, RowState, TallyKind
from tests.journal.model import ModelJournal
from tests.support.journal_rows import (
    AT,
    OPERATION,
    WORDS,
    at,
    due_rows,
    intent,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    resolved,
)
from tests.support.long_part import example_count
from tests.support.postgres_rows import open_postgres, postgres_location
from tests.support.postgres_server import PostgresServer
from tests.support.row_progress import advance
from tests.support.tested_journal import Journal

BY_STATE = set(State) - {State.READY}
IDS = ["A", "B", "C", "A-r2", "B-r2", "A-r3"]
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


def moved_flags(results: Sequence[MoveResult]) -> list[bool]:
    return [result is MoveResult.MOVED for result in results]


def normalize_text(text: Any) -> Any:
    """Return a stored text without the spaces of its JSON and evidence's fact number, in which stores differ."""
    if not isinstance(text, str) or not text.startswith(CODE_START):
        return text
    code, *values = json.loads(text)
    return encode_record(code) if code in set(EvidenceSource) else encode_record(code, *map(normalize_text, values))


def normalize_row(row: RowState) -> RowState:
    return replace(row, message=normalize_text(row.message))


class Pair:
    """A journal and its model, which must answer alike. A shared one takes outcomes only from the row's sender."""

    def __init__(self, opens: Callable[[], Journal], *, is_shared: bool = False) -> None:
        self._opens = opens
        self._is_shared = is_shared
        self._sent: set[tuple[int, int]] = set()  # the (instruction, attempt) pairs that this process has sent
        self.disk = opens()
        self.model = ModelJournal()

    def append(self, entries: list[Entry]) -> None:
        moved = moved_flags(self.disk.append(entries))
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

    def take_evidence(self, evidence: list[Evidence], when: str) -> None:
        found = list(self.disk.record_evidence(evidence, WORDS, at=when))
        assert found == self.model.record_evidence(evidence, WORDS, at=when)

    def settle_by_person(self, entry: Entry) -> None:
        """Settle a row as the program does. A ready row is settled only if it is held, which lifts the hold."""
        if entry.instruction > self.instructions():
            return self.append([entry])
        row = self.model.instruction(entry.instruction)
        if row.progress.standing.state is not State.READY:
            return self.append([entry])
        if not row.is_contested:
            with pytest.raises(StaleRows):
                self.disk.settle([entry])
            return None
        entry = replace(entry, attempt=row.progress.standing.attempt)
        self.disk.settle([entry])
        return self.model.settle(entry)

    def instructions(self) -> int:
        return len(self.model.instructions)

    def open_batch(self, rows: list[tuple[str, str]], when: str) -> None:
        """Submit rows of (order id, amount) as the program does, with known and amended rows."""
        new_rows = [new_instruction(row, order_id, amount=amount) for row, (order_id, amount) in enumerate(rows, 2)]
        keys = [(new.row, new.client_orderid, new.content) for new in new_rows]
        known, clashes = self.disk.compare(OPERATION, keys)
        assert (known, clashes) == self.model.compare(keys)
        skipped = {known_row.row for known_row in known} | {clash.row for clash in clashes if not clash.is_amendable}
        batch = f"b{len(self.model.covered) + 1}"
        amendments = [Amendment(clash.row, clash.instruction) for clash in clashes if clash.is_amendable]
        accepted_rows = [new for new in new_rows if new.row not in skipped]
        shared: dict[str, Any] = {"known": known, "amendments": amendments, "pages": [b"page"], "opened_at": when}
        open_sheet(self.disk, batch, accepted_rows, **shared)
        self.model.open_batch(accepted_rows, known, amendments, when)

    def reopen(self) -> None:
        self.disk.close()
        self.disk = self._opens()
        self._sent.clear()
        assert getattr(self.disk, "notes", ()) == ()

    def rows(self, batch: int, **wanted: Any) -> list[RowState]:
        return [normalize_row(row) for row in self.disk.rows(batch, **wanted)]

    def check(self) -> None:
        """Check that both give the same answers, and that only rows that may be sent are due."""
        for number in range(1, len(self.model.covered) + 1):
            row_states = self.rows(number)
            assert row_states == [normalize_row(row) for row in self.model.row_states(number)]
            assert list(self.disk.tallies(number)) == self.model.tallies(number)
            self.check_states(number)
            assert self.rows(number, after=2, limit=2) == [row for row in row_states if row.row > 2][:2]
            numbers = [row.row for row in row_states[::2]]
            assert self.rows(number, numbers=[*reversed(numbers), 99]) == row_states[::2]
            next_row = [row for row in row_states[::2] if row.row > 2][:1]
            assert self.rows(number, numbers=numbers, after=2, limit=1) == next_row
            place = LINE_COLUMNS.index("message")
            all_lines = [line for group in self.disk.batch_lines(number) for line in group]
            lines = [(*line[:place], normalize_text(line[place]), *line[place + 1 :]) for line in all_lines]
            assert lines == [
                tuple(row.state.value if name == "state" else getattr(row, name) for name in LINE_COLUMNS)
                for row in row_states
            ]
            assert [due.row for due in due_rows(self.disk, number)] == self.model.due(number)
            assert self.disk.holds(number).keys() == self.model.holds(number)
        facts = [
            (contradiction.seq, contradiction.state, contradiction.kind, contradiction.attempt)
            for contradiction in self.disk.messages().contradictions
        ]
        wanted = [(seq, *rest) for seq, _, *rest in self.model.contradictions()]
        if self._is_shared:
            assert [seq for seq, *_ in facts] == sorted({seq for seq, *_ in facts})
            assert [one[1:] for one in facts] == [one[1:] for one in wanted]
        else:
            assert facts == wanted
        assert self.disk.head().seq == self.model.facts

    def check_states(self, batch: int) -> None:
        """Check that both have the same rows in every state, and that the counts of due rows match."""
        assert sum(tally.count for tally in self.disk.tallies(batch, kind=TallyKind.DUE)) == len(self.model.due(batch))
        for states in [{state} for state in BY_STATE] + [set(BY_STATE)]:
            for until in (None, at(0), at(3)):
                rows = self.rows(batch, states=states, accepted_until=until)
                tallies = self.disk.tallies(batch, accepted_until=until)
                wanted = self.model.row_states_in(batch, states, accepted_until=until)
                assert rows == [normalize_row(row) for row in wanted]
                assert sum(tally.count for tally in tallies if tally.state in states) == len(rows)
                assert sum(tally.minor for tally in tallies if tally.state in states) == sum(row.minor for row in rows)
                for common in (1, 20_000) if until is None else (1,):  # a common state uses another query
                    with mock.patch.object(journal_states, "_SCAN_FROM_ROWS", common):
                        first = self.rows(batch, states=states, accepted_until=until, limit=2)
                        after = self.rows(batch, states=states, accepted_until=until, after=3, limit=2)
                    assert first == rows[:2]
                    assert after == [row for row in rows if row.row > 3][:2]
                named = self.rows(batch, states=states, accepted_until=until, numbers=[7, 4, 2, 4])
                assert named == [row for row in rows if row.row in {2, 4, 7}]


def make_random_step(pair: Pair, data: st.DataObject, minute: int) -> None:
    """Make one random step of a run, a gateway or a person, sensible or not."""
    when = at(minute)
    draw = data.draw
    steps = ["sheet", "intend", "outcome", "outcome", "person", "release", "crash", "returned", "evidence"]
    step = draw(st.sampled_from(steps))
    instruction_numbers = st.integers(1, max(pair.instructions(), 1))
    attempt = st.integers(0, 4)
    match step:
        case "sheet":
            ids = draw(st.lists(st.sampled_from(IDS), unique=True, min_size=1))
            pair.open_batch([(order_id, draw(st.sampled_from(["1.00", "2.00"]))) for order_id in ids], when)
        case "intend":
            batch = draw(st.integers(1, len(pair.model.covered)))
            due = due_rows(pair.disk, batch)
            chosen = draw(st.lists(st.sampled_from(due), max_size=4)) if due else []
            pair.append([intent(one, when) for one in chosen])
        case "outcome":
            kind = draw(st.sampled_from(OutcomeKind))
            pair.answer(outcome_of(draw(instruction_numbers), draw(attempt), kind, when, gateway_reference="R"))
        case "person":
            number, tried, resolution = draw(instruction_numbers), draw(attempt), draw(st.sampled_from(Resolution))
            pair.settle_by_person(resolved(number, tried, resolution, when))
        case "evidence":
            pair.take_evidence(draw(st.lists(EVIDENCE, min_size=1, max_size=3)), when)
        case "returned":
            pair.append([Entry(draw(instruction_numbers), draw(attempt), Returned("letter of the bank"), when)])
        case "release":
            batch = draw(st.integers(1, len(pair.model.covered)))
            rows, suffix = draw(st.none() | st.lists(st.integers(2, 6))), draw(st.booleans())
            words: dict[str, Any] = {"suffix": suffix, "by": "amina", "at": when}
            assert pair.disk.release(batch, rows, **words) == pair.model.release(batch, rows, **words)
        case _:
            pair.reopen()
            assert pair.disk.mark_interrupted(when) == pair.model.interrupt(when)


def play_history(pair: Pair, data: st.DataObject, *, steps: int) -> None:
    """Play a history of at most `steps` steps, and compare the journal with the model after each."""
    pair.open_batch([("A", "1.00"), ("B", "1.00"), ("C", "1.00")], AT)
    for minute in range(1, 1 + data.draw(st.integers(1, steps))):
        make_random_step(pair, data, minute)
        pair.check()
    counts = pair.disk.verify()
    in_states = pair.model.counts()
    assert {state: counts[state.value] for state in State} == {state: in_states[state.value] for state in State}
    assert (counts["facts"], counts["evidence"]) == (pair.model.facts, pair.model.evidence)


any_history = settings(max_examples=example_count(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def open_pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as name:
        pair = Pair(partial(open_journal_at, Path(name)))
        try:
            yield pair
        finally:
            pair.disk.close()


@any_history
@given(st.data())
def test_journal_agrees_with_model_in_any_history(data: st.DataObject) -> None:
    with open_pair() as pair:
        play_history(pair, data, steps=25)


@any_history
@given(st.data())
def test_interleaved_intents_send_each_row_once(data: st.DataObject) -> None:
    """Due rows that were read twice and claimed in any order and grouping are each sent once."""
    with open_pair() as pair:
        pair.open_batch([(order_id, "1.00") for order_id in IDS], AT)
        claims = [intent(due) for due in due_rows(pair.disk, 1) for _ in range(2)]
        claims = data.draw(st.permutations(claims))
        won = []
        while claims:
            size = data.draw(st.integers(1, len(claims)))
            group, claims = claims[:size], claims[size:]
            moved = moved_flags(pair.disk.append(group))
            assert moved == pair.model.append(group)
            won += [entry.instruction for entry, did_move in zip(group, moved, strict=True) if did_move]
        assert sorted(won) == list(range(1, len(IDS) + 1))
        assert pair.disk.messages().contradictions == []


@settings(any_history, max_examples=example_count(8))
@given(st.data())
def test_postgres_journal_agrees_with_model(
    postgres_server: PostgresServer, postgres_template: str, data: st.DataObject
) -> None:
    name = postgres_server.new_database(postgres_template)
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(
            partial(open_postgres, postgres_location(postgres_server.url(name), Path(directory))), is_shared=True
        )
        try:
            play_history(pair, data, steps=12)
        finally:
            pair.disk.close()
            postgres_server.drop_database(name)
