"""Story of a payout by two people in a real browser, without axe-core violations on any page."""

import re
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it has no types
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.browsers import PATIENCE_MS, follow, require_narrow
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port, wait_for_server
from tests.support.program import ROOT, Program

DEMO = runpy.run_path(str(ROOT / "tooling/console_demo.py"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve the demonstration and yield its address and folder."""
    folder = tmp_path_factory.mktemp("demo")
    folder.chmod(0o700)
    program = Program(folder, DEMO["create_demo"](folder))
    (folder / "behaviour.toml").write_text(DEMO["BEHAVIOUR"].replace("delay_s = 0.4", "delay_s = 0.05"))
    port = free_port()
    running = program.start("console", "--port", str(port))
    wait_for_server(port, running)
    yield f"http://127.0.0.1:{port}", folder
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=PATIENCE_S)


def sign_in(browser: Browser, address: str, name: str, **options: object) -> BrowserContext:
    context = browser.new_context(base_url=address, **options)  # type: ignore[arg-type]  # whatever a test asks for
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/sign-in")
    page.get_by_label(name).check()
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.close()
    return context


def require_accessible(page: Page) -> None:
    """Fail if axe-core finds a violation or the page overflows a narrow screen."""
    results = Axe().run(page)
    assert results.violations_count == 0, f"{page.url}: {results.generate_report()}"
    require_narrow(page)


def correct_all_cells(page: Page) -> None:
    """Correct the cells of the sample sheet, some with the suggested text."""
    page.get_by_role("button", name="Use 1250.00").click()
    page.get_by_label("Amount of row 19").fill("1250.00")
    row_19 = page.get_by_role("listitem").filter(has=page.get_by_label("Amount of row 19"))
    row_19.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Use KE", exact=True).click()
    page.get_by_label("Account Name of row 42").fill("Halima Abdi")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Use KES").click()
    page.get_by_label("Client Order ID of row 92").fill("NOV-91")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Every row can be paid")).to_be_visible()


@pytest.mark.long
def test_two_people_correct_and_pay_sheet(browser: Browser, pages: tuple[str, Path]) -> None:
    address, folder = pages
    ada, ben = (sign_in(browser, address, name).new_page() for name in ("Ada Wanjiru", "Ben Okello"))
    problems: list[str] = []
    for page in (ada, ben):
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    ada.goto("/")
    require_accessible(ada)
    follow(ada.get_by_role("link", name="Start a new payout"))
    require_accessible(ada)
    ada.get_by_label("Your sheet").set_input_files(folder / "payroll-november.csv")
    ada.get_by_role("button", name="Upload and check").click()
    expect(ada.get_by_text("7 of 200 rows cannot be paid yet")).to_be_visible()
    require_accessible(ada)
    correct_all_cells(ada)
    require_accessible(ada)
    follow(ada.get_by_role("link", name="Check what will be paid"))
    require_accessible(ada)
    code = ada.locator(".code").inner_text()
    ada.get_by_role("button", name="Sign and send for approval").click()
    expect(ada.get_by_text("another person must approve it")).to_be_visible()
    ben.goto("/")
    ben.get_by_role("link", name="payroll-november.csv").first.click()
    assert ben.locator(".code").inner_text() == code
    require_accessible(ben)
    ben.get_by_role("button", name="Approve", exact=True).click()
    ben.get_by_role("button", name="Start the payout").dblclick()
    expect(ben).to_have_url(re.compile("/payouts/[0-9a-f]+$"), timeout=PATIENCE_MS)
    ada.goto(ben.url)
    expect(ada.get_by_text(re.compile("^Finished")).first).to_be_visible(timeout=PATIENCE_MS)  # The page polls.
    require_accessible(ada)
    ada.get_by_role("link", name=re.compile("^In doubt")).click()
    ada.locator("tbody a").last.click()
    expect(ada.get_by_role("heading", name="Do not pay this another way")).to_be_visible()
    require_accessible(ada)
    ada.go_back()
    with ada.expect_download() as download:
        ada.get_by_role("link", name="CSV").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 201
    ada.goto("/payees?text=Halima")
    require_accessible(ada)
    ada.goto("/people")
    require_accessible(ada)
    assert problems == []
    record = (folder / "state" / "sandbox-record.csv").read_text()
    assert len(set(re.findall(r"NOV-\d+", record))) == len(re.findall(r"NOV-\d+", record))
