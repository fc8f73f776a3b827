"""Defines the rules of a country as a pandera schema, which is the only definition of a valid row.

Each column of the schema has the country's `ColumnCheck` as its pandera check. Validation runs these checks for all
columns together (`row_checker`). Before a row is stored for payment, it must also pass pandera's own `validate`. A
property test ensures that both accept the same rows (docs/decisions/0124-one-definition-of-right.md).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pandera.polars as pa
import polars as pl
from pandera.config import ValidationDepth, config_context
from pandera.errors import SchemaError, SchemaErrors

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck, checks_without_country, country_checks
from paygw_batch.sheet.clean import clean_columns
from paygw_batch.sheet.columns import operation_columns
from paygw_batch.sheet.model import ValidatedPart

NO_COUNTRY = ""
_DEPTH = ValidationDepth.SCHEMA_AND_DATA
_INVALID_VALUE_SCHEMA = {"row": pl.UInt32, "column": pl.String}


def rules_for_sheet(rules: Rules, headers: Mapping[str, str]) -> Rules:
    return {code: rule.for_sheet(headers) for code, rule in rules.items()}


def country_schema(country: str, rules: Rules) -> pa.DataFrameSchema:
    """Return the schema of one country's rows, or of rows without a country (`NO_COUNTRY`).

    The schema validates a `clean_columns` frame. All columns are String, without coercion. They are nullable, because a
    check reports missing values.
    """
    rule = rules.get(country)
    columns: dict[str, list[pa.Check]] = defaultdict(list)
    for check in checks_without_country(rules) if rule is None else country_checks(rule, rules):
        columns[check.column].append(pa.Check(_row_passes, error=check.column, ignore_na=False, check=check))
    return pa.DataFrameSchema(
        {column: pa.Column(pl.String, checks=checks, nullable=True, coerce=False) for column, checks in columns.items()}
    )


def schema_checks(schema: pa.DataFrameSchema) -> tuple[ColumnCheck, ...]:
    return tuple(check.statistics["check"] for column in schema.columns.values() for check in column.checks)


def combine_schemas(schemas: Mapping[str, pa.DataFrameSchema]) -> pa.DataFrameSchema:
    """Combine the schemas of all countries into one schema with a single check.

    The column `code` holds each row's country. The combined schema is faster, because pandera's overhead exceeds the
    cost of a check, but it does not show which row failed which check.
    """
    names = sorted({name for schema in schemas.values() for name in schema.columns})
    columns = {name: pa.Column(pl.String, nullable=True, coerce=False) for name in names}
    conditions = {country: [check.passes for check in schema_checks(schema)] for country, schema in schemas.items()}
    return pa.DataFrameSchema(columns, checks=pa.Check(_all_rows_pass, ignore_na=False, passes=conditions))


def _all_rows_pass(data: pa.PolarsData, *, passes: Mapping[str, Sequence[pl.Expr]]) -> bool:
    passing_counts = pl.collect_all(
        data.lazyframe.filter(pl.col("code") == country).select(
            (pl.col("row").is_not_null() & pl.all_horizontal(checks).fill_null(value=False)).sum()
        )
        for country, checks in passes.items()
    )
    return bool(sum(count.item() for count in passing_counts) == data.lazyframe.select(pl.len()).collect().item())


def _row_passes(data: pa.PolarsData, *, check: ColumnCheck) -> pl.LazyFrame:
    # A constant check would fail once for all rows, so it is combined with a column.
    return data.lazyframe.select(pl.col("row").is_not_null() & check.passes)


class ContractGate:
    """Validates rows with pandera itself before they become instructions.

    The rows have already passed our own validation. No environment variable disables this second validation.
    """

    def __init__(self, rules: Rules, operation: str) -> None:
        self._rules = rules
        self._columns = operation_columns(operation)
        self._schemas: dict[str, pa.DataFrameSchema] = {}

    def require_valid(self, rows_to_check: pl.DataFrame) -> None:
        """Raise `InternalError` unless all rows pass. `rows_to_check` are from `payable_rows`."""
        rows = _add_country_code(clean_columns(rows_to_check, self._columns), self._rules)
        for country in rows["code"].unique():
            if country not in self._schemas:
                self._schemas[country] = country_schema(country, self._rules)
        # The error is suppressed rather than chained, because it contains payees' data.
        with suppress(SchemaError, SchemaErrors), config_context(validation_enabled=True, validation_depth=_DEPTH):
            combine_schemas(self._schemas).validate(rows)
            return
        for row, column in find_invalid_values(rows_to_check, self._rules, self._columns).iter_rows():
            raise InternalError(f"row {row}, {column}: validation passed a value that the schema refuses")
        raise InternalError("pandera refused rows, and then did not")


def payable_rows(part: ValidatedPart) -> pl.DataFrame:
    """Return the rows that will become instructions as received, but with derived order ids if they had none."""
    return part.raw.with_columns(part.rows["client_orderid"]).filter(part.rows["valid"])


def find_invalid_values(frame: pl.DataFrame, rules: Rules, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the `row` and `column` of each value that is invalid according to pandera."""
    invalid_values = [pl.DataFrame(schema=_INVALID_VALUE_SCHEMA)]
    rows = _add_country_code(clean_columns(frame, columns), rules)
    for (country,), part in rows.partition_by("code", as_dict=True, include_key=False).items():
        try:
            country_schema(str(country), rules).validate(part, lazy=True)
        except SchemaErrors as errors:
            row_numbers = part.select("row").with_row_index("index")
            failures = errors.failure_cases.select("index", "column").cast({"index": pl.UInt32})
            invalid_values.append(failures.join(row_numbers, on="index").select(list(_INVALID_VALUE_SCHEMA)))
    return pl.concat(invalid_values)


def _add_country_code(rows: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    is_known = pl.col("country").is_in(list(rules))
    return rows.with_columns(code=pl.when(is_known).then("country").otherwise(pl.lit(NO_COUNTRY)))
