"""Handles exact amounts. Money is text, `Decimal` or whole minor units, and never a float."""

import re
from decimal import Context, Decimal, Inexact, InvalidOperation

from paygw_batch.errors import InternalError
from paygw_batch.language import localise_number

WHOLE_PATTERN = "(?:0|[1-9][0-9]{0,14})"
AMOUNT_PATTERN = rf"{WHOLE_PATTERN}(?:\.[0-9]{{1,4}})?"
"""An amount as text: up to 15 digits and 4 decimal places, without sign, exponent, grouping or leading zero."""

_AMOUNT = re.compile(AMOUNT_PATTERN)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_EXACT = Context(prec=40, traps=[Inexact, InvalidOperation])


def parse_amount(text: str, *, minor_units: int) -> Decimal | None:
    """Parse an amount. Returns None if `text` is not one, or has more than `minor_units` decimal places."""
    if _AMOUNT.fullmatch(text) is None:
        return None
    _, _, decimals = text.partition(".")
    return Decimal(text) if len(decimals) <= minor_units else None


def to_minor(amount: Decimal, *, minor_units: int) -> int:
    """Convert an amount to minor units (cents). Raises `InternalError` if the result is not a whole number."""
    scaled = amount.scaleb(minor_units, _EXACT)
    if scaled != scaled.to_integral_value():
        raise InternalError(f"an amount has more than {minor_units} decimals after it was validated")
    return int(scaled)


def from_minor(minor: int, *, minor_units: int) -> str:
    """Format an amount in minor units, with all of the currency's decimal places."""
    return format(Decimal(minor).scaleb(-minor_units, _EXACT), "f")


def format_amount(amount: str) -> str:
    """Format an amount for display, such as `1,234.50` in English. Text that is not an amount is returned unchanged."""
    return localise_number(f"{Decimal(amount):,f}") if _NUMBER.fullmatch(amount) else amount


def format_two_decimals(amount: str) -> str:
    """Format an amount with exactly two decimal places. Raises `InternalError` if it has more."""
    whole, _, decimals = amount.partition(".")
    if len(decimals) > 2:  # noqa: PLR2004
        raise InternalError("an amount has more than two decimals, but only two can be written")
    return f"{whole}.{decimals:0<2}"
