"""Runs the checks of each country's schema on a piece of a sheet, and explains the values that fail."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck, warnings_of
from paygw_batch.sheet.check.contract import NO_COUNTRY, checks_in, contract
from paygw_batch.sheet.check.failed_tally import Failed
from paygw_batch.sheet.clean import chosen_purpose, cleaned, cleaned_codes
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.instructions import (
    WIRE_COLUMNS,
    ShownColumn,
    instructions_of,
    shown_as_written,
    shown_columns,
    wire_columns,
)
from paygw_batch.sheet.model import LINE_COLUMNS
from paygw_batch.sheet.read.frame import copied, rows_of

_WIRE_SCHEMA = {
    "row": pl.UInt32(),
    **dict.fromkeys(WIRE_COLUMNS, pl.String()),
    "minor": pl.Int64(),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """The lines of some rows, and the values that failed a check.

    `lines` with `LINE_COLUMNS` (`row` UInt32, `valid` Boolean, else String), ordered by row. `failed` and `doubtful`
    wait for `failed_tally.explained` to become sentences.
    """

    lines: pl.DataFrame
    failed: Sequence[Failed]
    doubtful: Sequence[Failed]


class Judge:
    """The rules of `operation` made ready. With `derive`, order ids are not looked at.

    With `checked`, no check and no warning is asked again: the rows that are not `refused` were found right before.
    """

    def __init__(self, operation: str, rules: Rules, *, derive: bool, checked: bool = False) -> None:
        self._columns = columns_of_operation(operation)
        self._rules = rules
        self._derive = derive
        self._checked = checked
        self._countries: dict[str, _CountryJudge] = {}

    def piece(self, raw: pl.DataFrame, refused: pl.Series) -> Judged:
        """Judge some rows of a sheet's frame; those that are `refused` have a defect already."""
        grouped = self._grouped(raw)
        frame = cleaned(grouped.rows, self._columns).with_columns(refused=grouped.rows["row"].is_in(refused.implode()))
        judged = [country.judge(frame.slice(start, height)) for country, start, height in grouped.parts]
        made = pl.concat([part.lines for part in judged], rechunk=True)
        if made.height != raw.height:
            raise InternalError(f"{raw.height} rows were judged, and {made.height} came back")
        texts = [made[name] if name in made.columns else frame[name] for name in LINE_COLUMNS]
        return Judged(
            pl.DataFrame([grouped.put_back(text, raw) for text in texts]),
            [found for part in judged for found in part.failed],
            [found for part in judged for found in part.doubtful],
        )

    def instructions(self, raw: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
        """Return the instructions (as in `Validated`) of some rows of a sheet's frame that `piece` made `lines` of."""
        good = self._grouped(raw if lines["valid"].all() else rows_of(raw, lines["valid"]))
        frame = cleaned(good.rows, self._columns)
        wire = [pl.DataFrame(schema=_WIRE_SCHEMA)]
        for country, start, height in good.parts:
            if not country.wire:
                raise InternalError("a row without a country or a form was taken for valid")
            part = frame.slice(start, height)
            wire.append(part.lazy().select(country.wire).collect())  # lazily: what the columns share is done once
        return instructions_of(lines, pl.concat(wire).sort("row"))

    def _grouped(self, raw: pl.DataFrame) -> "_Grouped":
        """Return the rows country by country: each country is then a slice without a copy."""
        codes = sorted(self._rules)
        country = cleaned_codes(raw["country"]).cast(pl.Enum(codes), strict=False).to_physical()
        country = country.cast(pl.UInt32).fill_null(len(codes))
        order = None if country.is_sorted() else country.arg_sort()
        runs = (country if order is None else country[order]).rle().struct.unnest()
        starts = runs["len"].cum_sum() - runs["len"]
        parts = [
            (self._country(codes[place] if place < len(codes) else NO_COUNTRY), start, height)
            for place, start, height in zip(runs["value"], starts, runs["len"], strict=True)
        ]
        rows = raw.select("row", *(name for name in self._columns if name in raw.columns and _holds(raw[name])))
        if order is None:
            return _Grouped(rows, parts, None)
        places = pl.zeros(order.len(), pl.UInt32, eager=True)
        places = places.scatter(order, pl.int_range(order.len(), dtype=pl.UInt32, eager=True))
        return _Grouped(rows[order], parts, places)

    def _country(self, code: str) -> "_CountryJudge":
        if code not in self._countries:
            judge = _CountryJudge.of(code, self._rules, derive=self._derive)
            self._countries[code] = replace(judge, checks=(), warnings=()) if self._checked else judge
        return self._countries[code]


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Rows of a sheet, country by country: `parts` has the start and the number of each one's rows.

    `places` says where each row of the sheet is now, or None if they have not been moved.
    """

    rows: pl.DataFrame
    parts: Sequence[tuple["_CountryJudge", int, int]]
    places: pl.Series | None

    def put_back(self, column: pl.Series, raw: pl.DataFrame) -> pl.Series:
        """Return a column of the grouped rows in the order of `raw`; one that is as in `raw` shares its memory."""
        if column.name in self.rows.columns and column.equals(self.rows[column.name], null_equal=True):
            return raw[column.name]
        if not _holds(column):
            return column
        return column if self.places is None else column[self.places]


@dataclass(frozen=True, slots=True)
class _CountryPart:
    """The lines of one country's rows, in their order: those columns of them that the country decides about."""

    lines: pl.DataFrame
    failed: Sequence[Failed]
    doubtful: Sequence[Failed]


def _holds(column: pl.Series) -> bool:
    """Return whether any row has a value in a column."""
    return column.null_count() < column.len()


def _roots(expressions: Iterable[pl.Expr]) -> set[str]:
    return {name for expression in expressions for name in expression.meta.root_names()}


@dataclass(frozen=True, slots=True)
class _CountryJudge:
    """One country's checks and warnings; `rule` is None for rows of no country."""

    code: str
    rule: CountryRule | None
    checks: tuple[ColumnCheck, ...]
    warnings: tuple[ColumnCheck, ...]
    shown: tuple[ShownColumn, ...]
    wire: tuple[pl.Expr, ...]

    @classmethod
    def of(cls, code: str, rules: Rules, *, derive: bool) -> "_CountryJudge":
        rule = rules.get(code)
        checks = checks_in(contract(code, rules))
        used = tuple(check for check in checks if not (derive and check.column == "client_orderid"))
        warnings = () if rule is None else warnings_of(rule)
        if rule is None or rule.form is None:
            return cls(code, rule, used, warnings, (), ())
        shown, wire = shown_columns(rule, rule.form), wire_columns(rule, rule.form)
        return cls(code, rule, used, warnings, tuple(shown), tuple(wire))

    def judge(self, part: pl.DataFrame) -> _CountryPart:
        """Judge prepared rows that are all of this country."""
        right, failed = self._asked(part, self.checks)
        valid = (right & ~part["refused"]).alias("valid")
        if not valid.any():
            return _CountryPart(
                part.select(*self._as_written, "purpose", self._currency).with_columns(valid), failed, []
            )
        if self.rule is None or not self.shown:
            raise InternalError("a row without a country or a form was taken for valid")
        texts = self._as_sent(part, valid)
        if not valid.all():
            for text in part.select(*self._as_written, "purpose"):
                texts[text.name] = texts[text.name].zip_with(valid, text)
        return _CountryPart(pl.DataFrame([*texts.values(), valid]), failed, self._asked(part, self.warnings, valid)[1])

    @property
    def _as_written(self) -> list[pl.Expr]:
        return shown_as_written(self.rule)

    @property
    def _currency(self) -> pl.Expr:
        """Where it is left out, the country's."""
        own = self.rule.currency if self.rule is not None else None
        return pl.coalesce("currency", pl.lit(own, pl.String)).alias("currency")

    def _as_sent(self, part: pl.DataFrame, valid: pl.Series) -> dict[str, pl.Series]:
        """Return `SHOWN_COLUMNS`, purpose and currency of valid rows; elsewhere they mean nothing."""
        purpose = pl.lit(self.rule.purpose if self.rule is not None else None, pl.String)
        if self.rule is not None and self.rule.purposes:
            purpose = pl.coalesce(chosen_purpose(self.rule), purpose)
        purpose = purpose.alias("purpose")
        texts = [column.text.alias(column.name) for column in self.shown]
        plain = [column.is_plain.alias(f"{column.name}:plain") for column in self.shown if column.is_plain is not None]
        made = {text.name: text for text in part.select(*texts, *plain, purpose, self._currency)}
        for column in self.shown:
            if column.is_plain is None or column.other is None:
                continue
            is_other = valid & ~made.pop(f"{column.name}:plain")
            if is_other.any():
                at = is_other.arg_true()
                others = part.select(_roots([column.other]))[at].select(column.other).to_series()
                made[column.name] = made[column.name].scatter(at, others)
        return made

    def _asked(
        self, part: pl.DataFrame, checks: Sequence[ColumnCheck], among: pl.Series | None = None
    ) -> tuple[pl.Series, list[Failed]]:
        """Return which rows pass all checks, and check by check those (`among` some) that do not."""
        every = pl.Series([True]).new_from_index(0, part.height)
        failed = []
        asked = part.select(check.passes.alias(str(place)) for place, check in enumerate(checks))
        for place, (check, passes) in enumerate(zip(checks, asked, strict=True)):
            right = passes if among is None else passes | ~among
            if not right.all():
                wrong = ~right
                rows = copied(pl.DataFrame([part[name].filter(wrong) for name in check.needs]))
                failed.append(Failed(self.code, place, check, rows))
                every &= right
        return every, failed
