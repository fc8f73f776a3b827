"""Fixtures: a company with its people, and each way in which they can do a task."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.checking import check_in_process
from tests.console.settling import DECLINES
from tests.stories.drivers import Commands, Driver, Pages
from tests.support.clocks import SetClock, shifted_clock
from tests.support.people import create_sandbox
from tests.support.program import Program


@pytest.fixture
def company(tmp_path: Path) -> Program:
    """Return a company in which every payout needs the approval of a second person."""
    return create_sandbox(tmp_path, behaviour=DECLINES)


@pytest.fixture(params=[Commands, Pages], ids=["commands", "pages"])
def driver(request: pytest.FixtureRequest, company: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    check_in_process(monkeypatch)
    driver: Driver = request.param(company)
    yield driver
    if isinstance(driver, Pages):
        driver.house.console.sessions.close()


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return shifted_clock(monkeypatch)
