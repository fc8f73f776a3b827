"""A batch: all instructions of one sheet, under an id that comes from the sheet's content."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from paygw_batch.language import say

PAYOUT = "payout"
PAYIN = "payin"
"""The operations. Each batch is of one: `submit` opens batches of payouts, `collect` of payins."""
REPEAT_DAYS = 5
"""How many days back a sheet that repeats a batch under other order ids is asked about, unless configured otherwise."""
LOOK_ALIKE_DAYS = 7
"""How many days back the same payee and amount under another order id is a warning, unless configured otherwise."""
BILLION = 1_000_000_000
"""A sum in minor units may be more than 64 bits hold: it is noted as so many times this, and a rest."""


class InstructionTotals(NamedTuple):
    """Totals of some instructions of one country and currency.

    `billions` is the sum of all amounts divided by `BILLION` one by one, `rest` that of the remainders. `first` and
    `last` are the lowest and the highest of their numbers (or places).
    """

    rows: int
    billions: int
    rest: int
    first: int
    last: int

    @property
    def minor(self) -> int:
        """Their sum in minor units."""
        return self.billions * BILLION + self.rest

    def numbered_from(self, number: int) -> "InstructionTotals":
        """Return the same totals for numbers that go on from `number` where places began at 0."""
        return self._replace(first=number + self.first, last=number + self.last)

    def and_later(self, later: "InstructionTotals") -> "InstructionTotals":
        """Return the totals together with those of later instructions."""
        rows, billions, rest = self.rows + later.rows, self.billions + later.billions, self.rest + later.rest
        return InstructionTotals(rows, billions, rest, self.first, later.last)


@dataclass(frozen=True, slots=True)
class ControlTotals:
    """The count of rows and the sum per currency, as a person states them or as a sheet has them."""

    rows: int | None = None
    sums: Mapping[str, Decimal] | None = None


def differences(stated: ControlTotals, actual: ControlTotals) -> list[str]:
    """Return one plain sentence for each stated figure that differs from the sheet's."""
    found = []
    if stated.rows is not None and stated.rows != actual.rows:
        found.append(say("{rows:,} rows were stated; the sheet has {actual:,}.", rows=stated.rows, actual=actual.rows))
    sums = actual.sums or {}
    for currency, amount in (stated.sums or {}).items():
        has = sums.get(currency)
        if has is None:
            found.append(
                say(
                    "{currency} {amount:,f} was stated; the sheet has no {currency} row.",
                    currency=currency,
                    amount=amount,
                )
            )
        elif has != amount:
            found.append(
                say(
                    "{currency} {amount:,f} was stated; the sheet comes to {currency} {has:,f}.",
                    currency=currency,
                    amount=amount,
                    has=has,
                )
            )
    return found
