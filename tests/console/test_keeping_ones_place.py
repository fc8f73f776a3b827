"""Tests that people keep their place: focus, typed values and searches, also through the sign-in page."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest

from tests.console.preparing import pay_amounts, sheet, upload_sheet
from tests.support.people import ADMINISTRATOR, MAKER, ORIGIN, House, Person, create_sandbox

pytestmark = pytest.mark.usefixtures("in_process_checks")
FOCUS = re.compile(r'autofocus aria-label="([^"]+)"')


def correct_cell(ada: Person, draft: str, row: str, column: str, text: str, **more: str) -> str:
    answer = ada.post(f"{draft}/mend", row=row, column=column, text=text, **more)
    assert answer.status_code == 303, answer.text
    return ada.get(answer.headers["location"]).text


def test_focus_moves_to_next_or_restored_cell(ada: Person) -> None:
    draft = upload_sheet(ada, sheet(4, {1: {"amount": "x"}, 3: {"currency": "USD"}}))
    page = correct_cell(ada, draft, "2", "amount", "5.00")
    assert ("Row 2, Amount: changed to 5.00." in page, FOCUS.findall(page)) == (True, ["Currency in row 4"])
    page = correct_cell(ada, draft, "2", "amount", "x", shown="5.00", kind="mended")
    assert ("Row 2, Amount: restored from your file." in page, FOCUS.findall(page)) == (True, ["Amount in row 2"])
    correct_cell(ada, draft, "2", "amount", "5.00")
    page = correct_cell(ada, draft, "4", "currency", "KES")
    assert ("Every row can be paid" in page, "autofocus>Check what will be paid</a>" in page) == (True, True)


def test_title_is_shown_and_kept_beside_error(house: House) -> None:
    ada = house.person(MAKER)
    named = ada.upload("/new", "x1.csv", sheet(2), title="Salaries November").headers["location"]
    assert "<h1><bdi>Salaries November</bdi></h1>" in ada.get(named).text
    assert "Salaries November" in ada.get("/").text
    answer = ada.upload("/new", f"{'n' * 120}.csv", sheet(1), title="Salaries")
    assert answer.status_code == 409
    assert re.search(r'id="sheet-problem">A file name must have at most[^<]+</p><input type="file"', answer.text)
    assert 'value="Salaries"' in answer.text


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_payouts_are_searchable_by_word_state_and_date(tmp_path: Path, zone: str) -> None:
    house = House(create_sandbox(tmp_path, further=f'time_zone = "{zone}"'))
    batch = pay_amounts(house.program, "November", ["100.00"])
    ada, address = House(house.program).person(MAKER), f'href="/payouts/{batch}"'
    assert "KES 100.00" in ada.get("/").text
    opened = house.program.json("status")["batches"][0]["opened_at"]
    day = datetime.fromisoformat(opened).astimezone(ZoneInfo(zone)).date()
    before, after = (day + timedelta(days=days) for days in (-1, 1))
    found = ("words=novem", "state=paid", f"since={day}&until={day}")
    others = ("words=december", "state=rejected", f"since={after}", f"until={before}")
    assert [query for query in (*found, *others) if address in ada.get(f"/?{query}").text] == [*found]


@pytest.mark.parametrize("address", ["/payouts/0123456789abcdef?state=paid&after=20", "/payees?text=Ada", "/"])
def test_sign_in_continues_to_requested_page(house: House, address: str) -> None:
    one = house.stranger()
    led = one.get(address)
    assert led.status_code == 303
    to = parse_qs(urlsplit(led.headers["location"]).query).get("to", [""])[0]
    assert f'name="to" value="{to.replace("&", "&amp;")}"' in one.get(led.headers["location"]).text
    answer = one.ask("POST", "/sign-in", data={"name": MAKER, "to": to}, headers={"origin": ORIGIN})
    assert answer.headers["location"] == address


def test_ended_session_is_explained_at_sign_in(house: House, ada: Person) -> None:
    token = ada.token("/")
    house.console.sessions.sign_out(ada.client.cookies["payouts"])
    form = {"csrf": token, "row": "3", "text": "1"}
    answer = ada.ask("POST", "/sheets/0123456789abcdef/mend", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    assert query == {"to": ["/sheets/0123456789abcdef"], "ended": ["yes"]}
    assert "A session ends after 15 minutes without activity" in ada.get(answer.headers["location"]).text
    assert ada.get("/").headers["location"] == "/sign-in"  # Without a cookie, nobody was signed out.


def test_page_opened_from_another_site_is_reloaded(house: House) -> None:
    """Browsers do not send the session cookie when another site links to a page."""
    answer = house.stranger().get("/payouts/0123456789abcdef", **{"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0;url=/payouts/0123456789abcdef">' in answer.text


def test_polling_does_not_prolong_session(house: House, ada: Person) -> None:
    assert 'data-session-left-s="900"' in ada.get("/").text
    assert int(ada.get("/session").text) <= 900
    assert ada.get("/session/stay").text == "900"
    assert house.stranger().get("/session").status_code == 401


def test_refusal_page_links_administrator_to_start_page(house: House) -> None:
    tom = house.person(ADMINISTRATOR)
    page = tom.get("/new")
    assert page.status_code == 403
    assert '<a href="/people">Go to your start page</a>' in page.text
    assert tom.get("/people").status_code == 200


def test_refused_form_keeps_typed_values(ada: Person) -> None:
    answer = ada.upload("/new", "pay.csv", b"x", stated_rows="about 12", stated_sums="KES 5", reference="run-1")
    problem = '<p class="problem" id="stated_rows-problem">Enter the number of rows in digits'
    assert answer.status_code == 409
    for kept in (problem, 'value="about 12"', 'value="run-1"', ">KES 5</textarea>"):
        assert kept in answer.text
