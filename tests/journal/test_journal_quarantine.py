"""Both stores: rows that a person rejects wait, statements are carried out once, and times never decrease."""

from collections.abc import Sequence
from datetime import datetime

import pytest

from paygw_batch.core.lifecycle import Basis, Resolution, Resolved, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.errors import InternalError, StaleRows
from paygw_batch.journal.values import Amendment, ClockComparison, Entry, StatementNote
from paygw_batch.settle.resolve import Settlement, settle
from tests.support.journal_rows import OPERATION, at, due_rows, intent, new_instruction, open_sheet, outcome_of, send
from tests.support.tested_journal import Journal


def rejection(number: int, attempt: int, basis: Basis, minute: int = 3) -> Entry:
    return Entry(number, attempt, Resolved(Resolution.REJECTED, "Ticket 4711", "amina", basis), at(minute))


def reject_row(journal: Journal, basis: Basis = Basis.PERSON) -> None:
    """Put row 2, whose attempt left at minute 1, in doubt, then settle it as rejected."""
    open_sheet(journal, new=1)
    send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    journal.settle([rejection(1, 1, basis)])


@pytest.mark.share(5)
@pytest.mark.parametrize(("cutoff", "released"), [("", 0), (at(0), 0), (at(1), 1), (at(2), 1)])
def test_person_rejected_row_is_released_after_quarantine(journal: Journal, cutoff: str, released: int) -> None:
    reject_row(journal)
    assert journal.release(1, None, suffix=True, by="amina", at=at(9), cutoff=cutoff) == released
    (row,) = journal.rows(1)
    assert (row.state, row.possible_duplicate_of) == (State.READY if released else State.REJECTED, 1)
    assert "possible duplicate of attempt 1" in render_record(row.message or "")
    assert (row.quarantined_since is None) == bool(released)


def test_quarantine_counts_only_latest_attempt(journal: Journal) -> None:
    reject_row(journal)
    journal.release(1, None, suffix=False, by="amina", at=at(9), cutoff=at(1))
    send(journal, 1, OutcomeKind.UNKNOWN, at(10))
    journal.settle([rejection(1, 2, Basis.PERSON, 11)])
    assert journal.release(1, None, suffix=False, by="amina", at=at(12), cutoff=at(9)) == 0
    assert journal.release(1, None, suffix=False, by="amina", at=at(12), cutoff=at(10)) == 1


def test_gateway_rejection_skips_quarantine_but_stays_marked(journal: Journal) -> None:
    reject_row(journal, Basis.GATEWAY)
    (row,) = journal.rows(1)
    assert (row.quarantined_since, row.error_code) == (None, "proven_statement")
    assert journal.compare(OPERATION, [(2, "ORD-2", "other")])[1][0].quarantined_since is None
    journal.verify()
    assert journal.release(1, None, suffix=True, by="amina", at=at(9)) == 1
    assert next(iter(journal.rows(1))).possible_duplicate_of == 1
    journal.verify()


def test_later_gateway_rejection_ends_quarantine(journal: Journal) -> None:
    reject_row(journal)
    journal.release(1, None, suffix=True, by="amina", at=at(9), cutoff=at(1))
    send(journal, 1, OutcomeKind.REJECTED, at(10))
    assert journal.release(1, None, suffix=True, by="amina", at=at(11)) == 1
    assert next(iter(journal.rows(1))).possible_duplicate_of == 1


@pytest.mark.share(4)
@pytest.mark.parametrize("cutoff", ["", at(0)])
def test_amendment_waits_for_quarantine(journal: Journal, cutoff: str) -> None:
    reject_row(journal)
    (clash,) = journal.compare(OPERATION, [(2, "ORD-2", "other")])[1]
    assert (clash.is_amendable, clash.quarantined_since) == (True, at(1))
    changed = [new_instruction(2, amount="1600.00")]
    with pytest.raises(InternalError, match="must not be replaced"):
        open_sheet(journal, "b2", changed, amendments=[Amendment(2, 1, cutoff)])
    open_sheet(journal, "b2", changed, amendments=[Amendment(2, 1, at(1))])
    (due,) = due_rows(journal, 2)
    assert (due.order_id, due.standing.possible_duplicate_of) == ("ORD-2-r2", 1)
    journal.verify()


DONE = StatementNote("b1", "answers.csv", "a" * 64, "amina", at(4))


def test_journal_lists_carried_out_statements_of_batch(journal: Journal) -> None:
    open_sheet(journal)
    assert journal.carried_out_statements("b1") == []
    send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    journal.settle([rejection(1, 1, Basis.PERSON)], note=DONE)
    assert journal.carried_out_statements("b1") == [DONE]
    open_sheet(journal, "b2", [new_instruction(2, "OTHER")])
    assert journal.carried_out_statements("b2") == []
    assert journal.message_counts() == {}
    journal.verify()


def test_journal_keeps_newest_clock_difference(journal: Journal) -> None:
    assert journal.head().clock is None
    lags = (ClockComparison(at(9), at(8), 0, 86_400, at(2), at(8)), ClockComparison(at(9), at(8), 1, 900))
    for seen in (*(ClockComparison(at(2), at(1), ahead_s) for ahead_s in (0, 700, -700)), *lags):
        journal.settle([], note=seen)
        assert journal.head().clock == seen
    assert journal.message_counts() == {}
    assert journal.verify()["facts"] == 5


def test_journal_times_never_decrease(journal: Journal) -> None:
    open_sheet(journal, new=1, opened_at=at(5))
    assert journal.head().newest_time == at(5)
    (due,) = due_rows(journal, 1)
    journal.append([intent(due, at(2))])
    journal.append([outcome_of(due.number, 1, OutcomeKind.UNKNOWN, at(3))])
    (row,) = journal.rows(1)
    assert (row.intended_at, row.updated_at, journal.head().newest_time) == (at(5), at(5), at(5))
    journal.settle([], note=ClockComparison(at(7), at(7), 0))
    assert journal.head().newest_time == at(7)
    assert open_sheet(journal, "b2", [new_instruction(9)], opened_at=at(1)).opened_at == at(7)
    journal.verify()


# The gateway's answer arrives while a person settles its row.
NOTE = StatementNote("b1", "answers.csv", "a" * 64, "amina", at(4))


def settle_with_late_answers(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, late: Sequence[Entry], *rows: int
) -> StaleRows:
    """Settle rows as paid; answers arrive after the rows were read. Return the refusal."""
    written = journal.settle

    def settle_after_answers(*given: object, **named: object) -> None:
        journal.append(late)
        written(*given, **named)  # type: ignore[arg-type]  # as they were given

    monkeypatch.setattr(journal, "settle", settle_after_answers)
    settlements = [Settlement(row, Resolution.PAID, "statement of 21 November") for row in rows]
    with pytest.raises(StaleRows) as refused:
        settle(
            journal,
            journal.batches()[0],
            settlements,
            by="amina",
            now=lambda: datetime.fromisoformat(at(5)),
            statement_note=NOTE,
        )
    return refused.value


def test_refused_settlement_names_moved_row_until_repeated(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sheet(journal)
    first, *_ = send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    with monkeypatch.context() as meanwhile:
        late = [outcome_of(first.number, 1, OutcomeKind.PAID, at(3))]
        refusal = settle_with_late_answers(journal, meanwhile, late, 2, 3)
    assert refusal.exit_code == 7
    assert (
        refusal.message
        == "Row 2 is now paid, because the gateway's answer arrived at the same time. Nothing was settled."
    )
    assert "status BATCH --row 2" in refusal.hint
    assert [row.state for row in journal.rows(1)] == [State.PAID, State.IN_DOUBT, State.IN_DOUBT]
    assert journal.carried_out_statements("b1") == []
    assert journal.verify()["facts"] == 8
    rest = [Settlement(3, Resolution.PAID, "statement of 21 November")]
    settle(
        journal, journal.batches()[0], rest, by="amina", now=lambda: datetime.fromisoformat(at(6)), statement_note=NOTE
    )
    assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.IN_DOUBT]
    assert len(journal.carried_out_statements("b1")) == 1
