"""Planning a submission: known rows, clashes and look-alikes, and what opening the batch writes."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from paygw_batch.clock import timestamp
from paygw_batch.core.choices import Choices
from paygw_batch.core.lifecycle import State
from paygw_batch.errors import InternalError, OpenSheetQuestion
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import ClockComparison
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.instructions import from_pages, to_pages
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.show.reconcile import reconciliation
from paygw_batch.submit.open_questions import NEW_PAYEE, USED_REFERENCE
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from paygw_batch.submit.submission import preview_rows
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


def test_reused_id_defect_shows_batch_and_date(journal: SqliteJournal, tmp_path: Path) -> None:
    first = submit(plan(sheet(tmp_path, "A 100 001"), journal), journal)
    for amend in (False, True):  # a paid row is never amended
        clashing = plan(sheet(tmp_path, "A 200 001", "B 100 002"), journal, amend=amend).validated
        assert clashing.defects.select("row", "code").rows() == [(2, "client_orderid.conflict")]
    assert first.batch in clashing.defects["message"][0]
    assert "2026-11-20" in clashing.defects["message"][0]
    assert clashing.rows["valid"].to_list() == [False, True]
    assert clashing.instructions["client_orderid"].to_list() == ["B"]


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
def test_recent_look_alike_warning_shows_both_ids(
    journal: SqliteJournal, tmp_path: Path, days: int, codes: list[str]
) -> None:
    submit(plan(sheet(tmp_path, "A 100 001"), journal), journal)
    warnings = plan(sheet(tmp_path, "B 100 001", "C 100 002"), journal, days=days).warnings
    assert warnings["code"].to_list() == codes
    assert all({"A", "B"} <= {*message.split()} for message in warnings["message"])


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
