"""The manual pages are those of the commands as they are now."""

import importlib.util
import re
from types import ModuleType

import pytest

from paygw_batch.cli.help_texts import EXIT_CODES
from paygw_batch.cli.main import COMMANDS
from tests.support.checkout import ROOT, versioned_files

PAGES = ROOT / "docs/man"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("man_pages", ROOT / "tooling/man_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_man_pages_match_script(script: ModuleType) -> None:
    pages = script.pages()
    there = {path for path in (*versioned_files("docs/man"), *(PAGES / name for name in pages)) if path.exists()}
    assert {path.name: path.read_text(encoding="utf-8") for path in there} == pages, "run tooling/man_pages.py"


def test_every_command_has_man_page_with_exit_codes() -> None:
    for command in ("", *(f"-{name}" for name in COMMANDS), "-journal-adopt"):
        page = (PAGES / f"paygw-batch{command}.1").read_text(encoding="utf-8")
        status = page.partition(".SH EXIT STATUS\n")[2].partition("\n.SH ")[0]
        assert [int(code) for code in re.findall(r"\\fB(\d+)\\fP", status)] == list(EXIT_CODES)


@pytest.mark.parametrize("start", [".TH evil", "'so /etc/passwd", "\\fBbold"])
def test_a_text_is_never_a_command_of_roff(script: ModuleType, start: str) -> None:
    assert not script._roff(f"first\n{start}").split("\n")[1].startswith((".", "'", "\\f"))
