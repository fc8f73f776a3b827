"""Two people pay a sheet: corrected, longer than the last one, or given twice."""

from collections import Counter

import pytest

from tests.console.preparing import EIGHT_DEFECTS, HEADING, row, sheet
from tests.stories.drivers import Driver

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
    batch = driver.batch(payout)
    assert Counter(driver.states(batch)) == {"paid": 11, "invalid": 1}
    driver.checked()
    again = driver.prepare(sheet(2), "again.csv")
    driver.sign(again)
    driver.start(again)
    assert len(driver.sent()) == 11


def lines_without_ids(count: int = 3, first: dict[str, str] | None = None) -> bytes:
    lines = [row(1, **first or {}), *(row(n) for n in range(2, count + 1))]
    return "\n".join([NO_IDS, *(line.replace(f",P-{n},", ",") for n, line in enumerate(lines, 1))]).encode()


def pay(driver: Driver, content: bytes, name: str, *new_payees: str) -> None:
    payout = driver.prepare(content, name, "november")
    driver.answer(payout, *new_payees)
    assert [driver.sign(payout), driver.approve(payout), driver.start(payout)] == [driver.DONE] * 3


@pytest.mark.parametrize("changed", [{"amount": "999.00"}, {"name": "JANE 1"}])
def test_changed_row_of_paid_person_is_defect(driver: Driver, changed: dict[str, str]) -> None:
    pay(driver, lines_without_ids(), "november.csv")
    corrected = driver.prepare(lines_without_ids(first=changed), "corrected.csv", "november")
    assert driver.problems(corrected) == (1, "")
    driver.answer(corrected)
    assert driver.sign(corrected) != driver.DONE
    assert len(driver.sent()) == 3


def test_new_person_in_paid_run_needs_confirmation(driver: Driver) -> None:
    pay(driver, lines_without_ids(), "november.csv")
    longer = driver.prepare(lines_without_ids(4), "longer.csv", "november")
    assert driver.problems(longer) == (0, "reference.used")
    assert driver.sign(longer) != driver.DONE
    driver.answer(longer, "Jane 4")
    assert [driver.sign(longer), driver.approve(longer), driver.start(longer)] == [driver.DONE] * 3
    assert len(driver.sent()) == 4


def test_list_pasted_twice_prompts_question(driver: Driver) -> None:
    twice = lines_without_ids() + b"\n" + lines_without_ids().partition(b"\n")[2]
    payout = driver.prepare(twice, "twice.csv", "november")
    assert driver.problems(payout) == (0, "payee.twice")
    assert driver.sign(payout) != driver.DONE


def test_already_paid_sheet_prompts_question(driver: Driver) -> None:
    first = driver.prepare(sheet(4))
    assert [driver.sign(first), driver.approve(first), driver.start(first)] == [driver.DONE] * 3
    again = driver.prepare(sheet(4).replace(b"P-", b"DEC-"), "december.csv")
    assert driver.problems(again) == (0, "sheet.repeats_a_batch")
    assert driver.sign(again) != driver.DONE
    driver.answer(again)
    assert driver.problems(again) == (0, "")
    assert [driver.sign(again), driver.approve(again), driver.start(again)] == [driver.DONE] * 3
    assert len(driver.sent()) == 8
