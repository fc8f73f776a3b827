"""Tests that rewording every message of the pages changes nothing else."""

from pathlib import Path

import pytest

from tests.console.preparing import digest, sheet, sign_sheet, upload_sheet
from tests.support.people import APPROVER, MAKER, House, Person, create_sandbox, parse_forms
from tests.support.planted_words import reworded_catalogue

WRONG = {
    1: {"amount": '"1,250.00"'},
    2: {"amount": '"1.000"'},
    3: {"amount": '"1,250.00"', "country": "Kenya"},
    4: {"country": "kenya"},
    5: {"currency": "UGX"},
    6: {"currency": "TZS"},
    7: {"name": ""},
}


def offered_forms(person: Person, page: str) -> object:
    """Return the forms of a page with their reproducible fields."""
    drawn = {"csrf", "file", "answers", "digest", "code", "key", "version", "back"}
    return [
        (path.rpartition("/")[2], {name: text for name, text in fields.items() if name not in drawn})
        for path, fields in parse_forms(person.get(page).text)
    ]


def run_story(house: House) -> object:
    """Correct a sheet with the offered forms, sign it, and approve it."""
    ada, ben, seen = house.person(MAKER), house.person(APPROVER), []
    place = upload_sheet(ada, sheet(13, WRONG))
    seen.append(offered_forms(ada, place))
    for kind in ("amount.format", "country.unknown", "currency.mismatch"):
        seen.append(ada.post(f"{place}/mend-kind", kind=kind).status_code)
        seen.append(offered_forms(ada, place))
    seen += [ada.post(f"{place}/leave-out", row=row).status_code for row in ("3", "8")]
    sign_sheet(ada, place)
    seen.append(offered_forms(ben, f"{place}/plan"))
    seen.append(ben.post(f"{place}/approve", digest=digest(ben, place)).status_code)
    seen.append(offered_forms(ben, f"{place}/plan"))
    return seen


@pytest.mark.usefixtures("in_process_checks")
def test_reworded_pages_do_not_change_results(tmp_path: Path) -> None:
    houses = []
    for name in ("plain", "planted"):
        (tmp_path / name).mkdir()
        houses.append(House(create_sandbox(tmp_path / name)))
    plain = run_story(houses[0])
    assert "'text': '1250.00'" in str(plain)
    with reworded_catalogue():
        assert run_story(houses[1]) == plain
