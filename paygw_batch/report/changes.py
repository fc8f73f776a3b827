"""Compares a sheet with the last run: changed accounts, amounts off, people new or missing; most dangerous first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

import polars as pl

from paygw_batch.core.money import with_separators
from paygw_batch.language import say
from paygw_batch.report.totals import money_text
from paygw_batch.sheet.amounts import readable_amount

CHANGED_ACCOUNT = "payee.account"
AMOUNT_OFF = "payee.amount"
NEW_PAYEE = "payee.new"
GONE = "payee.gone"
DANGER: Mapping[str, int] = MappingProxyType(
    {code: place for place, code in enumerate((CHANGED_ACCOUNT, AMOUNT_OFF, NEW_PAYEE, GONE))}
)
"""The kinds of changes, the most dangerous one first: docs/decisions/0118."""

SHOWN_DIGITS = 3
"""How many digits of an account are shown: enough to compare with the sheet, too few to pay to."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a payee differs from the last run. The sentence names no person; the values beside it do.

    `amount` is what this sheet pays, `before` what the last run paid; empty for nothing. Row 0: only the last run has
    the payee. `stake` is the money that moves because of it.
    """

    row: int
    code: str
    message: str
    name: str
    currency: str
    amount: str
    before: str
    stake: Decimal


@dataclass(frozen=True, slots=True)
class _Payee:
    """The sums of a payee in one currency, in this sheet (`now`) and in the last run (`before`)."""

    row: int
    name: str
    currency: str
    now: Decimal | None
    before: Decimal | None


def changes(
    now: pl.DataFrame, before: pl.DataFrame, *, share: Decimal, minor_units: Mapping[str, int]
) -> Sequence[Change]:
    """Return how a sheet differs from the run before, the most dangerous change first.

    Both frames as `Validated.rows`. A payee is an account (or, without one, a phone) in a country; a changed account is
    a new payee whose name was paid elsewhere before. Amounts are compared by payee and currency.
    """
    paid_now, paid_before = _payees(now), _payees(before)
    sums_now, sums_before = _sums(paid_now, "now"), _sums(paid_before, "before")
    of_person = paid_before.group_by("person").agg(old_payee=pl.col("payee").last())
    joined = (
        sums_now.join(sums_before.select("payee", "currency", "before"), on=["payee", "currency"], how="left")
        .join(of_person, on="person", how="left")
        .join(
            sums_before.select(old_payee="payee", currency="currency", of_old="before"),
            on=["old_payee", "currency"],
            how="left",
        )
        .with_columns(is_known=pl.col("payee").is_in(paid_before["payee"].implode()))
    )
    found, moved = [], set()
    for row, name, currency, payee, old_payee, is_known, value, value_before, of_old in joined.select(
        "row", "name", "currency", "payee", "old_payee", "is_known", "now", "before", "of_old"
    ).iter_rows():
        if not is_known and old_payee is not None:
            moved.add(old_payee)
            found.append(_changed_account(_Payee(row, name, currency, value, of_old), payee, old_payee, minor_units))
        elif not is_known:
            found.append(_new_payee(_Payee(row, name, currency, value, None), minor_units))
        elif value_before is None or abs(value - value_before) > share * value_before:
            found.append(_amount_off(_Payee(row, name, currency, value, value_before), minor_units))
    is_here = pl.col("payee").is_in([*paid_now["payee"], *moved])
    for name, currency, value in sums_before.filter(~is_here).select("name", "currency", "before").iter_rows():
        found.append(_gone(_Payee(0, name, currency, None, value), minor_units))
    return _by_danger(found, {**_medians(sums_before, "before"), **_medians(sums_now, "now")})


def _payees(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the valid rows as `row, name, currency, payee, person, value`; payee and person are within a country."""
    name = pl.col("account_name").fill_null("")
    return rows.filter("valid").select(
        "row",
        "currency",
        name=name,
        payee=pl.format("{} {}", "country", pl.coalesce("account_number", "phone")),
        person=pl.format("{} {}", "country", pl.col("account_name").str.strip_chars().str.to_lowercase()),
        value=readable_amount("amount"),
    )


def _sums(paid: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the sum of each payee in each currency, in the column `name`."""
    return paid.group_by("payee", "currency", maintain_order=True).agg(
        pl.col("row", "name", "person").first(), pl.col("value").sum().alias(name)
    )


def _medians(sums: pl.DataFrame, name: str) -> Mapping[str, float]:
    """Return the usual (median) sum of a payee, for each currency."""
    found = sums.group_by("currency").agg(pl.col(name).cast(pl.Float64).median())
    return dict(found.iter_rows())


def _by_danger(found: Sequence[Change], usual: Mapping[str, float]) -> Sequence[Change]:
    """Return changes by kind, and of a kind those first that move most money.

    Money of several currencies is compared by how many usual payments of its currency it is. What became more comes
    before what became less.
    """

    def order(change: Change) -> tuple[int, bool, float, int]:
        is_less = change.code == AMOUNT_OFF and change.stake < 0
        payments = abs(float(change.stake)) / (usual.get(change.currency) or 1.0)
        return DANGER[change.code], is_less, -payments, change.row

    return sorted(found, key=order)


def _change(payee: _Payee, code: str, message: str, stake: Decimal, minor_units: Mapping[str, int]) -> Change:
    digits = minor_units.get(payee.currency)
    amount, before = ("" if sum_ is None else money_text(sum_, digits) for sum_ in (payee.now, payee.before))
    return Change(payee.row, code, message, payee.name, payee.currency, amount, before, stake)


def _changed_account(payee: _Payee, account: str, old_account: str, minor_units: Mapping[str, int]) -> Change:
    message = say(
        "the account ends in {account}; in the last run it ended in {old_account}",
        account=account[-SHOWN_DIGITS:],
        old_account=old_account[-SHOWN_DIGITS:],
    )
    return _change(payee, CHANGED_ACCOUNT, message, payee.now or Decimal(0), minor_units)


def _new_payee(payee: _Payee, minor_units: Mapping[str, int]) -> Change:
    return _change(payee, NEW_PAYEE, say("not in the last run"), payee.now or Decimal(0), minor_units)


def _amount_off(payee: _Payee, minor_units: Mapping[str, int]) -> Change:
    now, before = payee.now or Decimal(0), payee.before or Decimal(0)
    message = (
        say(
            "{currency} {amount} in the last run",
            currency=payee.currency,
            amount=with_separators(money_text(before, minor_units.get(payee.currency))),
        )
        if payee.before is not None
        else say("nothing in {currency} in the last run", currency=payee.currency)
    )
    return _change(payee, AMOUNT_OFF, message, now - before, minor_units)


def _gone(payee: _Payee, minor_units: Mapping[str, int]) -> Change:
    return _change(payee, GONE, say("in the last run, and not in this sheet"), payee.before or Decimal(0), minor_units)
