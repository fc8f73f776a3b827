"""Tests the questions about a sheet: order ids, encoding, worksheet, headings."""

import io
import re
from datetime import UTC, datetime, timedelta
from html import unescape

import openpyxl
import pytest

from tests.console.preparing import answer_question, payroll, sign_sheet, upload_and_answer, upload_with_questions
from tests.support.clocks import shifted_clock
from tests.support.people import House

pytestmark = pytest.mark.usefixtures("in_process_checks")
HEADER = "Country,Amount,Currency,Account name,account_number,phone"
ROW = "KE,100.00,KES,A\xefcha Traor\xe9,254712345678,254712345678"


def test_sheet_without_ids_asks_for_run_name(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.csv", f"{HEADER}\n{ROW}\n".encode())
    suggested = re.findall(r'name="reference"[^>]*value="(payroll-[0-9-]+)"', page)
    assert len(suggested) >= 1, page
    assert "Use this name" in page
    assert "Every row can be paid" in answer_question(ada, path, page, reference=suggested[0])


def test_encoding_question_shows_decoded_names(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.csv", f"client_orderid,{HEADER}\nA-1,{ROW}\n".encode("cp1252"))
    assert "<bdi>A\xefcha Traor\xe9</bdi>" in page
    assert "Yes, the names are right" in page
    read = answer_question(ada, path, page, encoding="cp1252")
    assert "Every row can be paid" in read
    plan = ada.get(f"{path}/plan").text
    assert "How the sheet is read" in plan
    assert "A\xefcha Traor\xe9" in plan


def test_encoding_not_offered_is_refused(house: House) -> None:
    ada, path, page = upload_with_questions(house, "pay.csv", f"client_orderid,{HEADER}\nA-1,{ROW}\n".encode("cp1252"))
    version = re.findall(r'name="version" value="([0-9a-f]+)"', page)[0]
    assert ada.post(f"{path}/reading", version=version, encoding="utf-7").status_code in {404, 409}


def test_two_pay_worksheets_offer_two_buttons(house: House) -> None:
    book = openpyxl.Workbook()
    del book["Sheet"]
    for title in ("October", "November"):
        sheet = book.create_sheet(title)
        for line in (f"client_orderid,{HEADER}".split(","), f"{title},{ROW}".split(",")):
            sheet.append(line)
    kept = io.BytesIO()
    book.save(kept)
    ada, path, page = upload_with_questions(house, "pay.xlsx", kept.getvalue())
    assert re.findall(r'<input type="hidden" name="worksheet" value="(\w+)">', page) == ["October", "November"]
    assert re.findall(r"<bdi>(October|November)</bdi> \((.*?)\)", page) == [("October", "1 row"), ("November", "1 row")]
    read = answer_question(ada, path, page, worksheet="November")
    assert "The worksheet &#39;October&#39; is not read, and not paid here: 1 row. &#39;November&#39; is read." in read
    assert "Every row can be paid" in read
    assert "November" in ada.get(f"{path}/plan").text


def test_column_question_shows_headings_with_first_cells(house: House) -> None:
    lines = "\n".join(f"Kenya,Person {n},2547123456{n:02},{n}00.00,KES,P-{n}" for n in range(1, 6))
    _, _, page = upload_with_questions(house, "hr.csv", f"Land,Who,Handy,Brings home,Money,Ref\n{lines}\n".encode())
    assert "<bdi>Person 1</bdi><br><bdi>Person 2</bdi><br><bdi>Person 3</bdi>" in page
    assert ">Name of the person</option>" in page
    assert ">account_name</option>" not in page


def test_unknown_headings_question_lists_open_columns(house: House) -> None:
    lines = "\n".join(f"KE,Person {n},2547123456{n:02},{n}00.00,KES" for n in range(1, 4))
    ada, path, page = upload_with_questions(house, "hr.csv", f"Land,Who,Handy,Brings home,Money\n{lines}\n".encode())
    assert "What is each column of your sheet?" in page
    assert "No column has been chosen yet for: Amount. Choose it below." in page
    shown = {f"heading-{at}": name for at, name in enumerate(("Land", "Who", "Handy", "Brings home", "Money"))}
    chosen = {"column-0": "country", "column-1": "account_name", "column-3": "amount", "column-4": "currency"}
    page = answer_question(ada, path, page, **shown, **chosen, reference="r-1")
    assert "Our guesses are filled in below." in page
    assert "Every row can be paid" in answer_question(ada, path, page, **shown, **chosen, **{"column-2": "phone"})


def test_next_month_sheet_needs_no_answers(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, path = upload_and_answer(house, "Novembre")
    page = ada.get(path).text
    assert "1 of 7 rows cannot be paid yet" in page
    assert "Use <bdi>525631.50" not in page  # A total belongs to no payee.
    ada.post(f"{path}/leave-out", row="8")
    plan = unescape(ada.get(f"{path}/plan").text)
    for read in (
        "Pays: S\xe9n\xe9gal is read as SN, rows 2-4",
        "Pays: Kenya is read as KE, rows 5-7",
        "Devise: FCFA is read as XOF, rows 2-4",
        "Salaire net: 170.000,00 is read as 170000, rows 2-7",
    ):
        assert read in plan
    sign_sheet(ada, path)

    shifted_clock(monkeypatch)(timedelta(days=31))
    ada, path, page = upload_with_questions(house, "D\xe9cembre.csv", payroll("D\xe9cembre").rpartition(b"\n")[0])
    assert "Every row can be paid" in page
    assert f"payroll-{datetime.now(UTC) + timedelta(days=31):%Y-%m}" in page.partition("Read as in")[2]
    sign_sheet(ada, path)
    assert "another person must approve it" in ada.get(f"{path}/plan").text
