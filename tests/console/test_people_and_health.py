"""Tests the page of people and health: audit trail, last backup and program checks."""

import re
from dataclasses import replace

import pytest

from paygw_batch.console.console_app import console_app
from paygw_batch.console.pages.people_page import HEALTH
from paygw_batch.console.start_run import last_run
from tests.console.preparing import EIGHT_DEFECTS, digest, sheet, sign_sheet, upload_sheet, wait_until_finished
from tests.support.patience import wait_until
from tests.support.people import ADMINISTRATOR, APPROVER, AUDITOR, ORIGIN, House, Person

pytestmark = pytest.mark.usefixtures("in_process_checks")


def shown_trail(page: str) -> list[tuple[str, str, str]]:
    """Return the action, subject and result of each entry on the page, newest first."""
    lines = re.findall(r'<tr><td class="number" data-label="No.">\d+</td>(.*?)</tr>', page)
    cells = [re.sub(r"<[^>]+>", "", line.replace("</td>", "|")).split("|") for line in lines]
    return [(act, about, result) for _, _, act, about, result, _ in cells]


def test_audit_page_shows_sheet_row_and_column(house: House, ada: Person) -> None:
    place = upload_sheet(ada, sheet(wrong=EIGHT_DEFECTS), "november.csv")
    ada.post(f"{place}/mend", row="4", column="amount", text="1250.00")
    ada.post(f"{place}/leave-out", row="5")
    ada.ask("POST", f"{place}/mend", data={"csrf": ada.token(), "row": "9"}, headers={"origin": ORIGIN})
    page = house.person(AUDITOR).get("/people").text
    assert shown_trail(page)[1:6] == [
        ("correct cell", "november.csv, row 9", "refused: not found"),
        ("correct cell", "november.csv, row 9", "refused: not found"),  # Actions are recorded before they are done.
        ("leave out", "november.csv, row 5", "done"),
        ("correct cell", "november.csv, row 4, Amount", "done"),
        ("upload", "november.csv", "done"),
    ]
    assert place.rpartition("/")[2] not in page
    ada.post(f"{place}/remove")
    assert shown_trail(ada.get("/people").text)[2][1] == "a sheet that was removed, row 9"


def test_audit_trail_shows_refused_start(house: House, ada: Person, ben: Person) -> None:
    place = upload_sheet(ada, sheet(2), "november.csv")
    sign_sheet(ada, place)
    ben.post(f"{place}/approve", digest=digest(ben, place))
    house.console = replace(house.console, program=("/bin/sh", "-c", "exit 8", "paygw-batch"))
    house.app = console_app(house.console)
    ben = house.person(APPROVER)
    assert ben.post(f"{place}/start", digest=digest(ben, place)).status_code == 303
    refused = "refused: the signatures are invalid or out of date"
    wait_until(lambda: shown_trail(ben.get("/people").text)[:2] == [("start", "november.csv", refused)] * 2)
    ben.ask("POST", "/orders/0123456789abcdef/agree", data={"csrf": ben.token()}, headers={"origin": ORIGIN})
    assert shown_trail(ben.get("/people").text)[0] == (
        "agree to order",
        "an order that was removed",
        "refused: the page was out of date",
    )


def test_late_start_is_audited_as_refused(house: House, ada: Person, ben: Person) -> None:
    place = upload_sheet(ada, sheet(2), "november.csv")
    sign_sheet(ada, place)
    ben.post(f"{place}/approve", digest=digest(ben, place))
    form = {**ada.shown(f"{place}/start"), "csrf": ada.token("/people")}
    ben.post(f"{place}/start", digest=digest(ben, place))
    wait_until_finished(ada, place)
    answer = ada.ask("POST", f"{place}/start", data=form, headers={"origin": ORIGIN})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{place}/plan")
    assert shown_trail(ben.get("/people").text)[:3] == [
        *[("start", "november.csv", "refused: the page was out of date")] * 2,
        ("start", "november.csv", "done"),
    ]
    assert len(house.program.record()) == 2


def test_people_page_shows_last_backup(house: House, ada: Person) -> None:
    assert "none known" in ada.get("/people").text
    assert house.program.run("backup", house.program.home / "copy.sqlite3").exit_code == 0
    assert "(0 minutes ago)" in ada.get("/people").text


def test_health_page_runs_and_shows_check(house: House) -> None:
    summary = '{"exit_code": 2, "message": "1 of 2 checks failed.", "checks": ['
    summary += '{"check": "room", "state": "wrong", "found": "The disk is full."}, '
    summary += '{"check": "clock", "state": "ok", "found": "it is noon"}]}'
    house.console = replace(house.console, program=("/bin/sh", "-c", f"echo '{summary}'", "paygw-batch"))
    house.app = console_app(house.console)
    tom = house.person(ADMINISTRATOR)
    assert tom.post("/people/check", check="doctor").status_code == 303
    wait_until(lambda: not _is_running(house, "doctor"))
    page = tom.get("/people").text
    assert "1 of 2 checks failed." in page
    assert "<strong>room</strong>: The disk is full." in page
    assert "it is noon" not in page
    assert tom.post("/people/check", check="submit").status_code == 404


def test_auditor_cannot_start_health_checks(house: House) -> None:
    grace = house.person(AUDITOR)
    assert "Check now" not in grace.get("/people").text
    assert grace.post("/people/check", check="verify").status_code == 403


def _is_running(house: House, name: str) -> bool:
    run = last_run(house.console.directory / HEALTH, name)
    return run is None or run.is_alive
