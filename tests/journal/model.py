"""A small model of a journal, used as an oracle: lists and dicts, with the pure rules of facts and evidence.

It has no chain, pages or database. Random histories are applied to it and to the journal, and both must agree on the
state of every row, on the rows that may be sent, and on the contradictions.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import (
    GATEWAY_HAS_ORDER,
    Candidate,
    Deferral,
    Evidence,
    Finding,
    assess_claim,
    candidates_with_unknown_attempt,
)
from paygw_batch.core.lifecycle import (
    Concluded,
    Fact,
    FactKind,
    IllegalMove,
    Intended,
    Interrupted,
    Released,
    Replaced,
    State,
    fact_kind,
)
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import encode_record
from paygw_batch.errors import InternalError
from paygw_batch.journal.values import Amendment, Clash, Entry, KnownRow, NewInstruction, RowState, StateTally
from tests.support.row_progress import (
    RowProgress,
    advance,
    build_row_state,
    candidate_of,
    is_amendable,
    next_order_id,
    replacement_progress,
)

CLEARING = {FactKind.NOT_SENT, FactKind.RESOLVED_NOT_RECEIVED, FactKind.RELEASED}


@dataclass
class ModelRow:
    """An instruction in the model: its row in the sheet, its progress, and whether evidence holds it."""

    number: int
    batch: int
    new: NewInstruction
    progress: RowProgress
    facts: list[Fact] = field(default_factory=list)
    """The facts that moved it."""
    is_contested: bool = False


class ModelJournal:
    """A journal without any storage."""

    def __init__(self) -> None:
        self.instructions: list[ModelRow] = []
        self.covered: list[dict[int, ModelRow]] = []
        """The rows of each batch, in the sheet's order."""
        self.opened_at: list[str] = []
        self.order_ids: dict[str, ModelRow] = {}
        self.all_contradictions: list[tuple[int, int, State, str, int]] = []
        """Tuples of fact number, instruction, state before, kind, and attempt."""
        self.answered: dict[int, int] = {}
        """Maps an instruction to the last fact in which a person lifted its hold."""
        self.facts = self.evidence = 0

    def instruction(self, number: int) -> ModelRow:
        return self.instructions[number - 1]

    def open_batch(
        self, rows: Sequence[NewInstruction], known: Sequence[KnownRow], amendments: Sequence[Amendment], at: str
    ) -> None:
        replaces = {model_row.row: self.instruction(model_row.instruction) for model_row in amendments}
        number = len(self.covered) + 1
        new_rows: list[ModelRow] = []
        for new in rows:
            old = replaces.get(new.row)
            start = RowProgress(new.client_orderid) if old is None else replacement_progress(old.progress)
            new_rows.append(ModelRow(len(self.instructions) + len(new_rows) + 1, number, new, start))
        self.instructions += new_rows
        covered = {model_row.new.row: model_row for model_row in new_rows} | {
            model_row.row: self.instruction(model_row.instruction) for model_row in known
        }
        self.covered.append(dict(sorted(covered.items())))
        self.opened_at.append(at)
        self.facts += 1
        for model_row in new_rows:
            if model_row.new.row not in replaces:
                self.order_ids.setdefault(model_row.new.client_orderid, model_row)
        for model_row in new_rows:  # amended rows come last: they are released under an id that no row of the sheet has
            if (old := replaces.get(model_row.new.row)) is not None:
                self._replace(old, model_row, number, at)

    def _replace(self, old: ModelRow, model_row: ModelRow, batch: int, at: str) -> None:
        before = old.progress
        for order_id in (model_row.new.client_orderid, before.order_id):
            self.order_ids[order_id] = model_row
        self._record(Entry(old.number, before.standing.attempt, Replaced(f"b{batch}", model_row.new.row), at))
        if before.standing.state is State.REJECTED:
            self._release(model_row, suffix=True, by="an amended sheet", at=at)

    def compare(self, rows: Sequence[tuple[int, str, str]]) -> tuple[list[KnownRow], list[Clash]]:
        known, clashes = [], []
        for row, order_id, content in rows:
            if (model_row := self.order_ids.get(order_id)) is None:
                continue
            is_its_own, standing = model_row.new.client_orderid == order_id, model_row.progress.standing
            if is_its_own and model_row.new.content == content:
                known.append(KnownRow(row, model_row.number, standing.state))
                continue
            batch, opened_at = f"b{model_row.batch}", self.opened_at[model_row.batch - 1]
            may_amend = is_its_own and is_amendable(standing) and not model_row.is_contested
            clashes.append(
                Clash(row, order_id, model_row.number, batch, model_row.new.row, opened_at, standing.state, may_amend)
            )
        return known, clashes

    def append(self, entries: Sequence[Entry]) -> list[bool]:
        is_kept_list = [
            not (isinstance(entry.fact, Intended) and self.instruction(entry.instruction).is_contested)
            for entry in entries
        ]
        return [
            is_recorded and self._append_entry(entry) for entry, is_recorded in zip(entries, is_kept_list, strict=True)
        ]

    def _append_entry(self, entry: Entry) -> bool:
        """Record a fact, unless it is an intent that does not fit its row."""
        progress = self.instruction(entry.instruction).progress
        is_unfit = isinstance(advance(progress, entry.fact, entry.attempt, entry.at), IllegalMove)
        return not (is_unfit and isinstance(entry.fact, Intended)) and self._record(entry)

    def interrupt(self, at: str) -> int:
        in_flight = [
            model_row for model_row in self.instructions if model_row.progress.standing.state is State.IN_FLIGHT
        ]
        for model_row in in_flight:
            self._record(Entry(model_row.number, model_row.progress.standing.attempt, Interrupted(), at))
        return len(in_flight)

    def release(self, batch: int, rows: Sequence[int] | None, *, suffix: bool, by: str, at: str) -> int:
        released = [
            model_row
            for row, model_row in self.covered[batch - 1].items()
            if model_row.progress.standing.state is State.REJECTED and (rows is None or row in rows)
        ]
        for model_row in released:
            self._release(model_row, suffix=suffix, by=by, at=at)
        return len(released)

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> list[Finding]:
        findings: list[Finding] = []
        has_arrivals = False
        for model_row in evidence:
            order_id = model_row.claim.order_id
            ruling = assess_claim(model_row.claim, self._candidates(order_id), words)
            if isinstance(ruling, Deferral):
                break
            self.evidence += 1 + len(ruling.others)
            has_arrivals |= model_row.arrival is not None
            if ruling.outcome is not None and ruling.instruction is not None and ruling.attempt is not None:
                if self._record(Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)):
                    row = self.instruction(ruling.instruction)
                    row.progress = row.progress._replace(message=encode_record(model_row.source))
            else:
                self.facts += 1 + len(ruling.others)
            if ruling.finding is Finding.CONTRADICTING or (
                ruling.finding is Finding.AMBIGUOUS and ruling.meaning in GATEWAY_HAS_ORDER
            ):
                for number in (ruling.instruction, *ruling.others):
                    if number is not None:
                        self.instruction(number).is_contested = True
            findings.append(ruling.finding)
        self.facts += has_arrivals
        return findings

    def settle(self, entry: Entry) -> None:
        model_row = self.instruction(entry.instruction)
        if model_row.progress.standing.state is State.READY:
            if not model_row.is_contested:
                raise InternalError("nothing holds it")
            model_row.is_contested = False
            self.evidence += 1
            self.answered[model_row.number] = self.facts + 1
        assert self._record(entry)

    # Queries.

    def row_states(self, batch: int) -> list[RowState]:
        return [
            build_row_state(
                row,
                model_row.number,
                model_row.new.client_orderid,
                model_row.new.country,
                model_row.new.currency,
                model_row.new.minor,
                model_row.progress,
            )
            for row, model_row in self.covered[batch - 1].items()
        ]

    def row_states_in(
        self, batch: int, states: Collection[State], *, accepted_until: str | None, limit: int | None = None
    ) -> list[RowState]:
        row_states: Iterator[RowState] = (row for row in self.row_states(batch) if row.state in states)
        if accepted_until is not None:
            row_states = (
                row
                for row in row_states
                if row.state is not State.ACCEPTED
                or (row.intended_at is not None and row.intended_at <= accepted_until)
            )
        return list(islice(row_states, limit))

    def tallies(self, batch: int) -> list[StateTally]:
        rows: Counter[tuple[str, str, State]] = Counter()
        sums: Counter[tuple[str, str, State]] = Counter()
        for row in self.row_states(batch):
            rows[row.country, row.currency, row.state] += 1
            sums[row.country, row.currency, row.state] += row.minor
        return [StateTally(*key, rows[key], sums[key]) for key in sorted(rows)]

    def due(self, batch: int) -> list[int]:
        """Return the rows that may be sent: the last fact clears them, and no evidence holds them."""
        return [
            row
            for row, model_row in self.covered[batch - 1].items()
            if not model_row.is_contested and (not model_row.facts or fact_kind(model_row.facts[-1]) in CLEARING)
        ]

    def holds(self, batch: int) -> set[int]:
        ready = (item for item in self.covered[batch - 1].items() if item[1].progress.standing.state is State.READY)
        return {row for row, model_row in ready if model_row.is_contested}

    def contradictions(self) -> list[tuple[int, int, State, str, int]]:
        return [line for line in self.all_contradictions if self.answered.get(line[1], 0) <= line[0]]

    def counts(self) -> Counter[str]:
        return Counter(model_row.progress.standing.state.value for model_row in self.instructions)

    def _candidates(self, order_id: str | None) -> list[Candidate]:
        candidates = self._candidates_by_id(order_id or "")
        if not candidates and (first := first_order_id(order_id or "")) is not None:
            return candidates_with_unknown_attempt(first, self._candidates_by_id(first))
        return candidates

    def _candidates_by_id(self, order_id: str) -> list[Candidate]:
        model_row = self.order_ids.get(order_id)
        if model_row is None:
            return []
        return [
            candidate_of(
                model_row.number,
                model_row.new.client_orderid,
                model_row.new.amount,
                model_row.new.currency,
                model_row.progress,
            )
        ]

    def _release(self, model_row: ModelRow, *, suffix: bool, by: str, at: str) -> None:
        order_id = next_order_id(
            model_row.new.client_orderid, model_row.progress, suffix=suffix, is_used=self.order_ids.__contains__
        )
        self.order_ids.setdefault(order_id, model_row)
        self._record(Entry(model_row.number, model_row.progress.standing.attempt, Released(order_id, by), at))

    def _record(self, entry: Entry) -> bool:
        self.facts += 1
        model_row = self.instruction(entry.instruction)
        after = advance(model_row.progress, entry.fact, entry.attempt, entry.at)
        if isinstance(after, IllegalMove):
            self.all_contradictions.append(
                (self.facts, model_row.number, after.state, fact_kind(entry.fact).value, entry.attempt)
            )
            return False
        model_row.progress = after
        model_row.facts.append(entry.fact)
        return True
