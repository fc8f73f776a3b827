"""Judges a sheet again after a correction: only rows that are not as they were go through the checks once more.

The checks look at single rows (`judge`). All that rows have to do with each other is added up from all judged rows in
every validation, so that a corrected sheet has exactly the results of a new one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from paygw_batch.countries.rules import Rules
from paygw_batch.sheet.check.judge import Failed, Judge, Judged
from paygw_batch.sheet.model import LINE_COLUMNS


@dataclass(frozen=True, slots=True)
class _Before:
    """A piece of a sheet as it was judged last."""

    raw: pl.DataFrame
    refused: pl.Series
    judged: Judged

    def is_of(self, raw: pl.DataFrame) -> bool:
        """Whether these are the same rows and columns; their cells may differ."""
        return raw.columns == self.raw.columns and raw["row"].equals(self.raw["row"])

    def differs(self, raw: pl.DataFrame, refused: pl.Series) -> pl.Series:
        """Return of each row whether a cell or its refusal is another one than before."""
        return _differs(raw, self.raw) | (refused != self.refused)


@dataclass(frozen=True, slots=True)
class _Instructed:
    """The instructions that were made of a piece of a sheet."""

    raw: pl.DataFrame
    lines: pl.DataFrame
    made: pl.DataFrame


class JudgeAgain(Judge):
    """A `Judge` of one sheet that remembers each piece, and judges only those of its rows that have changed."""

    def __init__(self, operation: str, rules: Rules, *, derive: bool) -> None:
        super().__init__(operation, rules, derive=derive)
        self._is_for = (operation, rules, derive)
        self._pieces: dict[int, _Before] = {}
        self._instructed: dict[tuple[int, bool], _Instructed] = {}

    def is_for(self, operation: str, rules: Rules, *, derive: bool) -> bool:
        """Whether this judge would decide as one that is made of these."""
        return self._is_for == (operation, rules, derive)

    def piece(self, raw: pl.DataFrame, refused: pl.Series) -> Judged:
        """As `Judge.piece`."""
        place = int(raw["row"][0])
        before, is_refused = self._pieces.get(place), raw["row"].is_in(refused.implode())
        if before is not None and before.is_of(raw):
            judged = self._changed(before, raw, is_refused, refused)
        else:
            judged = super().piece(raw, refused)
            if before is not None and raw.height < before.raw.height:  # some rows of a piece, to compare them
                return judged
        self._pieces[place] = _Before(raw, is_refused, judged)
        return judged

    def _changed(self, before: _Before, raw: pl.DataFrame, is_refused: pl.Series, refused: pl.Series) -> Judged:
        differs = before.differs(raw, is_refused)
        if not differs.any():
            return before.judged
        again = super().piece(raw.filter(differs), refused)
        at, rows = differs.arg_true(), raw["row"].filter(differs)
        lines = [before.judged.lines[name].clone().scatter(at, again.lines[name]) for name in LINE_COLUMNS]
        return Judged(
            pl.DataFrame(lines),
            _joined(before.judged.failed, again.failed, rows),
            _joined(before.judged.doubtful, again.doubtful, rows),
        )

    def instructions(self, raw: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
        """As `Judge.instructions`."""
        # Where order ids are derived, instructions are made before there are ids, and once more with them.
        place = (int(raw["row"][0]), lines["client_orderid"].null_count() == lines.height)
        before = self._instructed.get(place)
        if before is None or before.raw.columns != raw.columns or not before.raw["row"].equals(raw["row"]):
            made = super().instructions(raw, lines)
        else:
            differs = _differs(raw, before.raw) | _differs(lines, before.lines)
            again = super().instructions(raw.filter(differs), lines.filter(differs))
            kept = before.made.filter(~pl.col("row").is_in(raw["row"].filter(differs).implode()))
            made = pl.concat([kept, again]).sort("row") if differs.any() else before.made
        self._instructed[place] = _Instructed(raw, lines, made)
        return made


class JudgeMemory:
    """Keeps the judge of one sheet from one validation to the next, while it is read and judged by the same rules."""

    def __init__(self) -> None:
        self._judge: JudgeAgain | None = None

    def judge(self, operation: str, rules: Rules, *, derive: bool) -> Judge:
        """Return the judge of the last validation, or a new one."""
        if self._judge is None or not self._judge.is_for(operation, rules, derive=derive):
            self._judge = JudgeAgain(operation, rules, derive=derive)
        return self._judge


def _differs(now: pl.DataFrame, before: pl.DataFrame) -> pl.Series:
    """Return of each row whether any column differs. The frames have the same rows and columns."""
    found = pl.Series([False]).new_from_index(0, now.height)
    for name in now.columns:
        found |= now[name].ne_missing(before[name])
    return found


def _joined(before: Sequence[Failed], again: Sequence[Failed], rows: pl.Series) -> list[Failed]:
    """Return the failed values of a piece of which `rows` were judged again."""
    parts: dict[tuple[str, int], list[Failed]] = defaultdict(list)
    for one in before:
        left = one.rows.filter(~pl.col("row").is_in(rows.implode()))
        if left.height:
            parts[one.country, one.place].append(Failed(one.country, one.place, one.check, left))
    for one in again:
        parts[one.country, one.place].append(one)
    return [
        Failed(country, place, found[0].check, pl.concat(one.rows for one in found).sort("row"))
        for (country, place), found in sorted(parts.items(), key=lambda part: part[0])
    ]
