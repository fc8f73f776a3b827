"""Validation: a sheet held against its countries' rules. Every defect of every row at once, nothing row by row.

The frame is cut into pieces, and each piece into its countries (`judge`), so that memory for what lies in between stays
bounded; what concerns the sheet as a whole (order ids that stand twice, totals, the batch's id) is done here.
"""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from functools import partial

import polars as pl

from paygw_batch.core.batch import ControlTotals
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import InternalError, SheetError
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.batch_id import batch_id
from paygw_batch.sheet.clean import trimmed
from paygw_batch.sheet.columns import KNOWN_COLUMNS
from paygw_batch.sheet.judge import LINE_COLUMNS, Judge, explained
from paygw_batch.sheet.order_ids import derived_ids
from paygw_batch.sheet.repeats import doubtful_payees, repeated_ids
from paygw_batch.sheet.result import DEFECT_SCHEMA, Instructions, Sheet, Validated

_ROWS_AT_ONCE = 250_000
_THREADS = 4
_RANKS = {name: rank for rank, name in enumerate(KNOWN_COLUMNS)}
_TOTAL = r"(?i)^[\p{C}\p{Z}]*(?:grand[ -]|sub[ -]?)?(?:total|totals|totaux|sum|somme|montant total)[\p{C}\p{Z}.:]*$"


def validate(sheet: Sheet, rules: Rules, *, reference: str | None = None) -> Validated:
    """Hold `sheet` against `rules`; when it has no column of order ids, derive them from `reference`.

    Raises `SheetError` when the sheet lacks a column that its rows need, `UsageError` for a reference that cannot be
    part of an order id.
    """
    derive = "client_orderid" not in sheet.frame.columns
    _demand_columns(sheet, rules, reference if derive else "")
    found = [sheet.defects]
    if not derive:
        found.append(repeated_ids(sheet.frame.select("row", trimmed(sheet.frame["client_orderid"]))))
    judge = Judge(sheet.operation, rules, pl.concat(found)["row"].unique(), derive=derive)
    with ThreadPoolExecutor(min(pl.thread_pool_size(), _THREADS)) as pool:  # polars lets go of the interpreter's lock
        pieces = list(pool.map(judge.piece, _pieces(sheet.frame)))
        lines = pl.concat([piece.lines for piece in pieces])
        defects = pl.concat([*found, explained(unsound for piece in pieces for unsound in piece.unsound)])
        warnings = explained(doubtful for piece in pieces for doubtful in piece.doubtful)
        del pieces
        made = Instructions(partial(_instructions, judge, sheet, lines))
        if derive:
            ids = derived_ids(made.frame["content"], reference or "")
            made = Instructions(partial(made.frame.with_columns, client_orderid=ids))
            lines = lines.with_columns(lines["client_orderid"].scatter(lines["valid"].arg_true(), ids))
        defects = _ordered(pl.concat([defects, _total_rows(sheet.frame, defects)]))
        rows = _rows(lines, defects, sheet)
        batch, payees = pool.submit(batch_id, rows, sheet), pool.submit(doubtful_payees, rows)
        totals = _totals(rows, rules)
    # A row with a defect is not paid: what is doubtful about it can wait until it is mended.
    of_file = sheet.warnings.filter(~pl.col("row").is_in(defects["row"].implode()))
    return Validated(
        sheet=sheet,
        batch=batch.result(),
        rows=rows,
        made=made,
        defects=defects,
        warnings=_ordered(pl.concat([of_file, warnings, payees.result()])),
        totals=totals,
    )


def _instructions(judge: Judge, sheet: Sheet, lines: pl.DataFrame) -> pl.DataFrame:
    with ThreadPoolExecutor(min(pl.thread_pool_size(), _THREADS)) as pool:
        return pl.concat(pool.map(judge.instructions, _pieces(sheet.frame), _pieces(lines)))


def with_defects(validated: Validated, defects: pl.DataFrame) -> Validated:
    """Return `validated` with further `defects` (columns as `DEFECT_SCHEMA`): their rows are no longer valid.

    The batch is another one then, because fewer rows are to be paid; the rows themselves are shown as before.
    """
    every = _ordered(pl.concat([validated.defects, defects.match_to_schema(DEFECT_SCHEMA)]))
    refused = defects["row"].unique()
    is_refused = pl.col("row").is_in(refused.implode())
    lines = validated.rows.select(LINE_COLUMNS).with_columns(pl.col("valid") & ~is_refused)
    rows = _rows(lines, every, validated.sheet)
    return replace(
        validated,
        batch=batch_id(rows, validated.sheet),
        rows=rows,
        made=validated.made.without(refused),
        defects=every,
        warnings=validated.warnings.filter(~is_refused),
    )


def with_warnings(validated: Validated, warnings: pl.DataFrame) -> Validated:
    """Return `validated` with further `warnings` (columns as `DEFECT_SCHEMA`)."""
    return replace(
        validated, warnings=_ordered(pl.concat([validated.warnings, warnings.match_to_schema(DEFECT_SCHEMA)]))
    )


def warnings_as_defects(validated: Validated) -> Validated:
    """Return `validated` with every warning as a defect, under the same code."""
    return with_defects(validated, validated.warnings) if validated.warnings.height else validated


def _demand_columns(sheet: Sheet, rules: Rules, reference: str | None) -> None:
    """Raise `SheetError` for a column that is not there and that a row's form cannot do without."""
    if reference is None:
        raise SheetError(
            f"{sheet.name} has no column client_orderid.",
            hint="Add it, with an id of its own for every row, or name the payment run: --reference payroll-2026-11.",
        )
    have = set(sheet.frame.columns) | {"client_orderid"}
    needed_by: dict[str, list[str]] = defaultdict(list)
    for code in trimmed(sheet.frame["country"].unique()).str.to_uppercase().unique().sort():
        rule = rules.get(code)
        if rule is None or rule.form is None:
            continue
        for field in rule.form.fields:
            filled = field.name in rule.defaults or field.name in {"currency", "purpose", "receiver_country_code"}
            if field.from_sheet and field.name in rule.required and not filled and field.name not in have:
                needed_by[field.name].append(rule.name)
    if needed_by:
        said = "; ".join(f"{column} (needed for {', '.join(names)})" for column, names in needed_by.items())
        raise SheetError(f"{sheet.name} lacks columns: {said}.", hint="Add them, or correct their headings.")


def _ordered(defects: pl.DataFrame) -> pl.DataFrame:
    """Return defects by row, then in the order of columns; what concerns the whole row comes first."""
    rank = pl.col("column").replace_strict(_RANKS, default=-1, return_dtype=pl.Int8)
    return defects.with_columns(rank=rank).sort("row", "rank", maintain_order=True).drop("rank")


def _total_rows(frame: pl.DataFrame, defects: pl.DataFrame) -> pl.DataFrame:
    """Return a defect for each row without a country that says "Total" somewhere."""
    without = defects.filter(pl.col("code").is_in(["country.missing", "country.unknown"]))["row"]
    suspects = frame.filter(pl.col("row").is_in(without.implode())) if without.len() else frame.clear()
    texts = pl.exclude("row").str.extract(_TOTAL, 0)
    totals = suspects.select("row", value=pl.coalesce(texts)).drop_nulls()
    return totals.select(
        "row",
        column=pl.lit("row"),
        value=pl.col("value"),
        code=pl.lit("row.total"),
        message=pl.lit("This looks like a total and not like a payment: delete the row."),
    )


def _rows(lines: pl.DataFrame, defects: pl.DataFrame, sheet: Sheet) -> pl.DataFrame:
    """Return `Validated.rows`: `lines`, why a row is not valid, and the unknown columns."""
    reasons = defects.group_by("row", maintain_order=True).agg(
        error_code=pl.col("code").first(), message=pl.col("message").str.join(" ")
    )
    nothing = pl.DataFrame(schema=dict.fromkeys(["error_code", "message"], pl.String)).clear(_ROWS_AT_ONCE)
    pieces = []
    # In the same pieces as everything else: columns cut in different places would be copied to fit.
    for piece, raw in zip(_pieces(lines), _pieces(sheet.frame.select("row", *sheet.unknown)), strict=True):
        why = nothing.head(piece.height)  # one empty column serves all pieces without a defect
        if not piece["valid"].all():
            why = piece.select("row").join(reasons, on="row", how="left", maintain_order="left").drop("row")
        if not raw["row"].equals(piece["row"]) or (piece["valid"] == why["error_code"].is_not_null()).any():
            raise InternalError("a row is valid with a defect, or not valid without one, or lost")
        pieces.append(pl.concat([piece, why, raw.drop("row")], how="horizontal"))
    if reasons.height != (~lines["valid"]).sum():
        raise InternalError("the rows with a defect are not the rows that are not valid")
    return pl.concat(pieces)


def _pieces(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    return frame.iter_slices(_ROWS_AT_ONCE)


def _totals(rows: pl.DataFrame, rules: Rules) -> ControlTotals:
    units = {rule.currency: rule.minor_units for rule in rules.values()}
    amounts = pl.concat(
        piece.group_by("currency").agg(readable_amount("amount").sum()).drop_nulls("currency")
        for piece in _pieces(rows)
    )
    sums = amounts.group_by("currency").agg(pl.col("amount").sum()).sort("currency")
    exact = {currency: _as_money(amount, units.get(currency)) for currency, amount in sums.iter_rows()}
    return ControlTotals(rows=rows.height, sums=exact)


def _as_money(amount: Decimal, minor_units: int | None) -> Decimal:
    """Return the same value with the currency's decimals (two where they are unknown), if that loses nothing."""
    rounded = round(amount, 2 if minor_units is None else minor_units)
    return rounded if rounded == amount else amount
