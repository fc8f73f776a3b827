"""The marks by which files that this program wrote are known again, in no language."""

from enum import StrEnum

HEADINGS = "# paygw-batch headings"
"""The first line of a list of headings."""
HELP = "paygw-batch help"
PROBLEMS = "paygw-batch problems"
OUR_WORKSHEETS = frozenset({HELP, PROBLEMS})
"""A cell in the first row of every worksheet that we write; such worksheets are never read as payees."""


class PageKind(StrEnum):
    """The kinds of pages."""

    REPORT = "report"
    PLAN = "plan"
    REMITTANCE = "remittance"

    @property
    def generator(self) -> str:
        """The line in the head of a page that names the program that wrote it."""
        return f'<meta name="generator" content="paygw-batch {self}">'
