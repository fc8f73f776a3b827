"""Tests the questions about a sheet: order ids, encoding, worksheet, headings."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from paygw_batch.console.payout_folder import payout_folders
from tests.console.preparing import (
    HEADER,
    ROW,
    answer_question,
    build_workbook,
    digest,
    payroll,
    sign_sheet,
    upload_and_answer,
    upload_with_questions,
    wait_until_finished,
)
from tests.support.clocks import shifted_clock
from tests.support.people import APPROVER, MAKER, House, Person

pytestmark = pytest.mark.usefixtures("in_process_checks")


def test_sheet_without_ids_asks_for_run_name(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.csv", f"{HEADER}\n{ROW}\n".encode())
    suggested = re.findall(r'name="reference"[^>]*value="(payroll-[0-9-]+)"', page)
    assert "Use this name" in page
    assert "Every row can be paid" in answer_question(ada, path, page, reference=suggested[0])


def test_encoding_question_shows_decoded_names(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.csv", f"client_orderid,{HEADER}\nA-1,{ROW}\n".encode("cp1252"))
    assert "<bdi>A\xefcha Traor\xe9</bdi>" in page
    assert "Yes, they are spelled correctly" in page
    version = re.findall(r'name="version" value="([0-9a-f]+)"', page)[0]
    assert ada.post(f"{path}/reading", version=version, encoding="utf-7").status_code in {404, 409}, "not offered"
    assert "Every row can be paid" in answer_question(ada, path, page, encoding="cp1252")
    plan = ada.get(f"{path}/plan").text
    assert ("How the sheet is read" in plan, "A\xefcha Traor\xe9" in plan) == (True, True)


def test_each_chosen_worksheet_becomes_a_payout(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.xlsx", build_workbook("October", "November", "December"))
    assert re.findall(r"<bdi>(\w+)</bdi> \(1 row\)", page) == ["October", "November", "December"]
    version = re.findall(r'name="version" value="([0-9a-f]+)"', page)[0]
    chosen = {"version": version, "worksheet-0": "October", "worksheet-2": "December"}
    assert ada.post(f"{path}/worksheets", **chosen).headers["location"] == path
    drafts = re.findall(r'href="(/sheets/\w+)(?:/plan)?"><bdi>pay.xlsx \[(\w+)\]', ada.get("/").text)
    assert {title for _, title in drafts} == {"October", "December"}
    plans = {title: unescape(ada.get(f"{place}/plan").text) for place, title in drafts}
    pays = "This pays the worksheet '{}'. It does not pay: 'Cover', '{}' (1 row), '{}' (1 row)."
    assert pays.format("October", "November", "December") in plans["October"]
    assert pays.format("December", "October", "November") in plans["December"]
    ben = house.person(APPROVER)
    for place, _ in drafts:
        sign_sheet(ada, place)
        ben.post(f"{place}/approve", digest=digest(ben, place))
        ben.post(f"{place}/start", digest=digest(ben, place))
        wait_until_finished(ada, place)
    assert sorted(line["amount"] for line in house.program.record()) == ["100.00", "300.00"]


def choose_worksheets(house: House, *chosen: str, reference: str = "") -> tuple[Person, str, dict[str, str]]:
    """Upload a workbook, choose worksheets, and return the maker, the address and the form without worksheets."""
    ada, workbook = house.person(MAKER), build_workbook("October", "November")
    path = str(ada.upload("/new", "pay.xlsx", workbook, reference=reference).headers["location"])
    form = {"version": re.findall(r'name="version" value="([0-9a-f]+)"', ada.get(path).text)[0]}
    ada.post(f"{path}/worksheets", **form, **{f"worksheet-{n}": title for n, title in enumerate(chosen)})
    return ada, path, form


def prepared(house: House) -> list[tuple[str, str | None]]:
    """Return the worksheet and payment run of each payout in preparation."""
    uploads = [folder.uploaded for folder in payout_folders(house.console.directory)]
    return sorted((upload.worksheet or "", upload.reference) for upload in uploads)


def test_choosing_worksheets_twice_prepares_nothing_new(house: House) -> None:
    ada, path, form = choose_worksheets(house, "October", "November", reference="payroll")
    assert prepared(house) == [("November", None), ("October", "payroll")]
    both = {"worksheet-0": "October", "worksheet-1": "November"}
    assert ada.post(f"{path}/worksheets", **form, **both).headers["location"] == path
    assert ada.post(f"{path}/worksheets", **form, **{"worksheet-1": "November"}).status_code == 409
    assert len(prepared(house)) == 2


def test_worksheet_chosen_twice_becomes_one_payout(house: House) -> None:
    choose_worksheets(house, "October", "October")
    assert prepared(house) == [("October", None)]


def test_missing_or_unknown_worksheet_prepares_nothing(house: House) -> None:
    ada, path, form = choose_worksheets(house)
    assert "Choose at least one worksheet." in ada.post(f"{path}/worksheets", **form).text
    unknown = ada.post(f"{path}/worksheets", **form, **{"worksheet-0": "October", "worksheet-1": "Cover"})
    assert unknown.status_code == 409
    assert len(prepared(house)) == 1


def test_single_matching_worksheet_is_suggested(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.xlsx", build_workbook("October"))
    assert "<bdi>pay.xlsx [October]</bdi>" in page
    assert "1 of 1 row can be paid" in page
    plan = unescape(ada.get(f"{path}/plan").text)
    assert "This pays the worksheet 'October'. It does not pay: 'Cover'." in plan


def test_column_question_shows_headings_with_first_cells(house: House) -> None:
    lines = "\n".join(f"Kenya,Person {n},2547123456{n:02},{n}00.00,KES,P-{n}" for n in range(1, 6))
    _, _, page = upload_with_questions(house, "hr.csv", f"Land,Who,Handy,Brings home,Money,Ref\n{lines}\n".encode())
    assert "<bdi>Person 1</bdi><br><bdi>Person 2</bdi><br><bdi>Person 3</bdi>" in page
    assert ">Name of the person</option>" in page
    assert ">account_name</option>" not in page


def test_unknown_headings_question_lists_missing_columns(house: House) -> None:
    lines = "\n".join(f"KE,Person {n},2547123456{n:02},{n}00.00,KES" for n in range(1, 4))
    ada, path, page = upload_with_questions(house, "hr.csv", f"Land,Who,Handy,Brings home,Money\n{lines}\n".encode())
    assert "What does each column of your sheet contain?" in page
    assert "Choose a column below for: Amount." in page
    shown = {f"heading-{at}": name for at, name in enumerate(("Land", "Who", "Handy", "Brings home", "Money"))}
    chosen = {"column-0": "country", "column-1": "account_name", "column-3": "amount", "column-4": "currency"}
    page = answer_question(ada, path, page, **shown, **chosen, reference="r-1")
    assert "Check our guesses below." in page
    assert "Every row can be paid" in answer_question(ada, path, page, **shown, **chosen, **{"column-2": "phone"})


def test_next_months_sheet_reuses_answers(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, path = upload_and_answer(house, "Novembre")
    page = ada.get(path).text
    assert "1 of 7 rows cannot be paid yet" in page
    assert "Use <bdi>525631.50" not in page  # A total belongs to no payee.
    ada.post(f"{path}/leave-out", row="8")
    plan = unescape(ada.get(f"{path}/plan").text)
    for read in (
        "Pays: S\xe9n\xe9gal was read as SN, rows 2-4",
        "Pays: Kenya was read as KE, rows 5-7",
        "Devise: FCFA was read as XOF, rows 2-4",
        "Salaire net: 170.000,00 was read as 170000, rows 2-7",
    ):
        assert read in plan
    sign_sheet(ada, path)

    shifted_clock(monkeypatch)(timedelta(days=31))
    ada, path, page = upload_with_questions(house, "D\xe9cembre.csv", payroll("D\xe9cembre").rpartition(b"\n")[0])
    assert "Every row can be paid" in page
    assert f"payroll-{datetime.now(UTC) + timedelta(days=31):%Y-%m}" in page.partition("Read in the same way as")[2]
    sign_sheet(ada, path)
    assert "another person must approve it" in ada.get(f"{path}/plan").text
