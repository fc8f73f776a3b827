"""The simulated sheets: real files, each read, validated and checked against the contract once.

The result depends on the bytes alone, so a process that plays many scenarios reads each of its few sheets once.
Everything that depends on the journal is computed in each scenario.
"""

from collections.abc import Hashable, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import polars as pl

from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sheet.check.contract import ContractGate
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.promise.campaign.machine import HEADINGS, LINES

FIRST_ROW = 2
RULES: Mapping[str, Rules] = {one: load_rules(one, {"KE": OperatorTerms(purpose="W")}) for one in ("payout", "payin")}
MINOR_UNITS = {rule.currency: rule.minor_units for rule in RULES["payout"].values()}
SHEETS = ("payroll", "longer", "edited", "respelled", "again")
"""`respelled` has the ids in lower case, and `again` the same list with another month's ids."""
_PREFIXES = {"respelled": "pay", "again": "DEC"}
FEWEST_ROWS_OF_A_REPEAT = 3  # the minimum size at which a sheet still repeats a batch after `edited` changes one row


def parse_order_id(sheet: str, row: int) -> str:
    return f"{_PREFIXES.get(sheet, 'PAY')}-{row}"


@cache
def amount_of(sheet: str, row: int) -> str:
    """Return the amount of a row of a simulated sheet. The edited sheet has another amount in its first row."""
    return "77777.77" if (sheet, row) == ("edited", FIRST_ROW) else f"{row * 137 % 9973 + 10}.{row * 29 % 100:02}"


def rows_of(sheet: str, count: int) -> list[int]:
    return [*range(FIRST_ROW, FIRST_ROW + count), *((30, 31) if sheet == "longer" else ())]


@cache
def wanted(sheet: str, count: int) -> Mapping[str, Decimal]:
    return {parse_order_id(sheet, row): Decimal(amount_of(sheet, row)) for row in rows_of(sheet, count)}


@cache
def validated(operation: str, sheet: str, count: int) -> Validated:
    lines = [
        LINES[operation].format(n=row, id=parse_order_id(sheet, row), amount=amount_of(sheet, row))
        for row in rows_of(sheet, count)
    ]
    with TemporaryDirectory() as name:
        path = Path(name) / f"{sheet}.csv"
        path.write_text("\n".join([HEADINGS[operation], *lines]) + "\n")
        return validate(read_sheet(path, ReadOptions(operation=operation)), RULES[operation])


class CachedGate(ContractGate):
    """The contract's gate with cached answers, which depend on the rows alone."""

    held: ClassVar[set[tuple[str, Hashable]]] = set()

    def __init__(self, rules: Rules, operation: str) -> None:
        super().__init__(rules, operation)
        self._operation = operation

    def require_valid(self, good: pl.DataFrame) -> None:
        asked = (self._operation, tuple(good.rows()))
        if asked not in self.held:
            super().require_valid(good)
            self.held.add(asked)
