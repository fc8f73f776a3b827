"""The simulated sheets: real files, read and validated by the program once each, and held to the contract once each.

What a sheet is read as depends on its bytes alone, so a process that plays many worlds reads each of its few sheets
once. Everything that depends on the journal is done anew in every world.
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

FIRST_ROW = 2
RULES: Mapping[str, Rules] = {
    name: load_rules(name, {"KE": OperatorTerms(purpose="W")}) for name in ("payout", "payin")
}
MINOR_UNITS = {rule.currency: rule.minor_units for rule in RULES["payout"].values()}
_HEADINGS = {
    "payout": "country,client_orderid,amount,currency,account_name,account_number,phone",
    "payin": "country,client_orderid,amount,currency,first_name,last_name,phone,email,address1,city,zip_code,ipaddress,"
    "order_desc,merchant_data",
}
_LINES = {
    "payout": "KE,{order_id},{amount},KES,Jane Wanjiku,254712345{row:03},+254712345{row:03}",
    "payin": "KE,{order_id},{amount},KES,Jane,Wanjiku,+254712345{row:03},jane@example.com,1 Moi Avenue,Nairobi,00100,"
    "192.0.2.1,Shoes,t",
}
SHEETS = ("payroll", "longer", "edited", "respelled", "again")
"""`respelled` writes the ids in small letters, `again` is the same list under the ids of another month."""
_PREFIXES = {"respelled": "pay", "again": "DEC"}
FEWEST_ROWS_OF_A_REPEAT = 3
"""With the one row that `edited` changes, more than half of so many rows still repeat a batch."""


def order_id_of(sheet: str, row: int) -> str:
    """Return the order id that a simulated sheet has in a row."""
    return f"{_PREFIXES.get(sheet, 'PAY')}-{row}"


@cache
def amount_of(sheet: str, row: int) -> str:
    """Return what a simulated sheet asks for in a row. In the edited one the first row asks for another amount."""
    return "77777.77" if (sheet, row) == ("edited", FIRST_ROW) else f"{row * 137 % 9973 + 10}.{row * 29 % 100:02}"


def rows_of(sheet: str, count: int) -> list[int]:
    """Return the rows of a sheet, by the number in their order ids."""
    return [*range(FIRST_ROW, FIRST_ROW + count), *((30, 31) if sheet == "longer" else ())]


@cache
def wanted(sheet: str, count: int) -> Mapping[str, Decimal]:
    """Return what a sheet asks for, by order id and in its order."""
    return {order_id_of(sheet, row): Decimal(amount_of(sheet, row)) for row in rows_of(sheet, count)}


@cache
def validated(operation: str, sheet: str, count: int) -> Validated:
    """Read and validate a simulated sheet, from a file, as the program does."""
    lines = [
        _LINES[operation].format(row=row, order_id=order_id_of(sheet, row), amount=amount_of(sheet, row))
        for row in rows_of(sheet, count)
    ]
    with TemporaryDirectory() as name:
        path = Path(name) / f"{sheet}.csv"
        path.write_text("\n".join([_HEADINGS[operation], *lines]) + "\n")
        return validate(read_sheet(path, ReadOptions(operation=operation)), RULES[operation])


class GateOnce(ContractGate):
    """The contract's gate, asked once about the same rows: its answer depends on them alone."""

    held: ClassVar[set[tuple[str, Hashable]]] = set()

    def __init__(self, rules: Rules, operation: str) -> None:
        super().__init__(rules, operation)
        self._operation = operation

    def hold(self, good: pl.DataFrame) -> None:
        asked = (self._operation, tuple(good.rows()))
        if asked not in self.held:
            super().hold(good)
            self.held.add(asked)
