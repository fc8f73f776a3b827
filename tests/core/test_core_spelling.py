"""Canonical spellings of similar texts, and references extracted from derived order ids."""

import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.batch import derived_reference, payee_tag
from paygw_batch.core.text import are_damaged_variants, normalise_spelling, repair_order_id

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
FORMS: st.SearchStrategy[Literal["NFC", "NFD", "NFKC", "NFKD"]] = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])
WIDE = {ord("!") + n: 0xFF01 + n for n in range(94)}
"""Every printable ASCII character except the space has a full-width variant."""


@given(TEXTS, FORMS)
def test_canonical_spelling_ignores_form_and_case(text: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"]) -> None:
    canonical = normalise_spelling(text)
    for same in (canonical, unicodedata.normalize(form, text), text.casefold()):
        assert normalise_spelling(same) == canonical


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126)))
def test_canonical_spelling_ignores_width(text: str) -> None:
    assert normalise_spelling(text.translate(WIDE)) == normalise_spelling(text) == text.lower()


@given(TEXTS, TEXTS, st.sampled_from("\u00ad\u200b\u200c\u200d\u2060\ufeff\u200e\u202e\ufe0f\u034f\u3164\u180e"))
def test_canonical_spelling_ignores_invisible_characters(left: str, right: str, invisible: str) -> None:
    assert normalise_spelling(f"{left}-{invisible}{right}") == normalise_spelling(f"{left}-{right}")


@pytest.mark.parametrize("hyphen", "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d\ufe58\u058a")
def test_canonical_spelling_ignores_hyphens(hyphen: str) -> None:
    assert normalise_spelling(f"PAY{hyphen}1") == "pay-1"


@pytest.mark.parametrize(
    ("text", "one_spelling"),
    [
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("\u0130D", "i\u0307d"),  # casefold keeps a capital I with a dot distinct from other letters I
        *(("\u0131d", "\u0131d"), ("ÅNGSTRÖM", "ångström"), ("\u212bngström", "ångström")),
        *(("ﬁ-2", "fi-2"), ("x²", "x2"), ("", ""), ("a  b", "a  b")),
    ],
)
def test_listed_spellings_have_expected_canonical_form(text: str, one_spelling: str) -> None:
    assert normalise_spelling(text) == one_spelling


@pytest.mark.parametrize(("one", "other"), [("A1", "A2"), ("A-1", "A1"), ("A 1", "A1"), ("A_1", "A-1"), ("É", "E")])
def test_different_texts_have_different_spellings(one: str, other: str) -> None:
    assert normalise_spelling(one) != normalise_spelling(other)


NEAR_NUMBERS = st.text("0Oo1Il|5B-/._, '\u00a0\u041e\u0406\u2019", max_size=12)


@given(TEXTS | NEAR_NUMBERS)
def test_repairing_id_twice_changes_nothing(text: str) -> None:
    assert repair_order_id(repair_order_id(text)) == repair_order_id(text)


@given(TEXTS)
def test_repaired_id_ignores_spelling(text: str) -> None:
    assert repair_order_id(normalise_spelling(text)) == repair_order_id(text)


@given(NEAR_NUMBERS, NEAR_NUMBERS)
def test_ids_with_same_repaired_form_match(one: str, other: str) -> None:
    if repair_order_id(one) == repair_order_id(other):
        assert are_damaged_variants(one, other)
    assert are_damaged_variants(one, other) == are_damaged_variants(other, one)


@pytest.mark.parametrize(
    ("damaged", "order_id"),
    [
        *(("1", "00001"), ("PAY-7", "PAY-007"), ("2026-1-7", "2026-01-0007")),
        *(("PAYROLL7", "PAYROLL007"), ("0", "000"), ("1001.0", "1001"), ("1001,00", "1001")),
        *(("1.0", "0001"), ("1,001", "1001"), ("12,345,678", "12345678"), ("1,00,001", "100001")),
        *(("1.001", "1001"), ("1.001,00", "1001"), ("1 001", "1001"), ("1\u00a0001", "1001")),
        *(("1\u202f001", "1001"), ("1'001", "1001"), ("1\u2019001", "1001"), ("PAY/7", "PAY-7")),
        *(("PAY.7", "PAY-7"), ("PAY_7", "PAY-7"), ("2026/11/01", "2026-11-01"), ("PAY-7.", "PAY-7")),
        *(("PAY-O7", "PAY-07"), ("l0O1", "1001"), ("I001", "1001")),
        ("\u0420\u0410\u0423-7", "PAY-7"),  # Cyrillic capitals
        ("\u0391\u0392\u0397-7", "ABH-7"),  # Greek capitals
        ("pay\u20117", "PAY-007"),
        ("12:30:00", "12:30"),
    ],
)
def test_damaged_id_matches_original(damaged: str, order_id: str) -> None:
    assert damaged != order_id
    assert repair_order_id(damaged) == repair_order_id(order_id)
    assert are_damaged_variants(damaged, order_id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("1", "2"), ("1", "10"), ("105", "15"), ("B105", "B15"), ("2026-1-11", "2026-11-1")),
        *(("1 11", "11 1"), ("EMP5-2026.1", "EMP5-2026.10"), ("PAY-7", "PAY-7-r2")),
        *(("PAY-7", "PAY7"), ("A-1", "B-1"), ("OCT-1", "NOV-1")),
    ],
)
def test_different_ids_have_different_repaired_forms(one: str, other: str) -> None:
    assert repair_order_id(one) != repair_order_id(other)
    assert not are_damaged_variants(one, other)


@pytest.mark.parametrize(
    ("rewritten", "order_id"),
    [
        *(("12.1", "12.10"), ("12.2", "12,20"), ("0.05", "5%"), ("10000000000", "1E10")),
        *(("1.00E+10", "1E10"), ("1E+05", "100000"), ("3-Jan", "3-1"), ("1-Mar", "3-1")),
        *(("03/01", "3-1"), ("03-janv.", "3-1"), ("1-Mar", "MAR-1"), ("2-Jan", "1/2")),
        *(("Jan-26", "2026-01"), ("Jan-26", "JAN2026"), ("01/03/2026", "2026-03-01")),
        *(("3/1/2026", "2026-03-01"), ("01.03.26", "2026-03-01")),
        *(("2026-03-01 00:00:00", "2026-03-01"), ("2026-01-15", "15-01-2026"), ("2026-01-03", "3-1")),
        *(("2026-03-01", "3-1"), ("2026-01-01", "2026-01"), ("2026-11-01", "11-2026")),
        *(("2026-01-26", "JAN-26"), ("2026-03-01", "MAR-1"), ("2026-11-01", "1-11-26")),
        *(("03/01/26", "3/1"), ("1899-12-30 03:10:00", "3:10")),
        ("123456789012345000", "123456789012345678"),
    ],
)
def test_rewritten_number_or_date_matches_original_id(rewritten: str, order_id: str) -> None:
    assert are_damaged_variants(rewritten, order_id)
    assert are_damaged_variants(order_id, rewritten)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("12.1", "12.2"), ("1E10", "1E11"), ("3-1", "1-3"), ("2026-01-11", "2026-11-01")),
        *(("2026-03-01", "02/03/2026"), ("2026-01", "2027-01"), ("MARY-1", "MAR-1")),
        *(("Jan-26", "26-Feb"), ("5-1", "5-10"), ("2026-11-0001", "2026-11-0010")),
        *(("MAR-2", "FEB-3"), ("FEB-2026-03", "MAR-2026-02"), ("2026-01", "2026-01-15")),
        *(("01-02-2026", "02-01-2026"), ("123456789012345678", "123456789012345679")),
        ("12345678901234567", "123456789012345000"),
    ],
)
def test_ids_of_different_numbers_do_not_match(one: str, other: str) -> None:
    assert not are_damaged_variants(one, other)


REFERENCES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=90)


@given(REFERENCES, TEXTS, st.integers(1, 10**7))
def test_reference_is_extracted_from_derived_id(reference: str, payee: str, count: int) -> None:
    assert derived_reference(f"{reference}-{payee_tag(reference, payee)}-{count}") == reference


@pytest.mark.parametrize(
    "order_id",
    ["PAY-1", "PAY-0123456789abcdef01234567-1", f"OTHER-{payee_tag('PAY', 'c')}-1", f"PAY-{payee_tag('PAY', 'c')}-0"],
)
def test_plain_order_id_has_no_reference(order_id: str) -> None:
    assert derived_reference(order_id) is None
