"""Finds the merged cells and formatting rules that hide the cells of a worksheet.

A spreadsheet shows the first of merged cells; the others keep their values (ECMA-376 part 1, 18.3.1.55). We do not
compute whether a rule (conditional formatting, 18.3.1.18) applies to a cell, only what it does if it applies.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from paygw_batch.sheet.read.workbook_limits import Budget
from paygw_batch.sheet.read.workbook_styles import RuleEffect, is_true

_AREA = re.compile(r"\$?([A-Za-z]*)\$?([0-9]*)(?::\$?([A-Za-z]*)\$?([0-9]*))?")
_LAST_ROW, _LAST_COLUMN = 1_048_576, 16_384


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of cells, by the numbers of its rows and columns."""

    first_row: int
    first_column: int
    last_row: int
    last_column: int

    @classmethod
    def of(cls, reference: str) -> "Area":
        """Return the area of a reference such as `A2:B3`, `C2` or `C:C`. Raises `ValueError`."""
        if (found := _AREA.fullmatch(reference)) is None:
            raise ValueError(reference)
        column, row, last_column, last_row = found.groups()
        if last_column is None:
            last_column, last_row = column, row
        return cls(
            int(row or 1),
            column_number(column) or 1,
            int(last_row or _LAST_ROW),
            column_number(last_column) or _LAST_COLUMN,
        )


def column_number(letters: str) -> int:
    """Return the number of a column (`A` is 1), also from the reference of a cell; 0 for none."""
    number = 0
    for letter in letters.rstrip("0123456789").upper():
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


@dataclass(slots=True)
class Overlays:
    """Collects the merged cells and the rules of one worksheet from its tags. `effects`: the effects of rules."""

    effects: Sequence[RuleEffect]
    budget: Budget
    merged: list[Area] = field(default_factory=list)
    rules: list[tuple[Area, RuleEffect]] = field(default_factory=list)
    _areas: list[Area] = field(default_factory=list)

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle a start tag."""
        match name:
            case "mergeCell":
                self.merged.append(Area.of(attributes["ref"]))
                self.budget.hold_doubts(0, 1)
            case "conditionalFormatting":
                self._areas = [Area.of(one) for one in attributes.get("sqref", "").split()]
            case "cfRule" if (number := int(attributes.get("dxfId", "-1"))) in range(len(self.effects)):
                self._rule(self.effects[number])
            case "dataBar" | "iconSet" if not is_true(attributes.get("showValue", "1")):
                self._rule(RuleEffect(hides=True))
            case _:
                pass

    def _rule(self, effect: RuleEffect) -> None:
        if effect.strikes or effect.hides:
            self.rules += [(area, effect) for area in self._areas]
            self.budget.hold_doubts(0, len(self._areas))

    def covered(self, column: int, rows: Sequence[int]) -> list[int]:
        """Return those of the sorted `rows` whose cell in a column is hidden by a merged cell."""
        changes = [0] * (len(rows) + 1)  # at each row: the number of areas that begin, less those that ended before it
        for area in self.merged:
            if area.first_column <= column <= area.last_column:
                first = area.first_row + (column == area.first_column)  # the first cell is shown
                changes[bisect_left(rows, first)] += 1
                changes[bisect_right(rows, area.last_row)] -= 1
        return [row for row, areas in zip(rows, accumulate(changes), strict=False) if areas > 0]

    def ruled(self, columns: Collection[int], *, below: int) -> set[tuple[int, RuleEffect]]:
        """Return each of `columns` with a rule that covers rows after `below`, and the rule's effect."""
        return {
            (column, effect)
            for area, effect in self.rules
            for column in columns
            if area.first_column <= column <= area.last_column and area.last_row > below
        }
