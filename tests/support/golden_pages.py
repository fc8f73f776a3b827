"""The golden files of the pages, in which a placeholder replaces the style sheet."""

from paygw_batch.core.generator_marks import PageKind
from tests.support.checkout import ROOT

GOLDEN = ROOT / "tests/show/golden"
STYLE_SHEET = (ROOT / "paygw_batch/show/static/pages.css").read_text(encoding="utf-8")
INSTEAD = "/* pages.css */\n"


def read_golden_page(kind: PageKind) -> str:
    """Return a whole page: its golden file with the style sheet inserted."""
    golden = (GOLDEN / f"{kind}.html").read_bytes().decode()
    assert golden.count(INSTEAD) == 1
    return golden.replace(INSTEAD, STYLE_SHEET)
