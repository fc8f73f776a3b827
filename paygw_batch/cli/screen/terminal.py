"""The console on which commands print. Text from outside is made fit for a terminal here."""

from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from paygw_batch.core.terminal_text import fit_for_terminal


def plain(text: str, style: str = "") -> Text:
    """Return one line of text to print as it is: no markup, and nothing that a terminal would obey."""
    return Text(fit_for_terminal(text), style=style)


class PlainConsole(Console):
    """A console that prints a string as plain text. A caller that prints a `Text` makes it by `plain`."""

    def __init__(self, file: TextIO, *, quiet: bool) -> None:
        super().__init__(file=file, quiet=quiet, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, *, style: Any = "", **_: Any) -> Text:
        """Return a string that is printed as `plain` does."""
        return plain(text, style)
