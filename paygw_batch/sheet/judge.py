"""Judging a piece of a sheet, country by country: which rows are sound, and what is wrong with the others."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.checks import Check, ColumnChecks, checks_of, checks_without_country, shown, warnings_of
from paygw_batch.sheet.clean import prepared
from paygw_batch.sheet.result import no_defects
from paygw_batch.sheet.wire import INSTRUCTION_COLUMNS, SHOWN_COLUMNS, columns_as_written, wire_columns

_OWN_COLUMNS = ("row", "client_orderid", "country", "currency", "amount", *(f"shown:{name}" for name in SHOWN_COLUMNS))
_INSTRUCTION_SCHEMA = {"row": pl.UInt32(), **dict.fromkeys(INSTRUCTION_COLUMNS[1:], pl.String()), "minor": pl.Int64()}


@dataclass(frozen=True, slots=True)
class Judged:
    """What a piece comes to, each frame ordered by row.

    `lines`: for every row `row` (UInt32), `valid` (Boolean) and `client_orderid, country, currency, amount,
    account_name, account_number, phone, purpose` as the reconciliation shows them. `instructions` as in `Validated`;
    `defects` and `warnings` in no order.
    """

    lines: pl.DataFrame
    instructions: pl.DataFrame
    defects: Sequence[pl.DataFrame]
    warnings: Sequence[pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules made ready. `refused` rows have a defect already; with `derive`, order ids are not looked at."""

    rules: Rules
    refused: pl.Series
    derive: bool
    _made: dict[str, "_CountryJudge"] = field(default_factory=dict)

    def piece(self, raw: pl.DataFrame) -> Judged:
        """Judge some rows of a sheet's frame."""
        frame = prepared(raw).with_columns(refused=raw["row"].is_in(self.refused.implode()))
        codes = [code for code in frame["country"].unique() if code in self.rules]
        parts = [(self._country(code), frame.filter(pl.col("country") == code)) for code in codes]
        rest = frame.filter(~pl.col("country").is_in(codes).fill_null(value=False))
        if rest.height:
            parts.append((self._country(""), rest))
        judged = [country.judge(part) for country, part in parts]
        lines = pl.concat([part.lines for part in judged])
        instructions = pl.concat([pl.DataFrame(schema=_INSTRUCTION_SCHEMA), *(part.instructions for part in judged)])
        if lines.height != raw.height:
            raise InternalError(f"{raw.height} rows were judged, and {lines.height} came back")
        return Judged(
            lines.sort("row").rename({f"shown:{name}": name for name in SHOWN_COLUMNS}),
            instructions.sort("row"),
            [found for part in judged for found in part.defects],
            [found for part in judged for found in part.warnings],
        )

    def _country(self, code: str) -> "_CountryJudge":
        if code not in self._made:
            rule = self.rules.get(code)
            checks = checks_without_country(self.rules) if rule is None else checks_of(rule, self.rules)
            used = tuple(column for column in checks if not (self.derive and column.column == "client_orderid"))
            self._made[code] = _CountryJudge(rule, used, () if rule is None else warnings_of(rule))
        return self._made[code]


@dataclass(frozen=True, slots=True)
class _CountryJudge:
    """One country's checks; `rule` is None for rows of no country."""

    rule: CountryRule | None
    columns: tuple[ColumnChecks, ...]
    warnings: tuple[tuple[str, Check], ...]

    def judge(self, part: pl.DataFrame) -> Judged:
        """Judge prepared rows that are all of this country."""
        sound = part.select(column.sound.alias(column.column) for column in self.columns)
        valid = ~part["refused"] & sound.select(pl.all_horizontal(pl.all())).to_series()
        defects = [
            found
            for column in self.columns
            if not sound[column.column].all()
            for found in _defects(part.filter(~sound[column.column]), column)
        ]
        good, bad = (part, part.clear()) if valid.all() else (part.filter(valid), part.filter(~valid))
        lines = [bad.select(columns_as_written(self.rule)).with_columns(valid=pl.lit(value=False))]
        instructions = []
        if self.rule is not None and good.height:
            wire = good.select(wire_columns(self.rule))
            instructions.append(wire.select(INSTRUCTION_COLUMNS))
            lines.append(wire.select(*_OWN_COLUMNS, valid=pl.lit(value=True)))
        elif good.height:
            raise InternalError("a row without a country was taken for valid")
        return Judged(
            pl.concat(lines),
            pl.concat([pl.DataFrame(schema=_INSTRUCTION_SCHEMA), *instructions]),
            defects,
            _found(good, self.warnings),
        )


def _defects(unsound: pl.DataFrame, column: ColumnChecks) -> list[pl.DataFrame]:
    """Return the defects of rows that are not sound in `column`; there must be one for every row."""
    found = _found(unsound, [(column.column, check) for check in column.checks])
    explained = pl.concat([no_defects(), *found])["row"].n_unique()
    if explained != unsound.height:
        raise InternalError(f"{unsound.height} rows are wrong in {column.column}, and {explained} have a defect")
    return found


def _found(frame: pl.DataFrame, checks: Sequence[tuple[str, Check]]) -> list[pl.DataFrame]:
    """Return for each check that fails somewhere the rows where it does, as defects."""
    if not checks or not frame.height:
        return []
    fails = frame.select(check.fails.alias(check.code) for _, check in checks)
    return [
        frame.filter(fails[check.code]).select(
            "row", column=pl.lit(name), value=shown(name), code=pl.lit(check.code), message=check.message
        )
        for name, check in checks
        if fails[check.code].any()
    ]
