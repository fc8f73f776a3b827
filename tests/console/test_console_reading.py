"""Tests reading a sheet: columns, control totals, templates, marked workbook, corrected file."""

import io
import json
import re
from collections.abc import Sequence
from html import unescape
from threading import Event
from unittest.mock import Mock

import openpyxl
import pytest

from paygw_batch.approval.plan_document import read_plan
from paygw_batch.console import visits
from paygw_batch.console.pages import plan_page, preparing
from paygw_batch.settings.configuration import Settings
from tests.console.checking import run_in_process
from tests.console.preparing import (
    PAYROLL,
    column_form,
    digest,
    open_payout_folder,
    payable_count,
    sheet,
    sign_sheet,
    submit_sheet,
    upload_sheet,
    wait_until_finished,
)
from tests.support.patience import PATIENCE_S
from tests.support.people import MAKER, House, Person, newest_entries

pytestmark = pytest.mark.usefixtures("in_process_checks")
SPREADSHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


def choose_column(form: dict[str, str], heading: str, column: str) -> dict[str, str]:
    place = next(name for name, text in form.items() if text == heading and name.startswith("heading-"))
    return {**form, place.replace("heading", "column"): column}


def test_suggested_column_is_used_after_confirmation(ada: Person) -> None:
    draft = upload_sheet(ada, PAYROLL.encode())
    page = ada.get(draft).text
    assert ("What does each column of your sheet contain?" in page, "profile" in page) == (True, False)
    form = column_form(page)
    headings = PAYROLL.splitlines()[1].split(",")
    columns = ("country", "client_orderid", "amount", "", "account_name", "account_number", "phone")
    shown = {f"heading-{at}": text for at, text in enumerate(headings)}
    assert form == shown | {f"column-{at}": text for at, text in enumerate(columns)}
    assert ada.get(f"{draft}/plan").status_code == 303  # There is no plan.
    assert ada.post(f"{draft}/reading", **form).status_code == 303
    page = ada.get(draft).text
    assert ("Every row can be paid" in page, "300.00" in page) == (True, True)


def test_run_uses_signed_columns_shown_to_approver(house: House, ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, PAYROLL.encode())
    form = column_form(ada.get(draft).text)
    ada.post(f"{draft}/reading", **choose_column(choose_column(form, "Net Pay", ""), "Gross", "amount"))
    sign_sheet(ada, draft)
    page = unescape(ben.get(f"{draft}/plan").text)
    assert "the heading Gross means Amount (Ada Wanjiru" in page
    assert "460.00" in page
    text = read_plan(open_payout_folder(house, draft).plan_file).signed_text().decode()
    assert '"code":"column.meant","column":"amount","row":0,"value":"Gross"' in text
    ben.post(f"{draft}/approve", digest=digest(ben, draft))
    ben.post(f"{draft}/start", digest=digest(ben, draft))
    assert "<strong>2</strong> Paid" in wait_until_finished(ada, draft)
    assert [line["amount"] for line in house.program.record()] == ["180.00", "280.00"]


def test_changed_columns_or_cells_need_new_approval(house: House, ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, PAYROLL.encode())
    ada.post(f"{draft}/reading", **column_form(ada.get(draft).text))
    sign_sheet(ada, draft)
    folder = open_payout_folder(house, draft)
    own = house.program.run("approve", folder.plan_file, "--key", house.program.home / "keys" / f"{MAKER}.pem")
    assert own.exit_code == 8
    ben.post(f"{draft}/approve")
    kept = folder.corrections_file.read_text()
    edit = {"row": 3, "column": "amount", "was": "100.00", "now": "9101.00", "by": MAKER, "at": "2026-11-22"}
    gross = kept.replace('"Net Pay"', '"X"').replace('"Gross",\n   "column": ""', '"Gross",\n   "column": "amount"')
    assert gross.count('"amount"') == 2
    for changed in (gross, json.dumps(json.loads(kept) | {"edits": [edit]})):
        folder.corrections_file.write_text(changed)
        assert submit_sheet(house.program, folder)[0] == 8
    assert house.program.record() == []


def test_recognised_column_becomes_only_one_known_column(ada: Person) -> None:
    content = sheet(2).replace(b"Amount", b"Net,Amount").replace(b"P-1,", b"P-1,7.00,").replace(b"P-2,", b"P-2,8.00,")
    draft = upload_sheet(ada, content)
    form = column_form(ada.get(draft).text)
    for strange in ("amuont", "customer_url", "row", "../x"):
        assert ada.post(f"{draft}/reading", **choose_column(form, "Team", strange)).status_code == 404
    form = choose_column(form, "Net", "amount")
    answer = ada.post(f"{draft}/reading", **form)
    assert answer.status_code == 409
    assert "&#39;Net&#39; and &#39;Amount&#39; cannot both be the column amount." in answer.text
    assert ada.post(f"{draft}/reading", **choose_column(form, "Amount", "")).status_code == 303
    page = ada.get(draft).text
    assert '<td class="number sum">15.00</td>' in page
    form = column_form(page)
    assert (form["column-2"], form["column-3"]) == ("amount", "")


def test_corrections_are_dropped_when_columns_change(ada: Person) -> None:
    draft = upload_sheet(ada, sheet(3, {2: {"amount": "abc"}}))
    ada.post(f"{draft}/mend", row="3", column="amount", text="5.00")
    form = column_form(ada.get(draft).text)
    assert ada.post(f"{draft}/reading", reference="", **form).status_code == 303
    assert "Corrected after the upload" in ada.get(draft).text
    ada.post(f"{draft}/reading", **choose_column(form, "Team", "order_desc"))
    page = ada.get(draft).text
    assert ("Corrected after the upload" in page, "1 of 3 rows cannot be paid yet" in page) == (False, True)


def test_every_country_has_templates_as_workbook_and_csv(house: House, ada: Person) -> None:
    page = ada.get("/new").text
    codes = re.findall(r'<option value="([A-Z]{2})">', page)
    assert {"KE", "CI"} <= set(codes)
    for code in codes:
        csv = ada.get(f"/new/template?country={code}&ending=csv")
        assert csv.text.startswith("country,")
        assert f'filename="template-{code.lower()}.csv"' in csv.headers["content-disposition"]
    book = ada.get("/new/template?country=KE&ending=xlsx")
    assert book.headers["content-type"] == SPREADSHEET
    assert openpyxl.load_workbook(io.BytesIO(book.content)).sheetnames[0] == "Payees"
    for query in ("country=XX&ending=csv", "country=KE&ending=exe", "ending=csv", "country=KE&ending=../csv", ""):
        assert ada.get(f"/new/template?{query}").status_code == 404
    assert not list(house.console.directory.glob(".download-*"))
    assert "download template" in {entry.act for entry in newest_entries(house.console.settings, limit=200)}


def test_mismatched_control_totals_prevent_signing(ada: Person, ben: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ada.upload("/new", "pay.csv", sheet(3), stated_rows="1,200", stated_sums="kes 306.00\r\nUGX=5\r\n")
    draft = answer.headers["location"]
    page = ada.get(draft).text
    assert "You expected 1\u202f200 rows, but the sheet has 3." in page
    assert "You expected UGX 5, but the sheet has no rows in UGX." in page
    assert "KES 306" not in page.partition("<textarea")[0]
    assert ada.get(f"{draft}/plan").status_code == 303
    assert ada.post(f"{draft}/totals", stated_rows="3", stated_sums="KES 306").status_code == 303
    assert "The totals do not match" not in ada.get(draft).text
    sign_sheet(ada, draft)
    ben.post(f"{draft}/approve", digest=digest(ben, draft))
    monkeypatch.setattr(plan_page, "start_run", start := Mock())
    ben.post(f"{draft}/start", digest=digest(ben, draft))
    ((_, _, command),) = (started.args for started in start.call_args_list)
    assert command[command.index("--expect-rows") + 1] == "3"
    assert command[command.index("--expect-total") + 1] == "KES=306"


def test_malformed_totals_are_refused_and_discarded(house: House, ada: Person) -> None:
    wrong = [("stated_rows", text) for text in ("three", "-3", "1,2", "9" * 10)]
    wrong += [("stated_sums", text) for text in ("125000.50", "KES 12,50", "KES 1e5", "KES 5\nKES 6")]
    for field, text in wrong:
        answer = ada.upload("/new", "pay.csv", sheet(1), **{field: text})
        assert answer.status_code == 409, text
        assert "in digits" in answer.text or "on its own line" in answer.text
    assert not list(house.console.directory.glob("*"))


def upload_corrected_file(person: Person, draft: str, content: bytes, name: str = "corrected.csv") -> str:
    assert person.upload(f"{draft}/again", name, content).status_code == 303
    return person.get(draft).text


def test_csv_sheet_is_returned_as_corrected_workbook(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(4, {1: {"amount": "abc"}, 2: {"name": ""}, 3: {"name": "=1+1"}}))
    ada.post(f"{draft}/mend", row="2", column="amount", text="5.00")
    answer = ada.get(f"{draft}/marked")
    assert answer.headers["content-type"] == SPREADSHEET, answer.text
    book = openpyxl.load_workbook(io.BytesIO(answer.content))
    worksheet = book["Payees"]
    lines = [[cell.value for cell in line] for line in worksheet.iter_rows(min_row=2)]
    assert [line[0] for line in lines] == [2, 3, 4, 5]
    assert lines[0][4] == "5.00"
    assert worksheet["G3"].fill.fgColor.rgb == "FFFF9B9B"
    assert worksheet["G4"].data_type == "s"  # A sender's formula must not run.
    worksheet["G3"], worksheet["G4"] = "Halima Abdi", "Zawadi Musa"
    data = io.BytesIO()
    book.save(data)
    page = upload_corrected_file(ada, draft, data.getvalue(), "payroll-november.marked.xlsx")
    assert ("Every row can be paid" in page, payable_count(page)) == (True, "4")
    assert "payroll-november.marked.xlsx" in page
    assert open_payout_folder(house, draft).sheet.name == "payroll-november.marked.xlsx"
    assert 'filename="payroll-november.marked.xlsx"' in ada.get(f"{draft}/marked").headers["content-disposition"]


def test_row_stays_left_out_of_corrected_file(ada: Person) -> None:
    draft = upload_sheet(ada, sheet(4))
    for number in ("3", "4"):
        ada.post(f"{draft}/leave-out", row=number)
    assert payable_count(ada.get(draft).text) == "2"
    page = upload_corrected_file(ada, draft, sheet(5, {3: {"amount": "9000.00"}}))
    assert payable_count(page) == "4"  # Row 3 stays out. Row 4 has changed, so it is named.
    assert "have changed in this one: 4." in page
    assert "Left out by" in ada.get(f"{draft}?kind=mended").text


def test_unreadable_sheet_cannot_be_corrected(ada: Person) -> None:
    draft = upload_sheet(ada, b"%PDF-1.4", "scan.csv")
    forms = {"leave-out": {"row": "2"}, "answer": {"question": "payee.twice 0"}, "mend-kind": {"kind": "amount.format"}}
    for act, form in (*forms.items(), ("mend", {"row": "2", "column": "amount", "text": "1"})):
        assert ada.post(f"{draft}/{act}", **form).status_code == 404, act
    assert ada.get(f"{draft}/marked").status_code == 404
    assert "Every row can be paid" in upload_corrected_file(ada, draft, sheet(1))


def test_already_paid_sheet_can_be_replaced_or_removed(house: House, ada: Person, ben: Person) -> None:
    first = upload_sheet(ada, sheet(2))
    sign_sheet(ada, first)
    ben.post(f"{first}/approve", digest=digest(ben, first))
    ben.post(f"{first}/start", digest=digest(ben, first))
    wait_until_finished(ada, first)
    again_place = upload_sheet(ada, sheet(2))
    page = ada.get(again_place).text
    assert "None of the 2 rows is new, so nothing would be sent" in page
    assert "Check what will be paid</a>" not in page
    assert ada.get(f"{again_place}/plan").headers["location"] == again_place
    assert ada.post(f"{again_place}/sign").status_code == 409
    assert payable_count(upload_corrected_file(ada, again_place, sheet(3))) == "3"
    assert "2 rows are already in earlier payouts" in ada.get(again_place).text
    assert ada.post(f"{again_place}/remove").status_code == 303
    assert ada.get(again_place).status_code == 404
    assert not open_payout_folder(house, again_place).path.exists()
    assert ada.post(f"{first}/remove").status_code == 409  # The first was started, so its page no longer has this form.


def test_large_sheet_is_read_in_background(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Event()

    def run(program: str, given: Sequence[str], settings: Settings, **_where: object) -> bool:
        assert gate.wait(timeout=PATIENCE_S)
        return run_in_process(program, given, settings)

    monkeypatch.setattr(visits, "run_within_limits", run)
    monkeypatch.setattr(preparing, "MAX_IN_PROCESS_BYTES", 100)
    ada = house.person(MAKER)
    draft = upload_sheet(ada, sheet(990))
    page = ada.get(draft).text
    assert ("Reading 990 rows..." in page, 'http-equiv="refresh"' in page) == (True, True)
    assert "Reading 990 rows..." in ada.get(f"{draft}/plan").text
    assert "Check the sheet" in ada.get("/").text
    gate.set()
    preparing._check_threads[draft.rpartition("/")[2]].join(timeout=PATIENCE_S)
    assert "Every row can be paid" in ada.get(draft).text


def test_oversized_sheet_is_checked_only_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "run_within_limits", run := Mock(return_value=False))
    ada = house.person(MAKER)
    draft = upload_sheet(ada, sheet(1))
    for _ in range(2):
        page = ada.get(draft).text
        assert "We cannot read this sheet yet" in page
        assert "more memory or time than allowed" in page
    assert run.call_count == 1
