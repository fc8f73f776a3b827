"""Finds order ids in another spelling, references of batches, and payments under other ids."""

from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.core.batch import payee_mark
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.values import Amendment, NewInstruction, RepeatedBatch, UsedSpelling
from tests.support.journal_rows import (
    AT,
    OPERATION,
    at,
    due_rows,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    send,
    tamper,
)
from tests.support.tested_journal import Journal

SPELLINGS = ["Jose\u0301-1", "JOSÉ-1", "josé-1", "José\u20101", "\uff2aosé-1"]
"""The spelling of José-1."""


def used_ids(journal: Journal, *order_ids: str, operation: str = OPERATION) -> list[tuple[str, str]]:
    """Return (id, used spelling) for each id that was used in another spelling."""
    rows = [(row, order_id, normalise_spelling(order_id)) for row, order_id in enumerate(order_ids)]
    found = journal.used_spellings(operation, rows)
    assert all((one.batch, one.opened_at) == ("b1", AT) for one in found)
    return [(order_ids[one.row], one.order_id) for one in found]


def derived_row(row: int, reference: str) -> NewInstruction:
    """Return a row whose order id was derived from a reference."""
    new = new_instruction(row)
    return new._replace(client_orderid=f"{reference}-{payee_mark(reference, new.payee)}-1")


def test_used_id_is_found_in_every_spelling(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "José-1"), new_instruction(3, "PAY-7")])
    assert used_ids(journal, *SPELLINGS) == [(one, "José-1") for one in SPELLINGS]
    assert used_ids(journal, "pay-7", "Pay\u20127", "\uff30AY-7") == [
        (one, "PAY-7") for one in ("pay-7", "Pay\u20127", "\uff30AY-7")
    ]
    assert used_ids(journal, "José-2", "Jose-1", "PAY-70", "PAY 7") == []


def test_exactly_used_id_has_no_other_spelling(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "PAY-7"), new_instruction(3, "pay-7")])
    assert used_ids(journal, "PAY-7", "pay-7") == []
    assert used_ids(journal, "Pay-7") == [("Pay-7", "pay-7")]


def test_payouts_and_collections_have_separate_order_ids(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "PAY-7"), new_instruction(3, "É")])
    assert used_ids(journal, "pay-7", "é", operation="payin") == []
    open_sheet(journal, "b1", [new_instruction(2, "COL-1")], operation="payin")
    assert used_ids(journal, "pay-7", "é", operation="payin") == []
    assert used_ids(journal, "col-1", operation="payin") == [("col-1", "COL-1")]


@pytest.mark.parametrize("base", ["PAY", "PAYÉ"])
def test_ids_of_later_attempts_are_order_ids_too(journal: Journal, base: str) -> None:
    open_sheet(journal, new=[new_instruction(2, base)])
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, None, suffix=True, by="amina", at=at(3))
    assert used_ids(journal, f"{base}-R2".lower()) == [(f"{base}-R2".lower(), f"{base}-r2")]
    assert journal.verify()["order_ids"] == 2


def test_later_attempt_avoids_ids_in_other_spelling(journal: Journal) -> None:
    open_sheet(
        journal, new=[new_instruction(2, "PAY"), new_instruction(3, "pay-R2"), new_instruction(4, "PAY\u2010r3")]
    )
    send(journal, 1, OutcomeKind.REJECTED)
    journal.release(1, [2], suffix=True, by="amina", at=at(3))
    assert [due.order_id for due in due_rows(journal, 1)] == ["PAY-r4"]


def test_amended_row_id_is_found_in_new_batch(journal: Journal) -> None:
    open_sheet(journal, "b0", [new_instruction(2, "PAYÉ")])
    open_sheet(journal, "b1", [new_instruction(2, "PAYÉ", amount="7.00")], amendments=[Amendment(2, 1)])
    assert used_ids(journal, "payé") == [("payé", "PAYÉ")]


def references(journal: Journal) -> list[tuple[str, str]]:
    return [(batch.batch, batch.reference) for batch in journal.batches()]


def test_references_are_read_from_derived_ids(journal: Journal) -> None:
    open_sheet(journal, "b1", [derived_row(2, "Payroll-2026-11"), derived_row(3, "Payroll-2026-11")])
    open_sheet(journal, "b2", 3)
    open_sheet(journal, "b3", [derived_row(4, "bonus")], opened_at=at(9))
    open_sheet(journal, "b4", [derived_row(5, "fees")], operation="payin")
    assert references(journal) == [("b1", "Payroll-2026-11"), ("b2", ""), ("b3", "bonus"), ("b4", "fees")]


def test_derived_looking_id_has_no_reference(journal: Journal) -> None:
    open_sheet(journal, new=[new_instruction(2, "ORD-0123456789abcdef-1")])
    assert references(journal) == [("b1", "")]


def test_repeated_rows_are_counted_once_per_batch(journal: Journal) -> None:
    open_sheet(journal, "b1", 4, opened_at=at(1))
    twice = [new_instruction(2, "X-1"), new_instruction(12, "X-2", phone="254700000002")]
    open_sheet(journal, "b2", [*twice, new_instruction(3, "X-3")], opened_at=at(2), sheet_name="again.csv")
    rows = [
        ("Y-1", "254700000002", "KES", 150050),
        ("Y-2", "254700000003", "KES", 150050),
        ("Y-3", "254700000005", "KES", 150050),
        ("Y-4", "254700000005", "KES", 150051),
        ("Y-5", "254700000005", "UGX", 150050),
        ("ORD-4", "254700000004", "KES", 150050),
    ]
    newest, oldest = RepeatedBatch("b2", "again.csv", at(2), 2), RepeatedBatch("b1", "payroll.csv", at(1), 3)
    assert list(journal.repeated_batches(OPERATION, rows, since=at(0))) == [newest, oldest]
    assert list(journal.repeated_batches(OPERATION, rows, since=at(1))) == [newest]
    assert list(journal.repeated_batches("payin", rows, since=at(0))) == []


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM order_id_spelling",
        "UPDATE order_id_spelling SET spelling = 'jose-1'",
        "INSERT INTO order_id_spelling VALUES ('payout', 'x', 'X')",
        "DELETE FROM batch_reference",
        "UPDATE batch_reference SET reference = 'payroll-2026-11'",
    ],
)
def test_verify_finds_changed_spellings_and_references(place: Path, change: str) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal, "b1", [new_instruction(2, "José-1")])
        open_sheet(journal, "b2", [derived_row(3, "Payroll-2026-11")])
        assert used_ids(journal, "JOSÉ-1") == [("JOSÉ-1", "José-1")]
    tamper(journal_path(place), change).close()
    with closing(open_journal_at(place)) as journal, pytest.raises(JournalCorrupt, match="do not match"):
        journal.verify()


def test_journal_without_order_ids_asks_no_row(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        assert list(journal.used_spellings(OPERATION, (1 / 0 for _ in [0]))) == []  # type: ignore[misc]  # never asked


def test_used_spelling_names_newest_order_id(journal: Journal) -> None:
    open_sheet(journal, "b1", [new_instruction(2, "PAY-7")], opened_at=at(1))
    open_sheet(journal, "b2", [new_instruction(2, "pay-7")], opened_at=at(2))
    assert list(journal.used_spellings(OPERATION, [(9, "Pay-7", "pay-7")])) == [UsedSpelling(9, "pay-7", "b2", at(2))]
