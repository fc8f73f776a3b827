"""The rules of a country as a pandera schema: the one definition of a right row.

A column of the schema has the country's `ColumnCheck` as its pandera check. Validation runs these very checks over
many columns at once (`judge`); pandera's own `validate` is the gate that every row passes before it is written down to
be paid. A property test holds the two to the same rows (docs/decisions/0124-one-definition-of-right.md).
"""

from collections import defaultdict
from collections.abc import Sequence

import pandera.polars as pa
import polars as pl
from pandera.api.polars.types import PolarsData
from pandera.config import ValidationDepth, config_context
from pandera.errors import SchemaErrors

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import ColumnCheck, checks_of, checks_without_country
from paygw_batch.sheet.clean import prepared
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.model import Validated

NO_COUNTRY = ""
ROWS_AT_ONCE = 100_000
"""How many rows pass the gate at a time, so that memory stays bounded."""
BREACH_SCHEMA = {"row": pl.UInt32, "column": pl.String}


def contract(country: str, rules: Rules) -> pa.DataFrameSchema:
    """Return the schema of one country's rows, over a `clean.prepared` frame; `NO_COUNTRY`: of rows without a country.

    All columns are String and nullable (that a value is missing is a defect with a code), and nothing is coerced.
    """
    rule = rules.get(country)
    columns: dict[str, list[pa.Check]] = defaultdict(list)
    for check in checks_without_country(rules) if rule is None else checks_of(rule, rules):
        columns[check.column].append(pa.Check(_passes, error=check.column, ignore_na=False, check=check))
    return pa.DataFrameSchema(
        {column: pa.Column(pl.String, checks=checks, nullable=True, coerce=False) for column, checks in columns.items()}
    )


def checks_in(schema: pa.DataFrameSchema) -> tuple[ColumnCheck, ...]:
    """Return the checks that the columns of a schema carry."""
    return tuple(check.statistics["check"] for column in schema.columns.values() for check in column.checks)


def _passes(data: PolarsData, *, check: ColumnCheck) -> pl.LazyFrame:
    # A check that answers once for the whole frame would be one failure for all rows: spread it over them.
    return data.lazyframe.select(pl.col("row").is_not_null() & check.passes)


def hold_to_contract(validated: Validated, rules: Rules) -> None:
    """Pass every row that is about to become an instruction through its country's schema, by pandera's own `validate`.

    Validation has found these rows right. Before money may move, pandera must agree: raises `InternalError` when it
    does not. No variable of the environment turns this off.
    """
    # A sheet may have no order ids of its own: then the derived ones are held to the contract.
    frame = validated.sheet.frame.with_columns(validated.rows["client_orderid"])
    good = frame.filter(validated.rows["valid"])
    columns = columns_of_operation(validated.sheet.operation)
    with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
        for piece in good.iter_slices(ROWS_AT_ONCE):
            for row, column in breaches(piece, rules, columns).iter_rows():
                raise InternalError(f"row {row}, {column}: validation passed a value that the schema refuses")


def breaches(frame: pl.DataFrame, rules: Rules, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return every (row, column) at which pandera finds that a sheet's frame breaks its countries' schemas."""
    rows = prepared(frame, columns)
    code = pl.when(pl.col("country").is_in(list(rules))).then("country").otherwise(pl.lit(NO_COUNTRY))
    found = [pl.DataFrame(schema=BREACH_SCHEMA)]
    for (country,), part in rows.with_columns(code=code).partition_by("code", as_dict=True, include_key=False).items():
        try:
            contract(country, rules).validate(part, lazy=True)
        except SchemaErrors as errors:
            at = part.select("row").with_row_index("index")
            cases = errors.failure_cases.select("index", "column").cast({"index": pl.UInt32})
            found.append(cases.join(at, on="index").select(list(BREACH_SCHEMA)))
    return pl.concat(found)
