"""Language-independent marks by which files that this program wrote are recognised."""

from enum import StrEnum

HEADINGS = "# paygw-batch headings"
"""The first line of a list of headings."""
HELP = "paygw-batch help"
PROBLEMS = "paygw-batch problems"
OUR_WORKSHEETS = frozenset({HELP, PROBLEMS})
"""The texts of a cell in the first row of each worksheet that we write. Such a worksheet is never read as payees."""


class PageKind(StrEnum):
    """The kinds of pages that this program writes."""

    REPORT = "report"
    PLAN = "plan"
    REMITTANCE = "remittance"

    @property
    def generator(self) -> str:
        """The `<meta>` line in a page's head that names this program."""
        return f'<meta name="generator" content="paygw-batch {self}">'
