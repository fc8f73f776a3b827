"""External text on a terminal: control characters are escaped, and letters of all scripts stay."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.lifecycle import (
    Concluded,
    Fact,
    IllegalMove,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.core.text import escape_except_layout, escape_for_terminal, escape_json
from paygw_batch.language import language, language_context
from tests.support.row_progress import RowProgress, advance, with_duplicate

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def is_control_character(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in DIRECTIONS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(("pay\x1b[2J.csv", r"pay\x1b[2J.csv"), ("pay\x1b]0;paid\x07.csv", r"pay\x1b]0;paid\x07.csv")),
        *(("a\nb\tc\rd", r"a\nb\tc\rd"), ("\x9b31m", r"\x9b31m"), ("tag\U000e0041", r"tag\U000e0041")),
        *(("xslx.\u202efdp", r"xslx.\u202efdp"), ("\u2066a\u2069", r"\u2066a\u2069")),
        *(("caf\udce9", r"caf\udce9"), ("zero\u200bwidth", r"zero\u200bwidth")),
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
        *("የደመወዝ", "薪資 表", "क्\u200dष", "a\u00a0b", r"C:\x1b", "\U0001f469\u200d\U0001f33e"),
    ],
)
def test_text_in_any_script_is_unchanged(text: str) -> None:
    assert escape_for_terminal(text) == escape_except_layout(text) == text
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
    assert escape_except_layout(laid_out) == laid_out
    assert escape_except_layout("\x1b]0;title\x07\x9b2J\x1bc\u202e") == r"\x1b]0;title\x07\x9b2J\x1bc\u202e"


# The journal stores codes and values, and only the display depends on a language.
AT = "2026-11-22T08:00:00.000Z"
UNKNOWN, NOT_SENT, PAID = OutcomeKind.UNKNOWN, OutcomeKind.NOT_SENT, OutcomeKind.PAID
AFTER_DOUBT, AFTER_REJECTION = Concluded(Outcome(UNKNOWN)), Concluded(Outcome(OutcomeKind.REJECTED))
SENTENCES: dict[str, list[Fact]] = {
    "Personne ne sait ce qu'est devenue la demande (read.timeout). La ligne a peut-être été payée.": [
        Concluded(Outcome(UNKNOWN, cause="read.timeout"))
    ],
    "Personne ne sait ce qu'est devenue la demande. La ligne a peut-être été payée.": [AFTER_DOUBT],
    "Rien n'a été envoyé (connect.refused).": [Concluded(Outcome(NOT_SENT, cause="connect.refused"))],
    "Rien n'a été envoyé.": [Concluded(Outcome(NOT_SENT))],
    "L'exécution s'est terminée avant d'enregistrer une réponse. La demande a peut-être été envoyée.": [Interrupted()],
    "Réglée par Ada (login ada) comme payée\u00a0: ticket 7": [
        *(AFTER_DOUBT, Resolved(Resolution.PAID, "ticket 7", "Ada (login ada)"))
    ],
    "Réglée par ada comme rejetée\u00a0: ticket\n7": [AFTER_DOUBT, Resolved(Resolution.REJECTED, "ticket\n7", "ada")],
    "Réglée par ada comme non reçue\u00a0: t": [AFTER_DOUBT, Resolved(Resolution.NOT_RECEIVED, "t", "ada")],
    "Libérée par ada, pour être renvoyée.": [AFTER_REJECTION, Released("PAY-1-r2", "ada")],
    "L'argent a été retourné\u00a0: note 12": [Concluded(Outcome(PAID)), Returned("note 12")],
    "Remplacée par la ligne 7 du lot 0123456789abcdef.": [AFTER_REJECTION, Replaced("0123456789abcdef", 7)],
    "The wallet is unknown.": [Concluded(Outcome(OutcomeKind.REJECTED, message="The wallet is unknown."))],
    '["unknown", "read.timeout"]': [Concluded(Outcome(OutcomeKind.REJECTED, message='["unknown", "read.timeout"]'))],
    "[51": [Concluded(Outcome(OutcomeKind.REJECTED, message="[51"))],
}


def recorded_message(*facts: Fact) -> str:
    """Return the journal's message of a sent row after these facts."""
    progress = RowProgress("PAY-1")
    for fact in (Intended("PAY-1", "nonce", 0, None), *facts):
        moved = advance(progress, fact, 1, AT)
        assert not isinstance(moved, IllegalMove)
        progress = moved
    assert progress.message is not None
    return progress.message


@pytest.mark.parametrize("shown", SENTENCES)
def test_journal_text_is_shown_in_french(shown: str) -> None:
    with language_context("fr"):
        message = recorded_message(*SENTENCES[shown])
        assert render_record(message) == shown
        assert render_record(with_duplicate(message, 1) or "") == f"{shown} [doublon possible de la tentative 1]"
        assert render_record(with_duplicate(None, 1) or "") == "doublon possible de la tentative 1"


def test_recorded_text_does_not_depend_on_language() -> None:
    english = recorded_message(Interrupted())
    with language_context("fr"):
        assert recorded_message(Interrupted()) == english
    assert language() == "en"


def test_message_for_officers_omits_cause() -> None:
    message = recorded_message(Concluded(Outcome(UNKNOWN, cause="read.timeout")))
    assert "read.timeout" in render_record(message)
    for kept in (message, with_duplicate(message, 1) or ""):
        assert "read.timeout" not in render_record(kept, is_for_officers=True)
