"""Judging a piece of a sheet, country by country: which rows are sound, and what is wrong with the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.checks import Check, ColumnChecks, checks_of, checks_without_country, shown, warnings_of
from paygw_batch.sheet.clean import prepared
from paygw_batch.sheet.result import no_defects
from paygw_batch.sheet.table import rows_of
from paygw_batch.sheet.wire import SHOWN_COLUMNS, WIRE_COLUMNS, instructions_of, shown_as_written, wire_columns

_WIRE_SCHEMA = {
    "row": pl.UInt32(),
    **dict.fromkeys(WIRE_COLUMNS, pl.String()),
    "minor": pl.Int64(),
}
LINE_COLUMNS = (
    "row",
    "valid",
    "client_orderid",
    "country",
    "currency",
    "amount",
    "account_name",
    "account_number",
    "phone",
    "purpose",
)
"""What the reconciliation shows of a row's own."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What some rows come to.

    `lines` for all, with `LINE_COLUMNS` (`row` UInt32, `valid` Boolean, else String), and `instructions` for the valid
    ones, as in `Validated`. Both are ordered by row; `defects` and `warnings` are not.
    """

    lines: pl.DataFrame
    instructions: pl.DataFrame
    defects: Sequence[pl.DataFrame]
    warnings: Sequence[pl.DataFrame]


class Judge:
    """The rules made ready. `refused` rows have a defect already; with `derive`, order ids are not looked at."""

    def __init__(self, rules: Rules, refused: pl.Series, *, derive: bool) -> None:
        self._rules = rules
        self._refused = refused.implode()
        self._derive = derive
        self._countries: dict[str, _CountryJudge] = {}

    def piece(self, raw: pl.DataFrame) -> Judged:
        """Judge some rows of a sheet's frame."""
        frame = prepared(raw).with_columns(refused=raw["row"].is_in(self._refused))
        codes = [code for code in frame["country"].unique().sort() if code in self._rules]
        parts = [(self._country(code), pl.col("country") == code) for code in codes]
        parts.append((self._country(""), ~pl.col("country").is_in(codes).fill_null(value=False)))
        judged = [
            country.judge(part)
            for country, rows in parts
            if (part := rows_of(frame.select(country.needs), frame.select(rows).to_series())).height
        ]
        shown = pl.concat([part.shown for part in judged]).sort("row")
        if not shown["row"].equals(raw["row"]):
            raise InternalError(f"{raw.height} rows were judged, and {shown.height} others came back")
        lines = self._lines(frame, shown, raw)
        return Judged(
            lines,
            instructions_of(lines, pl.concat([part.wire for part in judged]).sort("row")),
            [found for part in judged for found in part.defects],
            [found for part in judged for found in part.warnings],
        )

    def _lines(self, frame: pl.DataFrame, shown: pl.DataFrame, raw: pl.DataFrame) -> pl.DataFrame:
        """Return the lines: what was judged, and what the rules fill in.

        That is the currency where it is left out, and the purpose of valid rows. A column that comes out as it was in
        the sheet shares the sheet's memory.
        """
        currency = _by_country({code: rule.currency for code, rule in self._rules.items()})
        purpose = _by_country({code: rule.purpose for code, rule in self._rules.items()})
        lines = frame.drop(SHOWN_COLUMNS).hstack(shown.drop("row").get_columns())
        lines = lines.select(
            pl.coalesce("currency", currency)
            if name == "currency"
            else pl.when("valid").then(purpose).otherwise(name).alias(name)
            if name == "purpose"
            else name
            for name in LINE_COLUMNS
        )
        shared = [raw[name] for name in LINE_COLUMNS if name in raw.columns and _equal(lines[name], raw[name])]
        return lines.with_columns(shared)

    def _country(self, code: str) -> "_CountryJudge":
        if code not in self._countries:
            self._countries[code] = _CountryJudge.of(self._rules.get(code), self._rules, derive=self._derive)
        return self._countries[code]


def _by_country(values: Mapping[str, str | None]) -> pl.Expr:
    return pl.col("country").replace_strict(values, default=None, return_dtype=pl.String)


def _equal(text: pl.Series, other: pl.Series) -> bool:
    return text.equals(other, null_equal=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """What the rows of one country come to.

    `shown`: for every row `row, valid` and `SHOWN_COLUMNS`; `wire`: for every valid row `row` and `WIRE_COLUMNS`.
    """

    shown: pl.DataFrame
    wire: pl.DataFrame
    defects: Sequence[pl.DataFrame]
    warnings: Sequence[pl.DataFrame]


@dataclass(frozen=True, slots=True)
class _CountryJudge:
    """One country's checks; `rule` is None for rows of no country."""

    rule: CountryRule | None
    columns: tuple[ColumnChecks, ...]
    warnings: tuple[tuple[str, Check], ...]
    needs: tuple[str, ...]
    """The columns that the checks look at: copying the others for every country would cost more than the checks."""

    @classmethod
    def of(cls, rule: CountryRule | None, rules: Rules, *, derive: bool) -> "_CountryJudge":
        checks = checks_without_country(rules) if rule is None else checks_of(rule, rules)
        used = tuple(column for column in checks if not (derive and column.column == "client_orderid"))
        warnings = () if rule is None else warnings_of(rule)
        asked = [check for column in used for check in column.checks] + [check for _, check in warnings]
        expressions = [
            *(column.sound for column in used),
            *(expression for check in asked for expression in (check.fails, check.message)),
            *shown_as_written(rule),
            *(wire_columns(rule) if rule is not None and rule.form is not None else ()),
        ]
        needs = {"row", "refused", *(column.column for column in used), *(name for name, _ in warnings)}
        needs |= {name for expression in expressions for name in expression.meta.root_names()}
        return cls(rule, used, warnings, tuple(sorted(needs)))

    def judge(self, part: pl.DataFrame) -> _Part:
        """Judge prepared rows that are all of this country."""
        sound = part.select(column.sound.alias(column.column) for column in self.columns)
        valid = ~part["refused"] & sound.select(pl.all_horizontal(pl.all())).to_series()
        defects = [
            found
            for column in self.columns
            if not sound[column.column].all()
            for found in _defects(rows_of(part, ~sound[column.column]), column)
        ]
        good, bad = (part, part.clear()) if valid.all() else (rows_of(part, valid), rows_of(part, ~valid))
        shown = bad.select(shown_as_written(self.rule)).with_columns(valid=pl.lit(value=False))
        if not good.height:
            return _Part(shown, pl.DataFrame(schema=_WIRE_SCHEMA), defects, [])
        if self.rule is None:
            raise InternalError("a row without a country was taken for valid")
        sent = good.lazy().select(wire_columns(self.rule)).collect()  # lazily: what the columns share is done once
        shown = pl.concat([shown, sent.select("row", *SHOWN_COLUMNS, valid=pl.lit(value=True))])
        return _Part(shown, sent.select("row", *WIRE_COLUMNS), defects, _found(good, self.warnings))


def _defects(unsound: pl.DataFrame, column: ColumnChecks) -> list[pl.DataFrame]:
    """Return the defects of rows that are not sound in `column`; there must be one for every row."""
    found = _found(unsound, ((column.column, check) for check in column.checks))
    explained = pl.concat([no_defects(), *found])["row"].n_unique()
    if explained != unsound.height:
        raise InternalError(f"{unsound.height} rows are wrong in {column.column}, and {explained} have a defect")
    return found


def _found(frame: pl.DataFrame, checks: Iterable[tuple[str, Check]]) -> list[pl.DataFrame]:
    """Return for each check that fails somewhere the rows where it does, as defects."""
    named = {check.code: (name, check) for name, check in checks}
    if not named:
        return []
    fails = frame.select(check.fails.alias(code) for code, (_, check) in named.items())
    return [
        rows_of(frame, fails[code]).select(
            "row", column=pl.lit(name), value=shown(name), code=pl.lit(code), message=check.message
        )
        for code, (name, check) in named.items()
        if fails[code].any()
    ]
