"""Findings of the simulation in corrected sheets (`--kind corrections`), each as a small story."""

from dataclasses import replace
from pathlib import Path

import pytest

from paygw_batch.core.choices import Choices
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms
from paygw_batch.journal.file_place import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.sheet.check.validate import validate
from paygw_batch.submit.open_questions import NEW_PAYEE, USED_REFERENCE
from paygw_batch.submit.plan import Plan, open_planned_batch, plan_submission
from tests.support.scripted_scenario import NOW, ScriptedGateway, build_engine, run
from tests.support.sheet_values import KENYAN, build_sheet

RULES = load_rules("payout", {"KE": OperatorTerms(purpose="WALLET")})


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


@pytest.fixture
def journal() -> SqliteJournal:
    return in_memory_journal()


def test_payee_with_staff_number_of_other_is_reported(journal: SqliteJournal) -> None:
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
        left += (leaving := again.validated.payable - len(again.known))
        named = [question.names for question in again.questions if question.code == USED_REFERENCE]
        assert not leaving or named == [("Jane",)]
    assert left


def test_further_payment_under_different_name_is_reported(journal: SqliteJournal) -> None:
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
