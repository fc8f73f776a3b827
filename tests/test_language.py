"""First lines of docstrings are plain English, for readers whose second language it is."""

import re
import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "tooling/house_figures.py"))
MODULES = TOOL["modules_of"](TOOL["ROOT"] / TOOL["PACKAGE"])
ROOMS = (
    *("core", "settings", "engine", "gateway", "sandbox", "listener", "statement", "report", "run"),
    *("journal", "compose", "cli", "api", "clock", "errors", "files", "processes", "trusted_files"),
    *("countries", "sheet"),
)
WITHOUT_CLAUSES = ("countries", "sheet", "statement")
"""The rooms whose first lines have no clause in place of a noun either."""
CLAUSES = re.compile(r"\b(?:stood|came to|however|told|what)\b", re.IGNORECASE)


@pytest.mark.parametrize("room", ROOMS)
def test_first_lines_are_plain_english(room: str) -> None:
    found = [
        f"{name}: {line}"
        for name, module in MODULES.items()
        if name.split(".")[0] == room
        for whose, line in TOOL["first_lines"](module)
        # A command's own first line is its help text: users know it, and the pins hold it.
        if TOOL["BANNED"].search(line) and not (name.startswith("cli.commands.") and whose == "command")
    ]
    assert found == []


@pytest.mark.parametrize("room", WITHOUT_CLAUSES)
def test_first_lines_say_a_noun_where_they_mean_one(room: str) -> None:
    modules = {name: module for name, module in MODULES.items() if name.split(".")[0] == room}
    assert len(modules) > 1
    lines = [f"{name}: {line}" for name, module in modules.items() for _, line in TOOL["first_lines"](module)]
    assert [line for line in lines if CLAUSES.search(line)] == []


def test_a_banned_word_is_found() -> None:
    assert TOOL["BANNED"].search("Return where every row stands.")
    assert not TOOL["BANNED"].search("Return the state of every row.")
    assert CLAUSES.search("What a file is.")
