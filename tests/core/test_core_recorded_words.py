"""The journal stores codes and values, and only the display depends on a language."""

import pytest

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
from paygw_batch.language import language, language_context
from tests.support.row_progress import RowProgress, advance, with_duplicate

AT = "2026-11-22T08:00:00.000Z"
UNKNOWN, NOT_SENT, PAID = OutcomeKind.UNKNOWN, OutcomeKind.NOT_SENT, OutcomeKind.PAID
SENTENCES: dict[str, list[Fact]] = {
    "Personne ne sait ce qu'est devenue la demande (read.timeout)\u00a0: elle a peut-être été payée.": [
        Concluded(Outcome(UNKNOWN, cause="read.timeout"))
    ],
    "Personne ne sait ce qu'est devenue la demande\u00a0: elle a peut-être été payée.": [Concluded(Outcome(UNKNOWN))],
    "Rien n'a été envoyé (connect.refused).": [Concluded(Outcome(NOT_SENT, cause="connect.refused"))],
    "Rien n'a été envoyé.": [Concluded(Outcome(NOT_SENT))],
    "L'exécution s'est terminée avant d'enregistrer une réponse\u00a0; la demande a peut-être été envoyée.": [
        Interrupted()
    ],
    "Réglée comme payée par Ada (login ada)\u00a0: ticket 7": [
        Concluded(Outcome(UNKNOWN)),
        Resolved(Resolution.PAID, "ticket 7", "Ada (login ada)"),
    ],
    "Réglée comme rejetée par ada\u00a0: ticket\n7": [
        Concluded(Outcome(UNKNOWN)),
        Resolved(Resolution.REJECTED, "ticket\n7", "ada"),
    ],
    "Réglée comme non reçue par ada\u00a0: ticket 7": [
        Concluded(Outcome(UNKNOWN)),
        Resolved(Resolution.NOT_RECEIVED, "ticket 7", "ada"),
    ],
    "Libérée pour une nouvelle tentative par ada.": [
        Concluded(Outcome(OutcomeKind.REJECTED)),
        Released("PAY-1-r2", "ada"),
    ],
    "L'argent est revenu\u00a0: note 12": [Concluded(Outcome(PAID)), Returned("note 12")],
    "Remplacée par la ligne 7 du lot 0123456789abcdef.": [
        Concluded(Outcome(OutcomeKind.REJECTED)),
        Replaced("0123456789abcdef", 7),
    ],
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
def test_sentence_of_journal_is_shown_in_french(shown: str) -> None:
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


def test_message_for_officers_omits_cause_code() -> None:
    message = recorded_message(Concluded(Outcome(UNKNOWN, cause="read.timeout")))
    assert "read.timeout" in render_record(message)
    for kept in (message, with_duplicate(message, 1) or ""):
        assert "read.timeout" not in render_record(kept, is_for_officers=True)
