"""Story 18: every screen in its states, wide and narrow, without a violation or anything beyond the edge."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from socket import socket

import pytest

from tests.console.preparing import (
    EIGHT_DEFECTS,
    LONG,
    PAYROLL,
    digest,
    paid_through,
    sheet,
    signed,
    uploaded,
)
from tests.console.serving import served
from tests.support.browsers import Desk
from tests.support.people import ADMINISTRATOR, APPROVER, AUDITOR, MAKER, House, set_up

pytestmark = pytest.mark.usefixtures("checks_here")
NewDesk = Callable[..., Desk]


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(set_up(tmp_path_factory.mktemp("home")))


@pytest.fixture
def address(house: House, listener: socket) -> Iterator[str]:
    with served(house.program, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def in_a_thread(prepare: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    """Prepare the screens: this thread has the event loop of the browser."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(prepare).result()


def look_at(new_desk: NewDesk, address: str, screens: dict[str, list[str]], **options: str) -> None:
    """Show each screen to the person who sees it, and look at it."""
    for name, paths in screens.items():
        desk = new_desk(base_url=address, **options)
        desk.page.route("**/static/reload.js", lambda route: route.abort())  # it would go away while it is looked at
        if name:
            desk.page.goto("/sign-in")
            desk.page.get_by_label(name).check()
            desk.page.get_by_role("button", name="Sign in").click()
        for path in paths:
            desk.page.goto(path)
            desk.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            desk.look()


def preparing(house: House) -> dict[str, list[str]]:
    """Bring sheets into every state before they are sent."""
    ada, ben = house.person(MAKER), house.person(APPROVER)
    wrong = uploaded(ada, sheet(wrong=EIGHT_DEFECTS), f"{LONG}.csv"[-90:])
    ada.post(f"{wrong}/mend", row="4", column="amount", text="1250.00")
    ada.post(f"{wrong}/leave-out", row="5")
    most = uploaded(ada, sheet(14, {n: {"amount": f'"{n},000.00"', "name": LONG} for n in range(1, 13)}), "most.csv")
    alike = uploaded(ada, sheet(4, {2: {"account": "254712345001", "amount": "101.00"}}).replace(b"P-", b"L-"))
    other = ada.upload("/new", "totals.csv", sheet(3).replace(b"P-", b"T-"), stated_rows="4", stated_sums="UGX 5")
    unread = uploaded(ada, PAYROLL.encode(), "unread.csv")
    broken = uploaded(ada, b"%PDF-1.4", "scan.csv")
    empty = uploaded(ada, sheet(1).replace(b"P-", b"E-"), "empty.csv")
    ada.post(f"{empty}/leave-out", row="2")
    to_sign = uploaded(ada, sheet(2, {1: {"amount": "5"}}).replace(b"P-", b"S-"), "sign.csv")
    ada.post(f"{to_sign}/mend", row="2", column="amount", text="6")
    waiting, approved, sent_back = (
        uploaded(ada, sheet(2).replace(b"P-", name.encode()).replace(b"2547123450", b"2547123" + digits), f"{name}.csv")
        for name, digits in (("W-", b"451"), ("A-", b"452"), ("B-", b"453"))
    )
    for place in (waiting, approved, sent_back):
        signed(ada, place)
    ben.post(f"{approved}/approve", digest=digest(ben, approved))
    ben.post(f"{sent_back}/send-back", digest=digest(ben, sent_back), reason=LONG)
    return {
        "": ["/sign-in"],
        MAKER: [
            *("/", "/new", wrong, f"{wrong}?kind=mended", most, alike, other.headers["location"], unread, broken),
            *(empty, f"{to_sign}/plan", f"{waiting}/plan", sent_back, "/nothing"),
        ],
        APPROVER: ["/", wrong, f"{waiting}/plan", f"{approved}/plan", f"{wrong}/mend"],
        AUDITOR: ["/", f"{waiting}/plan", wrong],
    }


def test_defect_and_plan_pages_stay_short(house: House, address: str, new_desk: NewDesk) -> None:
    def prepare() -> tuple[str, str]:
        ada = house.person(MAKER)
        wrong = sheet(20, {n: {"amount": f'"{n},250.00"'} for n in range(1, 14)})
        many = uploaded(ada, sheet(40).replace(b"P-", b"M-").replace(b"2547123450", b"2547123451"), "many.csv")
        return uploaded(ada, wrong, "wrong.csv"), f"{many}/plan"

    with ThreadPoolExecutor(1) as pool:
        defects, plan = pool.submit(prepare).result()
    page = new_desk(base_url=address).page
    page.goto("/sign-in")
    page.get_by_label(MAKER).check()
    page.get_by_role("button", name="Sign in").click()
    for path, width, most in ((defects, 1280, 2500), (plan, 375, 4000)):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(path)
        page.evaluate("document.querySelectorAll('.below').forEach((one) => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollHeight") < most, path


def paying(house: House) -> dict[str, list[str]]:
    """Bring a payout into the states that rows have after they were sent."""
    batch = paid_through(house.program, "November", ["100.00", "9001.00", "9006.00", "9002.00"])
    place, ada = f"/payouts/{batch}", house.person(MAKER)
    known = uploaded(ada, house.program.home.joinpath("November.csv").read_bytes(), "November.csv")
    rows = [f"{place}/rows/{number}" for number in (2, 3, 4, 5)]
    return {
        MAKER: [
            *("/", place, f"{place}?state=in_doubt", f"{place}?state=ready", *rows, f"{rows[2]}/settle"),
            *(f"{place}/retry", f"{place}/statement", known, "/payees", "/payees?text=nobody", "/payees?text=Uchukuzi"),
        ],
        AUDITOR: [place, rows[2]],
        ADMINISTRATOR: ["/people"],
    }


@pytest.mark.long
def test_story_18_preparation_screens_have_no_violation(house: House, address: str, new_desk: NewDesk) -> None:
    look_at(new_desk, address, in_a_thread(lambda: preparing(house)))


@pytest.mark.long
def test_story_18_dark_payout_screens_have_no_violation(house: House, address: str, new_desk: NewDesk) -> None:
    look_at(new_desk, address, in_a_thread(lambda: paying(house)), color_scheme="dark")
