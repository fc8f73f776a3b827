"""A browser for all tests of the console, and people at it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.checking import checked_here
from tests.console.serving import free_listener
from tests.support.browsers import HOW_TO_GET_IT, PATIENCE_MS, Desk, chromium
from tests.support.people import APPROVER, MAKER, House, Person, set_up
from tests.support.program import Program, sandbox_toml


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if chromium() is None:
        terminalreporter.write_line(HOW_TO_GET_IT, red=True, bold=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the system's Chromium, started once for a module; between calls it has the thread's event loop.

    So a test with a browser starts other programs as processes. The browser's own sandbox needs rights that containers
    do not give.
    """
    if (program := chromium()) is None:
        pytest.skip(HOW_TO_GET_IT)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def new_desk(browser: Browser) -> Iterator[Callable[..., Desk]]:
    """Return a function that seats one more person at a browser."""
    desks: list[Desk] = []

    def seat(**options: Any) -> Desk:
        desks.append(Desk.of(browser, **options))
        return desks[-1]

    yield seat
    for desk in desks:
        desk.context.close()


@pytest.fixture
def listener() -> Iterator[socket]:
    """Return a free port of loopback, at which pages are served again and again."""
    with closing(free_listener()) as found:
        yield found


@pytest.fixture
def program(tmp_path: Path) -> Program:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(tmp_path, config)


@pytest.fixture
def house(tmp_path: Path) -> House:
    """Return a sandbox with a maker, an approver, an auditor and an administrator, and its pages."""
    return House(set_up(tmp_path))


@pytest.fixture
def ada(house: House) -> Person:
    """Return the maker, signed in."""
    return house.person(MAKER)


@pytest.fixture
def ben(house: House) -> Person:
    """Return the approver, signed in."""
    return house.person(APPROVER)


@pytest.fixture
def checks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check and mark sheets in this process, by the same code as the pages: a process costs a second."""
    checked_here(monkeypatch)
