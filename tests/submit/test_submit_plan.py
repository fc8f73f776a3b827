"""Planning a submission: known rows, clashes and look-alikes, and what opening the batch writes, in parts and whole."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from unittest.mock import Mock

import apsw
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paygw_batch.clock import timestamp
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError, OpenSheetQuestion, UsageError
from paygw_batch.journal.facts import decode_batch
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.sqlite.connect import check_tables
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import ClockComparison, NewBatch, NewInstruction
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.instructions import INSTRUCTION_COLUMNS, InstructionColumns, from_pages, to_pages
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.sheet.write.table import write_frame, write_pieces
from paygw_batch.show.reconcile import reconciliation, reconciliation_pieces
from paygw_batch.submit.open_questions import NEW_PAYEE, USED_REFERENCE
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from paygw_batch.submit.submission import preview_rows
from paygw_batch.submit.submit_sheet import find_unfinished_batch
from tests.support.journal_rows import (
    AT,
    WORDS,
    build_evidence,
    new_instruction,
    open_journal_at,
    open_sheet,
    resolved,
    send,
)
from tests.support.long_part import example_count, share
from tests.support.planned_sheets import MINOR_UNITS, RULES, plan, rows, sheet, submit
from tests.support.scripted_scenario import NOW, ScriptedGateway, build_engine, reply, run
from tests.support.sheet_values import KENYAN, build_sheet


@pytest.fixture
def journal() -> SqliteJournal:
    return in_memory_journal()


def test_resubmitted_sheet_sends_only_new_rows(journal: SqliteJournal, tmp_path: Path) -> None:
    first = submit(plan(sheet(tmp_path, "A 100 001", "B 100 002"), journal), journal)
    again = plan(sheet(tmp_path, "A 100 001", "B 100 002"), journal)
    assert (again.existing, again.known_row_count) == (first, 2)
    corrected = plan(sheet(tmp_path, "B 100.00 002", "C 100 003", "A 100 001"), journal)
    assert (corrected.known_row_count, corrected.validated.defects.is_empty()) == (2, True)
    gateway = ScriptedGateway()
    batch = submit(corrected, journal, gateway)
    assert gateway.arrived == ["C"]
    assert reconciliation(journal, batch, MINOR_UNITS)["state"].to_list() == ["paid"] * 3


@pytest.mark.parametrize(
    "environ", [{}, {"PANDERA_VALIDATION_ENABLED": "False"}, {"PANDERA_VALIDATION_DEPTH": "SCHEMA_ONLY"}]
)
def test_contract_catches_defect_missed_by_validation(
    journal: SqliteJournal, tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    planned = plan(sheet(tmp_path, "A 100 001"), journal)
    spoilt = planned.validated.sheet.frame.with_columns(amount=pl.lit("1e3"))
    validated = replace(planned.validated, sheet=replace(planned.validated.sheet, frame=spoilt))
    with pytest.raises(InternalError, match="amount"):
        submit(replace(planned, validated=validated), journal)
    assert journal.batches() == []


def test_unsent_row_is_sent_with_later_batch(journal: SqliteJournal, tmp_path: Path) -> None:
    first = plan(sheet(tmp_path, "A 100 001"), journal)
    open_planned_batch(first, journal, RULES, sheet_path=Path("payroll.csv"), now=lambda: NOW)
    gateway = ScriptedGateway()
    submit(plan(sheet(tmp_path, "A 100 001", "B 100 002"), journal), journal, gateway)
    assert sorted(gateway.arrived) == ["A", "B"]


def test_defect_of_reused_id_shows_batch_and_date(journal: SqliteJournal, tmp_path: Path) -> None:
    first = submit(plan(sheet(tmp_path, "A 100 001"), journal), journal)
    for amend in (False, True):  # a paid row is never amended
        clashing = plan(sheet(tmp_path, "A 200 001", "B 100 002"), journal, amend=amend).validated
        assert clashing.defects.select("row", "code").rows() == [(2, "client_orderid.conflict")]
    assert first.batch in clashing.defects["message"][0]
    assert "2026-11-20" in clashing.defects["message"][0]
    assert clashing.rows["valid"].to_list() == [False, True]
    assert clashing.instructions["client_orderid"].to_list() == ["B"]


@pytest.mark.parametrize("amend", [False, True])
@pytest.mark.parametrize(
    ("kind", "resolution", "amount", "remedy"),
    [
        (OutcomeKind.PAID, None, "150", "Restore this row. To pay KES 50 more"),
        (OutcomeKind.PAID, None, "50", "Restore this row."),
        (OutcomeKind.ACCEPTED, None, "150.00", "Restore this row. To pay KES 50.00 more, add a row"),
        (OutcomeKind.UNKNOWN, None, "150", "Settle it first"),
        (
            OutcomeKind.UNKNOWN,
            Resolution.NOT_RECEIVED,
            "150",
            "will still be sent as it was, and this row cannot replace",
        ),
        (OutcomeKind.UNKNOWN, Resolution.REJECTED, "150", "This row can replace it from"),
        (OutcomeKind.REJECTED, None, "150", "or submit the sheet with the option 'amend'"),
        (None, None, "150", "be sent as it was. Restore this row, or submit the sheet with the option 'amend'"),
    ],
)
def test_conflict_remedy_follows_earlier_payment(
    journal: SqliteJournal,
    tmp_path: Path,
    kind: OutcomeKind | None,
    resolution: Resolution | None,
    amount: str,
    remedy: str,
    *,
    amend: bool,
) -> None:
    planned = plan(sheet(tmp_path, "A 100 001"), journal)
    batch = open_planned_batch(planned, journal, RULES, sheet_path=Path("payroll.csv"), now=lambda: NOW)
    for due in send(journal, batch.number, kind, timestamp(NOW)) if kind is not None else ():
        if resolution is not None:
            journal.settle([resolved(due.number, 1, resolution, timestamp(NOW), Basis.PERSON)])
    again = plan(sheet(tmp_path, f"A {amount} 001"), journal, amend=amend)
    if amend and "or submit the sheet with the option 'amend'" in remedy:
        assert again.amendments
        return
    (message,) = again.validated.defects["message"]
    assert f"amount was 100 and is now {amount}." in message
    assert remedy in message
    assert message.count("own id") == message.count(" more, add a row for this amount")


@pytest.mark.parametrize("kind", [OutcomeKind.REJECTED, None])
def test_held_payment_is_settled_before_correction(
    journal: SqliteJournal, tmp_path: Path, kind: OutcomeKind | None
) -> None:
    planned = plan(sheet(tmp_path, "A 100 001"), journal)
    batch = open_planned_batch(planned, journal, RULES, sheet_path=Path("payroll.csv"), now=lambda: NOW)
    if kind is not None:
        send(journal, batch.number, kind, timestamp(NOW))
    journal.record_evidence([build_evidence(1, order_id="A", amount="100")], WORDS, at=timestamp(NOW))
    (message,) = plan(sheet(tmp_path, "A 150 001"), journal, amend=True).validated.defects["message"]
    assert ("now held" in message, "Settle it first" in message, "own id" in message) == (True, True, False)
    (message,) = plan(sheet(tmp_path, "B 100 001", "C 100 002"), journal).warnings["message"]
    assert "(2026-11-20, held)" in message


@pytest.mark.parametrize(("who", "is_other"), [("Jane 002", False), ("Otieno 001", False), ("Otieno 002", True)])
def test_only_another_person_gets_own_id(journal: SqliteJournal, who: str, *, is_other: bool) -> None:
    name, digits = who.split()
    cells = {**KENYAN, "account_name": "Jane", "account_number": "254712345001"}
    submit(plan(validate(build_sheet(cells), RULES), journal), journal)
    cells |= {"account_name": name, "account_number": f"254712345{digits}"}
    (message,) = plan(validate(build_sheet(cells), RULES), journal).validated.defects["message"]
    assert message.endswith("Give this row its own id only if it pays a different person.") is is_other


@pytest.mark.parametrize("kind", [OutcomeKind.PAID, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED, None])
@pytest.mark.parametrize(("people", "ends"), [("Otieno Jane", "B was used for Otieno."), ("Amani Otieno", "")])
def test_new_id_is_never_proposed_for_swapped_ids(
    journal: SqliteJournal, kind: OutcomeKind | None, people: str, ends: str
) -> None:
    def plan_people(*names: str) -> Plan:
        rows = zip("AB", names, ("1000", "2000"), strict=True)
        cells = [
            {**KENYAN, "client_orderid": order_id, "account_name": name, "amount": amount}
            | {"account_number": f"25471234500{len(name)}"}
            for order_id, name, amount in rows
        ]
        return plan(validate(build_sheet(*cells), RULES), journal)

    first = plan_people("Jane", "Otieno")
    batch = open_planned_batch(first, journal, RULES, sheet_path=Path("payroll.csv"), now=lambda: NOW)
    if kind is not None:
        send(journal, batch.number, kind, timestamp(NOW))
    again = plan_people(*people.split()).validated.defects
    message = again["message"][0]
    is_settled = kind is not OutcomeKind.UNKNOWN
    assert message.endswith(ends or "if it pays a different person.") is bool(ends or is_settled)
    assert ("own id" in message, " more, " in message) == (not ends and is_settled, False)
    assert not ends or "'amend'" not in message


def test_amended_payment_is_sent_as_next_attempt(journal: SqliteJournal, tmp_path: Path) -> None:
    declined = ScriptedGateway(lambda _order_id, _times: reply("declined"))
    old = submit(plan(sheet(tmp_path, "A 100 001"), journal), journal, declined)
    gateway = ScriptedGateway()
    new = submit(plan(sheet(tmp_path, "A 120 001"), journal, amend=True), journal, gateway)
    assert gateway.arrived == ["A-r2"]
    assert reconciliation(journal, new, MINOR_UNITS).select("state", "attempts").rows() == [("paid", 1)]
    replaced = reconciliation(journal, old, MINOR_UNITS)
    assert (replaced["state"].to_list(), new.batch in replaced["message"][0]) == (["invalid"], True)


@pytest.mark.parametrize(("days", "codes"), [(0, ["row.look_alike"]), (6, ["row.look_alike"]), (8, [])])
def test_warning_about_similar_payment_shows_both_ids(
    journal: SqliteJournal, tmp_path: Path, days: int, codes: list[str]
) -> None:
    submit(plan(sheet(tmp_path, "A 100 001"), journal), journal)
    warnings = plan(sheet(tmp_path, "B 100 001", "C 100 002"), journal, days=days).warnings
    assert warnings["code"].to_list() == codes
    assert all({"A", "B"} <= {*message.split()} for message in warnings["message"])


@pytest.mark.parametrize(
    ("kind", "state"),
    [(OutcomeKind.ACCEPTED, ""), (OutcomeKind.UNKNOWN, "in doubt"), (OutcomeKind.REJECTED, "rejected")],
)
def test_look_alike_warning_states_unpaid_payment(
    journal: SqliteJournal, tmp_path: Path, kind: OutcomeKind, state: str
) -> None:
    planned = plan(sheet(tmp_path, *rows("A", 2)), journal)
    batch = open_planned_batch(planned, journal, RULES, sheet_path=Path("payroll.csv"), now=lambda: NOW)
    send(journal, batch.number, kind, timestamp(NOW))
    (single,) = plan(sheet(tmp_path, *rows("B", 1), *rows("C", 2, 7)), journal).warnings["message"]
    assert (f"(2026-11-20, {state})" if state else "(2026-11-20)") in single
    (several,) = plan(sheet(tmp_path, *rows("B", 2), *rows("C", 3, 7)), journal).warnings["message"]
    assert (f"(rows 2 ({state}), 3 ({state}))" if state else "(rows 2, 3)") in several


def test_resume_needs_choice_among_unfinished_batches(journal: SqliteJournal, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no batches yet"):
        find_unfinished_batch(journal)
    finished = submit(plan(sheet(tmp_path, "A 100 001"), journal), journal)
    assert find_unfinished_batch(journal) == finished
    unfinished = open_sheet(journal, "b2", [new_instruction(9)])
    open_sheet(journal, "b3", [])
    assert find_unfinished_batch(journal) == unfinished
    open_sheet(journal, "b4", [new_instruction(10)])
    with pytest.raises(UsageError, match=r"Several batches have rows to send: b2 \(payroll\.csv\), b4 "):
        find_unfinished_batch(journal)


def test_preview_shows_state_of_each_row(journal: SqliteJournal, tmp_path: Path) -> None:
    submit(plan(sheet(tmp_path, "A 100 001"), journal), journal)
    planned = plan(sheet(tmp_path, "A 100 001", "B 100 002", "C x 003"), journal)
    shown = pl.concat(preview_rows(planned, journal, MINOR_UNITS))
    assert shown["state"].to_list() == ["paid", "ready", "invalid"]


@pytest.mark.parametrize("rows_a_page", [1, 2, 4])
def test_reconciliation_is_same_for_any_page_size(
    tmp_path: Path, rows_a_page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = []
    for size in (20_000, rows_a_page):
        monkeypatch.setattr("paygw_batch.sheet.instructions.ROWS_PER_PAGE", size)
        held = in_memory_journal()
        batch = submit(plan(sheet(tmp_path, "A 100 001", "B 0 002", "C 0 003", "D 4 004", "E 5 005"), held), held)
        assert len(list(held.pages(batch.number))) == -(-5 // size)
        frames.append(reconciliation(held, batch, MINOR_UNITS))
    assert frames[0]["state"].to_list() == ["paid", "invalid", "invalid", "paid", "paid"]
    assert frames[0].equals(frames[1])


def test_sheet_column_may_share_journal_column_name(journal: SqliteJournal, tmp_path: Path) -> None:
    path = tmp_path / "payroll.csv"
    path.write_text(
        "country,client_orderid,amount,account_name,account_number,phone,minor,sent_purpose,gateway_message\n"
        "KE,A,100,Jane,254712345001,+254712345001,MINOR,WHY,WHAT\n"
    )
    batch = submit(plan(validate(read_sheet(path, ReadOptions()), RULES), journal), journal)
    frame = reconciliation(journal, batch, MINOR_UNITS)
    assert frame.select("state", "purpose", "minor", "sent_purpose", "gateway_message").rows() == [
        ("paid", "WALLET", "MINOR", "WHY", "WHAT")
    ]


def test_reconciliation_is_repeatable_and_covers_every_row(
    journal: SqliteJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = submit(plan(sheet(tmp_path, "A 100 001", "B 100 002"), journal), journal)
    first, second = (reconciliation(journal, batch, MINOR_UNITS) for _ in range(2))
    assert first.equals(second)
    assert (first.columns[-1], first["note"].to_list()) == ("note", ["n-A", "n-B"])
    first_row = list(to_pages(from_pages(journal.pages(batch.number)).head(1)))
    monkeypatch.setattr(journal, "pages", lambda _batch: iter(first_row))
    with pytest.raises(InternalError, match="rows that its sheet does not have"):
        reconciliation(journal, batch, MINOR_UNITS)


def test_row_in_flight_is_shown_as_in_doubt(journal: SqliteJournal, tmp_path: Path) -> None:
    planned, gateway, seen = plan(sheet(tmp_path, "A 100 001"), journal), ScriptedGateway(), list[pl.DataFrame]()
    gateway.before_answer = lambda _id: seen.append(reconciliation(journal, journal.batches()[0], MINOR_UNITS))
    batch = submit(planned, journal, gateway)
    assert seen[0]["state"].to_list() == [State.IN_DOUBT.value]
    assert reconciliation(journal, batch, MINOR_UNITS)["state"].to_list() == ["paid"]


def test_respelled_id_is_defect_even_with_amend(journal: SqliteJournal, tmp_path: Path) -> None:
    first = submit(plan(sheet(tmp_path, "PAY-É 100 001"), journal), journal)
    for amend in (False, True):
        clashing = plan(sheet(tmp_path, "pay\u2010e\u0301 200 001", "B 100 002"), journal, amend=amend).validated
        assert clashing.defects.select("row", "code").rows() == [(2, "client_orderid.look_alike")]
        assert f"PAY-É, which was used on 2026-11-20 (batch {first.batch})" in clashing.defects["message"][0]
        assert clashing.instructions["client_orderid"].to_list() == ["B"]


@pytest.mark.parametrize(("days", "repeats"), [(0, True), (4, True), (5, False)])
def test_repeated_sheet_is_reported_once_and_not_opened(
    journal: SqliteJournal, tmp_path: Path, days: int, repeats: bool
) -> None:
    before = submit(plan(sheet(tmp_path, *rows("A", 6)), journal), journal)
    planned = plan(sheet(tmp_path, *rows("B", 5), *rows("B", 4, 50)), journal, days=days)
    assert planned.warnings["code"].to_list() == (["sheet.repeats_a_batch"] if repeats else ["row.look_alike"])
    if repeats:
        assert [question.key for question in planned.questions] == [f"sheet.repeats_a_batch {before.batch}"]
        with pytest.raises(OpenSheetQuestion, match="5 of 9 rows"):
            submit(planned, journal)
        assert len(journal.batches()) == 1


def test_look_back_uses_gateway_clock(journal: SqliteJournal, tmp_path: Path) -> None:
    submit(plan(sheet(tmp_path, *rows("A", 3)), journal), journal)
    journal.settle([], note=ClockComparison(timestamp(NOW), timestamp(NOW + timedelta(days=1)), ahead_s=-86_400))
    assert plan(sheet(tmp_path, *rows("B", 3)), journal, days=5).questions
    assert not plan(sheet(tmp_path, *rows("B", 3)), journal, days=6).questions


def test_repeat_question_shows_most_repeated_batch(journal: SqliteJournal, tmp_path: Path) -> None:
    for batch in range(3):  # a small overlap with each raises no question
        submit(plan(sheet(tmp_path, *rows("A", 3, 1 + 3 * batch)), journal), journal)
    planned = plan(sheet(tmp_path, *rows("B", 9)), journal)
    assert not planned.questions
    assert planned.warnings.select("row", "code").rows() == [(0, "row.look_alike")] * 3
    journal = in_memory_journal()
    most = submit(plan(sheet(tmp_path, *rows("A", 5)), journal), journal)
    submit(plan(sheet(tmp_path, *rows("C", 1, 6), *rows("C", 2, 60)), journal), journal)
    planned = plan(sheet(tmp_path, *rows("B", 6)), journal)
    assert [question.subject for question in planned.questions] == [most.batch]
    assert planned.warnings.select("row", "code").rows() == [(0, "sheet.repeats_a_batch"), (7, "row.look_alike")]


# Findings of the simulation in corrected sheets, each as a small story.
def plan_sheet_of(journal: SqliteJournal, *rows: str, name: str = "pay.csv") -> Plan:
    """Plan a sheet of (name, account's last digits, amount, staff number) rows under one reference."""
    cells = []
    for row in rows:
        person, digits, amount, *staff = row.split()
        line = {**KENYAN, "account_name": person, "account_number": f"254712345{digits}", "amount": amount}
        del line["client_orderid"]
        cells.append({**line, "staff_number": staff[0]} if staff else line)
    validated = validate(replace(build_sheet(*cells), name=name), RULES, reference="october")
    return plan_submission(validated, journal, Choices(), now=lambda: NOW, quarantine_h=24)


def pay(journal: SqliteJournal, plan: Plan) -> list[str]:
    """Open a planned batch, answering yes to every question. Return the order ids that were sent."""
    batch = open_planned_batch(plan, journal, RULES, sheet_path=Path("pay.csv"), now=lambda: NOW, is_answered=True)
    gateway = ScriptedGateway()
    run(build_engine(journal, gateway), batch)
    return gateway.arrived


@pytest.mark.parametrize(
    ("changed", "column", "difference"),
    [
        ({"phone": "+254712345099"}, "phone", "phone was +254712345678 and is now +254712345099."),
        ({"amount": "2000"}, "amount", "amount was 1500.50 and is now 2000."),
        ({"staff_number": "7"}, "staff_number", "staff_number was empty and is now 7."),
    ],
)
def test_conflict_shows_differing_column(
    journal: SqliteJournal, changed: dict[str, str], column: str, difference: str
) -> None:
    cells = {name: value for name, value in KENYAN.items() if name != "client_orderid"}
    for values in ({}, changed):
        planned = plan(validate(build_sheet({**cells, **values}), RULES, reference="october"), journal)
        if not values:
            pay(journal, planned)
    assert planned.validated.defects["column"].to_list() == [column]
    assert difference in planned.validated.defects["message"][0]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (OutcomeKind.PAID, "on another worksheet. If this row is the same payment, delete it. If not, pay"),
        (
            OutcomeKind.REJECTED,
            "rejected. If this row is the same payment, delete it, and retry the earlier one or amend",
        ),
        (OutcomeKind.UNKNOWN, "Settle it first"),
        (None, "will still be sent as it was. If this row is the same payment, delete it."),
    ],
)
@pytest.mark.parametrize("amount", ["1000", "1100"])
def test_conflict_with_other_worksheet_restores_nothing(
    journal: SqliteJournal, kind: OutcomeKind | None, remedy: str, amount: str
) -> None:
    first = plan_sheet_of(journal, "Jane 001 1000", name="pay.xlsx [May]")
    batch = open_planned_batch(first, journal, RULES, sheet_path=Path("pay.xlsx"), now=lambda: NOW)
    if kind is not None:
        send(journal, batch.number, kind, timestamp(NOW))
    again = plan_sheet_of(journal, f"Jane 001 {amount}", "Otieno 002 1100", name="pay.xlsx [June]")
    (message,) = again.validated.defects["message"]
    assert (remedy in message, "Restore" in message, " more, " in message) == (True, False, False)


def test_conflict_after_deletion_restores_deleted_row(journal: SqliteJournal) -> None:
    pay(journal, plan_sheet_of(journal, "Jane 001 1000", "Jane 001 50"))
    kept = [plan_sheet_of(journal, f"Jane 001 {amount}").validated.defects["message"] for amount in ("1000", "50")]
    (message,) = (message for messages in kept for message in messages)
    assert message.endswith("If one of their rows was deleted, restore it.")


def test_payee_with_another_payees_staff_number_is_reported(journal: SqliteJournal) -> None:
    pay(journal, plan_sheet_of(journal, "Jane 001 1000 1", "Otieno 002 1100 2"))
    again = plan_sheet_of(journal, "Jane 001 1000 1", "Otieno 002 1100 1", "Amani 003 1200 3")
    (used,) = [question for question in again.questions if question.code == USED_REFERENCE]
    assert sorted(used.names) == ["Amani", "Otieno"]
    assert [row for row, _, code, _ in used.people if code == NEW_PAYEE] == [3, 4]


def test_account_changed_to_known_account_is_reported(journal: SqliteJournal) -> None:
    """A salary went to a wrong account and a bonus to the right one. Then both get the right one."""
    pay(journal, plan_sheet_of(journal, "Jane 009 1000", "Jane 001 50"))
    left = 0
    for salary in ("1000", "1500", "2000", "3000"):  # the numbers of a payee's payments are derived from their content
        again = plan_sheet_of(journal, f"Jane 001 {salary}", "Jane 001 50")
        left += (leaving := again.validated.payable_count - len(again.known))
        named = [question.names for question in again.questions if question.code == USED_REFERENCE]
        assert not leaving or named == [("Jane",)]
    assert left


def test_second_payment_under_different_name_is_reported(journal: SqliteJournal) -> None:
    """The accounts of two bonuses are swapped: one row conflicts, the other looks like a further payment."""
    pay(journal, plan_sheet_of(journal, "Jane 001 1000", "Otieno 002 1100", "Otieno 002 1100"))
    again = plan_sheet_of(journal, "Jane 001 1000", "Otieno 002 1100", "Otieno 001 1100", "Jane 002 70")
    assert again.validated.rows["valid"].to_list() == [True, True, True, False]
    assert [question.names for question in again.questions if question.code == USED_REFERENCE] == [("Otieno",)]


def test_refused_row_is_not_counted_as_known(journal: SqliteJournal) -> None:
    pay(journal, plan_sheet_of(journal, "Jane 001 1000", name="pay.xlsx [May]"))
    june = plan_sheet_of(journal, "Jane 001 1000", "Otieno 002 1100", name="pay.xlsx [June]")
    assert june.validated.rows["valid"].to_list() == [False, True]
    assert june.known_row_count == 0
    assert len(pay(journal, june)) == 1


# A large sheet that is opened part by part gives the same batch as in one piece.


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces and pages small, so that every batch needs several and is sorted."""
    monkeypatch.setattr("paygw_batch.sheet.check.tally.ROWS_AT_ONCE", 9)
    monkeypatch.setattr("paygw_batch.sheet.instructions.ROWS_PER_PAGE", 25)
    monkeypatch.setattr("paygw_batch.sheet.instructions._ROWS_AT_ONCE", 7)
    monkeypatch.setattr("paygw_batch.journal.sqlite.sqlite_tables._MIN_SORTED", 1)
    monkeypatch.setattr("paygw_batch.journal.sqlite.sqlite_tables._MAX_SORTED", 200)
    monkeypatch.setattr("paygw_batch.journal.new_batch.urandom", bytes)


def write(path: Path, ids: list[str]) -> Path:
    lines = ["country,client_orderid,amount,currency,account_name,account_number,phone,note"]
    for n, order_id in enumerate(ids):
        lines.append(f'KE,{order_id},100,KES,"Jane ""J"" \\ Otieno",2547120{n:05},+2547120{n:05},n-{order_id}')
    path.write_text("\n".join(lines) + "\n")
    return path


def ids(count: int) -> list[str]:
    validated = [f"ID-{n}" for n in range(count)]
    Random(1).shuffle(validated)  # noqa: S311 (a sheet in no order, not a secret)
    return validated


def check_in_parts(path: Path) -> Validated:
    validated = validate(read_sheet(path, ReadOptions()), RULES)
    assert sum(1 for _ in validated.parts()) > 2
    return validated


def check_in_one_piece(path: Path) -> Validated:
    """Check a sheet in one piece, so that all its later processing uses that piece."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("paygw_batch.sheet.check.tally.ROWS_AT_ONCE", 1_000)
        validated = validate(read_sheet(path, ReadOptions()), RULES)
    assert validated.streamed is None
    return validated


def open_and_read(made: Plan, journal: SqliteJournal) -> None:
    open_planned_batch(made, journal, RULES, sheet_path=Path("/p.csv"), now=lambda: NOW, is_answered=True)


def journal_content(journal: SqliteJournal) -> tuple[object, ...]:
    """Return everything that a journal stores about its batches. The pages of the same rows may have other bytes."""
    assert journal.verify()["batches"] == len(journal.batches())
    check_tables(journal._connection, journal.path)
    pages = [from_pages(journal.pages(batch.number)).rows() for batch in journal.batches()]
    details = journal._connection.execute("SELECT details FROM fact WHERE kind = 'batch_opened'")
    openings = [replace(decode_batch(opening), pages_sha256="") for (opening,) in details]
    tables = ("batch", "instruction", "known", "order_id", "order_id_spelling", "state")
    lines = [journal._connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]  # noqa: S608
    return pages, openings, lines


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("order", share([reversed, list, sorted], every=3))
@pytest.mark.parametrize("names", share([["id", "Zoë"], ["id"]], every=2))
def test_reading_sheet_in_parts_opens_same_batch(
    tmp_path: Path, order: Callable[[list[str]], Iterable[str]], names: list[str]
) -> None:
    named = [f"{names[n % len(names)]}-{order_id}" for n, order_id in enumerate(ids(120))]
    path = write(tmp_path / "p.csv", [*order(named)])
    in_parts, whole = in_memory_journal(), in_memory_journal()
    open_and_read(plan(check_in_parts(path), in_parts), in_parts)
    open_and_read(plan(check_in_one_piece(path), whole), whole)
    assert journal_content(in_parts) == journal_content(whole)
    assert (len(list(in_parts.pages(1))), in_parts.verify()["order_ids"]) == (5, 120)


@pytest.mark.share(2)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("amend", [False, True])
def test_known_and_changed_rows_are_found_across_parts(tmp_path: Path, amend: bool) -> None:
    some, changed = ids(120), tmp_path / "q.csv"
    path = write(tmp_path / "p.csv", some)
    write(changed, [*some[:40], *(f"new-{n}" for n in range(30)), "id-7"])
    changed.write_text(changed.read_text().replace("100,KES", "101,KES", 25))  # the first rows have another amount
    journals = in_memory_journal(), in_memory_journal()
    for journal in journals:
        open_and_read(plan(check_in_parts(path), journal), journal)
    first = plan(check_in_parts(changed), journals[0], amend=amend)
    second = plan(check_in_one_piece(changed), journals[1], amend=amend)
    assert (first.known, first.amendments) == (second.known, second.amendments)
    assert (len(first.known), len(first.amendments)) == (15, 25 if amend else 0)
    assert first.validated.defects.equals(second.validated.defects)
    assert set(first.validated.defects["code"]) >= {"client_orderid.look_alike"}
    assert first.warnings.equals(second.warnings)
    assert (first.validated.batch, first.questions) == (second.validated.batch, second.questions)
    for made, journal in zip((first, second), journals, strict=True):
        open_and_read(made, journal)
    assert journal_content(journals[0]) == journal_content(journals[1])
    assert journals[0].verify()["batches"] == 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", ["", "_record", "_apply_amendments"])
def test_failure_to_open_batch_leaves_journal_unchanged(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Its last rows cannot be read, or a step of the journal fails."""
    journal = in_memory_journal()
    open_sheet(journal, pages=list(to_pages(pl.DataFrame({"row": [2]}))))
    before = journal_content(journal)

    def parts() -> Iterator[BatchPart]:
        for row in range(2, 50):
            yield BatchPart([b"page"], InstructionRows([new_instruction(row, f"more-{row}")]))
        if not step:
            raise KeyboardInterrupt

    if step:
        monkeypatch.setattr(journal, step, Mock(side_effect=KeyboardInterrupt))
    new = NewBatch("b2", "payout", "p.csv", "sha", 48, 0)
    with pytest.raises(KeyboardInterrupt):
        journal.open_batch(new, parts=parts(), known=[], amendments=[], at=AT)
    monkeypatch.undo()
    check_tables(journal._connection, journal.path)
    assert journal_content(journal) == before


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", ["_record", "_apply_amendments", "_commit"])
def test_kill_while_opening_batch_preserves_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    tmp_path.chmod(0o700)
    with closing(open_journal_at(tmp_path)) as journal:
        open_sheet(journal)
        journal._connection.pragma("cache_size", 1)  # pages reach the disk before the commit

        def killed(*_: object) -> None:
            shutil.copytree(journal.path.parent, tmp_path / "left")
            raise KeyboardInterrupt

        monkeypatch.setattr(journal, step, killed)
        with pytest.raises(KeyboardInterrupt):
            open_sheet(journal, "b2", [new_instruction(row, f"more-{row}") for row in range(2, 500)])
    with closing(apsw.Connection(str(tmp_path / "left" / journal.path.name))) as again:
        check_tables(again, journal.path)
        assert [*again.execute("SELECT batch FROM batch")] == [("b1",)]
        assert [*again.execute("PRAGMA integrity_check")] == [("ok",)]


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
"""Valid contents of a field: line breaks and other control characters are refused."""


def instruction_columns(news: Sequence[NewInstruction]) -> InstructionColumns:
    schema = dict.fromkeys(INSTRUCTION_COLUMNS, pl.String) | {"row": pl.UInt32, "minor": pl.Int64}
    return InstructionColumns(pl.DataFrame(news, schema=schema, orient="row"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, TEXTS, st.integers(0, 2**62), st.booleans()), max_size=30),
    first=st.integers(1, 10**12),
)
@example(rows=[("", "", "", 0, False)] * 2, first=2**32 - 2)
def test_columns_and_rows_give_same_instructions(rows: list[tuple[str, str, str, int, bool]], first: int) -> None:
    news = []
    for n, (name, fields, payee, minor, _) in enumerate(rows, start=2):
        content = (name, f"{name}{fields}", f"{fields}{name}", f"\x1f{name}{fields}")[minor % 4]
        paid = ("KE" if n % 2 else "UG", "KES" if n % 3 else "UGX", f'"{minor}"', minor)
        news.append(NewInstruction(n, f"{name}-{n}", *paid, "account", fields, payee, content))
    replaced = {new.row: new.row * 7 for new, (*_, is_replacing) in zip(news, rows, strict=True) if is_replacing}
    columns, in_rows = instruction_columns(news), InstructionRows(news)
    assert b"".join(columns.canonical_texts(first, replaced)) == b"".join(in_rows.canonical_texts(first, replaced))
    assert columns.totals() == in_rows.totals()
    assert columns.have_ascii_ids() == in_rows.have_ascii_ids()
    assert [*columns.shortened_rows("\x1f")] == [*in_rows.shortened_rows("\x1f")]
    assert [*map(NewInstruction._make, columns)] == news


NAMES = ("account_name", "account_number", "country", "purpose", "receiver_phone", "email", "username", "names")
SAID = st.text(st.one_of(st.sampled_from('":,{}\\ aé'), st.characters(codec="utf-8", categories=["L", "N", "P"])))


@settings(deadline=None, max_examples=example_count(50))
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), SAID), max_size=5))
def test_payee_index_matches_stored_payments(rows: list[dict[str, str]]) -> None:
    journal = in_memory_journal()
    fields = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    news = [new_instruction(n)._replace(fields=text) for n, text in enumerate(fields, start=2)]
    new, parts = (
        NewBatch("b1", "payout", "p.csv", "sha", len(news), 0),
        [BatchPart([b"page"], instruction_columns(news))],
    )
    journal.open_batch(new, parts=parts, known=[], amendments=[], at=AT)
    assert journal.verify()["instructions"] == len(rows)


@pytest.mark.share(2)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_reconciliation_in_pieces_is_whole_or_unwritten(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = in_memory_journal()
    open_and_read(plan(check_in_parts(write(tmp_path / "p.csv", ids(120))), journal), journal)
    (batch,) = journal.batches()
    whole, in_pieces, out = (tmp_path / f"{name}.{ending}" for name in ("whole", "pieces", "out"))
    write_frame(reconciliation(journal, batch, MINOR_UNITS), whole)
    write_pieces(reconciliation_pieces(journal, batch, MINOR_UNITS), in_pieces)
    if ending == "csv":
        assert in_pieces.read_bytes() == whole.read_bytes()
    else:
        assert pl.read_parquet(in_pieces).equals(pl.read_parquet(whole))
        assert pl.read_parquet(whole).height == 120
    pages = list(journal.pages(batch.number))
    reasons = ((pages[:-1], "rows that its sheet does not have"), ([*pages, pages[-1]], r"row twice|disagree"))
    for wrong, reason in reasons:
        monkeypatch.setattr(journal, "pages", lambda _batch, wrong=wrong: iter(wrong))
        with pytest.raises(InternalError, match=reason):
            write_pieces(reconciliation_pieces(journal, batch, MINOR_UNITS), out)
    assert not out.exists()
