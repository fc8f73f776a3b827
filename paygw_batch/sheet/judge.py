"""Judging a piece of a sheet, country by country: which rows are sound, and what is wrong with the others."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.checks import Check, ColumnChecks, checks_of, checks_without_country, shown, warnings_of
from paygw_batch.sheet.clean import prepared
from paygw_batch.sheet.columns import COLUMNS_OF
from paygw_batch.sheet.result import no_defects
from paygw_batch.sheet.table import rows_of
from paygw_batch.sheet.wire import (
    SHOWN_COLUMNS,
    WIRE_COLUMNS,
    instructions_of,
    shown_as_written,
    shown_columns,
    wire_columns,
)

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

    `lines` with `LINE_COLUMNS` (`row` UInt32, `valid` Boolean, else String), ordered by row. `unsound` and `doubtful`
    wait for `explained` to become sentences.
    """

    lines: pl.DataFrame
    unsound: Sequence["Unsound"]
    doubtful: Sequence["Unsound"]


@dataclass(frozen=True, slots=True)
class Unsound:
    """Rows of one country that are not sound in one column: no more of them than the column's checks look at."""

    country: str
    column: ColumnChecks
    rows: pl.DataFrame


def explained(unsound: Iterable[Unsound]) -> pl.DataFrame:
    """Return the defects of unsound rows, in no order. Every row must have one: raises `InternalError` otherwise.

    Rows of all pieces together: the same few checks asked of many small frames would cost more than all the rest.
    """
    found = [no_defects()]
    groups: dict[tuple[str, str], list[Unsound]] = defaultdict(list)
    for one in unsound:
        groups[one.country, one.column.column].append(one)
    for (_, name), group in groups.items():
        rows = pl.concat([one.rows for one in group]).rechunk()
        defects = pl.concat([no_defects(), *_defects(rows, name, group[0].column.checks)])
        if defects["row"].n_unique() != rows.height:
            raise InternalError(f"{rows.height} rows are wrong in {name}, and not all of them have a defect")
        found.append(defects)
    return pl.concat(found)


def _defects(rows: pl.DataFrame, name: str, checks: Sequence[Check]) -> Iterator[pl.DataFrame]:
    fails = rows.select(check.fails.alias(check.code) for check in checks)
    for check in checks:
        if fails[check.code].any():
            told = {"column": pl.lit(name), "value": shown(name), "code": pl.lit(check.code), "message": check.message}
            yield rows_of(rows, fails[check.code]).select("row", **told)


class Judge:
    """The rules of `operation` made ready.

    `refused` rows have a defect already; with `derive`, order ids are not looked at.
    """

    def __init__(self, operation: str, rules: Rules, refused: pl.Series, *, derive: bool) -> None:
        self._columns = COLUMNS_OF[operation]
        self._rules = rules
        self._refused = refused.implode()
        self._derive = derive
        self._countries: dict[str, _CountryJudge] = {}

    def piece(self, raw: pl.DataFrame) -> Judged:
        """Judge some rows of a sheet's frame."""
        frame = prepared(raw, self._columns).with_columns(refused=raw["row"].is_in(self._refused))
        judged = [country.judge(part) for country, part in self._parts(frame, lambda country: country.needs)]
        shown = pl.concat([part.shown for part in judged]).sort("row")
        if not shown["row"].equals(raw["row"]):
            raise InternalError(f"{raw.height} rows were judged, and {shown.height} others came back")
        return Judged(
            self._lines(frame, shown, raw),
            [found for part in judged for found in part.unsound],
            [found for part in judged for found in part.doubtful],
        )

    def instructions(self, raw: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
        """Return the instructions (as in `Validated`) of some rows of a sheet's frame that `piece` made `lines` of."""
        good = prepared(raw if lines["valid"].all() else rows_of(raw, lines["valid"]), self._columns)
        wire = [pl.DataFrame(schema=_WIRE_SCHEMA)]
        for country, part in self._parts(good, lambda country: country.wire_needs):
            if not country.wire:
                raise InternalError("a row without a country or a form was taken for valid")
            wire.append(part.lazy().select(country.wire).collect())  # lazily: what the columns share is done once
        return instructions_of(lines, pl.concat(wire).sort("row"))

    def _parts(
        self, frame: pl.DataFrame, needs: "Callable[[_CountryJudge], Sequence[str]]"
    ) -> "Iterator[tuple[_CountryJudge, pl.DataFrame]]":
        """Yield the prepared rows of each country with the columns that it needs; rows of no country come last."""
        codes = [code for code in frame["country"].unique().sort() if code in self._rules]
        parts = [(self._country(code), pl.col("country") == code) for code in codes]
        parts.append((self._country(""), ~pl.col("country").is_in(codes).fill_null(value=False)))
        for country, is_of_country in parts:
            rows = frame.select(is_of_country).to_series()
            if rows.any():
                yield country, rows_of(frame.select(needs(country)), rows)

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
            self._countries[code] = _CountryJudge.of(code, self._rules, derive=self._derive)
        return self._countries[code]


def _by_country(values: Mapping[str, str | None]) -> pl.Expr:
    return pl.col("country").replace_strict(values, default=None, return_dtype=pl.String)


def _equal(text: pl.Series, other: pl.Series) -> bool:
    return text.equals(other, null_equal=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """What the rows of one country come to. `shown`: for every row `row`, `SHOWN_COLUMNS` and `valid`."""

    shown: pl.DataFrame
    unsound: Sequence[Unsound]
    doubtful: Sequence[Unsound]


def _roots(expressions: Iterable[pl.Expr]) -> set[str]:
    return {name for expression in expressions for name in expression.meta.root_names()}


@dataclass(frozen=True, slots=True)
class _CountryJudge:
    """One country's checks and warnings; `rule` is None for rows of no country."""

    code: str
    rule: CountryRule | None
    columns: tuple[ColumnChecks, ...]
    warnings: tuple[ColumnChecks, ...]
    shown: tuple[pl.Expr, ...]
    wire: tuple[pl.Expr, ...]
    needs: tuple[str, ...]
    """The columns that are looked at: copying the others for every country would cost more than the checks."""
    wire_needs: tuple[str, ...]

    @classmethod
    def of(cls, code: str, rules: Rules, *, derive: bool) -> "_CountryJudge":
        rule = rules.get(code)
        checks = checks_without_country(rules) if rule is None else checks_of(rule, rules)
        used = tuple(column for column in checks if not (derive and column.column == "client_orderid"))
        warnings = () if rule is None else warnings_of(rule)
        shown: tuple[pl.Expr, ...] = ()
        wire: tuple[pl.Expr, ...] = ()
        if rule is not None and rule.form is not None:
            shown, wire = tuple(shown_columns(rule, rule.form)), tuple(wire_columns(rule, rule.form))
        needs = {"row", "refused", *_roots(shown), *_roots(shown_as_written(rule))}
        needs |= {name for column in (*used, *warnings) for name in column.needs}
        return cls(code, rule, used, warnings, shown, wire, tuple(sorted(needs)), tuple(sorted(_roots(wire))))

    def judge(self, part: pl.DataFrame) -> _Part:
        """Judge prepared rows that are all of this country."""
        sound, unsound = self._asked(part, self.columns)
        valid = ~part["refused"] & sound
        shown, doubtful = [], []
        if valid.any():
            if not self.shown:
                raise InternalError("a row without a country or a form was taken for valid")
            # Of all rows, valid or not: filtering their columns first would cost more.
            shown.append(part.lazy().select(*self.shown, valid=pl.lit(value=True)).collect().filter(valid))
            doubtful = self._asked(part, self.warnings, among=valid)[1]
        if not valid.all():
            written = rows_of(part, ~valid).select(shown_as_written(self.rule))
            shown.append(written.with_columns(valid=pl.lit(value=False)))
        return _Part(pl.concat(shown), unsound, doubtful)

    def _asked(
        self, part: pl.DataFrame, columns: tuple[ColumnChecks, ...], *, among: pl.Series | None = None
    ) -> tuple[pl.Series, list[Unsound]]:
        """Return which rows are sound in all columns, and column by column those `among` them that are not."""
        sound = part.select(column.sound.alias(column.column) for column in columns)
        if among is not None and not among.all():
            sound = sound.select(pl.all() | ~among)
        unsound = [
            Unsound(self.code, column, rows_of(part.select(column.needs), ~sound[column.column]))
            for column in columns
            if not sound[column.column].all()
        ]
        return sound.select(pl.all_horizontal(pl.all())).to_series(), unsound
