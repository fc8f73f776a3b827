"""Runs the checks of each country's schema on a piece of a sheet, and explains the values that fail."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck, warnings_of
from paygw_batch.sheet.check.contract import NO_COUNTRY, checks_in, contract
from paygw_batch.sheet.clean import bare, bare_number, chosen_purpose, cleaned, cleaned_codes
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.findings import (
    EXAMPLES,
    KIND_SCHEMA,
    LISTED,
    BuiltOnUse,
    Findings,
    as_defects,
    defects_of,
    few_of,
    in_order,
    no_defects,
    summed,
    told_once,
)
from paygw_batch.sheet.instructions import (
    WIRE_COLUMNS,
    ShownColumn,
    instructions_of,
    shown_as_written,
    shown_columns,
    wire_columns,
)
from paygw_batch.sheet.model import LINE_COLUMNS
from paygw_batch.sheet.read.frame import rows_of


@dataclass(frozen=True, slots=True)
class Failed:
    """Rows of one country that fail a check, with the columns that its reasons need.

    `place` is the position of the check among those of the country. Defects of one value are in this order.
    """

    country: str
    place: int
    check: ColumnCheck
    rows: pl.DataFrame


@dataclass(slots=True)
class _Group:
    """The rows that failed one check. By the place of the reason: `counts`, and the `first` rows."""

    check: ColumnCheck
    waiting: list[pl.DataFrame] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    first: dict[int, pl.DataFrame] = field(default_factory=dict)

    def count(self) -> None:
        rows = pl.concat(self.waiting).rechunk()
        if not rows["row"].is_sorted():
            rows = rows.sort("row")
        places = _places(rows, self.check)
        for at in places.unique().sort():
            failing = (places == at).arg_true()
            self.counts[at] = failing.len()
            self.first[at] = rows[failing.head(LISTED)]


class FailedTally:
    """Counts the values that failed checks, and explains them."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], _Group] = {}
        self._of_columns: dict[tuple[str, int], list[tuple[pl.Series, pl.DataFrame]]] = defaultdict(list)
        """By column and place of the reason: the numbers of the rows, and the finding about the first row."""

    def add(self, failed: Iterable[Failed]) -> None:
        for failure in failed:
            if failure.check.of_whole_column:
                for at, rows in _by_reason(failure.rows, failure.check):
                    first = _defects(rows.bottom_k(1, by="row"), failure.check, at)
                    self._of_columns[failure.check.column, at].append((rows["row"], first))
                continue
            self._groups.setdefault((failure.country, failure.place), _Group(failure.check)).waiting.append(
                failure.rows
            )

    def findings(self, rows: pl.Series) -> Findings:
        """Return the findings about these rows, once all pieces are added."""
        for group in self._groups.values():
            group.count()
        all_defects = BuiltOnUse(lambda: in_order(self._every()))
        return Findings(self._counts, rows, BuiltOnUse(self._few), all_defects).after(self._told_once())

    def _told_once(self) -> pl.DataFrame:
        """Return a finding at row 0 for each column, with a sentence and the numbers of all rows for each reason."""
        columns: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        for (column, _), parts in sorted(self._of_columns.items(), key=lambda item: item[0]):
            rows = pl.concat(rows for rows, _ in parts).sort()
            first = min((first.row(0, named=True) for _, first in parts), key=lambda line: int(line["row"]))
            columns[column].append((first["value"], first["code"], told_once(first["message"], rows)))
        return as_defects(
            (0, column, reasons[0][0], reasons[0][1], " ".join(sentence for *_, sentence in reasons))
            for column, reasons in columns.items()
        )

    @property
    def _counts(self) -> pl.DataFrame:
        lines = [
            (group.check.reasons[at].code, count, True)
            for group in self._groups.values()
            for at, count in group.counts.items()
        ]
        return summed([pl.DataFrame(lines, schema=KIND_SCHEMA, orient="row")])

    def _few(self) -> pl.DataFrame:
        """Return the findings about the first rows, and the first findings of each code."""
        if not self._groups:
            return no_defects()
        numbers = pl.concat(part["row"] for group in self._groups.values() for part in group.first.values())
        last = numbers.sort().head(LISTED)[-1]
        is_early = (pl.col("row") <= last) | (pl.int_range(pl.len()) < EXAMPLES)
        defects = [
            _defects(rows.filter(is_early).rechunk(), group.check, at)
            for _, group in sorted(self._groups.items(), key=lambda item: item[0])
            for at, rows in group.first.items()
        ]
        return few_of(in_order(pl.concat([no_defects(), *defects])))

    def _every(self) -> pl.DataFrame:
        """Return the findings about all rows, in no order. Raises `InternalError` for a row without a reason.

        All pieces are explained together, because asking the same reasons of many small frames costs more than all the
        rest.
        """
        defects = [
            _defects(rows, group.check, at)
            for _, group in sorted(self._groups.items(), key=lambda item: item[0])
            for at, rows in _by_reason(pl.concat(group.waiting).rechunk(), group.check)
        ]
        return pl.concat([no_defects(), *defects])


def rows_failed(failed: Sequence[Failed]) -> pl.Series:
    """Return the numbers of the rows that failed a check, each once and in order."""
    rows = [failure.rows["row"] for failure in failed if not failure.check.of_whole_column]
    return pl.concat([pl.Series("row", [], pl.UInt32), *rows]).unique().sort()


def _by_reason(rows: pl.DataFrame, check: ColumnCheck) -> Iterator[tuple[int, pl.DataFrame]]:
    places = _places(rows, check)
    for at in places.unique().sort():
        yield at, rows_of(rows, places == at)


def _places(rows: pl.DataFrame, check: ColumnCheck) -> pl.Series:
    first = pl.coalesce(pl.when(reason.applies).then(pl.lit(at)) for at, reason in enumerate(check.reasons))
    places = rows.select("row", place=first)["place"]  # with the row, because a reason may be a constant
    if places.null_count():
        raise InternalError(f"{places.null_count()} rows are wrong in {check.column}, and no reason for it applies")
    return places


def _defects(rows: pl.DataFrame, check: ColumnCheck, at: int) -> pl.DataFrame:
    reason = check.reasons[at]
    corrections = rows.select(correction=reason.correction.cast(pl.String)).to_series()
    if corrections.len() == 1 < rows.height:
        corrections = corrections.new_from_index(0, rows.height)
    corrected = {check.column: corrections.replace({"": None})}
    if (digits := bare(check.column)) in rows.columns:
        corrected[digits] = bare_number(corrected[check.column])
    passes = rows.with_columns(**corrected).select(passes=check.passes).to_series()
    offered = corrections.set(~passes.fill_null(value=False), None)
    return defects_of(rows, check.column, reason.code, reason.message, correction=pl.lit(offered))


_WIRE_SCHEMA = {"row": pl.UInt32(), **dict.fromkeys(WIRE_COLUMNS, pl.String()), "minor": pl.Int64()}


@dataclass(frozen=True, slots=True)
class Judged:
    """The lines of some rows, and the values that failed a check.

    `lines` has `LINE_COLUMNS` (`row` UInt32, `valid` Boolean, else String), ordered by row. `FailedTally` explains
    `failed` as defects and `doubtful` as warnings.
    """

    lines: pl.DataFrame
    failed: Sequence[Failed]
    doubtful: Sequence[Failed]


class Judge:
    """The rules of `operation`, prepared for judging rows. With `derive`, order ids are not checked.

    With `checked`, checks and warnings are not run again: rows that are not `refused` were found right earlier.
    """

    def __init__(self, operation: str, rules: Rules, *, derive: bool, checked: bool = False) -> None:
        self._columns = columns_of_operation(operation)
        self._rules = rules
        self._derive = derive
        self._checked = checked
        self._countries: dict[str, _CountryJudge] = {}

    def piece(self, raw: pl.DataFrame, refused: pl.Series) -> Judged:
        """Judge some rows of a sheet's frame. Rows in `refused` have a defect already."""
        grouped = self._grouped(raw)
        frame = cleaned(grouped.rows, self._columns).with_columns(refused=grouped.rows["row"].is_in(refused.implode()))
        judged = [country.judge(frame.slice(start, height)) for country, start, height in grouped.parts]
        lines = pl.concat([part.lines for part in judged], rechunk=True)
        if lines.height != raw.height:
            raise InternalError(f"{raw.height} rows were judged, and {lines.height} came back")
        texts = [lines[name] if name in lines.columns else frame[name] for name in LINE_COLUMNS]
        return Judged(
            pl.DataFrame([grouped.put_back(text, raw) for text in texts]),
            [failure for part in judged for failure in part.failed],
            [failure for part in judged for failure in part.doubtful],
        )

    def instructions(self, raw: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
        """Return the instructions (as in `Validated`) of rows of a sheet's frame. `lines` are the result of `piece`."""
        good = self._grouped(raw if lines["valid"].all() else rows_of(raw, lines["valid"]))
        frame = cleaned(good.rows, self._columns)
        wire = [pl.DataFrame(schema=_WIRE_SCHEMA)]
        for country, start, height in good.parts:
            if not country.wire:
                raise InternalError("a row without a country or a form was taken for valid")
            part = frame.slice(start, height)
            wire.append(part.lazy().select(country.wire).collect())  # lazily, so shared parts are computed once
        return instructions_of(lines, pl.concat(wire).sort("row"))

    def _grouped(self, raw: pl.DataFrame) -> "_Grouped":
        """Return the rows grouped by country, so that the rows of a country are a slice without a copy."""
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
    """Rows of a sheet, grouped by country. `parts` has the first row and the number of rows of each country.

    `places` has the new place of each row, or is None if no row was moved.
    """

    rows: pl.DataFrame
    parts: Sequence[tuple["_CountryJudge", int, int]]
    places: pl.Series | None

    def put_back(self, column: pl.Series, raw: pl.DataFrame) -> pl.Series:
        """Return a column of the grouped rows in the order of `raw`. An unchanged column shares the memory of `raw`."""
        if column.name in self.rows.columns and column.equals(self.rows[column.name], null_equal=True):
            return raw[column.name]
        if not _holds(column):
            return column
        return column if self.places is None else column[self.places]


def _holds(column: pl.Series) -> bool:
    return column.null_count() < column.len()


@dataclass(frozen=True, slots=True)
class _CountryJudge:
    """The checks and warnings of one country. `rule` is None for rows without a country."""

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
        warnings = () if rule is None else tuple(warnings_of(rule))
        if rule is None or rule.form is None:
            return cls(code, rule, used, warnings, (), ())
        shown, wire = shown_columns(rule, rule.form), wire_columns(rule, rule.form)
        return cls(code, rule, used, warnings, tuple(shown), tuple(wire))

    def judge(self, part: pl.DataFrame) -> Judged:
        """Judge cleaned rows of this country. The lines have only the columns that depend on the country."""
        right, failed = self._asked(part, self.checks)
        valid = (right & ~part["refused"]).alias("valid")
        if not valid.any():
            return Judged(
                part.select(*shown_as_written(self.rule), "purpose", self._currency).with_columns(valid), failed, []
            )
        if self.rule is None or not self.shown:
            raise InternalError("a row without a country or a form was taken for valid")
        texts = self._as_sent(part, valid)
        if not valid.all():
            for text in part.select(*shown_as_written(self.rule), "purpose"):
                texts[text.name] = texts[text.name].zip_with(valid, text)
        return Judged(pl.DataFrame([*texts.values(), valid]), failed, self._asked(part, self.warnings, valid)[1])

    @property
    def _currency(self) -> pl.Expr:
        """The row's currency, or the country's if the row has none."""
        usual = self.rule.currency if self.rule is not None else None
        return pl.coalesce("currency", pl.lit(usual, pl.String)).alias("currency")

    def _as_sent(self, part: pl.DataFrame, valid: pl.Series) -> dict[str, pl.Series]:
        """Return `SHOWN_COLUMNS`, purpose and currency of valid rows. In other rows the values mean nothing."""
        purpose = pl.lit(self.rule.purpose if self.rule is not None else None, pl.String)
        if self.rule is not None and self.rule.purposes:
            purpose = pl.coalesce(chosen_purpose(self.rule), purpose)
        purpose = purpose.alias("purpose")
        texts = [column.text.alias(column.name) for column in self.shown]
        plain = [column.is_plain.alias(f"{column.name}:plain") for column in self.shown if column.is_plain is not None]
        by_name = {text.name: text for text in part.select(*texts, *plain, purpose, self._currency)}
        for column in self.shown:
            if column.is_plain is None or column.other is None:
                continue
            is_other = valid & ~by_name.pop(f"{column.name}:plain")
            if is_other.any():
                at = is_other.arg_true()
                other_texts = part.select(set(column.other.meta.root_names()))[at].select(column.other).to_series()
                by_name[column.name] = by_name[column.name].scatter(at, other_texts)
        return by_name

    def _asked(
        self, part: pl.DataFrame, checks: Sequence[ColumnCheck], among: pl.Series | None = None
    ) -> tuple[pl.Series, list[Failed]]:
        """Return whether each row passes all checks, and for each check the rows (among `among`) that fail it."""
        passing = pl.Series([True]).new_from_index(0, part.height)
        failed = []
        answers = part.select(check.passes.alias(str(place)) for place, check in enumerate(checks))
        for place, (check, passes) in enumerate(zip(checks, answers, strict=True)):
            right = passes if among is None else passes | ~among
            if not right.all():
                wrong = ~right
                rows = pl.DataFrame([part[name].filter(wrong) for name in check.needs])
                failed.append(Failed(self.code, place, check, rows))
                passing &= right
        return passing, failed
