"""People settle rows in doubt, alone if nothing can be paid again, and two people send rejected rows again."""

from datetime import timedelta

import pytest

from tests.stories.drivers import TICKET, Driver
from tests.support.clocks import SetClock
from tests.support.people import APPROVER, MAKER

DAY = timedelta(hours=25)


def test_one_person_can_settle_row_as_paid(driver: Driver) -> None:
    batch = driver.pay("9006.00", "100.00", "9001.00")
    for row, evidence in ((2, "  "), (3, "Ticket 1"), (4, "Ticket 1")):
        assert driver.settle(batch, row, "paid", evidence) == driver.WRONG
    with driver.other_run():
        assert driver.settle(batch, 2, "paid") == driver.BUSY
    assert driver.states(batch) == ["in_doubt", "paid", "rejected"]
    assert driver.settle(batch, 2, "paid") == driver.DONE
    assert driver.settle(batch, 2, "paid", "Another ticket") == driver.WRONG
    assert driver.states(batch) == ["paid", "paid", "rejected"]
    assert len(driver.sent()) == 3
    driver.checked()


@pytest.mark.parametrize("said", ["rejected", "not-received"])
def test_second_payment_needs_two_people(driver: Driver, set_clock: SetClock, said: str) -> None:
    batch = driver.pay("9006.00")
    if said == "not-received":
        assert driver.order(batch, 2, said=said) == driver.WRONG
    set_clock(DAY)
    assert driver.settle(batch, 2, said) == driver.FORBIDDEN
    assert driver.order(batch, 2, said=said, by=APPROVER) == driver.FORBIDDEN
    order = driver.order(batch, 2, said=said)
    assert driver.carry_out(order) == driver.OUTDATED
    assert driver.agree(order, MAKER) == driver.FORBIDDEN
    assert driver.states(batch) == ["in_doubt"]
    assert driver.agree(order) == driver.DONE
    assert driver.states(batch) == ["rejected" if said == "rejected" else "ready"]
    assert driver.history(batch)[-1] == (TICKET, f"prepared by {MAKER}, approved by {APPROVER}")
    assert driver.checked()["signed_orders"] == 1


def test_order_about_changed_row_is_outdated(driver: Driver) -> None:
    batch = driver.pay("9006.00")
    order = driver.order(batch, 2, said="rejected")
    assert driver.settle(batch, 2, "paid") == driver.DONE
    assert driver.agree(order) == driver.OUTDATED
    assert driver.states(batch) == ["paid"]


@pytest.mark.parametrize("by", [MAKER, APPROVER])
def test_withdrawn_order_settles_nothing(driver: Driver, by: str) -> None:
    batch = driver.pay("9006.00")
    order = driver.order(batch, 2, said="rejected")
    assert driver.withdraw(order, by) == driver.DONE
    assert driver.agree(order) == driver.OUTDATED
    assert driver.states(batch) == ["in_doubt"]
    assert driver.checked()["withdrawals"] == 1


PAID = "P-1,9006.00,KES,paid"


def test_statement_settles_matching_rows_and_holds_contradicted(driver: Driver) -> None:
    batch = driver.pay("9006.00", "9006.10", "9006.30", "9001.00", "100.00")
    lines = (PAID, "P-2,9006.10,KES,", "P-5,100.00,KES,paid", "P-4,9001.00,KES,paid", "X-9,1.00,KES,paid")
    assert driver.settle_by_statement(batch, *lines) == driver.DONE
    assert driver.states(batch) == ["paid", "in_doubt", "in_doubt", "rejected", "paid"]
    driver.checked()
    before = driver.sent()
    driver.agree(driver.order(batch, 5, said="retry"))
    assert (driver.sent(), driver.states(batch)[3]) == (before, "ready")
    assert driver.settle(batch, 5, "paid") == driver.DONE
    assert driver.states(batch)[3] == "paid"


def test_statement_allowing_second_payment_needs_two_people(driver: Driver, set_clock: SetClock) -> None:
    batch = driver.pay("9006.00", "9006.10", "9006.20", "9006.30")
    lines = (PAID, "P-2,9006.10,KES,rejected", "P-3,9006.20,KES,not-received")
    set_clock(DAY)
    assert driver.settle_by_statement(batch, *lines) == driver.FORBIDDEN
    order = driver.order_by_statement(batch, *lines)
    assert driver.states(batch) == ["in_doubt"] * 4
    assert driver.agree(order) == driver.DONE
    assert driver.states(batch) == ["paid", "rejected", "ready", "in_doubt"]
    assert driver.checked()["signed_orders"] == 1


def test_order_by_two_people_resends_rejected_rows(driver: Driver) -> None:
    batch = driver.pay("9001.00", "9001.50", "9002.00", "100.00", "9006.00")
    before = driver.sent()
    for rows in ((5,), (6,), (99,), (2, 6)):  # These are paid, in doubt, missing.
        assert driver.order(batch, *rows, said="retry") == driver.WRONG
    assert driver.order(batch, 2, said="retry", by=APPROVER) == driver.FORBIDDEN
    order = driver.order(batch, 2, 4, said="retry")
    assert driver.carry_out(order) == driver.OUTDATED
    assert driver.agree(order, MAKER) == driver.FORBIDDEN
    assert driver.sent() == before
    assert driver.agree(order) == driver.DONE
    assert driver.sent() == [*before, "P-1-r2", "P-3-r2"]
    lines = driver.reconciliation(batch)
    assert [line["attempts"] for line in lines] == ["2", "1", "2", "1", "1"]
    assert [line["amount"] for line in lines] == ["9001.00", "9001.50", "9002.00", "100.00", "9006.00"]
    assert driver.history(batch)[-1] == ("next attempt as P-3-r2", f"prepared by {MAKER}, approved by {APPROVER}")
    for by in (MAKER, APPROVER):
        assert driver.withdraw(order, by) == driver.OUTDATED
    driver.agree(order)  # The pages answer a second click like the first.
    assert len(driver.sent()) == len(before) + 2
    assert driver.checked()["signed_orders"] == 1


def test_row_rejected_by_person_waits_for_quarantine(driver: Driver) -> None:
    batch = driver.pay("9006.00")
    assert driver.agree(driver.order(batch, 2, said="rejected")) == driver.DONE
    assert driver.order(batch, 2, said="retry") == driver.WRONG
    assert driver.states(batch) == ["rejected"]
