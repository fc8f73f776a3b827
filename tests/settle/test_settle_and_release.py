"""Settling rows by a person's decision: what is allowed, from when, and what is recorded; and releasing rows."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from paygw_batch.core.evidence import SignedOrder
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.errors import InternalError, JournalError, StaleRows, UsageError
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import ClockComparison, StatementNote
from paygw_batch.settle.resolve import (
    Settlement,
    check_releasable,
    check_settlements,
    may_settle,
    needs_second_person,
    quarantine_end,
    quarantine_message,
    quarantined_rows,
    row_states,
    settle,
    waiting_message,
)
from tests.support.journal_rows import WORDS, at, build_evidence, due_rows, intent, journal_of, row_of, send, states

LEFT = datetime(2026, 11, 21, 8, 1, tzinfo=UTC)
OPENS = LEFT + timedelta(hours=24)
LATER = LEFT + timedelta(days=2)
KINDS = (OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.REJECTED)


def check(journal: SqliteJournal, *settlements: Settlement, now: datetime = LATER) -> None:
    check_settlements(journal, journal.batches()[0], settlements, quarantine_h=24, now=lambda: now)


def refusal(journal: SqliteJournal, *settlements: Settlement, now: datetime = LATER) -> str:
    with pytest.raises(UsageError) as found:
        check(journal, *settlements, now=now)
    assert found.value.hint == "Nothing was changed. To see the state of each row, run `paygw-batch status BATCH`."
    return found.value.message


def word(row: int, resolution: Resolution = Resolution.REJECTED, basis: Basis = Basis.PERSON) -> Settlement:
    return Settlement(row, resolution, "Ticket 4711", basis)


def write(journal: SqliteJournal, *settlements: Settlement, now: datetime = LATER) -> None:
    settle(journal, journal.batches()[0], settlements, by="amina", now=lambda: now)


OPEN = {State.IN_DOUBT, State.IN_FLIGHT}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("resolution", Resolution)
def test_state_and_hold_determine_allowed_settlements(state: State, resolution: Resolution) -> None:
    allowed = state in OPEN or (state is State.ACCEPTED and resolution is not Resolution.NOT_RECEIVED)
    assert may_settle(state, resolution, is_held=False) == allowed
    assert may_settle(state, resolution, is_held=True) == (allowed or state is State.READY)
    could_leave = state in OPEN | {State.ACCEPTED, State.READY} and resolution is not Resolution.PAID
    assert needs_second_person(state, resolution) == could_leave


def test_every_invalid_settlement_is_reported_by_row() -> None:
    journal = journal_of(*KINDS, None)
    check(journal, *(word(2, resolution) for resolution in Resolution), word(3), word(3, Resolution.PAID))
    assert refusal(journal, word(4), word(2), word(5, Resolution.PAID), word(9), word(3, Resolution.NOT_RECEIVED)) == (
        "Row 4 is paid and cannot be resolved as rejected. Row 5 is rejected and cannot be resolved as paid. "
        "The batch has no row 9. Row 3 is with the gateway and cannot be resolved as not received."
    )
    assert refusal(journal, word(6)) == "Row 6 is not sent yet and cannot be resolved as rejected."


def test_settling_as_not_received_is_allowed_after_quarantine() -> None:
    journal, lost = journal_of(OutcomeKind.UNKNOWN), word(2, Resolution.NOT_RECEIVED)
    assert refusal(journal, lost, now=OPENS - timedelta(milliseconds=1)) == (
        "Row 2 was sent at 2026-11-21T08:01:00.000Z and could still be paid. From "
        "2026-11-22T08:01:00.000Z (a quarantine of 24 h), you can settle it as not received."
    )
    check(journal, lost, now=OPENS)
    check(journal, word(2), word(2, Resolution.PAID), now=LEFT + timedelta(hours=1))
    journal.settle([], note=ClockComparison(at(2), "2026-11-21T09:02:00.000Z", -3600))
    assert "From 2026-11-22T09:01:00.000Z (" in refusal(journal, lost, now=OPENS)
    check(journal, lost, now=OPENS + timedelta(hours=1))


def test_unsent_or_held_row_has_no_quarantine() -> None:
    ready, quarantine = row_of(journal_of(None), 1, 2), Quarantine(24)
    assert quarantine_end(ready, quarantine) is None
    assert quarantine_message(ready, quarantine, LEFT) is None
    assert "You can send it again from now (a quarantine of 24 h)." in waiting_message(ready, quarantine)
    lost = replace(ready, quarantined_since=at(3))  # only a host knows its attempt
    assert f"It was sent at {at(3)} and" in waiting_message(lost, quarantine)
    assert quarantine_end(row_of(journal_of(OutcomeKind.PAID), 1, 2), quarantine) == OPENS
    journal = journal_of(None)
    journal.record_evidence([build_evidence(1)], WORDS, at=at(3))
    check(journal, word(2, Resolution.PAID))
    write(journal, word(2), now=LEFT + timedelta(hours=1))
    releasable(journal, 2, now=LEFT + timedelta(hours=2))


def test_wrong_clock_prevents_settlement_and_release() -> None:
    journal, early = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.REJECTED), LEFT - timedelta(hours=1)
    with pytest.raises(UsageError, match="The clock was set back"):
        check(journal, word(2, Resolution.PAID), now=early)
    with pytest.raises(UsageError, match="The clock was set back"):
        releasable(journal, 3, now=early)


def test_settlements_are_recorded_with_evidence_and_documents() -> None:
    journal = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.ACCEPTED)
    words = [word(2, Resolution.PAID), word(3, Resolution.NOT_RECEIVED), word(4, basis=Basis.GATEWAY)]
    note, order = StatementNote("b1", "day.csv", "a" * 64, "amina"), SignedOrder("b1", "{}")
    settle(journal, journal.batches()[0], words, by="amina", now=lambda: LATER, statement_note=note, order=order)
    assert states(journal) == [State.PAID, State.READY, State.REJECTED]
    assert [row.possible_duplicate_of for row in journal.rows(1)] == [None, 1, 1]
    deeds = [deed for deed in journal.history(1) if deed.row is not None]
    assert [(deed.row, deed.attempt, deed.by, deed.at, deed.said) for deed in deeds] == [
        (row, 1, "amina", "2026-11-23T08:01:00.000Z", "Ticket 4711") for row in (2, 3, 4)
    ]
    (use,) = journal.carried_out_statements("b1")
    assert (use.name, use.sha256, use.by, use.at) == ("day.csv", "a" * 64, "amina", "2026-11-23T08:01:00.000Z")
    assert list(journal.signed_orders("b1")) == ["{}"]
    journal.verify()


def test_missing_row_or_row_in_flight_prevents_settlement() -> None:
    journal = journal_of(OutcomeKind.UNKNOWN, None)
    journal.append([intent(due, at(3)) for due in due_rows(journal, 1)])
    with pytest.raises(JournalError, match=r"^A worker is sending row 3 now\. Nothing was settled\.$") as found:
        write(journal, word(2), word(3))
    assert found.value.hint == "Wait for its answer, then run the same command again."
    with pytest.raises(InternalError, match="row 7 of batch b1 was checked, and is not there"):
        write(journal, word(2), word(7))
    assert states(journal) == [State.IN_DOUBT, State.IN_FLIGHT]


# Rows that may be sent again
def releasable(journal: SqliteJournal, *rows: int, now: datetime = LATER) -> None:
    check_releasable(journal, journal.batches()[0], rows, quarantine_h=24, now=lambda: now)


def release_refusal(journal: SqliteJournal, *rows: int, now: datetime = LATER) -> str:
    with pytest.raises(UsageError) as found:
        releasable(journal, *rows, now=now)
    assert found.value.hint == "Nothing was released or sent. Only rejected rows can be retried."
    return found.value.message


def test_release_of_unrejected_row_is_refused_with_reason() -> None:
    journal = journal_of(*KINDS, None)
    releasable(journal, 5)
    assert release_refusal(journal, 9, 5, 4, 2, 3, 6, 4) == (
        "Row 2 is in doubt and may have been paid. Settle it first. "
        "The gateway has accepted row 3 and may still pay it. "
        "Row 4 is paid. Row 6 is ready. The next run will send it unless it is held. The batch has no row 9."
    )


def test_row_rejected_by_person_waits_for_quarantine() -> None:
    journal = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED)
    write(journal, word(2), word(3, basis=Basis.GATEWAY), now=LEFT + timedelta(hours=1))
    early = OPENS - timedelta(milliseconds=1)
    assert release_refusal(journal, 2, now=early) == (
        "A person, not the gateway, reported row 2 as rejected. It was sent at 2026-11-21T08:01:00.000Z and could "
        "still be paid. You can send it again from 2026-11-22T08:01:00.000Z (a quarantine of 24 h)."
    )
    releasable(journal, 3, 4, now=early)
    releasable(journal, 2, 3, 4, now=OPENS)
    journal = journal_of(OutcomeKind.REJECTED)
    journal.release(1, None, suffix=True, by="amina", at=at(5))
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    write(journal, word(2), now=LEFT + timedelta(hours=1))
    assert "from 2026-11-22T08:10:00.000Z (" in release_refusal(journal, 2, now=OPENS)


@pytest.mark.parametrize(("rows", "waiting"), [(None, [2, 3]), ([3, 4], [3]), ([4], []), ([], [])])
def test_rows_in_quarantine_are_listed(rows: Sequence[int] | None, waiting: Sequence[int]) -> None:
    journal = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)
    write(journal, word(2), word(3), now=LEFT + timedelta(hours=1))
    batch, early = journal.batches()[0], LEFT + timedelta(hours=2)
    assert list(quarantined_rows(journal, batch, rows, quarantine_h=24, now=lambda: early)) == waiting
    assert quarantined_rows(journal, batch, rows, quarantine_h=24, now=lambda: OPENS) == {}


def test_settlement_needs_few_database_statements() -> None:
    journal, statements = journal_of(OutcomeKind.UNKNOWN, OutcomeKind.PAID), []
    (batch,) = journal.batches()

    def note(_cursor: object, statement: str, _values: object) -> bool:
        statements.append(statement)
        return True

    journal._connection.exec_trace = note
    standings = check_settlements(journal, batch, [word(2)], quarantine_h=24, now=lambda: LATER)
    settle(journal, batch, [word(2)], by="amina", now=lambda: LATER, standings=standings)
    assert len(statements) <= 12, "\n".join(statements)  # the last query reads the end of the evidence


def test_settlement_refuses_attempt_sent_after_check() -> None:
    journal = journal_of(OutcomeKind.UNKNOWN)
    (batch,) = journal.batches()
    standings = check_settlements(journal, batch, [word(2)], quarantine_h=24, now=lambda: LATER)
    write(journal, word(2, Resolution.NOT_RECEIVED))
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    with pytest.raises(StaleRows):
        settle(journal, batch, [word(2)], by="amina", now=lambda: LATER, standings=standings)
    assert row_states(journal, batch, [2])[2].state is State.IN_DOUBT
