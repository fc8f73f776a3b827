"""Counts the rows of batches by state, finds the next step for rows that need a person, and searches for payments.

The journal is only read, and its lock is never touched. A row in flight counts as being sent while the run that sends
it is alive, and as in doubt after that.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import INVALID, SHOWN_IN_DOUBT, STATES, counted_state, shown_state
from paygw_batch.countries.load import load_operation, minor_units_by_currency
from paygw_batch.countries.rules import MobileNumbers
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import HolderKind, UsageError
from paygw_batch.journal import (
    AttemptReply,
    BatchRecord,
    Contradiction,
    HistoryEntry,
    Hold,
    JournalReader,
    LockHolder,
    Messages,
    PaymentSearch,
    RowBeingSent,
    RowState,
    StateTally,
    TallyKind,
    WaitingEvidence,
)
from paygw_batch.language import say
from paygw_batch.opening.open_journal import place_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.next_step import (
    NEED_PERSON,
    NextStep,
    batch_steps,
    long_accepted_until,
    next_step,
)
from paygw_batch.show.remittance import Payee, payee_of
from paygw_batch.show.summary import ExitCode, Summary, of_states, worst

_NUMBER = re.compile(r"\+?[\d\s().\-/]+", re.ASCII)
_SHORTEST_NUMBER = 4
_ABROAD = "00"


def is_number(typed: str) -> bool:
    """Return whether a typed text is a number rather than a word: digits, perhaps with separators."""
    return _NUMBER.fullmatch(typed) is not None and len(_digits(typed)) >= _SHORTEST_NUMBER


def spellings_of_number(typed: str, numbers: Iterable[MobileNumbers]) -> list[str]:
    """Return the spellings in which a journal may hold a typed number.

    A journal has international numbers without the plus sign, or national numbers with a leading zero. A person may
    have typed either form, of any of the countries in `numbers`.
    """
    digits = _digits(typed)
    abroad = digits.removeprefix(_ABROAD)
    spellings = {digits: None, abroad: None}
    for country in numbers:
        if abroad.startswith(country.dialling_code):
            own = abroad.removeprefix(country.dialling_code)
            spellings |= dict.fromkeys((own, f"{country.trunk_prefix}{own}", own.removeprefix(country.trunk_prefix)))
            spellings[f"{country.dialling_code}{own.removeprefix(country.trunk_prefix)}"] = None
        national = digits if country.keeps_zero else digits.removeprefix(country.trunk_prefix)
        if len(national) in country.national_lengths:
            spellings |= dict.fromkeys(
                (f"{country.dialling_code}{national}", f"{country.trunk_prefix}{national}", national)
            )
    return [spelling for spelling in spellings if len(spelling) >= _SHORTEST_NUMBER]


def _digits(typed: str) -> str:
    return re.sub(r"\D", "", typed, flags=re.ASCII)


MAX_FOUND = 500
"""The maximum number of payments shown. A search with more matches is too broad to be about one person."""
_SHORTEST_BEGINNING = 3


def payment_search(text: str, numbers: Iterable[MobileNumbers]) -> PaymentSearch:
    """Return the search for a typed text: a number in any spelling, words of a name, or an order id.

    `numbers` has the rules for mobile numbers of each country.
    """
    countries = list(numbers)
    typed = text.strip()
    words = [typed] if is_number(typed) else [word for word in typed.split() if any(map(str.isalnum, word))]
    return PaymentSearch(tuple(tuple(_alternatives(word, countries)) for word in words), typed)


def _alternatives(word: str, numbers: Sequence[MobileNumbers]) -> Iterator[str]:
    if is_number(word):
        yield from spellings_of_number(word, numbers)
    else:
        yield f"{word}*" if len(word) >= _SHORTEST_BEGINNING else word


def batch_summary(journal: JournalReader, record: BatchRecord) -> Summary:
    """Return the summary of a batch as it is now, without reading its sheet."""
    tallies = tallies_now(journal, record.number)
    return summary_of(record, states_of(record, tallies), totals_of(tallies), journal.messages(record.number))


def tallies_now(journal: JournalReader, batch: int) -> Sequence[StateTally]:
    """Return the present tallies of a batch, in which rows of dead processes are in doubt (`with_living`)."""
    tallies = journal.tallies(batch)
    return with_living(tallies, rows_being_sent(journal, batch, tallies))


def rows_being_sent(journal: JournalReader, batch: int, tallies: Sequence[StateTally]) -> Sequence[RowBeingSent]:
    """Return the rows of a batch that living processes are sending, at most as many as `tallies` has in flight."""
    in_flight = sum(tally.count for tally in tallies if tally.state is State.IN_FLIGHT)
    return journal.being_sent(batch)[:in_flight] if in_flight else ()


def with_living(tallies: Sequence[StateTally], being_sent: Sequence[RowBeingSent]) -> Sequence[StateTally]:
    """Return the tallies with only the rows of living processes in flight. Those of dead processes are in doubt."""
    living: Counter[tuple[str, str]] = Counter()
    sums: Counter[tuple[str, str]] = Counter()
    for row in being_sent:
        living[row.country, row.currency] += 1
        sums[row.country, row.currency] += row.minor
    counted: list[StateTally] = []
    for tally in tallies:
        key = (tally.country, tally.currency)
        if tally.state is State.IN_FLIGHT and living[key]:
            counted.append(replace(tally, count=living[key], minor=sums[key]))
            tally = replace(tally, count=tally.count - living[key], minor=tally.minor - sums[key])  # noqa: PLW2901
        if tally.state is State.IN_FLIGHT:
            tally = replace(tally, state=State.IN_DOUBT)  # noqa: PLW2901
        counted.append(tally)
    return [tally for tally in counted_once(counted, ()) if tally.count]


def summary_of(
    record: BatchRecord,
    states: Mapping[str, int],
    totals: Mapping[str, Mapping[str, str]],
    messages: Messages,
    *,
    stop_reason: str | None = None,
    interrupted: bool = False,
) -> Summary:
    """Return the summary of a batch from its `states`, `totals` and `messages`, without reading the journal."""
    contradictions, waiting = len(messages.contradictions), len(messages.waiting)
    parts = [", ".join(counted_state(count, state) for state, count in states.items()) + "."]
    if stop_reason:
        parts.append(say("The run stopped early: {reason}", reason=stop_reason))
    parts += batch_steps(states, record.batch, contradictions=contradictions, waiting=waiting, interrupted=interrupted)
    return Summary(
        of_states(states, interrupted=interrupted, contradictions=contradictions + waiting),
        " ".join(parts),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=record.rows,
        states=states,
        totals=totals,
        defects=record.defects,
    )


def states_of(record: BatchRecord, tallies: Sequence[StateTally]) -> Mapping[str, int]:
    """Return the number of rows of a batch's sheet in each state, from the tallies of `with_living`.

    Rows without an instruction, and replaced rows, count as invalid.
    """
    counts: Counter[str] = Counter()
    for tally in to_be_paid(tallies):
        counts[tally.state.value] += tally.count
    counts[INVALID] = record.rows - counts.total()
    return {state: counts[state] for state in STATES if counts[state]}


def counted_once(tallies: Iterable[StateTally], known: Iterable[StateTally]) -> Sequence[StateTally]:
    """Return the combined tallies of several batches, less their `known` rows, so that each row counts once."""
    counts: Counter[tuple[str, str, State]] = Counter()
    sums: Counter[tuple[str, str, State]] = Counter()
    for sign, part in ((1, tallies), (-1, known)):
        for tally in part:
            key = (tally.country, tally.currency, tally.state)
            counts[key] += sign * tally.count
            sums[key] += sign * tally.minor
    return [StateTally(*key, count, sums[key]) for key, count in counts.items() if count]


def totals_of(tallies: Iterable[StateTally]) -> Mapping[str, Mapping[str, str]]:
    """Return the exact sums by currency and state, as text with the currency's decimals, without replaced rows."""
    units, sums = minor_units_by_currency(), dict[str, Counter[str]]()
    for tally in to_be_paid(tallies):
        sums.setdefault(tally.currency, Counter())[tally.state.value] += tally.minor
    return {
        currency: {state: from_minor(minor, minor_units=units[currency]) for state, minor in by_state.items()}
        for currency, by_state in sorted(sums.items())
    }


def to_be_paid(tallies: Iterable[StateTally]) -> Iterator[StateTally]:
    """Return the tallies without those of replaced rows. Another row is paid instead of a replaced row."""
    return (tally for tally in tallies if tally.state is not State.REPLACED)


def sums_by_currency(amounts: Iterable[StateTally | RowState]) -> Mapping[str, str]:
    """Return the exact sums by currency, as text with the currency's decimals."""
    units, minor = minor_units_by_currency(), Counter[str]()
    for entry in amounts:
        minor[entry.currency] += entry.minor
    return {currency: from_minor(amount, minor_units=units[currency]) for currency, amount in sorted(minor.items())}


PERSON_STATES = ("in_doubt", "rejected", "returned")
"""The states that always wait for a person."""


@dataclass(frozen=True, slots=True)
class RowStatus:
    """A row that needs a person, with the person's next step, and the evidence that holds the row, if any."""

    row: RowState
    step: NextStep | None
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The state of a batch.

    `needing` is the number of rows that need a person, and `rows` are the first of them. `evidence` has the number of
    the gateway's messages about rows of the batch, by finding. `waiting` are the messages that wait for a person.
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
    """Return the state of a batch, with at most `limit` rows that need a person, or all such rows if it is None."""
    now, batch = utc_now(), record.number
    tallies, messages, holds = journal.tallies(batch), journal.messages(batch), journal.holds(batch)
    being_sent = rows_being_sent(journal, batch, tallies)
    current = with_living(tallies, being_sent)
    needing, rows = _needing_person(journal, batch, tallies, being_sent, holds, now, only_doubt=only_doubt, limit=limit)
    return BatchStatus(
        record,
        current,
        summary_of(record, states_of(record, current), totals_of(current), messages),
        needing,
        _row_statuses(settings, journal, record, rows, now, holds),
        journal.message_counts(batch),
        messages.waiting,
        messages.contradictions,
    )


def _row_statuses(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    rows: Sequence[RowState],
    now: datetime,
    holds: Mapping[int, Hold],
) -> Sequence[RowStatus]:
    verb = load_operation(record.operation).verb
    quarantine = JournalClock.read(journal, now).quarantine(settings.submission.quarantine_h)
    return [
        RowStatus(row, next_step(row, batch=record.batch, verb=verb, quarantine=quarantine, now=now, hold=hold), hold)
        for row, hold in ((row, holds.get(row.row)) for row in rows)
    ]


def _needing_person(
    journal: JournalReader,
    batch: int,
    tallies: Sequence[StateTally],
    being_sent: Sequence[RowBeingSent],
    holds: Mapping[int, Hold],
    now: datetime,
    *,
    only_doubt: bool,
    limit: int | None,
) -> tuple[int, Sequence[RowState]]:
    """Return the number of rows that need a person, and the first: held rows, then rows that may have been paid."""
    until = long_accepted_until(now)
    if any(tally.state is State.ACCEPTED for tally in tallies):
        tallies = journal.tallies(batch, accepted_until=until)
    sent = {row.row for row in being_sent}  # a living process will record the outcomes of these rows
    most = None if limit is None else limit + len(sent)
    doubtful = journal.rows(batch, states=SHOWN_IN_DOUBT, limit=most)
    rows = [row for row in doubtful if row.row not in sent][:limit]
    count = _count(tallies, SHOWN_IN_DOUBT) - len(sent)
    if not only_doubt:
        other_states = NEED_PERSON - SHOWN_IN_DOUBT
        remaining = None if limit is None else limit - len(rows)
        rows += journal.rows(batch, states=other_states, accepted_until=until, limit=remaining)
        count += _count(tallies, other_states)
        if holds:
            held_rows = list(journal.rows(batch, numbers=holds))
            rows, count = [*held_rows, *rows][:limit], count + len(held_rows)
    return count, rows


def _count(tallies: Sequence[StateTally], states: Collection[State]) -> int:
    return sum(tally.count for tally in tallies if tally.state in states)


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch in the list of all batches.

    `known` are the tallies of rows that belong to an earlier batch and are counted in it. `contradictions` is the
    number of messages that contradict a row or wait for a person. `age` is the time since the batch was opened.
    """

    record: BatchRecord
    tallies: Sequence[StateTally]
    known: Sequence[StateTally]
    states: Mapping[str, int]
    contradictions: int
    age: timedelta
    being_sent: Sequence[RowBeingSent] = ()

    @property
    def needs_person(self) -> int:
        return sum(self.states.get(state, 0) for state in PERSON_STATES)


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """All batches of a journal, oldest first. `states` and `totals` count each row once."""

    batches: Sequence[ListedBatch]
    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    evidence: Mapping[str, int]

    @property
    def exit_code(self) -> ExitCode:
        """The worst exit code of any batch."""
        codes = {of_states(batch.states, contradictions=batch.contradictions) for batch in self.batches}
        return worst({ExitCode.DONE} | codes)

    @property
    def needing(self) -> int:
        return sum(batch.needs_person > 0 or batch.contradictions > 0 for batch in self.batches)


def journal_status(journal: JournalReader) -> JournalStatus:
    now = utc_now()
    batches = [listed_batch(journal, record, now) for record in journal.batches()]
    once = tallies_once(batches)
    counts = Counter({INVALID: sum(batch.states.get(INVALID, 0) for batch in batches)})
    for tally in to_be_paid(once):
        counts[tally.state.value] += tally.count
    states = {state: counts[state] for state in STATES if counts[state]}
    return JournalStatus(batches, states, totals_of(once), journal.message_counts())


def tallies_once(listed: Sequence[ListedBatch]) -> Sequence[StateTally]:
    """Return the combined tallies of several batches, adjusted by `with_living`. Each row counts once."""
    once = counted_once(
        (tally for batch in listed for tally in batch.tallies), (t for batch in listed for t in batch.known)
    )
    return with_living(once, [*{row.instruction: row for batch in listed for row in batch.being_sent}.values()])


def listed_batch(journal: JournalReader, record: BatchRecord, now: datetime) -> ListedBatch:
    tallies, messages = journal.tallies(record.number), journal.messages(record.number)
    being_sent = rows_being_sent(journal, record.number, tallies)
    return ListedBatch(
        record,
        tallies,
        journal.tallies(record.number, kind=TallyKind.KNOWN),
        states_of(record, with_living(tallies, being_sent)),
        len(messages.contradictions) + len(messages.waiting),
        now - datetime.fromisoformat(record.opened_at),
        being_sent,
    )


@dataclass(frozen=True, slots=True)
class FollowedBatch:
    """A batch as a page shows it: the number of rows in each state, and sums by currency and state.

    `running` is the process whose run holds the journal, for this batch or another one; None if there is no run.
    """

    record: BatchRecord
    counts: Mapping[str, int]
    sums: Mapping[str, Mapping[str, str]]
    running: LockHolder | None

    @property
    def is_sending(self) -> bool:
        """Whether a run is sending rows of this batch now."""
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
    """One row with its replies and its history. `step` is a person's next step; None if there is none."""

    followed: FollowedRow
    step: NextStep | None
    replies: Sequence[AttemptReply]
    history: Sequence[HistoryEntry]


def running_now(settings: Settings) -> LockHolder | None:
    """Return the process whose run holds the journal, without touching the lock; None if there is no run."""
    holder = place_of(settings).holder()
    return holder if holder is not None and holder.kind is not HolderKind.LISTENER else None


def followed_batch(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    tallies: Callable[[], Sequence[StateTally]] | None = None,
) -> FollowedBatch:
    """Return a batch with its counts and sums. `tallies` replaces the count in the journal, if it is given."""
    # The run is looked for before the rows are counted. Otherwise a run that ends meanwhile would seem to leave rows.
    running = running_now(settings)
    counted = journal.tallies(record.number) if tallies is None else tallies()
    if running is None:
        counted = with_living(counted, ())
    return FollowedBatch(record, states_of(record, counted), totals_of(counted), running)


def followed_rows(
    settings: Settings, journal: JournalReader, record: BatchRecord, *, state: str = "", after: int = 0, limit: int
) -> Sequence[FollowedRow]:
    """Return the first `limit` rows of a batch after row `after`.

    `state` selects the rows that a page shows in this state; empty means all. Raises `UsageError` for an unknown state.
    """
    running = running_now(settings)
    states: Collection[State] | None = None
    if state:
        if state not in STATES or state == INVALID:
            raise UsageError(say("There is no state {state!r}.", state=state))
        states = {State(state)} if state != State.IN_DOUBT or running is not None else SHOWN_IN_DOUBT
    standings = list(journal.rows(record.number, states=states, after=after, limit=limit))
    return with_payees(journal, record, standings, running)


def with_payees(
    journal: JournalReader, record: BatchRecord, standings: Sequence[RowState], running: LockHolder | None
) -> Sequence[FollowedRow]:
    """Return rows of a batch with their payees and amounts. `running` is the process whose run holds the journal."""
    payments = journal.payments(record.number, [row.row for row in standings])
    pairs = ((row, payments[row.row]) for row in standings)
    return [
        FollowedRow(row, _shown(row.state, running), payee_of(payment.form, payment.fields), payment.amount)
        for row, payment in pairs
    ]


def followed_row(settings: Settings, journal: JournalReader, record: BatchRecord, row: int) -> FollowedRowHistory:
    """Return a row with its replies and its history. Raises `UsageError` if the batch has no such row."""
    standing = next(journal.rows(record.number, numbers={row}), None)
    if standing is None:
        raise UsageError(say("Row {row} is not part of this payout.", row=row))
    (followed,) = with_payees(journal, record, [standing], running_now(settings))
    (status,) = _row_statuses(settings, journal, record, [standing], utc_now(), journal.holds(record.number))
    history = [entry for entry in journal.history(record.number) if entry.row == row]
    return FollowedRowHistory(followed, status.step, journal.replies(standing.instruction), history)


def _shown(state: State, running: LockHolder | None) -> str:
    return state if state is State.IN_FLIGHT and running is not None else shown_state(state)
