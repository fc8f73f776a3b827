"""Stories of a maker in Chromium without JavaScript, using only the keyboard."""

import io
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from playwright.sync_api import expect

from tests.support.browsers import Desk, Keyboard
from tests.support.people import MAKER

pytestmark = pytest.mark.usefixtures("in_process_checks")
NewDesk = Callable[..., Desk]


def write_letterhead_workbook(path: Path) -> None:
    """Write a workbook with a letterhead, its own headings, and an amount turned into a date."""
    book = openpyxl.Workbook()
    worksheet = book.worksheets[0]
    worksheet.title = "November"
    headings = ["Country Code", "Payment ID", "Employee Name", "Net Pay", "Mobile Money Number", "Mobile", "Station"]
    lines: list[list[Any]] = [["Umoja Health Trust"], ["Net pay, prepared by the office in Kisumu"], [None], headings]
    phones = [f"25471234500{n}" for n in range(1, 4)]
    lines += [["KE", f"NOV-{n}", f"Jane {n}", 1500 + n, phone, phone, "Kisumu"] for n, phone in enumerate(phones, 1)]
    for line in lines:
        worksheet.append(line)
    worksheet["D6"] = date(2026, 1, 12)
    book.save(path)


def test_maker_corrects_workbook_with_letterhead(new_desk: NewDesk, address: str, tmp_path: Path) -> None:
    path, corrected = tmp_path / "net pay.xlsx", tmp_path / "mended.xlsx"
    write_letterhead_workbook(path)
    ada = new_desk(java_script_enabled=False, base_url=address)
    ada.sign_in(MAKER)
    keyboard, page = Keyboard(ada.page), ada.page
    keyboard.press(page.get_by_role("link", name="Start a new payout"))
    keyboard.reach(page.get_by_label("Your sheet")).set_input_files(path)
    keyboard.press(page.get_by_role("button", name="Upload and check"))
    expect(page.get_by_role("heading", name="What does each column of your sheet contain?")).to_be_visible()
    expect(page.get_by_role("combobox", name="Net Pay")).to_have_value("amount")
    expect(page.get_by_role("combobox", name="Station")).to_have_value("")
    keyboard.press(page.get_by_role("button", name="Read the sheet like this"))
    expect(page.get_by_role("heading", name="1 of 3 rows cannot be paid yet")).to_be_visible()
    wrong = page.locator("#row-6 .wrong")
    expect(wrong).to_contain_text("2026-01-12")
    expect(wrong).to_contain_text("Net Pay")
    keyboard.reach(page.get_by_role("link", name="Workbook with the red cells"))
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    book = openpyxl.load_workbook(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert book["November"]["A1"].value == "Umoja Health Trust"
    assert book["November"]["D6"].fill.fgColor.rgb == "FFFF9B9B"
    book["November"]["D6"].value = "1502.00"
    book.save(corrected)
    keyboard.reach(page.get_by_label("The corrected file")).set_input_files(corrected)
    keyboard.press(page.get_by_role("button", name="Upload and replace"))
    expect(page.get_by_role("heading", name="Every row can be paid")).to_be_visible()
    expect(page.get_by_role("row", name="KES 3 4\u202f506.00")).to_be_visible()
