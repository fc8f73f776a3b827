"""Story of an approver and an auditor who check a tampered payroll in Chromium until it is paid."""

from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket

import pytest
from playwright.sync_api import expect

from tests.console.preparing import upload_at_desk, waive_approval
from tests.console.serving import serve_pages
from tests.support.browsers import Desk, Keyboard
from tests.support.months import prepare_next_month
from tests.support.people import APPROVER, AUDITOR, MAKER, House, create_sandbox

pytestmark = pytest.mark.usefixtures("in_process_checks")
NewDesk = Callable[..., Desk]


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> tuple[House, Path]:
    """Return a house after four batches, and a payroll with a changed account, a fourfold amount and a stranger.

    It is prepared in this process before the browser starts, because four processes take longer than the test.
    """
    program = create_sandbox(tmp_path_factory.mktemp("home"))
    plain = waive_approval(program)
    rows = prepare_next_month(program)
    program.config.write_text(plain)
    return House(program), program.sheet(rows, "payroll-november.csv")


@pytest.fixture
def address(month: tuple[House, Path], listener: socket) -> Iterator[str]:
    with serve_pages(month[0].program, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def sign_in(new_desk: NewDesk, address: str, name: str) -> Desk:
    desk = new_desk(base_url=address)
    desk.page.goto("/sign-in")
    Keyboard(desk.page).choose_person(name)
    return desk


@pytest.mark.long
def test_approver_sees_changes_and_all_people_before_payout(
    month: tuple[House, Path], new_desk: NewDesk, address: str
) -> None:
    (house, sheet), earlier_count = month, len(month[0].program.record())
    ada = sign_in(new_desk, address, MAKER)
    keyboard, page = upload_at_desk(ada, sheet), ada.page
    page.goto(f"{page.url}/plan")
    keyboard.press(page.get_by_role("button", name="Sign and send for approval"))
    expect(page.get_by_text("another person must approve it")).to_be_visible()
    place = page.url

    grace = sign_in(new_desk, address, AUDITOR)
    grace.page.goto(place)
    expect(grace.page.locator("tbody mark")).to_have_text(["345", "999"])
    expect(grace.page.get_by_text("254712999004")).to_have_count(0)

    ben = sign_in(new_desk, address, APPROVER)
    page, keyboard = ben.page, Keyboard(ben.page)
    page.goto(place)
    ben.check_page()
    changed = page.locator("details", has=page.get_by_text("1 changed account"))
    expect(changed.locator("tbody mark")).to_have_text(["345", "999"])
    expect(changed.locator("tbody td.mono")).to_contain_text("254712345004 before254712999004 now")
    fourfold = page.locator("details", has=page.get_by_text("1 amount differs"))
    expect(fourfold.locator("tbody")).to_contain_text("80\u202f000.00")
    stranger = page.locator("details", has=page.get_by_text("1 new person"))
    expect(stranger.locator("tbody")).to_contain_text("Ghost Kamau")
    keyboard.press(page.locator("summary", has_text="All people"))
    everybody = page.get_by_role("region", name="All people").get_by_role("row")
    expect(everybody).to_have_count(31)
    expect(everybody.nth(1)).to_contain_text("254712999004")

    keyboard.press(page.get_by_role("link", name="Search and sort all people"))
    keyboard.write(page.get_by_label("Name or account"), "ghost")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="All people").get_by_role("row")).to_have_count(2)
    ben.check_page()

    page.goto(place)
    keyboard.press(page.get_by_role("button", name="Approve"))
    keyboard.press(page.get_by_role("button", name="Start the payout"))
    page.wait_for_url("**/payouts/*")
    page.get_by_role("heading", name="Finished").first.wait_for()
    assert len(house.program.record()) == earlier_count + 30
