"""A person withdraws a payout that others approved: no copy of it is paid."""

import shutil

import pytest

from tests.console.preparing import sheet
from tests.stories.drivers import Driver
from tests.support.people import APPROVER, MAKER

people = pytest.mark.parametrize("by", [MAKER, APPROVER])


def approved(driver: Driver) -> str:
    payout = driver.prepare(sheet(2))
    assert [driver.sign(payout), driver.approve(payout)] == [driver.DONE] * 2
    return payout


@people
def test_copy_of_withdrawn_payout_is_not_paid(driver: Driver, by: str) -> None:
    payout = approved(driver)
    copy = shutil.copy(driver.plan(payout), driver.program.home / "copy.json")
    assert driver.withdraw(payout, by) == driver.DONE
    assert driver.start(payout) == driver.OUTDATED
    shutil.copy(copy, driver.plan(payout))
    assert driver.start(payout) == driver.OUTDATED
    assert driver.approve(payout) == driver.OUTDATED
    assert driver.submit(payout) == "8"
    assert (driver.sent(), driver.checked()["withdrawals"]) == ([], 1)
    driver.plan(payout).unlink()
    assert [driver.sign(payout), driver.approve(payout), driver.start(payout)] == [driver.DONE] * 3
    assert driver.sent() == ["P-1", "P-2"]


@people
def test_payout_can_be_withdrawn_while_another_runs(driver: Driver, by: str) -> None:
    payout = approved(driver)
    with driver.other_run():
        assert driver.withdraw(payout, by) == driver.DONE
    assert driver.start(payout) == driver.OUTDATED
    assert (driver.sent(), driver.checked()["withdrawals"]) == ([], 1)


def test_started_payout_cannot_be_withdrawn(driver: Driver) -> None:
    payout = approved(driver)
    assert driver.start(payout) == driver.DONE
    for by in (MAKER, APPROVER):
        assert driver.withdraw(payout, by) == driver.OUTDATED
    assert driver.states(driver.batch(payout)) == ["paid", "paid"]
    assert "withdrawals" not in driver.checked()
