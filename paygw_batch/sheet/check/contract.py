"""The rules of a country as a pandera schema: the contract that the fast path of validation is held to.

Both are made from the same checks. Here each check is asked of every value by itself, and pandera collects what fails;
`judge` asks one question per column first. A property test holds them to the same (row, column, code).
"""

from collections.abc import Callable, Sequence

import pandera.polars as pa
import polars as pl
from pandera.api.polars.types import PolarsData
from pandera.config import ValidationDepth, config_context
from pandera.errors import SchemaErrors

from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.errors import InternalError
from paygw_batch.sheet.check.checks import checks_of, checks_without_country
from paygw_batch.sheet.clean import prepared
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.model import Validated

ROWS_AT_ONCE = 100_000
"""How many rows are held to the contract at a time, so that memory stays bounded."""
BREACH_SCHEMA = {"row": pl.UInt32, "column": pl.String, "code": pl.String}


def contract(rule: CountryRule | None, rules: Rules) -> pa.DataFrameSchema:
    """Return what rows of one country must satisfy, over a `clean.prepared` frame; None: rows of no country.

    All columns are String and nullable (that a value is missing is a check with a code of its own), nothing is coerced.
    """
    checks = checks_without_country(rules) if rule is None else checks_of(rule, rules)
    return pa.DataFrameSchema(
        {
            column.column: pa.Column(
                pl.String,
                checks=[pa.Check(_passes(check.fails), error=check.code, ignore_na=False) for check in column.checks],
                nullable=True,
                coerce=False,
            )
            for column in checks
        }
    )


def hold_to_contract(validated: Validated, rules: Rules) -> None:
    """Ask the schemas once more about every row that is about to become an instruction.

    The fast path has found these rows good. Before money may move, a second reading must agree: raises `InternalError`
    when it does not. No variable of the environment turns this off.
    """
    # A sheet may have no order ids of its own: then the derived ones are held to the contract.
    frame = validated.sheet.frame.with_columns(validated.rows["client_orderid"])
    good = frame.filter(validated.rows["valid"])
    columns = columns_of_operation(validated.sheet.operation)
    with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
        for piece in good.iter_slices(ROWS_AT_ONCE):
            for row, column, code in breaches(piece, rules, columns).iter_rows():
                raise InternalError(f"row {row}, {column}: validation passed what the schema calls {code}")


def _passes(fails: pl.Expr) -> Callable[[PolarsData], pl.LazyFrame]:
    # A check that answers once for the whole frame would be one failure for all rows: spread it over them.
    every_row = pl.col("row").is_not_null() & ~fails
    return lambda data: data.lazyframe.select(every_row)


def breaches(frame: pl.DataFrame, rules: Rules, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return every (row, column, code) at which a sheet's frame breaks the contract of its rows' countries."""
    rows = prepared(frame, columns)
    code = pl.when(pl.col("country").is_in(list(rules))).then("country")
    found = [pl.DataFrame(schema=BREACH_SCHEMA)]
    for (country,), part in rows.with_columns(code=code).partition_by("code", as_dict=True, include_key=False).items():
        try:
            contract(rules[country] if country else None, rules).validate(part, lazy=True)
        except SchemaErrors as errors:
            cases = errors.failure_cases.select("index", "column", pl.col("check").alias("code"))
            at = part.select("row").with_row_index("index")
            found.append(cases.cast({"index": pl.UInt32}).join(at, on="index").select(list(BREACH_SCHEMA)))
    return pl.concat(found)
