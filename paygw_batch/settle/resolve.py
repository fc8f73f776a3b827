"""Settles rows that are in doubt, held, or accepted without an answer, by a person's decision and its evidence."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import TRANSITIONS, Basis, Resolution, Resolved, State, fact_kind
from paygw_batch.core.shown_states import display_state, format_decider, state_label
from paygw_batch.engine.quarantine import JournalClock, Quarantine
from paygw_batch.errors import InternalError, JournalError, PeopleForgotten, StaleRows, UsageError
from paygw_batch.journal import (
    BatchRecord,
    Entry,
    Hold,
    Journal,
    JournalReader,
    RowState,
    StatementNote,
    is_in_quarantine,
)
from paygw_batch.language import mark, say


@dataclass(frozen=True, slots=True)
class Settlement:
    """A decision about one row: its resolution, the evidence, and who vouches for the evidence."""

    row: int
    resolution: Resolution
    evidence: str
    basis: Basis = Basis.PERSON
    words: str = ""
    """A person's words, shown before the evidence from a statement."""

    @property
    def evidence_text(self) -> str:
        """The evidence as shown and recorded."""
        return evidence_text(self.evidence, self.words)


def evidence_text(evidence: str, words: str) -> str:
    """Return evidence, preceded by a person's words, if any."""
    return f"{words} ({evidence})" if words else evidence


def may_settle(state: State, resolution: Resolution, *, is_held: bool) -> bool:
    """Return whether a person may settle a row this way. In flight counts as in doubt. A ready row must be held."""
    if state is State.READY and not is_held:
        return False
    state = State.IN_DOUBT if state is State.IN_FLIGHT else state
    return (state, fact_kind(Resolved(resolution, "", ""))) in TRANSITIONS


def needs_second_person(state: State, resolution: Resolution) -> bool:
    """Return whether, under `[approval]`, settling a row in `state` this way needs a second person.

    It does if the row could be sent again although its payee may get the money: when a row that is in doubt or in
    flight, accepted by the gateway, or held by evidence is settled as not received or rejected.
    """
    is_open = state in {State.IN_DOUBT, State.IN_FLIGHT, State.ACCEPTED, State.READY}
    return is_open and resolution is not Resolution.PAID


def quarantine_end(row_state: RowState, quarantine: Quarantine, hold: Hold | None = None) -> datetime | None:
    """Return the end of the quarantine after a row's latest attempt. Then a person may let it be sent again.

    Returns None if nothing was sent. If the journal had lost the attempt, the quarantine starts when it became known.
    """
    since = _latest_send_time(row_state, hold)
    return quarantine.ends_at(since) if since else None


def _latest_send_time(row_state: RowState, hold: Hold | None) -> str:
    return max(row_state.quarantined_since or row_state.intended_at or "", "" if hold is None else hold.last_sent_at)


def quarantine_sentence(
    row_state: RowState, quarantine: Quarantine, now: datetime, hold: Hold | None = None
) -> str | None:
    """Return why a row cannot be settled as not received yet and when it can be, or None if it can be now."""
    end = quarantine_end(row_state, quarantine, hold)
    if end is None or now >= end:
        return None
    return say(
        "Row {row} was sent at {intended_at} and could still be paid: settle it as not received from {opens} "
        "on ({quarantine}).",
        row=row_state.row,
        intended_at=_latest_send_time(row_state, hold),
        opens=timestamp(end),
        quarantine=quarantine,
    )


def check_settlements(
    journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement], *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return the current rows of `settlements`. Raises `UsageError` if a settlement may not be made."""
    clock = JournalClock.read(journal, now())
    clock.require_sound()
    quarantine = clock.quarantine(quarantine_h)
    states = row_states(journal, batch, {settlement.row for settlement in settlements})
    problems, holds = [], journal.holds(batch.number)
    for settlement in settlements:
        row_state = states.get(settlement.row)
        if row_state is None:
            problems.append(say("Row {row}: the batch has no such row.", row=settlement.row))
        elif not may_settle(row_state.state, settlement.resolution, is_held=settlement.row in holds):
            word, state = settlement.resolution.value.replace("-", " "), state_label(display_state(row_state.state))
            values = {"row": settlement.row, "state": state, "word": say(word)}
            problems.append(say("Row {row} is {state}, and cannot be resolved as {word}.", **values))
        elif settlement.resolution is Resolution.NOT_RECEIVED and (
            sentence := quarantine_sentence(row_state, quarantine, now(), holds.get(settlement.row))
        ):
            problems.append(sentence)
    if problems:
        raise UsageError(
            " ".join(problems),
            hint=say("Nothing was changed. `paygw-batch status BATCH` shows the state of each row."),
            for_terminal=True,
        )
    return states


def row_states(journal: JournalReader, batch: BatchRecord, rows: Iterable[int]) -> Mapping[int, RowState]:
    return {row_state.row: row_state for row_state in journal.rows(batch.number, numbers=set(rows))}


def settle(
    journal: Journal,
    batch: BatchRecord,
    settlements: Sequence[Settlement],
    *,
    by: str,
    now: Now,
    statement_note: StatementNote | None = None,
    order: SignedOrder | None = None,
    standings: Mapping[int, RowState] | None = None,
) -> None:
    """Record all settlements durably in one transaction, or none. The caller has checked them.

    `statement_note` is the statement that they come from, and `order` the signed order behind them. `standings` are
    the rows as `check_settlements` returned them, because a decision is about the checked attempt. If it is None, they
    are read now.
    """
    time, digest = timestamp(now()), "" if order is None else order.sha256
    if standings is None:
        standings = row_states(journal, batch, {settlement.row for settlement in settlements})
    entries = []
    for settlement in settlements:
        if (row_state := standings.get(settlement.row)) is None:
            raise InternalError(f"row {settlement.row} of batch {batch.batch} was checked, and is not there")
        if row_state.state is State.IN_FLIGHT:  # the rows of a finished run are in doubt
            raise JournalError(
                say("A worker is sending row {row} now. Nothing was settled.", row=settlement.row),
                hint=say("Wait for its answer, then run the same command again."),
            )
        fact = Resolved(settlement.resolution, settlement.evidence_text, by, settlement.basis, digest)
        entries.append(Entry(row_state.instruction, row_state.attempt, fact, time))
    attempts = {row_state.instruction: row_state.attempt for row_state in standings.values()}
    note = None
    if statement_note is not None:
        attempts |= dict(statement_note.attempts)  # the number of attempts when the file was read
        note = replace(statement_note, at=time, attempts=tuple(sorted(attempts.items())))
    try:
        journal.settle(entries, note=note, order=None if order is None else replace(order, at=time))
    except StaleRows as error:
        raise _moved_rows_error(error, standings, row_states(journal, batch, standings)) from None


def _moved_rows_error(error: StaleRows, before: Mapping[int, RowState], now: Mapping[int, RowState]) -> JournalError:
    """Return the error about the rows that an answer of the gateway moved since they were read."""
    moved_rows = [row for row in now if (now[row].state, now[row].attempt) != (before[row].state, before[row].attempt)]
    if not moved_rows:
        return error
    states = {row: state_label(display_state(now[row].state)) for row in moved_rows}
    sentences = [
        say("Row {row} is {state} now: the gateway's answer arrived at the same moment.", row=row, state=state)
        for row, state in states.items()
    ]
    return StaleRows(
        f"{' '.join(sentences)} {say('Nothing was settled.')}",
        hint=say("`paygw-batch status BATCH --row {row}` shows it. Then settle what is still open.", row=moved_rows[0]),
    )


_WHY_NOT_RELEASABLE = {
    State.READY: mark("Row {row} is ready: the next run sends it unless it is held."),
    State.IN_FLIGHT: (_IN_DOUBT := mark("Row {row} is in doubt and may have been paid: settle it first.")),
    State.IN_DOUBT: _IN_DOUBT,
    State.ACCEPTED: mark("Row {row} is accepted by the gateway, which may still pay it."),
    State.PAID: mark("Row {row} is paid."),
    State.RETURNED: mark("Row {row} was paid and the money came back: pay it under a new order id, in a new sheet."),
    State.REPLACED: mark("Row {row} was replaced by an amended row of a later sheet."),
}


def quarantined_rows(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int] | None = None, *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return those of `rows` (or of all) that a person rejected and that may not be released yet, by row."""
    clock = JournalClock.read(journal, now())
    cutoff = clock.quarantine(quarantine_h).cutoff(clock.now)
    return {
        row.row: row
        for row in journal.rows(batch.number, states={State.REJECTED}, numbers=rows)
        if is_in_quarantine(row.quarantined_since, cutoff)
    }


def waiting_sentence(row: RowState, quarantine: Quarantine) -> str:
    """Return why a row that a person called rejected cannot be released yet and when it can be."""
    end = quarantine_end(row, quarantine)
    return say(
        "Only a person reported that row {row} was rejected. Its attempt was sent at {intended_at} and could still "
        "be paid: it may be sent again from {opens} ({quarantine}).",
        row=row.row,
        intended_at=row.intended_at,
        opens=timestamp(end) if end else say("now"),
        quarantine=quarantine,
    )


def check_releasable(
    journal: JournalReader, batch: BatchRecord, rows: Sequence[int], *, quarantine_h: float, now: Now
) -> None:
    """Raise `UsageError`, with a sentence for each row, unless all `rows` are rejected and may be released.

    Also raises if this machine's clock is unreliable, or if people of the batch were forgotten.
    """
    require_people_not_forgotten(journal, batch)
    clock = JournalClock.read(journal, now())
    clock.require_sound()
    waiting_rows = quarantined_rows(journal, batch, rows, quarantine_h=quarantine_h, now=now)
    states, errors = row_states(journal, batch, rows), []
    for row in sorted(set(rows)):
        row_state = states.get(row)
        if row_state is None:
            errors.append(say("Row {row}: the batch has no such row.", row=row))
        elif (state := row_state.state) is not State.REJECTED:
            errors.append(say(_WHY_NOT_RELEASABLE[state], row=row))
        elif row in waiting_rows:
            errors.append(waiting_sentence(waiting_rows[row], clock.quarantine(quarantine_h)))
    if errors:
        raise UsageError(" ".join(errors), hint=say("Nothing was released or sent. Only rejected rows can be retried."))


def require_people_not_forgotten(journal: JournalReader, batch: BatchRecord) -> None:
    """Raise `PeopleForgotten` if people of a batch were forgotten. The batch then has ended and has no sheet."""
    if (first_forgetting := journal.first_forgetting(batch.number)) is not None:
        raise PeopleForgotten(
            say(
                "People of batch {batch} were forgotten at {at} by {by}: its sheet, and their names and numbers, "
                "are gone.",
                batch=batch.batch,
                at=first_forgetting.at,
                by=format_decider(first_forgetting.by),
            )
        )
