"""The manual pages match the current commands."""

import re

import pytest

from paygw_batch.cli.help_texts import EXIT_CODES
from paygw_batch.cli.main import COMMANDS
from tests.support.checkout import ROOT, import_script, versioned_files

PAGES = ROOT / "docs/man"


SCRIPT = import_script("tooling/man_pages.py")


def test_man_pages_match_script() -> None:
    pages = SCRIPT.render_pages()
    there = {path for path in (*versioned_files("docs/man"), *(PAGES / name for name in pages)) if path.exists()}
    assert {path.name: path.read_text(encoding="utf-8") for path in there} == pages, "run tooling/man_pages.py"


def test_every_command_has_man_page_with_exit_codes() -> None:
    for command in ("", *(f"-{name}" for name in COMMANDS), "-journal-adopt"):
        page = (PAGES / f"paygw-batch{command}.1").read_text(encoding="utf-8")
        status = page.partition(".SH EXIT STATUS\n")[2].partition("\n.SH ")[0]
        assert [int(code) for code in re.findall(r"\\fB(\d+)\\fP", status)] == list(EXIT_CODES)


@pytest.mark.parametrize("start", [".TH evil", "'so /etc/passwd", "\\fBbold"])
def test_man_page_text_is_escaped_for_roff(start: str) -> None:
    assert not SCRIPT._escape_roff(f"first\n{start}").split("\n")[1].startswith((".", "'", "\\f"))
