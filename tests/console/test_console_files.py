"""Tests downloads, the search for a person, and the audit trail."""

import io
from pathlib import Path

import openpyxl
import pytest

from tests.console.checking import check_in_process
from tests.console.preparing import sheet, upload_sheet, waive_approval
from tests.support.people import ADMINISTRATOR, AUDITOR, MAKER, House, Person, audit_entries, create_sandbox

HEADING = "country,client_orderid,amount,currency,account_name,account_number,phone,note"


@pytest.fixture
def house(tmp_path: Path) -> House:
    program = create_sandbox(tmp_path, further='[reporting]\npayer = "Umoja"\n')
    waive_approval(program)
    return House(program)


@pytest.fixture
def payout(house: House) -> str:
    """Pay two people, and return the address of the payout."""
    rows = [
        "KE,F-1,100.00,KES,Jane Wanjiku,254712345001,+254712345001,=1+1",
        "KE,F-2,200.00,KES,Halima Abdi,254712345002,+254712345002,@SUM(A1)",
    ]
    return f"/payouts/{house.program.json('submit', house.program.sheet(rows, 'payroll.csv', HEADING))['batch']}"


def test_downloads_are_safe_audited_and_leave_no_files(house: House, ada: Person, payout: str) -> None:
    batch, auditor = payout.rpartition("/")[2], house.person(AUDITOR)
    csv = ada.get(f"{payout}/reconciliation.csv")
    assert "attachment" in csv.headers["content-disposition"]
    assert ("'=1+1" in csv.text, "'@SUM(A1)" in csv.text, csv.text.count("paid") >= 2) == (True, True, True)
    ada.get("/payees/advice?text=Halima")
    assert auditor.get(f"{payout}/reconciliation.csv").status_code == 403
    auditor.post("/sign-out")
    assert audit_entries(house) == [
        *((MAKER, "sign in", "sandbox", "done"), (AUDITOR, "sign in", "sandbox", "done")),
        (MAKER, "download reconciliation", f"batch {batch}, ending csv", "done"),
        (MAKER, "remittance advice", "", "done"),
        (AUDITOR, "download reconciliation", f"batch {batch}, ending csv", "refused"),
        (AUDITOR, "sign out", "", "done"),
    ]
    trail = house.person(ADMINISTRATOR).get("/people").text
    assert [text in trail for text in ("download reconciliation", batch, "Halima")] == [True, False, False]
    assert ada.get(f"{payout}/reconciliation.xlsx").content.startswith(b"PK")
    page = ada.get(f"{payout}/reconciliation.html")
    assert "attachment" in page.headers["content-disposition"]
    assert "Jane Wanjiku" in page.text
    handed_on = page.text.partition("<main")[2]
    ours = ("paygw-batch", "login", str(house.program.home), batch, "engineers")
    assert [word for word in ours if word in handed_on] == []
    assert ada.get(f"{payout}/reconciliation.exe").status_code == 404
    assert not list(house.console.directory.glob(".download-*"))
    assert house.program.json("verify")["exit_code"] == 0


def test_search_finds_person_and_offers_remittance_advice(house: House, ada: Person, payout: str) -> None:
    found = ada.get("/payees?text=halima").text
    assert (f"{payout}/rows/3" in found, "Jane Wanjiku" in found) == (True, False)
    advice = ada.get("/payees/advice?text=0712345002").text
    assert ada.get("/payees/advice?text=nobody").status_code == 409
    advices = ada.get(f"{payout}/advices").text
    assert [advices.count(text) for text in ("<section", "254712345001", "Halima Abdi</bdi>")] == [2, 1, 1]
    place = f"{payout}/rows/3/advice"
    assert f'href="{place}"' in ada.get(f"{payout}/rows/3").text
    own = ada.get(place).text
    assert [page.count("Paid by Umoja.") for page in (advice, advices, own)] == [1, 2, 1]
    assert [("Halima Abdi" in page, "Jane" in page) for page in (advice, own)] == [(True, False)] * 2
    assert ada.get(f"{payout}/rows/4/advice").status_code == 404
    assert "No payment matches" in ada.get("/payees?text=nobody").text
    masked = house.person(AUDITOR).get("/payees?text=halima").text
    assert ("254712345002" in masked, "...002" in masked) == (False, True)


def test_unreadable_file_shows_only_file_error(ada: Person) -> None:
    page = ada.get(upload_sheet(ada, b"%PDF-1.4 not a sheet", "scan.csv")).text
    assert "We cannot read this sheet yet" in page
    assert "cannot be paid yet" not in page
    assert ada.get(upload_sheet(ada, HEADING.encode())).text.count("no rows below it") == 1


def test_marked_workbook_requires_unchanged_file(house: House, ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "paygw_batch.console.sheet_process.TIME_LIMIT_S", None
    )  # real time, which a busy machine uses up
    with monkeypatch.context() as meanwhile:
        check_in_process(meanwhile)
        draft = upload_sheet(ada, sheet(2, {1: {"amount": "abc"}}))
    book = ada.get(f"{draft}/marked").content
    assert [line[0].value for line in openpyxl.load_workbook(io.BytesIO(book))["Payees"]["A2:A3"]] == [2, 3]
    (house.console.directory / draft.rpartition("/")[2] / "sheet" / "payroll-november.csv").write_bytes(b"other")
    answer = ada.get(f"{draft}/marked")
    assert answer.status_code == 409
    assert "This sheet has no marked workbook" in answer.text
    assert not list(house.console.directory.glob(".download-*"))
