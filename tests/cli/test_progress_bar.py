"""The bar of a command that takes long: on a terminal, and nowhere else."""

import io

import pytest
from rich.console import Console

from paygw_batch.cli.screen.progress_bar import bar_on


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_bar_is_shown_only_on_terminal(is_terminal: bool) -> None:
    written = io.StringIO()
    with bar_on(Console(file=written, force_terminal=is_terminal, width=100), "Checking") as progress:
        progress(500, 2_000)
    text = written.getvalue()
    assert ("Checking" in text and "500/2000" in text) is is_terminal
    assert bool(text) is is_terminal
