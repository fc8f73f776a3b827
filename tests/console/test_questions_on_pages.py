"""Tests the questions about a sheet: order ids, encoding, worksheet, headings."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from httpx import Response

from paygw_batch.console.payout_folder import payout_folders
from tests.console.preparing import (
    HEADER,
    ROW,
    answer_question,
    build_workbook,
    payroll,
    shown_version,
    sign_sheet,
    upload_and_answer,
    upload_with_questions,
    wait_until_finished,
)
from tests.support.clocks import shifted_clock
from tests.support.people import APPROVER, House

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
    refused = ada.post(f"{path}/reading", version=shown_version(page), encoding="utf-7")
    assert refused.status_code in {404, 409}, "not offered"
    assert "Every row can be paid" in answer_question(ada, path, page, encoding="cp1252")
    plan = ada.get(f"{path}/plan").text
    assert ("How the sheet is read" in plan, "A\xefcha Traor\xe9" in plan) == (True, True)


def test_each_chosen_worksheet_becomes_a_payout(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.xlsx", build_workbook("October", "November", "December"))
    assert re.findall(r"<bdi>(\w+)</bdi> \(1 row\)", page) == ["October", "November", "December"]
    chosen = {"version": shown_version(page), "worksheet-0": "October", "worksheet-2": "December"}
    assert ada.post(f"{path}/worksheets", **chosen).headers["location"] == path
    drafts = re.findall(r'href="(/sheets/\w+)(?:/plan)?"><bdi>pay.xlsx \[(\w+)\]', ada.get("/").text)
    assert {title for _, title in drafts} == {"October", "December"}
    plans = {title: unescape(ada.get(f"{place}/plan").text) for place, title in drafts}
    pays = "This plan pays only the worksheet '{}', not: 'Cover', '{}' (1 row), '{}' (1 row)."
    assert pays.format("October", "November", "December") in plans["October"]
    assert pays.format("December", "October", "November") in plans["December"]
    ben = house.person(APPROVER)
    for place, _ in drafts:
        sign_sheet(ada, place)
        ben.post(f"{place}/approve")
        ben.post(f"{place}/start")
        wait_until_finished(ada, place)
    assert sorted(line["amount"] for line in house.program.record()) == ["100.00", "300.00"]


def test_choosing_worksheets_prepares_each_once(house: House) -> None:
    workbook = build_workbook("October", "November")
    ada, path, page = upload_with_questions(house, "pay.xlsx", workbook, reference="payroll")
    form = {"version": shown_version(page)}

    def prepared() -> list[tuple[str | None, str | None]]:
        """Return the worksheet and payment run of each payout in preparation."""
        uploads = [folder.uploaded for folder in payout_folders(house.console.directory)]
        return sorted((upload.worksheet or "", upload.reference) for upload in uploads)

    def choose(*worksheets: str) -> Response:
        return ada.post(f"{path}/worksheets", **form, **{f"worksheet-{n}": name for n, name in enumerate(worksheets)})

    assert "Choose at least one worksheet." in choose().text
    assert choose("October", "Cover").status_code == 409
    assert prepared() == [("", "payroll")]
    assert [choose("October", "October", "November").headers.get("location") for _ in range(2)] == [path] * 2
    assert prepared() == [("November", None), ("October", "payroll")]
    assert choose("November").status_code == 409
    assert len(prepared()) == 2


def test_single_matching_worksheet_is_suggested(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.xlsx", build_workbook("October"))
    assert ("<bdi>pay.xlsx [October]</bdi>" in page, "1 of 1 row can be paid" in page) == (True, True)
    assert "This plan pays only the worksheet 'October', not: 'Cover'." in unescape(ada.get(f"{path}/plan").text)


def test_unknown_headings_question_lists_missing_columns(house: House) -> None:
    lines = "\n".join(f"KE,Person {n},2547123456{n:02},{n}00.00,KES" for n in range(1, 4))
    ada, path, page = upload_with_questions(house, "hr.csv", f"Land,Who,Handy,Brings home,Money\n{lines}\n".encode())
    assert "What does each column of your sheet contain?" in page
    assert "Choose a column below for: Amount." in page
    assert "<bdi>Person 1</bdi><br><bdi>Person 2</bdi><br><bdi>Person 3</bdi>" in page
    assert (">Name of the person</option>" in page, ">account_name</option>" in page) == (True, False)
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
