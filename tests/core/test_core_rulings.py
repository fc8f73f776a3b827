"""Whole rulings: a finding alone does not say which row, which attempt and which word it is about."""

from decimal import Decimal

import pytest

from paygw_batch.core.evidence import Candidate, Claim, Finding, Proof, Ruling, is_only_attempt, rule
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.core.money import from_minor, to_minor, with_two_decimals
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import InternalError

WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}


def candidate(number: int, state: State, *, attempt: int = 3, sent: str | None = "A", sole: bool = True) -> Candidate:
    standing = Standing(state, attempt, 1, None)
    return Candidate(number, "A", "10.00", "KES", standing, sent, has_left_once=sole)


def said(word: str | None, *, order_id: str = "A", amount: str = "10.00", **further: object) -> Claim:
    proof = further.pop("proof", Proof.PROVEN)
    return Claim(order_id, amount, "KES", word, None, proof, **further)  # type: ignore[arg-type]


def ruled(claim: Claim, *candidates: Candidate) -> Ruling:
    found = rule(claim, candidates, WORDS)
    assert isinstance(found, Ruling)
    return found


def test_ambiguous_claim_names_rows_and_proven_word() -> None:
    both = candidate(7, State.IN_DOUBT), candidate(8, State.READY, attempt=1)
    assert ruled(said("approved"), *both) == Ruling(Finding.AMBIGUOUS, 7, 3, OutcomeKind.PAID, others=(8,))
    unproven = said("approved", proof=Proof.UNPROVEN)
    assert ruled(unproven, *both) == Ruling(Finding.AMBIGUOUS, 7, 3, None, others=(8,))


def test_unmoving_claim_names_row_and_attempt() -> None:
    doubtful = candidate(7, State.IN_DOUBT)
    assert ruled(said(None, is_not_found=True), doubtful) == Ruling(Finding.NOT_FOUND, 7, 3)
    assert ruled(said("limbo"), doubtful) == Ruling(Finding.UNLISTED, 7, 3)
    assert rule(said(None), [doubtful], {"XXXX": OutcomeKind.PAID}) == Ruling(Finding.UNLISTED, 7, 3)
    assert ruled(said("approved", proof=Proof.UNPROVEN), doubtful) == Ruling(Finding.TO_CONFIRM, 7, 3, OutcomeKind.PAID)


def test_forged_or_mismatched_claim_names_row() -> None:
    doubtful = candidate(7, State.IN_DOUBT)
    assert ruled(said("approved", proof=Proof.FORGED), doubtful) == Ruling(Finding.FORGED, 7)
    assert ruled(said("approved", amount="10.01"), doubtful) == Ruling(Finding.UNMATCHED, 7)


@pytest.mark.parametrize(
    ("word", "finding"),
    [("declined", Finding.CONTRADICTING), ("approved", Finding.CONTRADICTING), ("processing", Finding.CONTRADICTING)],
)
def test_no_word_about_unsent_row_is_harmless(word: str, finding: Finding) -> None:
    found = ruled(said(word), candidate(7, State.READY, attempt=0, sent=None))
    assert (found.finding, found.instruction, found.attempt) == (finding, 7, 0)


@pytest.mark.parametrize(
    ("word", "is_current", "finding"),
    [
        ("approved", False, Finding.CONTRADICTING),
        ("processing", False, Finding.SUPERSEDED),
        ("processing", True, Finding.CONTRADICTING),
        ("declined", True, Finding.SUPERSEDED),
    ],
)
@pytest.mark.parametrize(("attempt", "about"), [(3, 2), (1, 0), (0, 0)])
def test_word_about_earlier_attempt_is_noted_there(
    word: str, is_current: bool, finding: Finding, attempt: int, about: int
) -> None:
    later = candidate(7, State.IN_DOUBT, attempt=attempt, sent="A-r2")
    found = ruled(said(word, is_current=is_current), later)
    assert (found.finding, found.instruction, found.attempt) == (finding, 7, about)


@pytest.mark.parametrize(
    ("state", "is_current", "finding"),
    [
        (State.REJECTED, True, Finding.CONTRADICTING),
        (State.REJECTED, False, Finding.LATE),
        (State.PAID, True, Finding.LATE),
        (State.PAID, False, Finding.LATE),
    ],
)
def test_current_processing_word_contradicts_rejection(state: State, is_current: bool, finding: Finding) -> None:
    assert ruled(said("processing", is_current=is_current), candidate(7, state)).finding is finding


def test_large_amounts_are_exact_both_ways() -> None:
    digits = "12345678901234567890123456789012345.67"
    assert to_minor(Decimal(digits), minor_units=2) == int(digits.replace(".", ""))
    assert from_minor(int(digits.replace(".", "")), minor_units=2) == digits
    assert from_minor(10**30, minor_units=0) == "1" + "0" * 30
    assert from_minor(1, minor_units=8) == "0.00000001"
    with pytest.raises(InternalError, match="more than 2 decimals"):
        to_minor(Decimal("1.001"), minor_units=2)


def test_amount_has_two_decimals_or_fails() -> None:
    assert [with_two_decimals(text) for text in ("7", "7.5", "7.25")] == ["7.00", "7.50", "7.25"]
    with pytest.raises(InternalError, match=r"^an amount has more than two decimals where two are to be written"):
        with_two_decimals("7.255")


@pytest.mark.parametrize(
    ("marked", "attempt", "left_once", "sole"),
    [
        (None, 1, True, True),
        (None, 2, True, True),  # the first was proven not to have left
        (0, 0, True, False),
        (0, 1, True, False),  # called not received before any of ours left: the word that was answered may come again
        (1, 2, True, False),  # the same, after one that was proven not to have left
        (1, 2, False, False),
        (2, 2, True, True),
        (2, 2, False, False),
    ],
)
def test_sole_possible_attempt_is_recognised(marked: int | None, attempt: int, left_once: bool, sole: bool) -> None:
    standing = Standing(State.IN_DOUBT, attempt, 1, marked)
    assert is_only_attempt(Candidate(7, "A", "10.00", "KES", standing, "A", has_left_once=left_once)) is sole
