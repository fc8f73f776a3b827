"""Defines the language-independent marks of files that this program wrote."""

from enum import StrEnum

HEADINGS = "# paygw-batch headings"
"""The first line of a list of headings."""
HELP = "paygw-batch help"
PROBLEMS = "paygw-batch problems"
OUR_WORKSHEETS = frozenset({HELP, PROBLEMS})
"""The texts that identify our own worksheets, in the first row. Such worksheets contain no payments."""


class PageKind(StrEnum):
    """The kinds of pages that this program writes."""

    REPORT = "report"
    PLAN = "plan"
    REMITTANCE = "remittance"

    @property
    def generator(self) -> str:
        """The `<meta>` tag that identifies this program."""
        return f'<meta name="generator" content="paygw-batch {self}">'
