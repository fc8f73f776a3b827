"""Stories of preparing and approving that need no browser: a plan sent back, two payouts at once, the auditor."""

import re
from collections.abc import Sequence

import pytest

from tests.console.preparing import digest, sheet, sign_sheet, upload_sheet, wait_until_finished
from tests.support.people import AUDITOR, House, Person

pytestmark = pytest.mark.usefixtures("in_process_checks")


def test_story_6_maker_sees_why_plan_was_returned(ada: Person, ben: Person) -> None:
    place = upload_sheet(ada, sheet(2))
    sign_sheet(ada, place)
    shown = digest(ben, place)
    assert ben.post(f"{place}/send-back", digest=shown, reason=" ").status_code == 409
    assert ben.post(f"{place}/send-back", digest=shown, reason="Row 2 was paid in cash <b>").status_code == 303
    needing = ada.get("/").text.partition("<h2>Payouts</h2>")[0]
    assert "Sent back by Ben Okello: Row 2 was paid in cash &lt;b&gt;" in needing
    assert "Row 2 was paid in cash &lt;b&gt;" in ada.get(place).text
    ada.post(f"{place}/leave-out", row="2")
    sign_sheet(ada, place)
    assert ben.post(f"{place}/approve", digest=shown).status_code == 409


@pytest.mark.long
def test_story_9_simultaneous_payouts_run_one_by_one(house: House, ada: Person, ben: Person) -> None:
    team_a, team_b = (
        sheet(3).replace(b"P-", prefix).replace(b"25471234500", number).replace(b"Jane", name)
        for prefix, number, name in ((b"A-", b"25471234510", b"Ann"), (b"B-", b"25471234520", b"Bob"))
    )
    last_month = team_a + b"\n" + team_b.partition(b"\n")[2]
    places = [upload_sheet(ada, last_month.replace(b"-", b"-OCT-").replace(b",10", b",9"), "october.csv")]
    start_both(ada, ben, places)
    assert "<strong>6</strong> Paid" in wait_until_finished(ada, places[0])
    places = [upload_sheet(ada, team_a, "A.csv"), upload_sheet(ada, team_b, "B.csv")]
    start_both(ada, ben, places)
    for place in places:
        assert "<strong>3</strong> Paid" in wait_until_finished(ada, place)
    assert len(house.program.record()) == 12


def start_both(ada: Person, ben: Person, places: Sequence[str]) -> None:
    for place in places:
        sign_sheet(ada, place)
        ben.post(f"{place}/approve", digest=digest(ben, place))
    for place in places:
        ben.post(f"{place}/start", digest=digest(ben, place))


def test_story_16_auditor_is_offered_no_action(house: House, ada: Person) -> None:
    waits, opened = upload_sheet(ada, sheet(2)), upload_sheet(ada, b"%PDF-1.4", "scan.csv")
    sign_sheet(ada, waits)
    grace = house.person(AUDITOR)
    for path in ("/", f"{waits}/plan", "/payees?text=Jane", "/people"):
        page = grace.get(path)
        assert page.status_code == 200
        acts = set(re.findall(r'<form[^>]* action="([^"]+)"', page.text))
        assert acts <= {"/sign-out", "/language", "/payees"}, path
        assert "254712345" not in page.text, path
    assert grace.get(opened).status_code == 403  # A sheet in preparation shows accounts.
    assert grace.get(f"{waits}/marked").status_code == 403
