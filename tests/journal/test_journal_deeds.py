"""The history of people's acts is read from the facts, in both stores."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from paygw_batch.core.lifecycle import Concluded, FactKind, Intended, Resolution, Resolved, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.values import BatchRecord, Entry, KnownRow, NewBatch
from tests.support.journal_rows import (
    AT,
    OPERATION,
    at,
    memory_journal,
    new_instruction,
    open_sheet,
    resolved,
    row_of,
    send,
)
from tests.support.tested_journal import Journal


def open_first_batch(journal: Journal) -> BatchRecord:
    return journal.open_batch(
        NewBatch(
            "b1", OPERATION, "payroll.csv", "sha", 3, 0, by="ada", approvals=("prepared by ada", "approved by ben")
        ),
        parts=[BatchPart([b"page"], InstructionRows(new_instruction(row) for row in (2, 3, 4)))],
        known=[],
        amendments=[],
        at=AT,
    )


def conclude_row(journal: Journal, batch: BatchRecord, row: int, kind: OutcomeKind, minute: int) -> int:
    row_state = row_of(journal, batch.number, row)
    number = row_state.instruction
    order_id = next(due.order_id for due in journal.due(batch.number, after_row=row - 1, limit=1))
    attempt = row_state.attempt + 1
    journal.append([Entry(number, attempt, Intended(order_id, "n" * 32, 1, None), at(minute))])
    journal.append([Entry(number, attempt, Concluded(Outcome(kind)), at(minute))])
    return number


def test_history_lists_human_acts_in_order(journal: Journal) -> None:
    batch = open_first_batch(journal)
    doubtful = conclude_row(journal, batch, 2, OutcomeKind.UNKNOWN, 1)
    conclude_row(journal, batch, 3, OutcomeKind.REJECTED, 2)
    conclude_row(journal, batch, 4, OutcomeKind.PAID, 3)
    journal.append([Entry(doubtful, 1, Resolved(Resolution.PAID, "ticket 1", "cleo"), at(4))])
    journal.release(batch.number, [3], suffix=True, by="dan", at=at(5))
    histories = [
        (entry.at, entry.kind, entry.row, entry.attempt, entry.by, render_record(entry.said))
        for entry in journal.history(batch.number)
    ]
    assert histories == [
        (AT, "opened", None, None, "ada", "3 rows of payroll.csv"),
        (AT, "approved", None, None, "", "prepared by ada"),
        (AT, "approved", None, None, "", "approved by ben"),
        (at(4), "resolved_paid", 2, 1, "cleo", "ticket 1"),
        (at(5), "released", 3, 1, "dan", "next attempt as ORD-3-r2"),
    ]
    journal.verify()


def test_history_omits_acts_on_other_batch(journal: Journal) -> None:
    open_first_batch(journal)
    other = journal.open_batch(
        replace(NewBatch("b2", OPERATION, "other.csv", "sha2", 1, 0), by="eve"),
        parts=[BatchPart([b"page"], InstructionRows([new_instruction(2, "OTHER-2")]))],
        known=[],
        amendments=[],
        at=at(6),
    )
    assert [(entry.kind, entry.by) for entry in journal.history(other.number)] == [("opened", "eve")]


def test_act_on_shared_row_appears_in_both_histories(journal: Journal) -> None:
    open_sheet(journal, new=2)
    send(journal, 1, OutcomeKind.REJECTED)
    open_sheet(journal, "b2", [new_instruction(2, "NEW")], known=[KnownRow(7, 2, State.REJECTED)])
    journal.release(2, [7], suffix=False, by="dan", at=at(5))
    histories = [[(entry.kind, entry.row) for entry in journal.history(batch)] for batch in (1, 2)]
    assert histories == [[("opened", None), ("released", 3)], [("opened", None), ("released", 7)]]


def test_history_index_excludes_only_run_facts() -> None:
    indexed = {kind for kind in FactKind if "rel" <= kind < "s"}
    of_a_run = {FactKind.INTENDED, FactKind.INTERRUPTED, *(FactKind(kind.value) for kind in OutcomeKind)}
    assert indexed == set(FactKind) - of_a_run


def count_steps(ask: Callable[[Journal], object], rows: int) -> int:
    """Return the number of steps, in hundreds, of a query on a batch of `rows` rows with two in doubt."""
    step_count = 0

    def count_step() -> bool:
        nonlocal step_count
        step_count += 1
        return False

    with closing(memory_journal()) as journal:
        open_sheet(journal, new=[new_instruction(row) for row in range(2, rows)])
        send(journal, 1, OutcomeKind.PAID)
        open_sheet(journal, "b2", new=[new_instruction(row, f"NEW-{row}") for row in (2, 3)])
        send(journal, 2, OutcomeKind.UNKNOWN)
        journal.settle([resolved(row_of(journal, 2, 2).instruction, 1, Resolution.PAID, at(4))])
        journal._connection.set_progress_handler(count_step, 100)
        ask(journal)
        journal._connection.set_progress_handler(None)
    return step_count


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "ask",
    [
        lambda journal: row_of(journal, 1, 3),
        lambda journal: list(journal.rows(1, after=2, limit=5)),
        lambda journal: list(journal.rows(1, numbers=[3, 4], states={State.PAID})),
        lambda journal: list(journal.rows(1, states={State.IN_DOUBT})),
        lambda journal: journal.history(1),
        lambda journal: journal.history(2),
        lambda journal: journal.customer_urls(2),
    ],
    ids=["row", "page", "rows in a state", "in doubt", "deeds", "deeds of a small batch", "pages to pay"],
)
def test_query_about_few_rows_ignores_batch_size(ask: Callable[[Journal], object]) -> None:
    assert count_steps(ask, 4000) <= count_steps(ask, 40) + 2
