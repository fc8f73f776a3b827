"""Story of a French HR export without order ids, from the upload to the reconciliation.

Two people use the keyboard on a screen 375 pixels wide.
"""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browsers import Desk, Keyboard
from tests.support.people import APPROVER, MAKER

pytestmark = pytest.mark.usefixtures("in_process_checks")
NewDesk = Callable[..., Desk]
PEOPLE = 24
WRONG = {3: "1 250,5O", 7: "douze", 11: ""}
"""Of a row: the net pay, which nobody can read."""


def seat_reader(new_desk: NewDesk, address: str, name: str) -> tuple[Desk, Keyboard]:
    """Open a narrow browser in French with a keyboard for a person."""
    desk = new_desk(base_url=address, viewport={"width": 375, "height": 740})
    desk.context.add_cookies([{"name": "language", "value": "fr", "url": address}])
    desk.sign_in(name)
    desk.page.get_by_role("heading", level=1, name="Vue d'ensemble").wait_for()
    desk.check_page()
    return desk, Keyboard(desk.page)


def write_export(path: Path) -> Path:
    """Write an HR export: semicolons, cp1252, its own headings, no order ids, one number per person."""
    lines = ["Nom du salari\xe9;Pays;T\xe9l\xe9phone;Salaire net;Devise;Service"]
    pay = {row: WRONG.get(row, f"{1000 + row}.00") for row in range(2, PEOPLE + 2)}
    lines += [f"A\xefcha Traor\xe9 {row};KE;2547123450{row:02};{net};KES;R\xe9gie" for row, net in pay.items()]
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    return path


def upload_and_answer(ada: Desk, keyboard: Keyboard, sheet: Path) -> None:
    """Upload a sheet and answer each question on the pages."""
    page = ada.page
    keyboard.press(page.get_by_role("link", name="Commencer un nouveau paiement"))
    keyboard.reach(page.get_by_label("Votre fichier")).set_input_files(sheet)
    keyboard.write(page.get_by_label("Nom de ce paiement"), "Salaires novembre")
    keyboard.press(page.get_by_role("button", name="D\xe9poser et v\xe9rifier"))
    expect(page.get_by_text("A\xefcha Traor\xe9 2", exact=True)).to_be_visible()
    ada.check_page()
    keyboard.press(page.get_by_role("button", name="Oui, ils sont bien écrits"))
    page.get_by_role("table").wait_for()
    ada.check_page()
    keyboard.press(page.get_by_role("button", name="Lire le fichier ainsi"))
    expect(page.get_by_label("Nom de la s\xe9rie de paiements")).to_be_focused()
    ada.check_page()
    page.keyboard.press("Enter")
    page.locator(".cell.wrong").first.wait_for()


def correct_red_cells(ada: Desk, keyboard: Keyboard) -> None:
    """Correct each red cell. From the second on, it already has the focus."""
    page = ada.page
    expect(page.locator(".cell.wrong")).to_have_count(len(WRONG))
    ada.check_page()
    for at, row in enumerate(WRONG):
        cell = page.get_by_label(f"de la ligne {row}", exact=False).first
        if at == 0:
            keyboard.reach(cell)
        expect(cell).to_be_focused()
        page.keyboard.press("Control+A")
        page.keyboard.type(f"{1000 + row}.00")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").last).to_contain_text(f"Ligne {row}, Salaire net")
    ada.check_page()
    forward = page.get_by_role("link", name="V\xe9rifier ce qui sera pay\xe9")
    expect(forward).to_be_focused()
    expect(forward).to_be_in_viewport()
    page.keyboard.press("Enter")


@pytest.mark.long
def test_french_payroll_without_order_ids_is_paid(new_desk: NewDesk, address: str, tmp_path: Path) -> None:
    ada, keyboard = seat_reader(new_desk, address, MAKER)
    page = ada.page
    upload_and_answer(ada, keyboard, write_export(tmp_path / "paie.csv"))
    correct_red_cells(ada, keyboard)

    page.get_by_role("heading", level=1, name="V\xe9rifier ce qui sera pay\xe9").wait_for()
    expect(page.locator("main")).to_contain_text("cp1252")
    ada.check_page()
    keyboard.press(page.get_by_role("button", name="Signer"))
    page.wait_for_load_state()

    ben, other = seat_reader(new_desk, address, APPROVER)
    other.press(ben.page.get_by_role("link", name="Salaires novembre").first)
    ben.page.get_by_role("button", name="Approuver").first.wait_for()
    expect(ben.page.get_by_role("heading", name="Code de ce paiement")).to_be_visible()
    ben.check_page()
    other.press(ben.page.get_by_role("button", name="Approuver").first)
    start = ben.page.get_by_role("button", name="Lancer le paiement")
    start.wait_for()
    ben.check_page()
    other.press(start)
    expect(ben.page.get_by_role("heading", name="Termin\xe9")).to_be_visible(timeout=120_000)
    ben.check_page()

    page.goto("/")
    ada.check_page()
    keyboard.press(page.get_by_role("link", name="Salaires novembre").first)
    with page.expect_download() as taken:
        keyboard.press(page.get_by_role("link", name="CSV"))
    rows = list(csv.DictReader(io.StringIO(Path(taken.value.path()).read_text(encoding="utf-8-sig"))))
    assert [line["state"] for line in rows] == ["paid"] * PEOPLE
    assert rows[0]["account_name"] == "A\xefcha Traor\xe9 2"
