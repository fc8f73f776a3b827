"""The pages read no sentence back: where all are worded otherwise, they offer the same and do the same."""

from pathlib import Path

import pytest

from tests.console.preparing import digest, sheet, signed, uploaded
from tests.support.people import APPROVER, MAKER, House, Person, forms_of, set_up
from tests.support.planted_words import in_other_words

WRONG = {
    1: {"amount": '"1,250.00"'},
    2: {"amount": '"1.000"'},
    3: {"amount": '"1,250.00"', "country": "Kenya"},
    4: {"country": "kenya"},
    5: {"currency": "UGX"},
    6: {"currency": "TZS"},
    7: {"name": ""},
}


def offered(person: Person, page: str) -> object:
    """Return all forms of a page, with what of their fields is not drawn anew for each sheet or visit."""
    drawn = {"csrf", "file", "answers", "digest", "code", "key", "version", "back"}
    return [
        (path.rpartition("/")[2], {name: text for name, text in fields.items() if name not in drawn})
        for path, fields in forms_of(person.get(page).text)
    ]


def story(house: House) -> object:
    """Mend a sheet by what its page offers, sign it, and approve it."""
    ada, ben, seen = house.person(MAKER), house.person(APPROVER), []
    place = uploaded(ada, sheet(13, WRONG))
    seen.append(offered(ada, place))
    for kind in ("amount.format", "country.unknown", "currency.mismatch"):
        seen.append(ada.post(f"{place}/mend-kind", kind=kind).status_code)
        seen.append(offered(ada, place))
    seen += [ada.post(f"{place}/leave-out", row=row).status_code for row in ("3", "8")]
    signed(ada, place)
    seen.append(offered(ben, f"{place}/plan"))
    seen.append(ben.post(f"{place}/approve", digest=digest(ben, place)).status_code)
    seen.append(offered(ben, f"{place}/plan"))
    return seen


@pytest.mark.usefixtures("checks_here")
def test_reworded_pages_change_no_result(tmp_path: Path) -> None:
    houses = []
    for name in ("plain", "planted"):
        (tmp_path / name).mkdir()
        houses.append(House(set_up(tmp_path / name)))
    plain = story(houses[0])
    assert "'text': '1250.00'" in str(plain)
    with in_other_words():
        assert story(houses[1]) == plain
