"""Settles rows in doubt, held, or accepted without an answer, by a person's decision and its evidence."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import TRANSITIONS, Basis, Resolution, Resolved, State, kind_of
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
    def said(self) -> str:
        """The evidence as shown and recorded."""
        return evidence_text(self.evidence, self.words)


def evidence_text(evidence: str, words: str) -> str:
    """Return evidence, preceded by the words of a person if there are any."""
    return f"{words} ({evidence})" if words else evidence


def may_settle(state: State, resolution: Resolution, *, is_held: bool) -> bool:
    """Return whether a person may settle a row this way. In flight counts as in doubt; a ready row must be held."""
    if state is State.READY and not is_held:
        return False
    state = State.IN_DOUBT if state is State.IN_FLIGHT else state
    return (state, kind_of(Resolved(resolution, "", ""))) in TRANSITIONS


def needs_second_person(state: State, resolution: Resolution) -> bool:
    """Return whether, under `[approval]`, settling a row in `state` this way needs a second person.

    It does if the row could be sent again although its payee may get the money: for not received and rejected, if the
    row is in doubt or in flight, accepted by the gateway, or held by evidence.
    """
    is_open = state in {State.IN_DOUBT, State.IN_FLIGHT, State.ACCEPTED, State.READY}
    return is_open and resolution is not Resolution.PAID


def quarantine_end(standing: RowState, quarantine: Quarantine, hold: Hold | None = None) -> datetime | None:
    """Return the end of the quarantine after a row's latest attempt, when a person may let the row be sent again.

    Returns None if nothing was sent. If the journal had lost the attempt, the quarantine starts when it became known.
    """
    since = _departure_time(standing, hold)
    return quarantine.ends_at(since) if since else None


def _departure_time(standing: RowState, hold: Hold | None) -> str:
    return max(standing.quarantined_since or standing.intended_at or "", "" if hold is None else hold.left_at)


def quarantine_sentence(
    standing: RowState, quarantine: Quarantine, now: datetime, hold: Hold | None = None
) -> str | None:
    """Return why a row cannot be settled as not received yet, and when it can be, or None if it can be now."""
    opens = quarantine_end(standing, quarantine, hold)
    if opens is None or now >= opens:
        return None
    return say(
        "Row {row} was sent at {intended_at} and could still be paid: settle it as not received from {opens} "
        "on ({quarantine}).",
        row=standing.row,
        intended_at=_departure_time(standing, hold),
        opens=timestamp(opens),
        quarantine=quarantine,
    )


def check_settlements(
    journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement], *, quarantine_h: float, now: Now
) -> Mapping[int, RowState]:
    """Return the current rows of `settlements`. Raises `UsageError` if a settlement may not be made."""
    clock = JournalClock.read(journal, now())
    clock.require_sound()
    quarantine = clock.quarantine(quarantine_h)
    standings = row_states(journal, batch, {settlement.row for settlement in settlements})
    problems, held = [], journal.holds(batch.number)
    for settlement in settlements:
        standing = standings.get(settlement.row)
        if standing is None:
            problems.append(say("Row {row}: the batch has no such row.", row=settlement.row))
        elif not may_settle(standing.state, settlement.resolution, is_held=settlement.row in held):
            word, state = settlement.resolution.value.replace("-", " "), state_label(display_state(standing.state))
            values = {"row": settlement.row, "state": state, "word": say(word)}
            problems.append(say("Row {row} is {state}, and cannot be resolved as {word}.", **values))
        elif settlement.resolution is Resolution.NOT_RECEIVED and (
            sentence := quarantine_sentence(standing, quarantine, now(), held.get(settlement.row))
        ):
            problems.append(sentence)
    if problems:
        raise UsageError(
            " ".join(problems),
            hint=say("Nothing was changed. `paygw-batch status BATCH` shows the state of each row."),
            for_terminal=True,
        )
    return standings


def row_states(journal: JournalReader, batch: BatchRecord, rows: Iterable[int]) -> Mapping[int, RowState]:
    return {standing.row: standing for standing in journal.rows(batch.number, numbers=set(rows))}


def settle(
    journal: Journal,
    batch: BatchRecord,
    settlements: Sequence[Settlement],
    *,
    by: str,
    now: Now,
    carried_out: StatementNote | None = None,
    order: SignedOrder | None = None,
    standings: Mapping[int, RowState] | None = None,
) -> None:
    """Record all settlements durably in one transaction, or none. The caller has checked them.

    `carried_out` is the statement that they come from, `order` the signed order that asks for them. `standings` are the
    rows as `check_settlements` returned them, because a decision is about the attempt that was checked. If it is None,
    they are read now.
    """
    at, digest = timestamp(now()), "" if order is None else order.sha256
    if standings is None:
        standings = row_states(journal, batch, {settlement.row for settlement in settlements})
    entries = []
    for settlement in settlements:
        if (standing := standings.get(settlement.row)) is None:
            raise InternalError(f"row {settlement.row} of batch {batch.batch} was checked, and is not there")
        if standing.state is State.IN_FLIGHT:  # the rows of a finished run are in doubt
            raise JournalError(
                say("A worker is sending row {row} now. Nothing was settled.", row=settlement.row),
                hint=say("Wait for its answer, then run the same command again."),
            )
        fact = Resolved(settlement.resolution, settlement.said, by, settlement.basis, digest)
        entries.append(Entry(standing.instruction, standing.attempt, fact, at))
    attempts = {standing.instruction: standing.attempt for standing in standings.values()}
    note = None
    if carried_out is not None:
        attempts |= dict(carried_out.attempts)  # the number of attempts when the file was read
        note = replace(carried_out, at=at, attempts=tuple(sorted(attempts.items())))
    try:
        journal.settle(entries, note=note, order=None if order is None else replace(order, at=at))
    except StaleRows as error:
        raise _moved_rows_error(error, standings, row_states(journal, batch, standings)) from None


def _moved_rows_error(error: StaleRows, before: Mapping[int, RowState], now: Mapping[int, RowState]) -> JournalError:
    """Return the error that names the rows which the gateway's answer moved since they were read."""
    moved = [row for row in now if (now[row].state, now[row].attempt) != (before[row].state, before[row].attempt)]
    if not moved:
        return error
    states = {row: state_label(display_state(now[row].state)) for row in moved}
    sentences = [
        say("Row {row} is {state} now: the gateway's answer came at the same moment.", row=row, state=state)
        for row, state in states.items()
    ]
    return StaleRows(
        f"{' '.join(sentences)} {say('Nothing was settled.')}",
        hint=say("`paygw-batch status BATCH --row {row}` shows it. Then settle what is still open.", row=moved[0]),
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
    """Return, by row, those of `rows` (or of all) that a person rejected and that may not be released yet."""
    clock = JournalClock.read(journal, now())
    cutoff = clock.quarantine(quarantine_h).cutoff(clock.now)
    return {
        row.row: row
        for row in journal.rows(batch.number, states={State.REJECTED}, numbers=rows)
        if is_in_quarantine(row.quarantined_since, cutoff)
    }


def waiting_sentence(row: RowState, quarantine: Quarantine) -> str:
    """Return why a row that a person called rejected cannot be released yet, and when it can be."""
    opens = quarantine_end(row, quarantine)
    return say(
        "Row {row} is rejected on a person's word alone. Its attempt was sent at {intended_at} and could still "
        "be paid: it may be sent again from {opens} ({quarantine}).",
        row=row.row,
        intended_at=row.intended_at,
        opens=timestamp(opens) if opens else say("now"),
        quarantine=quarantine,
    )


def check_releasable(
    journal: JournalReader, batch: BatchRecord, rows: Sequence[int], *, quarantine_h: float, now: Now
) -> None:
    """Raise `UsageError`, with a sentence for each row, if any of `rows` is not a rejected row that may be released.

    Also raises if this machine's clock is unreliable, or if people of the batch were forgotten.
    """
    require_people_not_forgotten(journal, batch)
    clock = JournalClock.read(journal, now())
    clock.require_sound()
    waiting = quarantined_rows(journal, batch, rows, quarantine_h=quarantine_h, now=now)
    standings, errors = row_states(journal, batch, rows), []
    for row in sorted(set(rows)):
        standing = standings.get(row)
        if standing is None:
            errors.append(say("Row {row}: the batch has no such row.", row=row))
        elif (state := standing.state) is not State.REJECTED:
            errors.append(say(_WHY_NOT_RELEASABLE[state], row=row))
        elif row in waiting:
            errors.append(waiting_sentence(waiting[row], clock.quarantine(quarantine_h)))
    if errors:
        raise UsageError(" ".join(errors), hint=say("Nothing was released or sent. Only rejected rows can be retried."))


def require_people_not_forgotten(journal: JournalReader, batch: BatchRecord) -> None:
    """Raise `PeopleForgotten` if people of a batch were forgotten. The batch has ended, and its sheet is deleted."""
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
