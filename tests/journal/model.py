"""A small model of a journal, used as an oracle: lists and dicts, with the pure rules of facts and evidence.

It has no chain, pages or database. Random histories are applied to it and to the journal, and both must agree on the
state of every row, on the rows that may be sent, and on the contradictions.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from paygw_batch.core.batch import first_order_id
from paygw_batch.core.evidence import (
    GATEWAY_HAS_ORDER,
    HOLDABLE_STATES,
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
    facts: list[Fact] = field(default_factory=list)  # the facts that moved it
    is_contested: bool = False


class ModelJournal:
    """A journal without any storage."""

    def __init__(self) -> None:
        self.instructions: list[ModelRow] = []
        self.covered: list[dict[int, ModelRow]] = []  # the rows of each batch, in the sheet's order
        self.opened_at: list[str] = []
        self.order_ids: dict[str, ModelRow] = {}
        self.all_contradictions: list[tuple[int, int, State, str, int]] = []
        """Tuples of fact number, instruction, state before, kind, and attempt."""
        self.answered: dict[int, int] = {}  # maps an instruction to the last fact in which a person lifted its hold
        self.facts = self.evidence = 0

    def instruction(self, number: int) -> ModelRow:
        return self.instructions[number - 1]

    def open_batch(
        self, rows: Sequence[NewInstruction], known: Sequence[KnownRow], amendments: Sequence[Amendment], at: str
    ) -> None:
        replaces = {one.row: self.instruction(one.instruction) for one in amendments}
        number = len(self.covered) + 1
        new_rows: list[ModelRow] = []
        for new in rows:
            old = replaces.get(new.row)
            start = RowProgress(new.client_orderid) if old is None else replacement_progress(old.progress)
            new_rows.append(ModelRow(len(self.instructions) + len(new_rows) + 1, number, new, start))
        self.instructions += new_rows
        covered = {one.new.row: one for one in new_rows} | {one.row: self.instruction(one.instruction) for one in known}
        self.covered.append(dict(sorted(covered.items())))
        self.opened_at.append(at)
        self.facts += 1
        for one in new_rows:
            if one.new.row not in replaces:
                self.order_ids.setdefault(one.new.client_orderid, one)
        for one in new_rows:  # amended rows come last: they are released under an id that no row of the sheet has
            if (old := replaces.get(one.new.row)) is not None:
                before = old.progress
                self.order_ids |= {one.new.client_orderid: one, before.order_id: one}
                self._record(Entry(old.number, before.standing.attempt, Replaced(f"b{number}", one.new.row), at))
                if before.standing.state is State.REJECTED:
                    self._release(one, suffix=True, by="an amended sheet", at=at)

    def compare(self, rows: Sequence[tuple[int, str, str]]) -> tuple[list[KnownRow], list[Clash]]:
        known, clashes = [], []
        for row, order_id, content in rows:
            if (one := self.order_ids.get(order_id)) is None:
                continue
            is_its_own, standing = one.new.client_orderid == order_id, one.progress.standing
            is_held = one.is_contested and standing.state in HOLDABLE_STATES
            if is_its_own and one.new.content == content:
                known.append(KnownRow(row, one.number, standing.state, is_held=is_held))
                continue
            batch, opened_at = f"b{one.batch}", self.opened_at[one.batch - 1]
            may_amend = is_its_own and is_amendable(standing) and not is_held
            details = (batch, one.new.row, opened_at, standing.state, may_amend)
            clashes.append(Clash(row, order_id, one.number, *details))
        return known, clashes

    def append(self, entries: Sequence[Entry]) -> list[bool]:
        is_held = [isinstance(one.fact, Intended) and self.instruction(one.instruction).is_contested for one in entries]
        return [not held and self._append_entry(entry) for entry, held in zip(entries, is_held, strict=True)]

    def _append_entry(self, entry: Entry) -> bool:
        """Record a fact, unless it is an intent that does not fit its row."""
        progress = self.instruction(entry.instruction).progress
        is_unfit = isinstance(advance(progress, entry.fact, entry.attempt, entry.at), IllegalMove)
        return not (is_unfit and isinstance(entry.fact, Intended)) and self._record(entry)

    def interrupt(self, at: str) -> int:
        in_flight = [one for one in self.instructions if one.progress.standing.state is State.IN_FLIGHT]
        for one in in_flight:
            self._record(Entry(one.number, one.progress.standing.attempt, Interrupted(), at))
        return len(in_flight)

    def release(self, batch: int, rows: Sequence[int] | None, *, suffix: bool, by: str, at: str) -> int:
        chosen = [one for row, one in self.covered[batch - 1].items() if rows is None or row in rows]
        released = [one for one in chosen if one.progress.standing.state is State.REJECTED]
        for one in released:
            self._release(one, suffix=suffix, by=by, at=at)
        return len(released)

    def record_evidence(
        self, evidence: Sequence[Evidence], words: Mapping[str, OutcomeKind], *, at: str
    ) -> list[Finding]:
        findings: list[Finding] = []
        has_arrivals = False
        for one in evidence:
            order_id = one.claim.order_id
            ruling = assess_claim(one.claim, self._candidates(order_id), words)
            if isinstance(ruling, Deferral):
                break
            self.evidence += 1 + len(ruling.others)
            has_arrivals |= one.arrival is not None
            if ruling.outcome is not None and ruling.instruction is not None and ruling.attempt is not None:
                if self._record(Entry(ruling.instruction, ruling.attempt, Concluded(ruling.outcome), at)):
                    row = self.instruction(ruling.instruction)
                    row.progress = row.progress._replace(message=encode_record(one.source))
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
        one = self.instruction(entry.instruction)
        if one.progress.standing.state is State.READY:
            if not one.is_contested:
                raise InternalError("nothing holds it")
            one.is_contested = False
            self.evidence += 1
            self.answered[one.number] = self.facts + 1
        assert self._record(entry)

    # Queries.

    def row_states(self, batch: int) -> list[RowState]:
        return [build_row_state(row, one.number, one.new, one.progress) for row, one in self.covered[batch - 1].items()]

    def row_states_in(self, batch: int, states: Collection[State], *, accepted_until: str | None) -> list[RowState]:
        def is_old(row: RowState) -> bool:
            return accepted_until is None or (row.intended_at or "~") <= accepted_until

        rows = [row for row in self.row_states(batch) if row.state in states]
        return [row for row in rows if row.state is not State.ACCEPTED or is_old(row)]

    def tallies(self, batch: int) -> list[StateTally]:
        rows: Counter[tuple[str, str, State]] = Counter()
        sums: Counter[tuple[str, str, State]] = Counter()
        for row in self.row_states(batch):
            rows[row.country, row.currency, row.state] += 1
            sums[row.country, row.currency, row.state] += row.minor
        return [StateTally(*key, rows[key], sums[key]) for key in sorted(rows)]

    def due(self, batch: int) -> list[int]:
        """Return the rows that may be sent: the last fact clears them, and no evidence holds them."""
        rows = [(row, one.facts) for row, one in self.covered[batch - 1].items() if not one.is_contested]
        return [row for row, facts in rows if not facts or fact_kind(facts[-1]) in CLEARING]

    def holds(self, batch: int) -> set[int]:
        rows = self.covered[batch - 1].items()
        return {row for row, one in rows if one.is_contested and one.progress.standing.state in HOLDABLE_STATES}

    def contradictions(self) -> list[tuple[int, int, State, str, int]]:
        return [line for line in self.all_contradictions if self.answered.get(line[1], 0) <= line[0]]

    def counts(self) -> Counter[str]:
        return Counter(one.progress.standing.state.value for one in self.instructions)

    def _candidates(self, order_id: str | None) -> list[Candidate]:
        candidates = self._candidates_by_id(order_id or "")
        if not candidates and (first := first_order_id(order_id or "")) is not None:
            return candidates_with_unknown_attempt(first, self._candidates_by_id(first))
        return candidates

    def _candidates_by_id(self, order_id: str) -> list[Candidate]:
        if (one := self.order_ids.get(order_id)) is None:
            return []
        return [candidate_of(one.number, one.new.client_orderid, one.new.amount, one.new.currency, one.progress)]

    def _release(self, one: ModelRow, *, suffix: bool, by: str, at: str) -> None:
        order_id = next_order_id(
            one.new.client_orderid, one.progress, suffix=suffix, is_used=self.order_ids.__contains__
        )
        self.order_ids.setdefault(order_id, one)
        self._record(Entry(one.number, one.progress.standing.attempt, Released(order_id, by), at))

    def _record(self, entry: Entry) -> bool:
        self.facts += 1
        one = self.instruction(entry.instruction)
        after = advance(one.progress, entry.fact, entry.attempt, entry.at)
        if isinstance(after, IllegalMove):
            self.all_contradictions.append(
                (self.facts, one.number, after.state, fact_kind(entry.fact).value, entry.attempt)
            )
            return False
        one.progress = after
        one.facts.append(entry.fact)
        return True
