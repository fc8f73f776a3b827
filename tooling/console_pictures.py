"""Take screenshots of the console: two people, from a sheet with defects to retried rows.

python -m tooling.console_pictures                  # into sandbox-state/pictures
python -m tooling.console_pictures docs/pictures    # replace those of the documents

It needs Chromium. PAYGW_CHROMIUM names one that is not in PATH.
"""

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tooling.console_demo import BEHAVIOUR, ROOT, create_demo

PROGRAM = "chromium"
WIDTH, HEIGHT = 900, 640
PATIENCE_MS = 60_000


def main() -> None:
    """Take all screenshots."""
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "sandbox-state/pictures"
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="paygw-pictures-") as name:
        folder = Path(name)
        config = create_demo(folder)
        (folder / "behaviour.toml").write_text(BEHAVIOUR.replace("delay_s = 0.4", "delay_s = 0.02"), encoding="utf-8")
        with _serve_console(config) as address, sync_playwright() as playwright:
            program = os.environ.get("PAYGW_CHROMIUM") or shutil.which(PROGRAM)
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            _take_pictures(browser, address, folder, target)
            browser.close()


@contextmanager
def _serve_console(config: Path) -> Iterator[str]:
    """Serve the pages in a separate process, on a free port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "paygw_batch", "--config", str(config), "console", "--port", str(port)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True)  # noqa: S603 (our own program)
    try:
        if running.stdout is None or "The console is at" not in running.stdout.readline():
            sys.exit("The pages are not there.")
        yield f"http://127.0.0.1:{port}"
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate()


def _take_pictures(browser: Browser, address: str, folder: Path, target: Path) -> None:
    ada, ben = (
        _open_page_as(browser, address, "Ada Wanjiru"),
        _open_page_as(browser, address, "Ben Okello", is_dark=True),
    )

    def take(page: Page, name: str) -> None:
        page.screenshot(path=target / f"console-{name}.jpg", type="jpeg", quality=50)

    _upload_unusual_headings(ada, folder / "staff-november.csv")
    take(ada, "columns")
    ada.get_by_role("button", name="Remove this sheet").click()
    ada.goto("/new")
    ada.get_by_label("Your sheet").set_input_files(folder / "payroll-november.csv")
    ada.get_by_role("button", name="Upload and check").click()
    ada.get_by_label("Amount in row 5").wait_for()
    ada.evaluate("document.getElementById('look').scrollIntoView()")
    take(ada, "check")
    _correct_cells(ada)
    ada.get_by_role("link", name="Check what will be paid").click()
    ada.get_by_role("button", name="Sign and send for approval").click()
    ada.get_by_text("another person must approve it").wait_for()
    ben.goto("/")
    ben.get_by_role("link", name="payroll-november.csv").first.click()
    take(ben, "approve")
    ben.get_by_role("button", name="Approve", exact=True).click()
    ben.get_by_role("button", name="Start the payout").click()
    ben.wait_for_url(re.compile("/payouts/"))
    payout = ben.url
    ada.goto(payout)
    ada.get_by_text(re.compile("^Finished")).first.wait_for()
    take(ada, "payout")
    ada.goto("/")
    take(ada, "overview")
    ada.goto(f"{payout}?state=in_doubt")
    ada.locator("tbody a").last.click()
    take(ada, "row")
    ada.get_by_role("link", name="Settle this row").click()
    take(ada, "settle")
    _upload_answers(ada, payout, folder / "answers-of-the-gateway.csv")
    take(ada, "statement")
    ada.goto(f"{payout}/retry")
    ada.get_by_label(re.compile("^All rows with the reason")).first.check()
    ada.get_by_label("Why can these payments succeed now?").fill("Ticket 4711: the accounts are open again")
    take(ada, "retry")
    ada.get_by_role("button", name="Continue").click()
    ada.get_by_role("button", name="Sign and ask a second person").click()
    ada.get_by_text("another person must agree").wait_for()
    ben.goto("/")
    ben.locator(".note", has_text="asks you to agree").get_by_role("link").click()
    take(ben, "agree")
    ada.goto("/people")
    take(ada, "people")


def _upload_unusual_headings(page: Page, file: Path) -> None:
    """Upload a sheet with unusual headings, all but one of which are recognised."""
    headings = "Country Code,Payment ID,Net Pay,Employee Name,Mobile Money Number,Mobile,Station"
    lines = [headings, "KE,STAFF-1,41250.00,Achieng Otieno,254712345001,254712345001,Kisumu"]
    file.write_text("\n".join(lines), encoding="utf-8")
    page.goto("/new")
    page.get_by_label("Your sheet").set_input_files(file)
    page.get_by_role("button", name="Upload and check").click()
    page.get_by_role("combobox", name="Net Pay").wait_for()
    page.get_by_role("heading", name="What does each column of your sheet contain?").evaluate(
        "one => one.scrollIntoView()"
    )


def _upload_answers(page: Page, payout: str, file: Path) -> None:
    """Upload the list of questions with answers, one of which contradicts the journal."""
    questions = csv.DictReader(page.request.get(f"{payout}/questions.csv").text().splitlines())
    lines = [f"{item['order_id']},{item['amount']},KES,paid" for item in questions]
    answers = "\n".join(["order_id,amount,currency,answer", *lines, "NOV-50,4850.00,KES,paid"])
    page.goto(f"{payout}/statement")
    file.write_text(answers, encoding="utf-8")
    page.get_by_label("The list with answers").set_input_files(file)
    page.get_by_label("How did you get the statement?").fill("Mail of the support, ticket 4711")
    page.get_by_role("button", name="Upload and compare").click()
    page.get_by_role("heading", name="What the statement says").wait_for()


def _open_page_as(browser: Browser, address: str, name: str, *, is_dark: bool = False) -> Page:
    context = browser.new_context(
        base_url=address, viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if is_dark else "light"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/sign-in")
    page.get_by_label(name).check()
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", level=1, name="Overview").wait_for()
    return page


def _correct_cells(page: Page) -> None:
    """Correct the cells of the sample sheet: `console_demo.DEFECTS`."""
    for suggestion in ("Use 1250.00", "Use KE", "Use KES"):
        page.get_by_role("button", name=suggestion, exact=True).click()
    for cell, text in (
        ("Amount in row 19", "1250.00"),
        ("Account Name in row 42", "Halima Abdi"),
        ("Client Order ID in row 92", "NOV-91"),
    ):
        with page.expect_navigation():
            page.get_by_label(cell).fill(text)
            page.keyboard.press("Enter")
    page.get_by_text("Every row can be paid").wait_for()


if __name__ == "__main__":
    main()
