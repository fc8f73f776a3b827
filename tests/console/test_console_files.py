"""Tests downloads, the search for a person, and the audit trail."""

from pathlib import Path

from tests.console.preparing import pay_payroll
from tests.support.people import ADMINISTRATOR, AUDITOR, MAKER, House, create_sandbox, newest_entries


def test_reconciliation_downloads_are_safe_and_leave_no_files(tmp_path: Path) -> None:
    house = House(create_sandbox(tmp_path))
    batch = pay_payroll(house.program)
    person = house.person(MAKER)
    csv = person.get(f"/payouts/{batch}/reconciliation.csv")
    assert "attachment" in csv.headers["content-disposition"]
    assert ("'=1+1" in csv.text, "'@SUM(A1)" in csv.text, csv.text.count("paid") >= 2) == (True, True, True)
    assert person.get(f"/payouts/{batch}/reconciliation.xlsx").content.startswith(b"PK")
    page = person.get(f"/payouts/{batch}/reconciliation.html")
    assert "attachment" in page.headers["content-disposition"]
    assert "Jane Wanjiku" in page.text
    handed_on = page.text.partition("<main")[2]
    assert not [
        word for word in ("paygw-batch", "login", str(house.program.home), batch, "engineers") if word in handed_on
    ]
    assert person.get(f"/payouts/{batch}/reconciliation.exe").status_code == 404
    assert not list(house.console.directory.glob(".download-*"))
    assert house.person(AUDITOR).get(f"/payouts/{batch}/reconciliation.csv").status_code == 403


def test_search_finds_person_and_offers_remittance_advice(tmp_path: Path) -> None:
    house = House(create_sandbox(tmp_path, further='[reporting]\npayer = "Umoja"\n'))
    batch = pay_payroll(house.program)
    person = house.person(MAKER)
    found = person.get("/payees?text=halima").text
    assert (f"/payouts/{batch}/rows/3" in found, "Jane Wanjiku" in found) == (True, False)
    advice = person.get("/payees/advice?text=0712345002")
    assert ("Halima Abdi" in advice.text, "Jane" in advice.text) == (True, False)
    assert person.get("/payees/advice?text=nobody").status_code == 409
    advices = person.get(f"/payouts/{batch}/advices").text
    assert [advices.count(text) for text in ("<section", "254712345001", "Halima Abdi</bdi>")] == [2, 1, 1]
    place = f"/payouts/{batch}/rows/3/advice"
    assert f'href="{place}"' in person.get(f"/payouts/{batch}/rows/3").text
    own = person.get(place).text
    assert [page.count("Paid by Umoja.") for page in (advice.text, advices, own)] == [1, 2, 1]
    assert ("Halima Abdi" in own, "Jane" in own) == (True, False)
    assert person.get(f"/payouts/{batch}/rows/4/advice").status_code == 404
    assert house.person(AUDITOR).get(f"/payouts/{batch}/advices").status_code == 403
    assert "No payment matches" in person.get("/payees?text=nobody").text
    masked = house.person(AUDITOR).get("/payees?text=halima").text
    assert ("254712345002" in masked, "...002" in masked) == (False, True)
    assert house.person(AUDITOR).get("/payees/advice?text=halima").status_code == 403


def test_audit_trail_contains_no_personal_data(tmp_path: Path) -> None:
    house = House(create_sandbox(tmp_path))
    batch = pay_payroll(house.program)
    person, auditor = house.person(MAKER), house.person(AUDITOR)
    person.get(f"/payouts/{batch}/reconciliation.csv")
    person.get("/payees/advice?text=Halima")
    auditor.get(f"/payouts/{batch}/reconciliation.csv")
    auditor.post("/sign-out")
    entries = [
        (entry.who, entry.act, entry.thing, entry.result) for entry in newest_entries(house.console.settings, limit=99)
    ]
    assert entries[::-1] == [
        (MAKER, "sign in", "sandbox", "done"),
        (AUDITOR, "sign in", "sandbox", "done"),
        (MAKER, "download reconciliation", f"batch {batch}, ending csv", "done"),
        (MAKER, "remittance advice", "", "done"),
        (AUDITOR, "download reconciliation", f"batch {batch}, ending csv", "refused"),
        (AUDITOR, "sign out", "", "done"),
    ]
    page = house.person(ADMINISTRATOR).get("/people").text
    assert batch not in page
    assert "download reconciliation" in page
    assert "Halima" not in page
    assert house.program.json("verify")["exit_code"] == 0
