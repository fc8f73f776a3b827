"""Fixtures of the console tests: a browser, a sandbox and its people."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.checking import check_in_process
from tests.console.serving import free_listener, serve_pages
from tests.support.browsers import HOW_TO_GET_IT, PATIENCE_MS, Desk, chromium
from tests.support.clocks import ManualClock
from tests.support.people import APPROVER, MAKER, House, Person, create_sandbox
from tests.support.program import Program, sandbox_toml


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if chromium() is None:
        terminalreporter.write_line(HOW_TO_GET_IT, red=True, bold=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium once per module.

    It owns the thread's event loop, so a test with a browser starts other programs as processes. The browser's own
    sandbox needs privileges that containers do not have.
    """
    if (program := chromium()) is None:
        pytest.skip(HOW_TO_GET_IT)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium_browser = playwright.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture
def new_desk(browser: Browser) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def seat(**options: Any) -> Desk:
        desks.append(Desk.of(browser, **options))
        return desks[-1]

    yield seat
    for desk in desks:
        desk.context.close()


@pytest.fixture
def listener() -> Iterator[socket]:
    """Return a socket on a free loopback port, at which pages can be served repeatedly."""
    with closing(free_listener()) as server_socket:
        yield server_socket


@pytest.fixture
def address(house: House, listener: socket) -> Iterator[str]:
    """Serve the pages of the house, and return their address."""
    with serve_pages(house.program, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(tmp_path, config)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(create_sandbox(tmp_path))


@pytest.fixture
def ada(house: House) -> Person:
    return house.person(MAKER)


@pytest.fixture
def ben(house: House) -> Person:
    return house.person(APPROVER)


@pytest.fixture
def in_process_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check and mark sheets in this process, because another one takes a second."""
    check_in_process(monkeypatch)
