"""Two people pay a sheet: corrected, longer than the last one, given twice, approved by one of them, and withdrawn."""

import shutil
from collections import Counter

import pytest

from tests.console.preparing import EIGHT_DEFECTS, HEADING, row, sheet
from tests.stories.drivers import Driver
from tests.support.people import APPROVER, MAKER, add_role
from tests.support.program import Program

NO_IDS = HEADING.replace("Client Order ID,", "")


def test_corrected_sheet_is_approved_and_paid(driver: Driver) -> None:
    payout = driver.prepare(sheet(wrong=EIGHT_DEFECTS))
    assert driver.problems(payout) == (8, "")
    for number, column, text in (
        *((4, "amount", "1250.00"), (5, "amount", "112.00"), (6, "country", "KE"), (7, "account_name", "Halima Abdi")),
        *((8, "currency", "KES"), (11, "client_orderid", "P-10")),
    ):
        driver.correct(payout, number, column, text)
    driver.leave_out(payout, 9)
    assert [driver.sign(payout), driver.start(payout)] == [driver.DONE, driver.OUTDATED]
    assert [driver.approve(payout), driver.start(payout)] == [driver.DONE] * 2
    assert sorted(driver.sent()) == sorted(f"P-{n}" for n in range(1, 13) if n != 8)
    assert Counter(driver.states(driver.batch(payout))) == {"paid": 11, "invalid": 1}
    driver.checked()
    again = driver.prepare(sheet(2), "again.csv")
    driver.sign(again)
    driver.start(again)
    assert len(driver.sent()) == 11


def lines_without_ids(count: int = 3, first: dict[str, str] | None = None) -> bytes:
    lines = [row(1, **first or {}), *(row(n) for n in range(2, count + 1))]
    return "\n".join([NO_IDS, *(line.replace(f",P-{n},", ",") for n, line in enumerate(lines, 1))]).encode()


def pay(driver: Driver, payout: str) -> None:
    assert [driver.sign(payout), driver.approve(payout), driver.start(payout)] == [driver.DONE] * 3


def test_paid_run_accepts_only_confirmed_new_people(driver: Driver) -> None:
    november = driver.prepare(lines_without_ids(), "november.csv", "november")
    driver.answer(november)
    pay(driver, november)
    for field, text in (("amount", "999.00"), ("name", "JANE 1")):
        corrected = driver.prepare(lines_without_ids(first={field: text}), f"{field}.csv", "november")
        assert driver.problems(corrected) == (1, "")
        driver.answer(corrected)
        assert driver.sign(corrected) != driver.DONE
    longer = driver.prepare(lines_without_ids(4), "longer.csv", "november")
    assert driver.problems(longer) == (0, "reference.used")
    assert driver.sign(longer) != driver.DONE
    assert len(driver.sent()) == 3
    driver.answer(longer, "Jane 4")
    pay(driver, longer)
    assert len(driver.sent()) == 4


def test_repeated_list_or_sheet_prompts_question(driver: Driver) -> None:
    twice = lines_without_ids() + b"\n" + lines_without_ids().partition(b"\n")[2]
    pasted = driver.prepare(twice, "twice.csv", "november")
    assert (driver.problems(pasted), driver.sign(pasted) != driver.DONE) == ((0, "payee.twice"), True)
    pay(driver, driver.prepare(sheet(4)))
    again = driver.prepare(sheet(4).replace(b"P-", b"DEC-"), "december.csv")
    assert (driver.problems(again), driver.sign(again) != driver.DONE) == ((0, "sheet.repeats_a_batch"), True)
    driver.answer(again)
    assert driver.problems(again) == (0, "")
    pay(driver, again)
    assert len(driver.sent()) == 8


@pytest.fixture
def both_may_do_all(company: Program) -> None:
    add_role(company, APPROVER, "makers")
    add_role(company, MAKER, "approvers")


@pytest.mark.usefixtures("both_may_do_all")
def test_only_another_person_can_approve(driver: Driver) -> None:
    payout = driver.prepare(sheet(2))
    assert driver.sign(payout) == driver.DONE
    assert driver.approve(payout, MAKER) == driver.FORBIDDEN
    assert driver.start(payout) == driver.OUTDATED
    assert driver.sent() == []
    assert [driver.approve(payout), driver.start(payout)] == [driver.DONE] * 2
    batch = driver.batch(payout)
    assert driver.history(batch)[1:3] == [(f"prepared by {MAKER}", ""), (f"approved by {APPROVER}", "")]


def test_approval_is_valid_only_for_its_content(driver: Driver) -> None:
    payout = driver.prepare(sheet(2))
    changes = {"amount": "101.01", "account_number": "254712345999", "account_name": "John 1"}
    for column, text in changes.items():
        assert [driver.sign(payout), driver.approve(payout)] == [driver.DONE] * 2
        driver.correct(payout, 2, column, text)
        assert (driver.start(payout), driver.sent()) == (driver.OUTDATED, []), column
    pay(driver, payout)
    paid = driver.reconciliation(driver.batch(payout))[0]
    assert {column: paid[column] for column in changes} == changes


@pytest.mark.parametrize("by", [MAKER, APPROVER])
def test_copy_of_withdrawn_payout_is_not_paid(driver: Driver, by: str) -> None:
    payout = driver.prepare(sheet(2))
    assert [driver.sign(payout), driver.approve(payout)] == [driver.DONE] * 2
    copy = shutil.copy(driver.plan(payout), driver.program.home / "copy.json")
    with driver.other_run():
        assert driver.withdraw(payout, by) == driver.DONE
    assert driver.start(payout) == driver.OUTDATED
    shutil.copy(copy, driver.plan(payout))
    assert [driver.start(payout), driver.approve(payout)] == [driver.OUTDATED] * 2
    assert driver.submit(payout) == "8"
    assert (driver.sent(), driver.checked()["withdrawals"]) == ([], 1)
    driver.plan(payout).unlink()
    pay(driver, payout)
    assert driver.sent() == ["P-1", "P-2"]
    for person in (MAKER, APPROVER):
        assert driver.withdraw(payout, person) == driver.OUTDATED
    assert driver.states(driver.batch(payout)) == ["paid", "paid"]
    assert driver.checked()["withdrawals"] == 1
