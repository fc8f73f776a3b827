"""Two people send rejected rows again."""

from tests.stories.drivers import Driver
from tests.support.people import APPROVER, MAKER


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


def test_withdrawn_order_resends_nothing(driver: Driver) -> None:
    batch = driver.pay("9001.00")
    before = driver.sent()
    order = driver.order(batch, 2, said="retry")
    assert driver.withdraw(order, APPROVER) == driver.DONE
    assert driver.agree(order) == driver.OUTDATED
    assert driver.sent() == before
    assert driver.agree(driver.order(batch, 2, said="retry")) == driver.DONE
    assert driver.sent() == [*before, "P-1-r2"]


def test_row_rejected_by_person_waits_for_quarantine(driver: Driver) -> None:
    batch = driver.pay("9006.00")
    assert driver.agree(driver.order(batch, 2, said="rejected")) == driver.DONE
    assert driver.order(batch, 2, said="retry") == driver.WRONG
    assert driver.states(batch) == ["rejected"]
