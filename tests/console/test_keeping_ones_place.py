"""Tests that people keep their place: focus, typed values, payout names and searches."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.console.preparing import pay_amounts, sheet, upload_sheet
from tests.support.people import MAKER, House, Person, create_sandbox

pytestmark = pytest.mark.usefixtures("in_process_checks")
FOCUS = re.compile(r'autofocus aria-label="([^"]+)"')


def correct_cell(ada: Person, place: str, row: str, column: str, text: str) -> str:
    answer = ada.post(f"{place}/mend", row=row, column=column, text=text)
    assert answer.status_code == 303, answer.text
    return ada.get(answer.headers["location"]).text


def test_focus_moves_to_next_red_cell(ada: Person) -> None:
    place = upload_sheet(ada, sheet(4, {1: {"amount": "x"}, 3: {"currency": "USD"}}))
    page = correct_cell(ada, place, "2", "amount", "5.00")
    assert "Row 2, Amount: changed to 5.00." in page
    assert FOCUS.findall(page) == ["Currency of row 4"]
    page = correct_cell(ada, place, "4", "currency", "KES")
    assert "Every row can be paid" in page
    assert "autofocus>Check what will be paid</a>" in page


def test_undoing_correction_focuses_its_cell(ada: Person) -> None:
    place = upload_sheet(ada, sheet(3, {1: {"amount": "x"}}))
    correct_cell(ada, place, "2", "amount", "5.00")
    form = {"row": "2", "column": "amount", "shown": "5.00", "text": "x", "kind": "mended"}
    page = ada.get(ada.post(f"{place}/mend", **form).headers["location"]).text
    assert "Row 2, Amount: restored from your file." in page
    assert FOCUS.findall(page) == ["Amount of row 2"]


def test_overlong_file_name_error_shows_field(house: House) -> None:
    answer = house.person(MAKER).upload("/new", f"{'n' * 120}.csv", sheet(1), title="Salaries")
    assert answer.status_code == 409
    assert re.search(r'id="sheet-problem">A sheet needs a plain file name[^<]+</p><input type="file"', answer.text)
    assert 'value="Salaries"' in answer.text


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_payouts_are_searched_by_words_states_dates(tmp_path: Path, zone: str) -> None:
    house = House(create_sandbox(tmp_path, further=f'time_zone = "{zone}"'))
    batch = pay_amounts(house.program, "November", ["100.00"])
    ada, address = House(house.program).person(MAKER), f'href="/payouts/{batch}"'
    assert "KES 100.00" in ada.get("/").text
    opened = house.program.json("status")["batches"][0]["opened_at"]
    day = datetime.fromisoformat(opened).astimezone(ZoneInfo(zone)).date()
    before, after = (day + timedelta(days=days) for days in (-1, 1))
    for query, is_found in {
        "words=novem": True,
        "words=december": False,
        "state=paid": True,
        "state=rejected": False,
        f"since={day}&until={day}": True,
        f"since={after}": False,
        f"until={before}": False,
    }.items():
        assert (address in ada.get(f"/?{query}").text) is is_found, query


def test_payout_has_makers_name(ada: Person) -> None:
    named = ada.upload("/new", "x1.csv", sheet(2), title="Salaries November").headers["location"]
    page = ada.get(named).text
    assert "<h1><bdi>Salaries November</bdi></h1>" in page
    assert "Salaries November" in ada.get("/").text
