"""Finds changes since the last run: new payees, changed accounts, amounts that differ by more than a set share."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import polars as pl

from paygw_batch.sheet.amounts import readable_amount

NEW_PAYEE = "payee.new"
CHANGED_ACCOUNT = "payee.account"
AMOUNT_OFF = "payee.amount"
GONE = "payee.gone"

SHOWN_DIGITS = 3
"""How many digits of an account are shown: enough to compare with the sheet, too few to pay to."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a row differs from the last run. Row 0: the sheet as a whole. Sentences name rows and no people."""

    row: int
    code: str
    message: str


def changes(now: pl.DataFrame, before: pl.DataFrame, *, share: Decimal) -> Sequence[Change]:
    """Return how a sheet's rows differ from those of the run before, in the sheet's order.

    Both frames as `Validated.rows`. A payee is an account (or, without one, a phone) in a country; a changed account is
    a new payee whose name was paid elsewhere before; amounts are compared by payee and currency.
    """
    paid_now, paid_before = _payees(now), _payees(before)
    sums_now = paid_now.group_by("payee", "currency", maintain_order=True).agg(
        pl.col("row", "person").first(), now=pl.col("value").sum()
    )
    sums_before = paid_before.group_by("payee", "currency").agg(before=pl.col("value").sum())
    places_before = paid_before.group_by("person").agg(old_payee=pl.col("payee").last())
    joined = (
        sums_now.join(sums_before, on=["payee", "currency"], how="left", maintain_order="left")
        .join(places_before, on="person", how="left", maintain_order="left")
        .with_columns(is_known=pl.col("payee").is_in(paid_before["payee"].implode()))
        .sort("row")
    )
    found = []
    for row, currency, payee, old_payee, is_known, value, value_before in joined.select(
        "row", "currency", "payee", "old_payee", "is_known", "now", "before"
    ).iter_rows():
        if not is_known:
            found.append(_new_payee(row, payee, old_payee))
        elif value_before is None or abs(value - value_before) > share * value_before:
            found.append(_amount_off(row, currency, value, value_before))
    if gone := paid_before.filter(~pl.col("payee").is_in(paid_now["payee"].implode()))["payee"].n_unique():
        found.append(Change(0, GONE, f"{gone:,} payees of the last run are not in this one."))
    return found


def _payees(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the valid rows as `row, payee, person, currency, value`; payee and person are within their country."""
    return rows.filter("valid").select(
        "row",
        "currency",
        payee=pl.format("{} {}", "country", pl.coalesce("account_number", "phone")),
        person=pl.format("{} {}", "country", pl.col("account_name").str.strip_chars().str.to_lowercase()),
        value=readable_amount("amount"),
    )


def _new_payee(row: int, payee: str, old_payee: str | None) -> Change:
    if old_payee is None:
        return Change(row, NEW_PAYEE, f"Row {row} is of someone who was not in the last run.")
    sentence = (
        f"Row {row} is of an account ending in {payee[-SHOWN_DIGITS:]}; the same name had one ending in "
        f"{old_payee[-SHOWN_DIGITS:]} the last time."
    )
    return Change(row, CHANGED_ACCOUNT, sentence)


def _amount_off(row: int, currency: str, value: Decimal, before: Decimal | None) -> Change:
    if before is None:
        return Change(row, AMOUNT_OFF, f"Row {row} is in {currency}, in which this account had nothing the last time.")
    sums = f"{currency} {value.normalize():f}, and {currency} {before.normalize():f} the last time"
    return Change(row, AMOUNT_OFF, f"The account of row {row} comes to {sums}.")
