"""Tests the demonstration of the pages, and the accessibility of pages that are files in a real browser."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from paygw_batch.core.generator_marks import PageKind
from tests.console.preparing import upload_sheet
from tests.support.browsers import NARROW, Desk
from tests.support.checkout import ROOT
from tests.support.golden_pages import read_golden_page
from tests.support.long_part import share
from tests.support.people import MAKER, House
from tests.support.program import Program


@pytest.mark.usefixtures("in_process_checks")
def test_demo_has_people_and_sheet_to_correct(tmp_path: Path) -> None:
    demo = runpy.run_path(str(ROOT / "tooling/console_demo.py"))
    tmp_path.chmod(0o700)
    ada = House(Program(tmp_path, demo["create_demo"](tmp_path))).person(MAKER)
    draft = upload_sheet(ada, (tmp_path / "payroll-november.csv").read_bytes())
    assert "7 of 200 rows cannot be paid yet" in ada.get(draft).text


@pytest.mark.parametrize("scheme", share(["dark", "light"], every=2))
def test_html_report_has_no_accessibility_violation(new_desk: Callable[..., Desk], scheme: str, tmp_path: Path) -> None:
    desk = new_desk(color_scheme=scheme, bypass_csp=True)  # The pages allow no scripts, but axe-core is one.
    for kind in PageKind:
        (whole := tmp_path / f"{kind}.html").write_bytes(read_golden_page(kind).encode())
        desk.page.goto(whole.as_uri())
        desk.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        desk.check_page()
        desk.page.set_viewport_size({"width": NARROW, "height": 800})
        desk.require_accessible()
        desk.page.set_viewport_size({"width": 1200, "height": 800})
