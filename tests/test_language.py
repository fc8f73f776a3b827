"""First lines of docstrings are plain English, for readers whose second language it is."""

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "tooling/house_figures.py"))
MODULES = TOOL["modules_of"](TOOL["ROOT"] / TOOL["PACKAGE"])
ROOMS = sorted({name.split(".")[0] for name in MODULES})


@pytest.mark.parametrize("room", ROOMS)
def test_first_lines_are_plain_english(room: str) -> None:
    found = [
        f"{name}: {line}"
        for name, module in MODULES.items()
        if name.split(".")[0] == room
        for _, line in TOOL["first_lines"](module)
        if TOOL["BANNED"].search(line)
    ]
    assert found == []


@pytest.mark.parametrize("line", ["Return where every row stands.", "What a file is.", "Say what came of it."])
def test_a_banned_word_is_found(line: str) -> None:
    assert TOOL["BANNED"].search(line)


def test_a_plain_line_passes() -> None:
    assert not TOOL["BANNED"].search("Return the state of every row.")
