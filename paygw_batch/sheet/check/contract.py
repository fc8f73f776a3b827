"""Defines the rules of a country as a pandera schema, which is the one definition of a right row.

A column of the schema has the country's `ColumnCheck` as its pandera check. Validation runs these checks over many
columns at once (`judge`). Every row also passes pandera's own `validate` before it is stored to be paid. A property
test makes sure that both find the same rows (docs/decisions/0124-one-definition-of-right.md).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pandera.polars as pa
import polars as pl
from pandera.config import ValidationDepth, config_context
from pandera.errors import SchemaError, SchemaErrors

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck, checks_of, checks_without_country
from paygw_batch.sheet.clean import cleaned
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.model import ValidatedPart

NO_COUNTRY = ""
BREACH_SCHEMA = {"row": pl.UInt32, "column": pl.String}


def rules_for_sheet(rules: Rules, headers: Mapping[str, str]) -> Rules:
    return {code: rule.for_sheet(headers) for code, rule in rules.items()}


def contract(country: str, rules: Rules) -> pa.DataFrameSchema:
    """Return the schema of one country's rows (`NO_COUNTRY`: of rows without a country), for a `clean.cleaned` frame.

    All columns are String and nullable, because a missing value is a defect with a code. No value is coerced.
    """
    rule = rules.get(country)
    columns: dict[str, list[pa.Check]] = defaultdict(list)
    for check in checks_without_country(rules) if rule is None else checks_of(rule, rules):
        columns[check.column].append(pa.Check(_passes, error=check.column, ignore_na=False, check=check))
    return pa.DataFrameSchema(
        {column: pa.Column(pl.String, checks=checks, nullable=True, coerce=False) for column, checks in columns.items()}
    )


def checks_in(schema: pa.DataFrameSchema) -> tuple[ColumnCheck, ...]:
    return tuple(check.statistics["check"] for column in schema.columns.values() for check in column.checks)


def fused(schemas: Mapping[str, pa.DataFrameSchema]) -> pa.DataFrameSchema:
    """Return one schema for the rows of all countries, with all their checks as one.

    `code` has the country of each row. Each check and each call cost pandera more than the check itself does. Only the
    schema of a single country says which row and which check failed.
    """
    names = sorted({name for schema in schemas.values() for name in schema.columns})
    columns = {name: pa.Column(pl.String, nullable=True, coerce=False) for name in names}
    passes = {country: [check.passes for check in checks_in(schema)] for country, schema in schemas.items()}
    return pa.DataFrameSchema(columns, checks=pa.Check(_all_pass, ignore_na=False, passes=passes))


def _all_pass(data: pa.PolarsData, *, passes: Mapping[str, Sequence[pl.Expr]]) -> bool:
    """Whether each row is a row of one of the countries, and passes all its checks."""
    right = pl.collect_all(
        data.lazyframe.filter(pl.col("code") == country).select(
            (pl.col("row").is_not_null() & pl.all_horizontal(checks).fill_null(value=False)).sum()
        )
        for country, checks in passes.items()
    )
    return bool(sum(counted.item() for counted in right) == data.lazyframe.select(pl.len()).collect().item())


def _passes(data: pa.PolarsData, *, check: ColumnCheck) -> pl.LazyFrame:
    # A check that answers once for the whole frame would be one failure for all rows, so it is combined with a column.
    return data.lazyframe.select(pl.col("row").is_not_null() & check.passes)


class ContractGate:
    """Passes rows that are about to become instructions through their country's schema, by pandera's own `validate`.

    Validation has found these rows right, and pandera must agree before money may move. No environment variable turns
    it off.
    """

    def __init__(self, rules: Rules, operation: str) -> None:
        self._rules = rules
        self._columns = columns_of_operation(operation)
        self._contracts: dict[str, pa.DataFrameSchema] = {}

    def hold(self, good: pl.DataFrame) -> None:
        """Raise `InternalError` unless all rows pass. They are rows of a sheet's frame, with the order ids in use."""
        rows = _with_code(cleaned(good, self._columns), self._rules)
        for country in rows["code"].unique():
            if country not in self._contracts:
                self._contracts[country] = contract(country, self._rules)
        try:
            with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
                fused(self._contracts).validate(rows)
        except (SchemaError, SchemaErrors):  # not raised further, because it contains payees' data
            refused = True
        else:
            refused = False
        if refused:
            for row, column in breaches(good, self._rules, self._columns).iter_rows():
                raise InternalError(f"row {row}, {column}: validation passed a value that the schema refuses")
            raise InternalError("pandera refused rows, and then did not")


def good_rows(part: ValidatedPart) -> pl.DataFrame:
    """Return the rows that are about to become instructions, as received, with the order ids that are used."""
    # A sheet may have no order ids. Then its derived order ids are checked.
    return part.raw.with_columns(part.rows["client_orderid"]).filter(part.rows["valid"])


def breaches(frame: pl.DataFrame, rules: Rules, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return every (row, column) at which pandera finds that a sheet's frame breaks the schemas of its countries."""
    broken = [pl.DataFrame(schema=BREACH_SCHEMA)]
    rows = _with_code(cleaned(frame, columns), rules)
    for (country,), part in rows.partition_by("code", as_dict=True, include_key=False).items():
        try:
            contract(str(country), rules).validate(part, lazy=True)
        except SchemaErrors as errors:
            at = part.select("row").with_row_index("index")
            cases = errors.failure_cases.select("index", "column").cast({"index": pl.UInt32})
            broken.append(cases.join(at, on="index").select(list(BREACH_SCHEMA)))
    return pl.concat(broken)


def _with_code(rows: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return the rows with the column `code`, which names the country whose schema applies."""
    return rows.with_columns(
        code=pl.when(pl.col("country").is_in(list(rules))).then("country").otherwise(pl.lit(NO_COUNTRY))
    )
