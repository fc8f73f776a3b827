"""Output on a terminal of 80 columns wraps between words, and tables break no word."""

import re

import pytest

from paygw_batch.cli.screen.screen import column_widths, wrap_line
from tests.cli.conversing import converse
from tests.support.program import Program, kenyan_rows

LONG = "payroll-november-2026-of-the-northern-branch.csv"
LAYOUT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 80, ["one two three"]),
        ("one two three", 8, ["one two", "three"]),
        ("- one two three", 9, ["- one two", "  three"]),
        ("  one two three", 9, ["  one two", "  three"]),
        ("run `paygw-batch status 1` now", 20, ["run", "`paygw-batch status 1`", "now"]),
        ("Pay: paygw-batch submit payroll.csv", 20, ["Pay:", "paygw-batch submit payroll.csv"]),
        ("a-word-that-is-far-too-long is", 10, ["a-word-that-is-far-too-long", "is"]),
        ("给 付款 付款", 6, ["给", "付款", "付款"]),
    ],
)
def test_wrapping_keeps_words_and_commands_whole(text: str, width: int, lines: list[str]) -> None:
    assert wrap_line(text, width).split("\n") == lines


def test_wide_columns_share_remaining_width() -> None:
    columns = [["id", "aaaa"], ["one two three", "four"]]
    assert column_widths(columns, [True, False], 40) == [4, 13]
    assert column_widths(columns, [True, False], 11) == [4, 7]
    assert column_widths(columns, [True, False], 8) is None


@pytest.mark.share(2)
@pytest.mark.parametrize("language", ["en", "fr"])
def test_terminal_output_does_not_break_words(program: Program, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    monkeypatch.setattr("tests.cli.conversing.COLUMNS", 80)
    sheet = program.sheet([*kenyan_rows(1), *kenyan_rows(1, amount="9007", prefix="LOST")], LONG)
    program.run("submit", sheet)
    for command in (("status",), ("status", sheet, "--history"), ("config", "show"), ("verify",), ("find", "Jane")):
        shown, _ = converse(program, "--lang", language, *command, answers=[])
        lines = LAYOUT.sub("", shown).splitlines()
        # A line may be longer only if it consists of one unbreakable piece: a command, a path or a name.
        assert [line for line in lines if len(line) > 80 and " " in line.strip() and "paygw-batch" not in line] == []
        assert command != ("status",) or LONG in shown
        assert command != ("config", "show") or "gateway.private_key_passphrase_file" in shown
