"""The progress bar of long commands appears only on a terminal."""

import io

import pytest
from rich.console import Console

from paygw_batch.cli.screen.progress_bar import show_bar


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_bar_appears_only_on_terminal(is_terminal: bool) -> None:
    written = io.StringIO()
    with show_bar(Console(file=written, force_terminal=is_terminal, width=100), "Checking") as progress:
        progress(500, 2_000)
    text = written.getvalue()
    assert ("Checking" in text and "500/2000" in text) is is_terminal
    assert bool(text) is is_terminal
