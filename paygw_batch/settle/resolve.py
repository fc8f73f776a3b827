"""Settles rows that are in doubt, held or accepted, by a person's decision with evidence."""

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
    """A decision about one row, with its evidence and who vouches for it."""

    row: int
    resolution: Resolution
    evidence: str
    basis: Basis = Basis.PERSON
    words: str = ""
    """A person's comment, shown before the evidence from a statement."""

    @property
    def evidence_text(self) -> str:
        return evidence_text(self.evidence, self.words)


def evidence_text(evidence: str, words: str) -> str:
    """Return the evidence, preceded by the person's words if there are any."""
    return f"{words} ({evidence})" if words else evidence


def may_settle(state: State, resolution: Resolution, *, is_held: bool) -> bool:
    """Return whether a person may settle a row with this resolution. A ready row must be held."""
    if state is State.READY and not is_held:
        return False
    state = State.IN_DOUBT if state is State.IN_FLIGHT else state
    return (state, fact_kind(Resolved(resolution, "", ""))) in TRANSITIONS


def needs_second_person(state: State, resolution: Resolution) -> bool:
    """Return whether settling a row with this resolution needs a second person under `[approval]`.

    It does if the row could then be sent again while its payee may still be paid for an earlier attempt.
    """
    is_open = state in {State.IN_DOUBT, State.IN_FLIGHT, State.ACCEPTED, State.READY}
    return is_open and resolution is not Resolution.PAID


def quarantine_end(row_state: RowState, quarantine: Quarantine, hold: Hold | None = None) -> datetime | None:
    """Return the end of the quarantine after a row's latest attempt, or None if nothing was sent.

    If the journal had lost the attempt, the quarantine starts when the attempt was discovered.
    """
    since = _latest_send_time(row_state, hold)
    return quarantine.ends_at(since) if since else None


def _latest_send_time(row_state: RowState, hold: Hold | None) -> str:
    return max(row_state.quarantined_since or row_state.intended_at or "", "" if hold is None else hold.last_sent_at)


def quarantine_message(
    row_state: RowState, quarantine: Quarantine, now: datetime, hold: Hold | None = None
) -> str | None:
    """Return a message if it is too early to settle a row as not received, or None."""
    end = quarantine_end(row_state, quarantine, hold)
    if end is None or now >= end:
        return None
    return say(
        "Row {row} was sent at {intended_at} and could still be paid. From {opens} ({quarantine}), you can settle"
        " it as not received.",
        row=row_state.row,
        intended_at=_latest_send_time(row_state, hold),
        opens=timestamp(end),
        quarantine=quarantine,
    )


def check_settlements(
    journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement], *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return the current states of the rows to settle. Raises `UsageError` if a settlement is not allowed."""
    clock = JournalClock.read(journal, now())
    clock.require_plausible()
    quarantine = clock.quarantine(quarantine_h)
    states = row_states(journal, batch, {settlement.row for settlement in settlements})
    problems, holds = [], journal.holds(batch.number)
    for settlement in settlements:
        if (row_state := states.get(settlement.row)) is None:
            problems.append(say("The batch has no row {row}.", row=settlement.row))
        elif not may_settle(row_state.state, settlement.resolution, is_held=settlement.row in holds):
            word, state = settlement.resolution.value.replace("-", " "), state_label(display_state(row_state.state))
            values = {"row": settlement.row, "state": state, "word": say(word)}
            problems.append(say("Row {row} is {state} and cannot be resolved as {word}.", **values))
        elif settlement.resolution is Resolution.NOT_RECEIVED and (
            message := quarantine_message(row_state, quarantine, now(), holds.get(settlement.row))
        ):
            problems.append(message)
    if problems:
        raise UsageError(
            " ".join(problems),
            hint=say("Nothing was changed. To see the state of each row, run `paygw-batch status BATCH`."),
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
    """Record all settlements in one transaction, or none. The caller must have checked them.

    `statement_note` and `order` give the statement or signed order that the settlements come from. `standings` are the
    rows returned by `check_settlements`, because decisions are about those attempts. If None, the rows are read now.
    """
    at, digest = timestamp(now()), "" if order is None else order.sha256
    if standings is None:
        standings = row_states(journal, batch, {settlement.row for settlement in settlements})
    entries = []
    for settlement in settlements:
        if (row_state := standings.get(settlement.row)) is None:
            raise InternalError(f"row {settlement.row} of batch {batch.batch} was checked, and is not there")
        if row_state.state is State.IN_FLIGHT:  # after a run, such rows are in doubt
            raise JournalError(
                say("A worker is sending row {row} now. Nothing was settled.", row=settlement.row),
                hint=say("Wait for its answer, then run the same command again."),
            )
        fact = Resolved(settlement.resolution, settlement.evidence_text, by, settlement.basis, digest)
        entries.append(Entry(row_state.instruction, row_state.attempt, fact, at))
    attempts = {row_state.instruction: row_state.attempt for row_state in standings.values()}
    note = None
    if statement_note is not None:
        attempts |= dict(statement_note.attempts)  # as they were when the file was read
        note = replace(statement_note, at=at, attempts=tuple(sorted(attempts.items())))
    try:
        journal.settle(entries, note=note, order=None if order is None else replace(order, at=at))
    except StaleRows as error:
        raise _stale_rows_error(error, standings, row_states(journal, batch, standings)) from None


def _stale_rows_error(error: StaleRows, old: Mapping[int, RowState], new: Mapping[int, RowState]) -> JournalError:
    """Return an error that lists the rows changed by an answer from the gateway, or `error` if there are none."""
    stale_rows = [row for row in new if (new[row].state, new[row].attempt) != (old[row].state, old[row].attempt)]
    if not stale_rows:
        return error
    states = {row: state_label(display_state(new[row].state)) for row in stale_rows}
    messages = [
        say("Row {row} is now {state}, because the gateway's answer arrived at the same time.", row=row, state=state)
        for row, state in states.items()
    ]
    return StaleRows(
        f"{' '.join(messages)} {say('Nothing was settled.')}",
        hint=say(
            "To see it, run `paygw-batch status BATCH --row {row}`. Then settle whatever is still open.",
            row=stale_rows[0],
        ),
    )


_NOT_RELEASABLE = {
    State.READY: mark("Row {row} is ready. The next run will send it unless it is held."),
    State.IN_FLIGHT: (_IN_DOUBT := mark("Row {row} is in doubt and may have been paid. Settle it first.")),
    State.IN_DOUBT: _IN_DOUBT,
    State.ACCEPTED: mark("The gateway has accepted row {row} and may still pay it."),
    State.PAID: mark("Row {row} is paid."),
    State.RETURNED: mark("Row {row} was paid, but the money came back. Pay it in a new sheet, under a new order id."),
    State.REPLACED: mark("Row {row} was replaced by an amended row in a later sheet."),
}


def quarantined_rows(
    journal: JournalReader, batch: BatchRecord, rows: Collection[int] | None = None, *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return the rows that must not be released yet, because only a person reported them as rejected."""
    clock = JournalClock.read(journal, now())
    cutoff = clock.quarantine(quarantine_h).cutoff(clock.now)
    return {
        row.row: row
        for row in journal.rows(batch.number, states={State.REJECTED}, numbers=rows)
        if is_in_quarantine(row.quarantined_since, cutoff)
    }


def waiting_message(row: RowState, quarantine: Quarantine) -> str:
    """Return a message about when a row that only a person reported as rejected can be released."""
    end = quarantine_end(row, quarantine)
    return say(
        "A person, not the gateway, reported row {row} as rejected. It was sent at {intended_at} and could still be "
        "paid. You can send it again from {opens} ({quarantine}).",
        row=row.row,
        intended_at=_latest_send_time(row, None),
        opens=timestamp(end) if end else say("now"),
        quarantine=quarantine,
    )


def check_releasable(
    journal: JournalReader, batch: BatchRecord, rows: Sequence[int], *, quarantine_h: float, now: Now
) -> None:
    """Raise `UsageError` unless all `rows` may be released, no people were forgotten and the clock is plausible."""
    require_people_not_forgotten(journal, batch)
    clock = JournalClock.read(journal, now())
    clock.require_plausible()
    waiting_rows = quarantined_rows(journal, batch, rows, quarantine_h=quarantine_h, now=now)
    states, errors = row_states(journal, batch, rows), []
    for row in sorted(set(rows)):
        if (row_state := states.get(row)) is None:
            errors.append(say("The batch has no row {row}.", row=row))
        elif (state := row_state.state) is not State.REJECTED:
            errors.append(say(_NOT_RELEASABLE[state], row=row))
        elif row in waiting_rows:
            errors.append(waiting_message(waiting_rows[row], clock.quarantine(quarantine_h)))
    if errors:
        raise UsageError(" ".join(errors), hint=say("Nothing was released or sent. Only rejected rows can be retried."))


def require_people_not_forgotten(journal: JournalReader, batch: BatchRecord) -> None:
    """Raise `PeopleForgotten` if people in a batch were forgotten, because its sheet was then deleted."""
    if (first_forgetting := journal.first_forgetting(batch.number)) is not None:
        raise PeopleForgotten(
            say(
                "People in batch {batch} were forgotten by {by} at {at}. The batch's sheet and the people's names and "
                "numbers were deleted.",
                batch=batch.batch,
                at=first_forgetting.at,
                by=format_decider(first_forgetting.by),
            )
        )
