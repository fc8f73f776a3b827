"""Runs the checks of each country's schema on a piece of a sheet, and explains the failures."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck, warning_checks
from paygw_batch.sheet.check.contract import NO_COUNTRY, country_schema, schema_checks
from paygw_batch.sheet.clean import bare_column, clean_codes, clean_columns, purpose_code, strip_separators
from paygw_batch.sheet.columns import operation_columns
from paygw_batch.sheet.findings import (
    COUNT_SCHEMA,
    EXAMPLES_PER_CODE,
    MAX_LISTED,
    DeferredFrame,
    Findings,
    append_row_numbers,
    build_findings,
    empty_findings,
    findings_for_rows,
    sample_findings,
    sort_findings,
    sum_counts,
)
from paygw_batch.sheet.instructions import (
    WIRE_COLUMNS,
    ShownColumn,
    build_instructions,
    received_columns,
    shown_columns,
    wire_columns,
)
from paygw_batch.sheet.model import LINE_COLUMNS
from paygw_batch.sheet.read.frame import filter_rows


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One country's rows that fail a check, with the columns that the reasons need.

    `position` is the check's position among the country's checks, which orders the defects of a value.
    """

    country: str
    position: int
    check: ColumnCheck
    rows: pl.DataFrame


@dataclass(slots=True)
class _CheckTally:
    """The rows that fail one check. `counts` and `first_rows` are keyed by the position of the reason."""

    check: ColumnCheck
    frames: list[pl.DataFrame] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    first_rows: dict[int, pl.DataFrame] = field(default_factory=dict)

    def count_reasons(self) -> None:
        rows = pl.concat(self.frames).rechunk()
        if not rows["row"].is_sorted():
            rows = rows.sort("row")
        positions = _reason_positions(rows, self.check)
        for position in positions.unique().sort():
            indices = (positions == position).arg_true()
            self.counts[position] = indices.len()
            self.first_rows[position] = rows[indices.head(MAX_LISTED)]


class FailureTally:
    """Counts and explains the values that failed checks."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, int], _CheckTally] = {}
        self._column_failures: dict[tuple[str, int], list[tuple[pl.Series, pl.DataFrame]]] = defaultdict(list)
        """(column, position of the reason) -> row numbers and the finding about the first row."""

    def add(self, failures: Iterable[CheckFailure]) -> None:
        for failure in failures:
            if failure.check.once_per_column:
                for position, rows in _split_by_reason(failure.rows, failure.check):
                    finding = _reason_findings(rows.bottom_k(1, by="row"), failure.check, position)
                    self._column_failures[failure.check.column, position].append((rows["row"], finding))
                continue
            tally = self._tallies.setdefault((failure.country, failure.position), _CheckTally(failure.check))
            tally.frames.append(failure.rows)

    def findings(self, rows: pl.Series) -> Findings:
        """Return the findings, after all failures have been added. `rows` are the numbers of rows with findings."""
        for tally in self._tallies.values():
            tally.count_reasons()
        all_findings = DeferredFrame(lambda: sort_findings(self._all_findings()))
        findings = Findings(self._counts, rows, DeferredFrame(self._first_findings), all_findings)
        return findings.with_sheet_findings(self._column_findings())

    def _column_findings(self) -> pl.DataFrame:
        """Return one finding per column (as row 0), whose message lists each reason with its row numbers."""
        columns: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        for (column, _), parts in sorted(self._column_failures.items(), key=lambda item: item[0]):
            rows = pl.concat(rows for rows, _ in parts).sort()
            first = min((finding.row(0, named=True) for _, finding in parts), key=lambda line: int(line["row"]))
            columns[column].append((first["value"], first["code"], append_row_numbers(first["message"], rows)))
        return build_findings(
            (0, column, reasons[0][0], reasons[0][1], " ".join(sentence for *_, sentence in reasons))
            for column, reasons in columns.items()
        )

    @property
    def _counts(self) -> pl.DataFrame:
        lines = [
            (tally.check.reasons[position].code, count, True)
            for tally in self._tallies.values()
            for position, count in tally.counts.items()
        ]
        return sum_counts([pl.DataFrame(lines, schema=COUNT_SCHEMA, orient="row")])

    def _first_findings(self) -> pl.DataFrame:
        if not self._tallies:
            return empty_findings()
        row_numbers = pl.concat(part["row"] for tally in self._tallies.values() for part in tally.first_rows.values())
        last_row = row_numbers.sort().head(MAX_LISTED)[-1]
        is_needed = (pl.col("row") <= last_row) | (pl.int_range(pl.len()) < EXAMPLES_PER_CODE)
        findings = [
            _reason_findings(rows.filter(is_needed).rechunk(), tally.check, position)
            for _, tally in sorted(self._tallies.items(), key=lambda item: item[0])
            for position, rows in tally.first_rows.items()
        ]
        return sample_findings(sort_findings(pl.concat([empty_findings(), *findings])))

    def _all_findings(self) -> pl.DataFrame:
        """Return all findings, unsorted. Explaining the failures of all pieces together is much faster."""
        findings = [
            _reason_findings(rows, tally.check, position)
            for _, tally in sorted(self._tallies.items(), key=lambda item: item[0])
            for position, rows in _split_by_reason(pl.concat(tally.frames).rechunk(), tally.check)
        ]
        return pl.concat([empty_findings(), *findings])


def failed_rows(failures: Sequence[CheckFailure]) -> pl.Series:
    """Return the sorted numbers of the rows that failed a check, without duplicates."""
    rows = [failure.rows["row"] for failure in failures if not failure.check.once_per_column]
    return pl.concat([pl.Series("row", [], pl.UInt32), *rows]).unique().sort()


def _split_by_reason(rows: pl.DataFrame, check: ColumnCheck) -> Iterator[tuple[int, pl.DataFrame]]:
    positions = _reason_positions(rows, check)
    for position in positions.unique().sort():
        yield position, filter_rows(rows, positions == position)


def _reason_positions(rows: pl.DataFrame, check: ColumnCheck) -> pl.Series:
    first = pl.coalesce(pl.when(reason.applies).then(pl.lit(position)) for position, reason in enumerate(check.reasons))
    positions = rows.select("row", position=first)["position"]  # with `row`, because a reason may be a constant
    if positions.null_count():
        raise InternalError(f"{positions.null_count()} rows are wrong in {check.column}, and no reason for it applies")
    return positions


def _reason_findings(rows: pl.DataFrame, check: ColumnCheck, position: int) -> pl.DataFrame:
    reason = check.reasons[position]
    corrections = rows.select(correction=reason.correction.cast(pl.String)).to_series()
    if corrections.len() == 1 < rows.height:
        corrections = corrections.new_from_index(0, rows.height)
    corrected = {check.column: corrections.replace({"": None})}
    if (bare := bare_column(check.column)) in rows.columns:
        corrected[bare] = strip_separators(corrected[check.column])
    passes = rows.with_columns(**corrected).select(passes=check.passes).to_series()
    valid_corrections = corrections.set(~passes.fill_null(value=False), None)
    return findings_for_rows(rows, check.column, reason.code, reason.message, correction=pl.lit(valid_corrections))


_WIRE_SCHEMA = {"row": pl.UInt32(), **dict.fromkeys(WIRE_COLUMNS, pl.String()), "minor": pl.Int64()}


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The lines of some rows, and the checks that failed.

    `lines` has `LINE_COLUMNS` (`row` UInt32, `valid` Boolean, the rest String), ordered by row. `FailureTally` turns
    `failures` into defects and `warnings` into warnings.
    """

    lines: pl.DataFrame
    failures: Sequence[CheckFailure]
    warnings: Sequence[CheckFailure]


class RowChecker:
    """Checks rows against an operation's rules. Order ids are not checked if `derives_ids`.

    If `skips_checks`, rows are valid unless refused, because they have already passed the checks.
    """

    def __init__(self, operation: str, rules: Rules, *, derives_ids: bool, skips_checks: bool = False) -> None:
        self._columns = operation_columns(operation)
        self._rules = rules
        self._derives_ids = derives_ids
        self._skips_checks = skips_checks
        self._countries: dict[str, _CountryChecker] = {}

    def check_piece(self, raw: pl.DataFrame, refused_rows: pl.Series) -> CheckedRows:
        """Check some rows of a sheet. Rows in `refused_rows` are invalid even if they pass."""
        grouped = self._group_by_country(raw)
        is_refused = grouped.rows["row"].is_in(refused_rows.implode())
        frame = clean_columns(grouped.rows, self._columns).with_columns(refused=is_refused)
        checked_rows = [checker.check_rows(frame.slice(start, height)) for checker, start, height in grouped.parts]
        lines = pl.concat([part.lines for part in checked_rows], rechunk=True)
        if lines.height != raw.height:
            raise InternalError(f"{raw.height} rows were checked, and {lines.height} came back")
        texts = [lines[name] if name in lines.columns else frame[name] for name in LINE_COLUMNS]
        return CheckedRows(
            pl.DataFrame([grouped.restore_order(text, raw) for text in texts]),
            [failure for part in checked_rows for failure in part.failures],
            [failure for part in checked_rows for failure in part.warnings],
        )

    def instructions(self, raw: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
        """Build instructions from some rows, and their `lines` from `check_piece`."""
        valid = self._group_by_country(raw if lines["valid"].all() else filter_rows(raw, lines["valid"]))
        frame = clean_columns(valid.rows, self._columns)
        wire = [pl.DataFrame(schema=_WIRE_SCHEMA)]
        for checker, start, height in valid.parts:
            if not checker.wire:
                raise InternalError("a row without a country or a form was taken for valid")
            part = frame.slice(start, height)
            wire.append(part.lazy().select(checker.wire).collect())  # lazy, to compute shared parts once
        return build_instructions(lines, pl.concat(wire).sort("row"))

    def _group_by_country(self, raw: pl.DataFrame) -> "_GroupedRows":
        """Group rows by country, so that each country's rows are a slice rather than a copy."""
        codes = sorted(self._rules)
        country = clean_codes(raw["country"]).cast(pl.Enum(codes), strict=False).to_physical()
        country = country.cast(pl.UInt32).fill_null(len(codes))
        order = None if country.is_sorted() else country.arg_sort()
        runs = (country if order is None else country[order]).rle().struct.unnest()
        starts = runs["len"].cum_sum() - runs["len"]
        parts = [
            (self._checker_for(codes[position] if position < len(codes) else NO_COUNTRY), start, height)
            for position, start, height in zip(runs["value"], starts, runs["len"], strict=True)
        ]
        rows = raw.select("row", *(name for name in self._columns if name in raw.columns and _has_values(raw[name])))
        if order is None:
            return _GroupedRows(rows, parts, None)
        positions = pl.zeros(order.len(), pl.UInt32, eager=True)
        positions = positions.scatter(order, pl.int_range(order.len(), dtype=pl.UInt32, eager=True))
        return _GroupedRows(rows[order], parts, positions)

    def _checker_for(self, code: str) -> "_CountryChecker":
        if code not in self._countries:
            checker = _CountryChecker.for_country(code, self._rules, derives_ids=self._derives_ids)
            self._countries[code] = replace(checker, checks=(), warnings=()) if self._skips_checks else checker
        return self._countries[code]


@dataclass(frozen=True, slots=True)
class _GroupedRows:
    """Rows grouped by country. `parts` holds (checker, offset, height). `positions` is None if no row has moved."""

    rows: pl.DataFrame
    parts: Sequence[tuple["_CountryChecker", int, int]]
    positions: pl.Series | None

    def restore_order(self, column: pl.Series, raw: pl.DataFrame) -> pl.Series:
        """Return a column in the order of `raw`. An unchanged column shares the memory of `raw`."""
        if column.name in self.rows.columns and column.equals(self.rows[column.name], null_equal=True):
            return raw[column.name]
        if not _has_values(column):
            return column
        return column if self.positions is None else column[self.positions]


def _has_values(column: pl.Series) -> bool:
    return column.null_count() < column.len()


@dataclass(frozen=True, slots=True)
class _CountryChecker:
    """The checks and warnings of one country. `rule` is None for rows without a country."""

    code: str
    rule: CountryRule | None
    checks: tuple[ColumnCheck, ...]
    warnings: tuple[ColumnCheck, ...]
    shown: tuple[ShownColumn, ...]
    wire: tuple[pl.Expr, ...]

    @classmethod
    def for_country(cls, code: str, rules: Rules, *, derives_ids: bool) -> "_CountryChecker":
        rule = rules.get(code)
        checks = schema_checks(country_schema(code, rules))
        checks_to_run = tuple(check for check in checks if not (derives_ids and check.column == "client_orderid"))
        warnings = () if rule is None else tuple(warning_checks(rule))
        if rule is None or rule.form is None:
            return cls(code, rule, checks_to_run, warnings, (), ())
        shown, wire = shown_columns(rule, rule.form), wire_columns(rule, rule.form)
        return cls(code, rule, checks_to_run, warnings, tuple(shown), tuple(wire))

    def check_rows(self, part: pl.DataFrame) -> CheckedRows:
        """Check cleaned rows of this country. The resulting lines have only columns that depend on the country."""
        is_valid, failures = self._check(part, self.checks)
        valid = (is_valid & ~part["refused"]).alias("valid")
        if not valid.any():
            return CheckedRows(
                part.select(*received_columns(self.rule), "purpose", self._currency).with_columns(valid), failures, []
            )
        if self.rule is None or not self.shown:
            raise InternalError("a row without a country or a form was taken for valid")
        texts = self._shown_values(part, valid)
        if not valid.all():
            for text in part.select(*received_columns(self.rule), "purpose"):
                texts[text.name] = texts[text.name].zip_with(valid, text)
        return CheckedRows(pl.DataFrame([*texts.values(), valid]), failures, self._check(part, self.warnings, valid)[1])

    @property
    def _currency(self) -> pl.Expr:
        """The row's currency, or the country's currency if the row has none."""
        default = self.rule.currency if self.rule is not None else None
        return pl.coalesce("currency", pl.lit(default, pl.String)).alias("currency")

    def _shown_values(self, part: pl.DataFrame, valid: pl.Series) -> dict[str, pl.Series]:
        """Return `SHOWN_COLUMNS`, purpose and currency by name. Values for invalid rows are undefined."""
        purpose = pl.lit(self.rule.purpose if self.rule is not None else None, pl.String)
        if self.rule is not None and self.rule.purposes:
            purpose = pl.coalesce(purpose_code(self.rule), purpose)
        purpose = purpose.alias("purpose")
        texts = [column.text.alias(column.name) for column in self.shown]
        flags = [column.is_plain.alias(f"{column.name}:plain") for column in self.shown if column.is_plain is not None]
        by_name = {text.name: text for text in part.select(*texts, *flags, purpose, self._currency)}
        for column in self.shown:
            if column.is_plain is None or column.other is None:
                continue
            is_other = valid & ~by_name.pop(f"{column.name}:plain")
            if is_other.any():
                indices = is_other.arg_true()
                other_texts = part.select(set(column.other.meta.root_names()))[indices].select(column.other).to_series()
                by_name[column.name] = by_name[column.name].scatter(indices, other_texts)
        return by_name

    def _check(
        self, part: pl.DataFrame, checks: Sequence[ColumnCheck], selected: pl.Series | None = None
    ) -> tuple[pl.Series, list[CheckFailure]]:
        """Return a mask of rows that pass all checks, and the failures. If `selected` is given, no other rows fail."""
        passes_all = pl.Series([True]).new_from_index(0, part.height)
        failures = []
        results = part.select(check.passes.alias(str(position)) for position, check in enumerate(checks))
        for position, (check, passes) in enumerate(zip(checks, results, strict=True)):
            is_passing = passes if selected is None else passes | ~selected
            if not is_passing.all():
                is_failing = ~is_passing
                rows = pl.DataFrame([part[name].filter(is_failing) for name in check.needed_columns])
                failures.append(CheckFailure(self.code, position, check, rows))
                passes_all &= is_passing
        return passes_all, failures
