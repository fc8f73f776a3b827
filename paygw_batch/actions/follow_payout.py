"""Looks up a batch for people who follow it on a page: counts, sums, pages of rows, and one row with its history.

Everything is read from the journal. Its holder is found without touching its lock: a row in flight is being sent while
a run is alive, and in doubt after that.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT, STATES, shown_state
from paygw_batch.countries.load import load_operation, minor_units_by_currency
from paygw_batch.errors import HolderKind, UsageError
from paygw_batch.journal import (
    AttemptReply,
    BatchRecord,
    FoundPayment,
    HistoryEntry,
    JournalReader,
    LockHolder,
    RowState,
    StateTally,
)
from paygw_batch.language import say
from paygw_batch.report.next_step import (
    NextStep,
    next_step,
)
from paygw_batch.report.remittance import Payee, payee_of
from paygw_batch.run.quarantine_clock import JournalClock
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.journal import place_of


@dataclass(frozen=True, slots=True)
class FollowedBatch:
    """A batch as a page shows it: the number of rows in each state, and their sums by currency.

    `running` is the process that holds the journal for a run, of this batch or another one.
    """

    record: BatchRecord
    counts: Mapping[str, int]
    sums: Mapping[str, Mapping[str, str]]
    running: LockHolder | None

    @property
    def is_sending(self) -> bool:
        """Whether a run has rows of this batch on their way now."""
        return self.counts.get(State.IN_FLIGHT, 0) > 0

    @property
    def payable(self) -> int:
        """The number of rows that are part of the payout."""
        return self.record.rows - self.counts.get(INVALID, 0)

    @property
    def answered(self) -> int:
        """The number of rows that need nothing more from a run."""
        return self.payable - self.counts.get("ready", 0) - self.counts.get(State.IN_FLIGHT, 0)


@dataclass(frozen=True, slots=True)
class FollowedRow:
    """A row as a page shows it."""

    standing: RowState
    state: str
    payee: Payee
    amount: str


@dataclass(frozen=True, slots=True)
class FollowedRowHistory:
    """One row with everything known about it. `step` is a person's next step; None if there is none."""

    followed: FollowedRow
    payment: FoundPayment
    step: NextStep | None
    replies: Sequence[AttemptReply]
    history: Sequence[HistoryEntry]


def running_now(settings: Settings) -> LockHolder | None:
    """Return the run that holds the journal, without touching the lock; None if there is none."""
    holder = place_of(settings).holder()
    return holder if holder is not None and holder.kind is not HolderKind.LISTENER else None


def followed_batch(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    tallies: Callable[[], Sequence[StateTally]] | None = None,
) -> FollowedBatch:
    """Return a batch's counts and sums; `tallies`, if given, replaces the journal's own count."""
    # Look for the run first: rows counted before a run that has just ended would seem to be left over.
    running, units = running_now(settings), minor_units_by_currency()
    counts: Counter[str] = Counter()
    minor: dict[str, Counter[str]] = {}
    for tally in journal.tallies(record.number) if tallies is None else tallies():
        state = _shown(tally.state, running)
        counts[state] += tally.count
        minor.setdefault(tally.currency, Counter())[state] += tally.minor
    if left_out := record.rows - counts.total():
        counts[INVALID] += left_out
    sums = {
        currency: {state: from_minor(amount, minor_units=units[currency]) for state, amount in by_state.items()}
        for currency, by_state in sorted(minor.items())
    }
    return FollowedBatch(record, counts, sums, running)


def followed_rows(
    settings: Settings, journal: JournalReader, record: BatchRecord, *, state: str = "", after: int = 0, limit: int
) -> Sequence[FollowedRow]:
    """Return the first `limit` rows of a batch after row `after`: all, or those that a page shows in `state`."""
    running = running_now(settings)
    states: Collection[State] | None = None
    if state:
        if state not in STATES or state == INVALID:
            raise UsageError(say("There is no state {state!r}.", state=state))
        states = {State(state)} if state != State.IN_DOUBT or running is not None else SHOWN_IN_DOUBT
    standings = list(journal.rows(record.number, states=states, after=after, limit=limit))
    payments = journal.payments(record.number, [one.row for one in standings])
    return [_followed(one, payments[one.row], running) for one in standings]


def followed_row(settings: Settings, journal: JournalReader, record: BatchRecord, row: int) -> FollowedRowHistory:
    """Return everything about one row. Raises `UsageError` if the batch has no such row."""
    standing = next(journal.rows(record.number, numbers={row}), None)
    if standing is None:
        raise UsageError(say("Row {row} is not part of this payout.", row=row))
    payment = journal.payments(record.number, [row])[row]
    now = utc_now()
    step = next_step(
        standing,
        batch=record.batch,
        verb=load_operation(record.operation).verb,
        quarantine=JournalClock.read(journal, now).quarantine(settings.submission.quarantine_h),
        now=now,
        hold=journal.holds(record.number).get(row),
    )
    history = [entry for entry in journal.history(record.number) if entry.row == row]
    followed = _followed(standing, payment, running_now(settings))
    return FollowedRowHistory(followed, payment, step, journal.replies(standing.instruction), history)


def _followed(standing: RowState, payment: FoundPayment, running: LockHolder | None) -> FollowedRow:
    return FollowedRow(
        standing, _shown(standing.state, running), payee_of(payment.form, payment.fields), payment.amount
    )


def _shown(state: State, running: LockHolder | None) -> str:
    return state if state is State.IN_FLIGHT and running is not None else shown_state(state)
