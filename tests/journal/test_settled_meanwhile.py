"""Both stores: the gateway's answer arrives while a person settles its row."""

from collections.abc import Sequence
from datetime import datetime

import pytest

from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import StaleRows
from paygw_batch.journal.values import Entry, StatementNote
from paygw_batch.settle.resolve import Settlement, settle
from tests.support.journal_rows import at, open_sheet, outcome_of, send
from tests.support.tested_journal import Journal

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
            carried_out=NOTE,
        )
    return refused.value


def test_refused_settlement_names_moved_row(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sheet(journal)
    first, *_ = send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    refusal = settle_with_late_answers(
        journal, monkeypatch, [outcome_of(first.number, 1, OutcomeKind.PAID, at(3))], 2, 3
    )
    assert refusal.exit_code == 7
    assert refusal.message == "Row 2 is paid now: the gateway's answer came at the same moment. Nothing was settled."
    assert "status BATCH --row 2" in refusal.hint
    assert [row.state for row in journal.rows(1)] == [State.PAID, State.IN_DOUBT, State.IN_DOUBT]
    assert journal.carried_out("b1") == []
    assert journal.verify()["facts"] == 8


def test_settlement_of_other_rows_succeeds_after_refusal(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    open_sheet(journal)
    first, *_ = send(journal, 1, OutcomeKind.UNKNOWN, at(1))
    with monkeypatch.context() as meanwhile:
        settle_with_late_answers(journal, meanwhile, [outcome_of(first.number, 1, OutcomeKind.PAID, at(3))], 2, 3)
    rest = [Settlement(3, Resolution.PAID, "statement of 21 November")]
    settle(journal, journal.batches()[0], rest, by="amina", now=lambda: datetime.fromisoformat(at(6)), carried_out=NOTE)
    assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.IN_DOUBT]
    assert len(journal.carried_out("b1")) == 1
