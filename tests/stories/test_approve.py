"""Who may approve a payout, and what the approval holds for."""

import re

import pytest

from tests.console.preparing import sheet
from tests.stories.drivers import Driver
from tests.support.people import APPROVER, MAKER
from tests.support.program import Program


@pytest.fixture
def company(company: Program) -> Program:
    """Let both people prepare and approve."""
    text = company.config.read_text()
    keys = {name: re.findall(rf'"{name}" = "\S+"', text)[0] for name in (MAKER, APPROVER)}
    text = text.replace("[approval.makers]\n", f"[approval.makers]\n{keys[APPROVER]}\n")
    company.config.write_text(text.replace("[approval.approvers]\n", f"[approval.approvers]\n{keys[MAKER]}\n"))
    return company


def test_only_another_person_can_approve(driver: Driver) -> None:
    payout = driver.prepare(sheet(2))
    assert driver.sign(payout) == driver.DONE
    assert driver.approve(payout, MAKER) == driver.FORBIDDEN
    assert driver.start(payout) == driver.OUTDATED
    assert driver.sent() == []
    assert [driver.approve(payout), driver.start(payout)] == [driver.DONE] * 2
    batch = driver.batch(payout)
    assert driver.history(batch)[1:3] == [(f"prepared by {MAKER}", ""), (f"approved by {APPROVER}", "")]


@pytest.mark.parametrize(
    ("column", "text"), [("amount", "101.01"), ("account_number", "254712345999"), ("account_name", "John 1")]
)
def test_approval_is_valid_only_for_its_content(driver: Driver, column: str, text: str) -> None:
    payout = driver.prepare(sheet(2))
    assert [driver.sign(payout), driver.approve(payout)] == [driver.DONE] * 2
    driver.correct(payout, 2, column, text)
    assert driver.start(payout) == driver.OUTDATED
    assert driver.sent() == []
    assert [driver.sign(payout), driver.approve(payout), driver.start(payout)] == [driver.DONE] * 3
    assert driver.reconciliation(driver.batch(payout))[0][column] == text
