"""Amounts are exact, or refused."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.batch import ControlTotals, Instruction, attempt_order_id, find_differences, first_order_id
from paygw_batch.core.money import format_amount, format_two_decimals, from_minor, parse_amount, to_minor
from paygw_batch.errors import InternalError
from paygw_batch.language import language_context

MINOR = st.integers(0, 10**17)
UNITS = st.sampled_from([0, 2, 3])


@given(MINOR, UNITS)
def test_amount_survives_conversion_to_text(minor: int, units: int) -> None:
    text = from_minor(minor, minor_units=units)
    assert Fraction(text) == Fraction(minor, 10**units)
    assert len(text.partition(".")[2]) == units
    if len(text.partition(".")[0]) <= 15:
        amount = parse_amount(text, minor_units=units)
        assert amount is not None
        assert to_minor(amount, minor_units=units) == minor


@given(st.text(alphabet="0123456789.,+-eE_ \u0661\uff11x", max_size=20), UNITS)
def test_parsed_amount_is_exact_plain_digits(text: str, units: int) -> None:
    amount = parse_amount(text, minor_units=units)
    if amount is None:
        return
    assert set(text) <= set("0123456789.")
    assert Fraction(text) == Fraction(amount)
    assert str(amount) == text
    assert len(text.partition(".")[2]) <= units


NOT_AMOUNTS = [
    *("", " ", "01", "00", ".5", "5.", "1e3", "1E3", "+1", "-1", "1,000", "1 000", "1_000", "NaN", "Infinity"),
    *("0x1", "\u0661", "\uff11", "1\n", "1\u00a0", "1" * 16, "1.00000", "\u00bd"),
]


@pytest.mark.parametrize(
    ("text", "units", "stands"),
    [
        *((text, 2, False) for text in (*NOT_AMOUNTS, "0.100")),
        *(("1500.00", 0, False), ("1500", 0, True), ("0.10", 2, True), ("9" * 15, 2, True)),
    ],
)
def test_amount_is_plain_digits_of_its_currency(text: str, units: int, *, stands: bool) -> None:
    assert (parse_amount(text, minor_units=units) is not None) is stands


def test_minor_units_are_exact_or_refused() -> None:
    digits = "12345678901234567890123456789012345.67"
    for text, minor in ((digits, int(digits.replace(".", ""))), ("1.500", 150)):
        assert to_minor(Decimal(text), minor_units=2) == minor
    assert from_minor(int(digits.replace(".", "")), minor_units=2) == digits
    assert from_minor(10**30, minor_units=0) == "1" + "0" * 30
    assert from_minor(1, minor_units=8) == "0.00000001"
    for text in ("1.005", "1.001"):
        with pytest.raises(InternalError, match="more than 2 decimals"):
            to_minor(Decimal(text), minor_units=2)


def test_amount_formatting_requires_two_decimals() -> None:
    assert [format_two_decimals(text) for text in ("7", "7.5", "7.25")] == ["7.00", "7.50", "7.25"]
    with pytest.raises(InternalError, match=r"^an amount has more than two decimals, but only two can be written"):
        format_two_decimals("7.255")


@pytest.mark.parametrize(
    ("language", "shown"), [("en", ["1,234.50", "12", "0.05"]), ("fr", ["1\u202f234,50", "12", "0,05"])]
)
def test_amount_is_formatted_in_reader_language(language: str, shown: list[str]) -> None:
    with language_context(language):
        assert [format_amount(amount) for amount in ("1234.50", "12", "0.05")] == shown


# Instructions and batches as values.
def test_changing_source_fields_does_not_change_instruction() -> None:
    fields = {"account_name": "Wanjiku Kamau"}
    instruction = Instruction("A", "KE", "KES", "1", "account", fields)
    fields["account_name"] = "someone else"
    assert instruction.fields["account_name"] == "Wanjiku Kamau"
    with pytest.raises(TypeError):
        instruction.fields["account_name"] = "someone else"  # type: ignore[index]  # that is the point


def test_later_attempts_add_suffix_to_order_id() -> None:
    assert [attempt_order_id("ORD-1", generation) for generation in (1, 2, 3)] == ["ORD-1", "ORD-1-r2", "ORD-1-r3"]


@given(st.text(min_size=1), st.integers(2, 1000))
def test_original_id_is_found_in_later_id(order_id: str, generation: int) -> None:
    assert first_order_id(attempt_order_id(order_id, generation)) == order_id


@pytest.mark.parametrize("order_id", ["ORD-1", "ORD-1-r1", "ORD-1-r", "ORD-1-r0", "ORD-1-r02", "-r2", "ORD-1-R2", ""])
def test_order_id_without_attempt_suffix_has_no_original(order_id: str) -> None:
    assert first_order_id(order_id) is None


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        *((ControlTotals(), ""), (ControlTotals(2, {"KES": Decimal("10.00")}), "")),
        (ControlTotals(3), "You expected 3 rows, but the sheet has 2."),
        (ControlTotals(1), "You expected 1 row, but the sheet has 2."),
        (ControlTotals(0), "You expected 0 rows, but the sheet has 2."),
        (
            ControlTotals(sums={"KES": Decimal("10.01"), "UGX": Decimal(5)}),
            """\
You expected KES 10.01, but the sheet's total is KES 10.
You expected UGX 5, but the sheet has no rows in UGX.""",
        ),
    ],
)
def test_each_unexpected_total_is_reported(stated: ControlTotals, found: str) -> None:
    assert find_differences(stated, ControlTotals(2, {"KES": Decimal(10)})) == found.splitlines()
