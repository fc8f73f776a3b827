"""A plain loop over `csv.DictReader` without polars, which checks each row against its country's rules.

It uses the same patterns, limits and currencies, collects the rows to send, and finds duplicate order ids. It reads
only plain numbers, explains no defect, and has no protection against hostile files.
"""

import csv
import re
from decimal import Decimal
from pathlib import Path

from paygw_batch.countries.rules import CountryRule, FieldKind, Rules
from paygw_batch.sheet.amounts import amount_pattern

_NUMBERS = frozenset({FieldKind.WALLET, FieldKind.INTERNATIONAL_PHONE, FieldKind.LOCAL_PHONE})


class _Country:
    """The compiled rules of one country."""

    def __init__(self, rule: CountryRule) -> None:
        n = rule.numbers
        self.currency = rule.currency
        self.amount = re.compile(f"(?=.*[1-9]){amount_pattern(rule.minor_units)}")
        number = re.compile(rf"(?:(?:\+|00)?{n.dialling_code}|{n.trunk_prefix})?{n.pattern}")
        fields = [f for f in rule.form.fields if f.from_sheet and f.name in rule.required] if rule.form else []
        self.numbers = [(field.name, number) for field in fields if field.kind in _NUMBERS]
        self.texts = [field.name for field in fields if field.kind in {FieldKind.TEXT, FieldKind.EMAIL}]

    def is_sound(self, row: dict[str, str]) -> bool:
        """Return whether a row breaks no rule."""
        return (
            self.amount.match(row["amount"]) is not None
            and row["currency"] in {"", self.currency}
            and all(number.fullmatch(row[name]) for name, number in self.numbers)
            and all(row.get(name, "x") for name in self.texts)
        )


def validate_in_loop(sheet: Path, rules: Rules, *, most: int) -> tuple[int, int]:
    """Return the number of valid and of invalid rows among the first `most` rows of a CSV file."""
    countries = {code: _Country(rule) for code, rule in rules.items()}
    seen: set[str] = set()
    sums: dict[str, Decimal] = {}
    good: list[dict[str, str]] = []
    bad = 0
    with sheet.open(newline="", encoding="utf-8") as file:
        for _, row in zip(range(most), csv.DictReader(file), strict=False):
            country = countries.get(row["country"])
            if country is None or row["client_orderid"] in seen or not country.is_sound(row):
                bad += 1
                continue
            seen.add(row["client_orderid"])
            sums[country.currency] = sums.get(country.currency, Decimal(0)) + Decimal(row["amount"])
            good.append(row)
    return len(good), bad
