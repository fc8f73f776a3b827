"""External text on a terminal: control characters are escaped, and letters of all scripts stay."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.text import escape_for_terminal, escape_json, escape_layout

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def is_control_character(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in DIRECTIONS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay\x1b[2J.csv", r"pay\x1b[2J.csv"),
        ("pay\x1b]0;paid\x07.csv", r"pay\x1b]0;paid\x07.csv"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x9b31m", r"\x9b31m"),
        ("xslx.\u202efdp", r"xslx.\u202efdp"),
        ("\u2066a\u2069", r"\u2066a\u2069"),
        ("caf\udce9", r"caf\udce9"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("tag\U000e0041", r"tag\U000e0041"),
    ],
)
def test_control_and_hidden_characters_are_shown(text: str, shown: str) -> None:
    assert escape_for_terminal(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Zoë Ångström",
        "\u0645\u062d\u0645\u062f \u0639\u0644\u064a",  # Arabic
        "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627",  # Persian, with the joiner that it needs
        "የደመወዝ",
        "薪資 表",
        "क्\u200dष",
        "a\u00a0b",
        r"C:\x1b",
        "\U0001f469\u200d\U0001f33e",
    ],
)
def test_text_in_any_script_is_unchanged(text: str) -> None:
    assert escape_for_terminal(text) == escape_layout(text) == text
    assert escape_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


@given(st.text(st.characters()))
def test_no_control_character_remains(text: str) -> None:
    assert not any(map(is_control_character, escape_for_terminal(text)))


@given(st.text(st.characters()))
def test_terminal_json_is_printable_and_equivalent(text: str) -> None:
    line = escape_json(json.dumps({"sheet": text}, ensure_ascii=False))
    assert json.loads(line) == {"sheet": text}
    assert not any(map(is_control_character, line))


def test_terminal_layout_keeps_only_colours_and_lines() -> None:
    laid_out = "\x1b[1;31mError:\x1b[0m\n\r\x1b[2K\x1b[?25l"
    assert escape_layout(laid_out) == laid_out
    assert escape_layout("\x1b]0;title\x07\x9b2J\x1bc\u202e") == r"\x1b]0;title\x07\x9b2J\x1bc\u202e"
