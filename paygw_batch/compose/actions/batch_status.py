"""Looks up the state of one batch, with the next step for each row that needs a person, or of all batches."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT, STATES, shown_state
from paygw_batch.countries.load import load_operation, minor_units_by_currency
from paygw_batch.journal import (
    BatchRecord,
    Contradiction,
    Hold,
    JournalReader,
    RowStanding,
    StateTally,
    TallyKind,
    WaitingEvidence,
)
from paygw_batch.report.batch_states import counted_once, states_of, summary_of, totals_of
from paygw_batch.report.next_step import NEED_PERSON, NextStep, long_accepted_until, next_step
from paygw_batch.report.summary import ExitCode, Summary, of_states, worst
from paygw_batch.run.quarantine_clock import quarantine_in_force
from paygw_batch.settings.configuration import Settings

PERSON_STATES = ("in_doubt", "rejected", "returned")
"""The states that always wait for a person."""


@dataclass(frozen=True, slots=True)
class RowStatus:
    """A row that needs a person, and the next step about it."""

    row: RowStanding
    step: NextStep | None
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The state of a batch. `needing` counts the rows that need a person; `rows` are the first of them.

    `evidence` counts the gateway's messages about its rows by their finding; `waiting` are those that a person answers.
    """

    record: BatchRecord
    tallies: Sequence[StateTally]
    summary: Summary
    needing: int
    rows: Sequence[RowStatus]
    evidence: Mapping[str, int]
    waiting: Sequence[WaitingEvidence]
    contradictions: Sequence[Contradiction]


def batch_status(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    *,
    only_doubt: bool = False,
    limit: int | None = None,
) -> BatchStatus:
    """Return the state of a batch, with `limit` rows that need a person at the most (None: all)."""
    now, batch = utc_now(), record.number
    tallies, messages = journal.tallies(batch), journal.messages(batch)
    holds = messages.holds
    verb = load_operation(record.operation).verb
    quarantine = quarantine_in_force(journal, settings.submission.quarantine_h, now)
    needing, rows = _needing_person(journal, batch, tallies, holds, now, only_doubt=only_doubt, limit=limit)

    def about(row: RowStanding) -> RowStatus:
        hold = holds.get(row.row)
        step = next_step(row, batch=record.batch, verb=verb, quarantine=quarantine, now=now, hold=hold)
        return RowStatus(row, step, hold)

    return BatchStatus(
        record,
        tallies,
        summary_of(record, tallies, messages, minor_units_by_currency()),
        needing,
        [about(row) for row in rows],
        dict(messages.counts),
        messages.waiting,
        messages.contradictions,
    )


def _needing_person(
    journal: JournalReader,
    batch: int,
    tallies: Sequence[StateTally],
    holds: Mapping[int, Hold],
    now: datetime,
    *,
    only_doubt: bool,
    limit: int | None,
) -> tuple[int, Sequence[RowStanding]]:
    """Return how many rows need a person, and the first of them: held ones, then those whose money may be gone."""
    until = long_accepted_until(now)
    if any(tally.state is State.ACCEPTED for tally in tallies):
        tallies = journal.tallies(batch, accepted_until=until)
    rows = list(journal.rows(batch, states=SHOWN_IN_DOUBT, limit=limit))
    count = _count(tallies, SHOWN_IN_DOUBT)
    if not only_doubt:
        others = NEED_PERSON - SHOWN_IN_DOUBT
        left = None if limit is None else limit - len(rows)
        rows += journal.rows(batch, states=others, accepted_until=until, limit=left)
        count += _count(tallies, others)
        if holds:
            held = list(journal.rows(batch, numbers=holds))
            rows, count = [*held, *rows][:limit], count + len(held)
    return count, rows


def _count(tallies: Sequence[StateTally], states: Collection[State]) -> int:
    return sum(tally.count for tally in tallies if tally.state in states)


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch in the list of all batches. `age` is the time since it was opened.

    `known` are those of its rows that an earlier batch brought: they are counted there. `contradictions` counts
    contradicting messages, and those that wait for a person.
    """

    record: BatchRecord
    tallies: Sequence[StateTally]
    known: Sequence[StateTally]
    states: Mapping[str, int]
    contradictions: int
    age: timedelta

    @property
    def needs_person(self) -> int:
        """How many of its rows wait for a person."""
        return sum(self.states.get(state, 0) for state in PERSON_STATES)

    @property
    def known_rows(self) -> int:
        """How many of its rows an earlier batch brought."""
        return sum(tally.count for tally in self.known)


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """All batches of a journal, oldest first. States and totals count each row once."""

    batches: Sequence[ListedBatch]
    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    evidence: Mapping[str, int]

    @property
    def exit_code(self) -> ExitCode:
        """The worst of the batches."""
        codes = {of_states(one.states, contradictions=one.contradictions) for one in self.batches}
        return worst({ExitCode.DONE} | codes)

    @property
    def needing(self) -> int:
        """How many of the batches need a person."""
        return sum(one.needs_person > 0 or one.contradictions > 0 for one in self.batches)


def journal_status(journal: JournalReader) -> JournalStatus:
    """Return the state of every batch of a journal."""
    now = utc_now()
    batches = [listed_batch(journal, record, now) for record in journal.batches()]
    once = counted_once(
        (tally for one in batches for tally in one.tallies), (tally for one in batches for tally in one.known)
    )
    counts: Counter[str] = Counter({INVALID: sum(one.states.get(INVALID, 0) for one in batches)})
    for tally in once:
        counts[shown_state(tally.state)] += tally.count
    return JournalStatus(
        batches,
        {state: counts[state] for state in STATES if counts[state]},
        totals_of(once, minor_units_by_currency()),
        dict(journal.messages().counts),
    )


def listed_batch(journal: JournalReader, record: BatchRecord, now: datetime) -> ListedBatch:
    """Return the line of a batch in the list of all."""
    tallies, messages = journal.tallies(record.number), journal.messages(record.number)
    return ListedBatch(
        record,
        tallies,
        journal.tallies(record.number, kind=TallyKind.KNOWN),
        states_of(record, tallies),
        len(messages.contradictions) + len(messages.waiting),
        now - datetime.fromisoformat(record.opened_at),
    )
