"""Every screen is accessible and fits wide and narrow windows."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from tests.console.preparing import EIGHT_DEFECTS, LONG, PAYROLL, digest, pay_amounts, sheet, sign_sheet, upload_sheet
from tests.support.browsers import Desk
from tests.support.people import ADMINISTRATOR, APPROVER, AUDITOR, MAKER, House

pytestmark = pytest.mark.usefixtures("in_process_checks")
NewDesk = Callable[..., Desk]
Prepare = Callable[[House], dict[str, list[str]]]
T = TypeVar("T")


def prepare_in_thread(prepare: Callable[[House], T], house: House) -> T:
    """Prepare the screens in another thread, because the browser owns this event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(prepare, house).result()


def show_screens(new_desk: NewDesk, address: str, language: str, screens: dict[str, list[str]], **options: str) -> None:
    """Show each screen to its viewer and require it to be accessible."""
    for name, paths in screens.items():
        desk = new_desk(base_url=address, **options)
        desk.page.route("**/static/reload.js", lambda route: route.abort())  # A reload would disturb the check.
        desk.context.add_cookies([{"name": "language", "value": language, "url": address}])
        if name:
            desk.sign_in(name)
        for path in paths:
            desk.page.goto(path)
            desk.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            desk.check_page()


def prepare_sheets(house: House) -> dict[str, list[str]]:
    ada, ben = house.person(MAKER), house.person(APPROVER)
    wrong = upload_sheet(ada, sheet(wrong=EIGHT_DEFECTS), f"{LONG}.csv"[-90:])
    ada.post(f"{wrong}/mend", row="4", column="amount", text="1250.00")
    ada.post(f"{wrong}/leave-out", row="5")
    defects = {n: {"amount": f'"{n},000.00"', "name": LONG} for n in range(1, 13)}
    most = upload_sheet(ada, sheet(14, defects), "most.csv")
    alike = upload_sheet(ada, sheet(4, {2: {"account": "254712345001", "amount": "101.00"}}).replace(b"P-", b"L-"))
    other = ada.upload("/new", "totals.csv", sheet(3).replace(b"P-", b"T-"), stated_rows="4", stated_sums="UGX 5")
    unread = upload_sheet(ada, PAYROLL.encode(), "unread.csv")
    broken = upload_sheet(ada, b"%PDF-1.4", "scan.csv")
    empty = upload_sheet(ada, sheet(1).replace(b"P-", b"E-"), "empty.csv")
    ada.post(f"{empty}/leave-out", row="2")
    to_sign = upload_sheet(ada, sheet(2, {1: {"amount": "5"}}).replace(b"P-", b"S-"), "sign.csv")
    ada.post(f"{to_sign}/mend", row="2", column="amount", text="6")
    waiting, approved, sent_back = (
        upload_sheet(ada, sheet(2).replace(b"P-", name).replace(b"2547123450", b"2547123" + digits), "waiting.csv")
        for name, digits in ((b"W-", b"451"), (b"A-", b"452"), (b"B-", b"453"))
    )
    for place in (waiting, approved, sent_back):
        sign_sheet(ada, place)
    ben.post(f"{approved}/approve", digest=digest(ben, approved))
    ben.post(f"{sent_back}/send-back", digest=digest(ben, sent_back), reason=LONG)
    return {
        "": ["/sign-in"],
        MAKER: [
            *("/", "/new", wrong, f"{wrong}?kind=mended", most, alike, other.headers["location"], unread, broken),
            *(empty, f"{to_sign}/plan", f"{waiting}/plan", sent_back, "/nothing"),
        ],
        APPROVER: ["/", wrong, f"{waiting}/plan", f"{waiting}/people?text=2", f"{approved}/plan", f"{wrong}/mend"],
        AUDITOR: ["/", f"{waiting}/plan", wrong],
    }


def test_defect_and_plan_pages_stay_short(house: House, address: str, new_desk: NewDesk) -> None:
    def prepare(house: House) -> tuple[str, str]:
        ada = house.person(MAKER)
        wrong = sheet(20, {n: {"amount": f'"{n},250.00"'} for n in range(1, 14)})
        many = upload_sheet(ada, sheet(40).replace(b"P-", b"M-").replace(b"2547123450", b"2547123451"), "many.csv")
        return upload_sheet(ada, wrong, "wrong.csv"), f"{many}/plan"

    defects, plan = prepare_in_thread(prepare, house)
    desk = new_desk(base_url=address)
    page = desk.page
    desk.sign_in(MAKER)
    for path, width, most in ((defects, 1280, 2500), (plan, 375, 4000)):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(path)
        page.evaluate("document.querySelectorAll('.below').forEach((one) => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollHeight") < most, path


def prepare_payouts(house: House) -> dict[str, list[str]]:
    """Bring the rows of a payout into every state after sending."""
    batch = pay_amounts(house.program, "November", ["100.00", "9001.00", "9006.00", "9002.00"])
    place, ada = f"/payouts/{batch}", house.person(MAKER)
    known = upload_sheet(ada, house.program.home.joinpath("November.csv").read_bytes(), "November.csv")
    rows = [f"{place}/rows/{number}" for number in (2, 3, 4, 5)]
    lines = b"Order ID,Amount,Currency,Answer\nP-3,9006.00,KES,approved\nP-4,1,KES,declined\nX-1,5,KES,declined\n"
    preview = ada.upload(f"{place}/statement", "answers.csv", lines, words="By mail").headers["location"]
    return {
        MAKER: [
            *("/", place, f"{place}?state=in_doubt", f"{place}?state=ready", *rows, f"{rows[2]}/settle"),
            *(
                preview,
                known,
                f"{place}/retry",
                f"{place}/statement",
                "/payees",
                "/payees?text=nobody",
                "/payees?text=Uchukuzi",
            ),
        ],
        AUDITOR: [place, rows[2]],
        ADMINISTRATOR: ["/people"],
    }


@pytest.mark.long
@pytest.mark.parametrize("language", ["en", "fr"])
@pytest.mark.parametrize(("prepare", "scheme"), [(prepare_sheets, "light"), (prepare_payouts, "dark")])
def test_every_screen_is_accessible(
    house: House, address: str, new_desk: NewDesk, prepare: Prepare, scheme: str, language: str
) -> None:
    show_screens(new_desk, address, language, prepare_in_thread(prepare, house), color_scheme=scheme)
