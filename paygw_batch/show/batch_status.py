"""Counts rows by state, finds the next step for rows that need attention, and parses searches for payments.

Only reads the journal and does not need its lock. A row in flight counts as being sent while its run is alive, and
otherwise as in doubt.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from paygw_batch.clock import utc_now
from paygw_batch.core.lifecycle import State
from paygw_batch.core.money import from_minor
from paygw_batch.core.shown_states import DISPLAYED_IN_DOUBT, INVALID, STATES, display_state, format_state_count
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
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.next_step import ATTENTION_STATES, NextStep, batch_steps, next_step, overdue_cutoff
from paygw_batch.show.remittance import Payee, build_payee
from paygw_batch.show.summary import ExitCode, Summary, exit_code_for, worst_code

_NUMBER = re.compile(r"\+?[\d\s().\-/]+", re.ASCII)
_MIN_DIGITS = 4
_INTERNATIONAL_PREFIX = "00"


def is_number(text: str) -> bool:
    """Return whether a search text is a number rather than a word. A number may contain separators."""
    return _NUMBER.fullmatch(text) is not None and len(_digits(text)) >= _MIN_DIGITS


def number_forms(text: str, countries: Iterable[MobileNumbers]) -> list[str]:
    """Return the forms in which a journal may have stored a number.

    The journal stores international numbers without a plus sign, and national numbers with a leading zero. `text` may
    be in either form, for any of the `countries`.
    """
    digits = _digits(text)
    international = digits.removeprefix(_INTERNATIONAL_PREFIX)
    forms = {digits: None, international: None}
    for country in countries:
        code, trunk = country.dialling_code, country.trunk_prefix
        if international.startswith(code):
            local = international.removeprefix(code)
            forms |= dict.fromkeys((local, f"{trunk}{local}", local.removeprefix(trunk)))
            forms[f"{code}{local.removeprefix(trunk)}"] = None
        national = digits if country.keeps_zero else digits.removeprefix(trunk)
        if len(national) in country.national_lengths:
            forms |= dict.fromkeys((f"{code}{national}", f"{trunk}{national}", national))
    return [form for form in forms if len(form) >= _MIN_DIGITS]


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text, flags=re.ASCII)


MAX_MATCHES = 500
"""Maximum number of payments shown. A search with more matches must be narrowed."""
_MIN_PREFIX_LETTERS = 3


def parse_payment_search(text: str, countries: Sequence[MobileNumbers]) -> PaymentSearch:
    """Parse a search text: a number in any form, words of a name, or an order id."""
    query = text.strip()
    words = [query] if is_number(query) else [word for word in query.split() if any(map(str.isalnum, word))]
    return PaymentSearch(tuple(tuple(_word_alternatives(word, countries)) for word in words), query)


def _word_alternatives(word: str, countries: Sequence[MobileNumbers]) -> Iterator[str]:
    if is_number(word):
        yield from number_forms(word, countries)
    else:
        yield f"{word}*" if len(word) >= _MIN_PREFIX_LETTERS else word


def batch_summary(journal: JournalReader, record: BatchRecord, *, has_failed: bool = False) -> Summary:
    """Return the current summary of a batch, without reading its sheet.

    If `has_failed`, this process's run has failed, so rows that it was sending count as in doubt.
    """
    number = record.number
    tallies = recount_in_flight(journal.tallies(number), ()) if has_failed else current_tallies(journal, number)
    messages, holds = journal.messages(number), journal.holds(number)
    return build_summary(record, count_states(record, tallies), sums_by_state(tallies), messages, holds)


def current_tallies(journal: JournalReader, batch: int) -> Sequence[StateTally]:
    """Return the tallies of a batch. Rows that a dead process was sending count as in doubt."""
    tallies = journal.tallies(batch)
    return recount_in_flight(tallies, rows_being_sent(journal, batch, tallies))


def rows_being_sent(journal: JournalReader, batch: int, tallies: Sequence[StateTally]) -> Sequence[RowBeingSent]:
    """Return a batch's rows that live processes are sending, but no more than `tallies` counts as in flight."""
    in_flight = sum(tally.count for tally in tallies if tally.state is State.IN_FLIGHT)
    return journal.rows_being_sent(batch)[:in_flight] if in_flight else ()


def recount_in_flight(tallies: Sequence[StateTally], live_rows: Sequence[RowBeingSent]) -> Sequence[StateTally]:
    """Count rows in flight as in doubt, except `live_rows`, which live processes are sending. Return new tallies."""
    live_counts: Counter[tuple[str, str]] = Counter()
    live_sums: Counter[tuple[str, str]] = Counter()
    for row in live_rows:
        live_counts[row.country, row.currency] += 1
        live_sums[row.country, row.currency] += row.minor
    new_tallies: list[StateTally] = []
    for tally in tallies:
        key = (tally.country, tally.currency)
        if tally.state is State.IN_FLIGHT and live_counts[key]:
            new_tallies.append(replace(tally, count=live_counts[key], minor=live_sums[key]))
            tally = replace(tally, count=tally.count - live_counts[key], minor=tally.minor - live_sums[key])  # noqa: PLW2901
        if tally.state is State.IN_FLIGHT:
            tally = replace(tally, state=State.IN_DOUBT)  # noqa: PLW2901
        new_tallies.append(tally)
    return [tally for tally in combine_tallies(new_tallies, ()) if tally.count]


def build_summary(
    record: BatchRecord,
    states: Mapping[str, int],
    totals: Mapping[str, Mapping[str, str]],
    messages: Messages,
    holds: Mapping[int, Hold],
    *,
    stop_reason: str | None = None,
    interrupted: bool = False,
) -> Summary:
    """Build the summary of a batch from its `states`, `totals`, `messages` and `holds`, without reading the journal."""
    contradictions, waiting = len(messages.contradictions), len(messages.waiting)
    texts = [", ".join(format_state_count(count, state) for state, count in states.items()) + "."]
    if stop_reason:
        texts.append(say("The run stopped early: {reason}", reason=stop_reason))
    unheld = Counter(states) - Counter(hold.state.value for hold in holds.values())
    texts += batch_steps(unheld, record.batch, contradictions=contradictions, waiting=waiting, interrupted=interrupted)
    return Summary(
        exit_code_for(states, interrupted=interrupted, contradictions=contradictions + waiting),
        " ".join(texts),
        batch=record.batch,
        sheet=record.sheet_name,
        rows=record.rows,
        states=states,
        totals=totals,
        defects=record.defects,
    )


def count_states(record: BatchRecord, tallies: Sequence[StateTally]) -> Mapping[str, int]:
    """Count a sheet's rows by state. Rows that have no instruction or were replaced count as invalid."""
    counts: Counter[str] = Counter()
    for tally in exclude_replaced(tallies):
        counts[tally.state.value] += tally.count
    counts[INVALID] = record.rows - counts.total()
    return {state: counts[state] for state in STATES if counts[state]}


def combine_tallies(tallies: Iterable[StateTally], known_tallies: Iterable[StateTally]) -> Sequence[StateTally]:
    """Add up tallies, and subtract `known_tallies`, whose rows are also counted in an earlier batch."""
    counts: Counter[tuple[str, str, State]] = Counter()
    sums: Counter[tuple[str, str, State]] = Counter()
    for sign, group in ((1, tallies), (-1, known_tallies)):
        for tally in group:
            key = (tally.country, tally.currency, tally.state)
            counts[key] += sign * tally.count
            sums[key] += sign * tally.minor
    return [StateTally(*key, count, sums[key]) for key, count in counts.items() if count]


def sums_by_state(tallies: Iterable[StateTally]) -> Mapping[str, Mapping[str, str]]:
    """Return exact sums by currency and state, as text with the currency's decimals. Leaves out replaced rows."""
    units, sums = minor_units_by_currency(), dict[str, Counter[str]]()
    for tally in exclude_replaced(tallies):
        sums.setdefault(tally.currency, Counter())[tally.state.value] += tally.minor
    return {
        currency: {state: from_minor(minor, minor_units=units[currency]) for state, minor in state_sums.items()}
        for currency, state_sums in sorted(sums.items())
    }


def exclude_replaced(tallies: Iterable[StateTally]) -> Iterator[StateTally]:
    """Return the tallies except those of replaced rows, whose replacements are paid instead."""
    return (tally for tally in tallies if tally.state is not State.REPLACED)


def sums_by_currency(entries: Iterable[StateTally | RowState]) -> Mapping[str, str]:
    """Return exact sums by currency, as text with the currency's decimals."""
    units, sums = minor_units_by_currency(), Counter[str]()
    for entry in entries:
        sums[entry.currency] += entry.minor
    return {currency: from_minor(minor, minor_units=units[currency]) for currency, minor in sorted(sums.items())}


_STATES_TO_DECIDE = ("in_doubt", "rejected", "returned")


@dataclass(frozen=True, slots=True)
class RowStatus:
    """A row that needs attention, with its next step and the evidence that holds it, if any."""

    row: RowState
    step: NextStep | None
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The status of a batch.

    `attention_count` is the number of rows that need attention, and `rows` are the first of them. `evidence` counts
    the gateway's messages by `Finding`. `waiting` holds the messages that need a decision.
    """

    record: BatchRecord
    tallies: Sequence[StateTally]
    summary: Summary
    attention_count: int
    rows: Sequence[RowStatus]
    evidence: Mapping[str, int]
    waiting: Sequence[WaitingEvidence]
    contradictions: Sequence[Contradiction]


def batch_status(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    *,
    only_in_doubt: bool = False,
    limit: int | None = None,
) -> BatchStatus:
    """Return a batch's status, with at most `limit` of the rows that need attention, or all if None."""
    now, batch = utc_now(), record.number
    tallies, messages, holds = journal.tallies(batch), journal.messages(batch), journal.holds(batch)
    live_rows = rows_being_sent(journal, batch, tallies)
    new_tallies = recount_in_flight(tallies, live_rows)
    attention_count, rows = _rows_needing_attention(
        journal, batch, tallies, live_rows, holds, now, only_in_doubt=only_in_doubt, limit=limit
    )
    return BatchStatus(
        record,
        new_tallies,
        build_summary(record, count_states(record, new_tallies), sums_by_state(new_tallies), messages, holds),
        attention_count,
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


def _rows_needing_attention(
    journal: JournalReader,
    batch: int,
    tallies: Sequence[StateTally],
    live_rows: Sequence[RowBeingSent],
    holds: Mapping[int, Hold],
    now: datetime,
    *,
    only_in_doubt: bool,
    limit: int | None,
) -> tuple[int, Sequence[RowState]]:
    """Return the number of rows that need attention, and the first ones. Held rows come before rows in doubt."""
    cutoff = overdue_cutoff(now)
    if any(tally.state is State.ACCEPTED for tally in tallies):
        tallies = journal.tallies(batch, accepted_until=cutoff)
    live_row_numbers = {row.row for row in live_rows}  # A live process will record their outcomes.
    max_rows = None if limit is None else limit + len(live_row_numbers)
    rows_in_doubt = journal.rows(batch, states=DISPLAYED_IN_DOUBT, limit=max_rows)
    rows = [row for row in rows_in_doubt if row.row not in live_row_numbers][:limit]
    count = _count_rows(tallies, DISPLAYED_IN_DOUBT) - len(live_row_numbers)
    if not only_in_doubt:
        other_states = ATTENTION_STATES - DISPLAYED_IN_DOUBT
        rows_left = None if limit is None else limit - len(rows)
        rows += journal.rows(batch, states=other_states, accepted_until=cutoff, limit=rows_left)
        count += _count_rows(tallies, other_states)
        if holds:
            held_rows = list(journal.rows(batch, numbers=holds))
            rows = [*held_rows, *(row for row in rows if row.row not in holds)][:limit]
            count += sum(row.state not in other_states for row in held_rows)
    return count, rows


def _count_rows(tallies: Sequence[StateTally], states: Collection[State]) -> int:
    return sum(tally.count for tally in tallies if tally.state in states)


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """A batch in the list of all batches.

    `known` holds the tallies of rows already counted in an earlier batch. `contradictions` is the number of messages
    that contradict a row or need a decision. `age` is the time since the batch was opened.
    """

    record: BatchRecord
    tallies: Sequence[StateTally]
    known: Sequence[StateTally]
    states: Mapping[str, int]
    contradictions: int
    age: timedelta
    live_rows: Sequence[RowBeingSent] = ()

    @property
    def attention_row_count(self) -> int:
        return sum(self.states.get(state, 0) for state in _STATES_TO_DECIDE)


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The batches of a journal, oldest first. `states` and `totals` count each row only once."""

    batches: Sequence[ListedBatch]
    states: Mapping[str, int]
    totals: Mapping[str, Mapping[str, str]]
    evidence: Mapping[str, int]

    @property
    def exit_code(self) -> ExitCode:
        return worst_code({exit_code_for(batch.states, contradictions=batch.contradictions) for batch in self.batches})

    @property
    def attention_count(self) -> int:
        return sum(batch.attention_row_count > 0 or batch.contradictions > 0 for batch in self.batches)


def journal_status(journal: JournalReader) -> JournalStatus:
    now = utc_now()
    batches = [listed_batch(journal, record, now) for record in journal.batches()]
    tallies = sum_batch_tallies(batches)
    counts = Counter({INVALID: sum(batch.states.get(INVALID, 0) for batch in batches)})
    for tally in exclude_replaced(tallies):
        counts[tally.state.value] += tally.count
    states = {state: counts[state] for state in STATES if counts[state]}
    return JournalStatus(batches, states, sums_by_state(tallies), journal.message_counts())


def sum_batch_tallies(batches: Sequence[ListedBatch]) -> Sequence[StateTally]:
    """Add up the current tallies of several batches. A row in more than one batch counts once."""
    tallies = combine_tallies(
        (tally for batch in batches for tally in batch.tallies), (tally for batch in batches for tally in batch.known)
    )
    live_rows = {row.instruction: row for batch in batches for row in batch.live_rows}
    return recount_in_flight(tallies, [*live_rows.values()])


def listed_batch(journal: JournalReader, record: BatchRecord, now: datetime) -> ListedBatch:
    tallies, messages = journal.tallies(record.number), journal.messages(record.number)
    live_rows = rows_being_sent(journal, record.number, tallies)
    return ListedBatch(
        record,
        tallies,
        journal.tallies(record.number, kind=TallyKind.KNOWN),
        count_states(record, recount_in_flight(tallies, live_rows)),
        len(messages.contradictions) + len(messages.waiting),
        now - datetime.fromisoformat(record.opened_at),
        live_rows,
    )


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch shown on a page, with the number of rows in each state and the sums by currency and state.

    `running` is the process whose run holds the journal, if any. It may be sending another batch.
    """

    record: BatchRecord
    counts: Mapping[str, int]
    sums: Mapping[str, Mapping[str, str]]
    running: LockHolder | None

    @property
    def is_sending(self) -> bool:
        return self.counts.get(State.IN_FLIGHT, 0) > 0

    @property
    def payable(self) -> int:
        """The number of valid rows."""
        return self.record.rows - self.counts.get(INVALID, 0)

    @property
    def answered(self) -> int:
        """The number of valid rows that are neither unsent nor in flight."""
        return self.payable - self.counts.get("ready", 0) - self.counts.get(State.IN_FLIGHT, 0)


@dataclass(frozen=True, slots=True)
class PaymentView:
    """A row shown on a page, with its payee and amount."""

    standing: RowState
    state: str
    payee: Payee
    amount: str


@dataclass(frozen=True, slots=True)
class RowHistory:
    """A row with its next step, if any, the gateway's replies, and its history."""

    view: PaymentView
    step: NextStep | None
    replies: Sequence[AttemptReply]
    history: Sequence[HistoryEntry]


def running_process(settings: Settings) -> LockHolder | None:
    """Return the process whose run holds the journal, or None. Does not need the journal's lock."""
    holder = journal_location(settings).holder()
    return holder if holder is not None and holder.kind is not HolderKind.LISTENER else None


def batch_view(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    count_tallies: Callable[[], Sequence[StateTally]] | None = None,
) -> BatchView:
    """Return a batch with its counts and sums. `count_tallies` returns the tallies, by default from the journal."""
    # Look for a run before counting rows. Otherwise a run that ends in between would seem to leave rows unsent.
    running = running_process(settings)
    tallies = journal.tallies(record.number) if count_tallies is None else count_tallies()
    if running is None:
        tallies = recount_in_flight(tallies, ())
    return BatchView(record, count_states(record, tallies), sums_by_state(tallies), running)


def payment_views(
    settings: Settings, journal: JournalReader, record: BatchRecord, *, state: str = "", after: int = 0, limit: int
) -> Sequence[PaymentView]:
    """Return up to `limit` rows after row `after`, in `state` if given. Raises `UsageError` for an unknown state."""
    running = running_process(settings)
    states: Collection[State] | None = None
    if state:
        if state not in STATES or state == INVALID:
            raise UsageError(say("There is no state {state!r}.", state=state))
        states = {State(state)} if state != State.IN_DOUBT or running is not None else DISPLAYED_IN_DOUBT
    row_states = list(journal.rows(record.number, states=states, after=after, limit=limit))
    return add_payees(journal, record, row_states, running)


def add_payees(
    journal: JournalReader, record: BatchRecord, row_states: Sequence[RowState], running: LockHolder | None
) -> Sequence[PaymentView]:
    """Return rows of a batch with their payees and amounts. `running` is the process that holds the journal."""
    payments = journal.payments(record.number, [row.row for row in row_states])
    pairs = ((row, payments[row.row]) for row in row_states)
    return [
        PaymentView(row, _shown_state(row.state, running), build_payee(payment.form, payment.fields), payment.amount)
        for row, payment in pairs
    ]


def load_row_history(settings: Settings, journal: JournalReader, record: BatchRecord, row: int) -> RowHistory:
    """Return a row with its replies and history. Raises `UsageError` if it is not in the batch."""
    row_state = next(journal.rows(record.number, numbers={row}), None)
    if row_state is None:
        raise UsageError(say("Row {row} is not part of this payout.", row=row))
    (view,) = add_payees(journal, record, [row_state], running_process(settings))
    (status,) = _row_statuses(settings, journal, record, [row_state], utc_now(), journal.holds(record.number))
    history = [entry for entry in journal.history(record.number) if entry.row == row]
    return RowHistory(view, status.step, journal.replies(row_state.instruction), history)


def _shown_state(state: State, running: LockHolder | None) -> str:
    return state if state is State.IN_FLIGHT and running is not None else display_state(state)
