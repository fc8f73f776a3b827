"""What people did is read back from the facts: from both stores alike."""

from dataclasses import replace

from paygw_batch.core.lifecycle import Concluded, Intended, Resolution, Resolved
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.port import Journal
from paygw_batch.journal.values import BatchRecord, Entry, NewBatch
from tests.journal.journal_rows import AT, OPERATION, at, new_instruction


def opened(journal: Journal) -> BatchRecord:
    return journal.open_batch(
        NewBatch(
            "b1", OPERATION, "payroll.csv", "sha", 3, 0, by="ada", approvals=("prepared by ada", "approved by ben")
        ),
        pages=[b"page"],
        instructions=[new_instruction(row) for row in (2, 3, 4)],
        known=[],
        amendments=[],
        at=AT,
    )


def conclude(journal: Journal, batch: BatchRecord, row: int, kind: OutcomeKind, minute: int) -> int:
    found = journal.row(batch.number, row)
    assert found is not None
    number, standing = found
    order_id = next(due.order_id for due in journal.due(batch.number, after_row=row - 1, limit=1))
    attempt = standing.attempt + 1
    journal.append([Entry(number, attempt, Intended(order_id, "n" * 32, 1, "0" * 64, None), at(minute))])
    journal.append([Entry(number, attempt, Concluded(Outcome(kind)), at(minute))])
    return number


def test_deeds_are_told_in_order_and_a_runs_own_facts_are_not(journal: Journal) -> None:
    batch = opened(journal)
    doubtful = conclude(journal, batch, 2, OutcomeKind.UNKNOWN, 1)
    conclude(journal, batch, 3, OutcomeKind.REJECTED, 2)
    conclude(journal, batch, 4, OutcomeKind.PAID, 3)
    journal.append([Entry(doubtful, 1, Resolved(Resolution.PAID, "ticket 1", "cleo"), at(4))])
    journal.release(batch.number, [3], suffix=True, by="dan", at=at(5))
    told = [(deed.at, deed.kind, deed.row, deed.attempt, deed.by, deed.said) for deed in journal.deeds(batch.number)]
    assert told == [
        (AT, "opened", None, None, "ada", "3 rows of payroll.csv"),
        (AT, "approved", None, None, "", "prepared by ada"),
        (AT, "approved", None, None, "", "approved by ben"),
        (at(4), "resolved_paid", 2, 1, "cleo", "ticket 1"),
        (at(5), "released", 3, 1, "dan", "next attempt as ORD-3-r2"),
    ]
    journal.verify()


def test_deeds_of_another_batch_are_not_told(journal: Journal) -> None:
    opened(journal)
    other = journal.open_batch(
        replace(NewBatch("b2", OPERATION, "other.csv", "sha2", 1, 0), by="eve"),
        pages=[b"page"],
        instructions=[new_instruction(2, "OTHER-2")],
        known=[],
        amendments=[],
        at=at(6),
    )
    assert [(deed.kind, deed.by) for deed in journal.deeds(other.number)] == [("opened", "eve")]
