"""Validates a sheet against its countries' rules, and finds every defect of every row at once.

Rows are checked in pieces, and each piece country by country (`judge`). The results are added up (`tally`), and no
judged row is kept. If a later row affects an earlier one (an order id that is used again), all rows are judged once
more.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import polars as pl

from paygw_batch.core.batch import ControlTotals
from paygw_batch.countries.form_columns import STAFF_NUMBER
from paygw_batch.countries.kinds import KINDS
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import Asked, InternalError, SheetQuestion
from paygw_batch.language import say
from paygw_batch.sheet.check.contract import rules_for_sheet
from paygw_batch.sheet.check.judge import Judge, Judged
from paygw_batch.sheet.check.mending import LEFT_OUT
from paygw_batch.sheet.check.repeats import doubtful_payees, ids_rewritten, ids_spelled_alike, repeated_ids
from paygw_batch.sheet.check.tally import Piece, SheetTally, counted, each, pieces_of, tallied
from paygw_batch.sheet.clean import cleaned
from paygw_batch.sheet.columns import reconciled_columns
from paygw_batch.sheet.findings import DEFECT_SCHEMA, BuiltOnUse, Findings, no_defects
from paygw_batch.sheet.instructions import BatchDigest, derived_ids, payees_of
from paygw_batch.sheet.model import COUNT_KEYS, LINE_COLUMNS, Sheet, Validated, ValidatedPart
from paygw_batch.sheet.read.frame import rows_of
from paygw_batch.sheet.read.headings import MissingColumns, fold
from paygw_batch.sheet.read.profiles import profile_names, read_profile

REASON_COLUMNS = ("error_code", "message")
"""The columns of `Validated.rows` that say why a row is invalid."""


def validate(sheet: Sheet, rules: Rules, *, reference: str | None = None) -> Validated:
    """Return the results of checking `sheet` against `rules`. A sheet without order ids gets some from `reference`.

    Raises `SheetError` when the sheet lacks a column that its rows need, or has no order ids and there is no reference.
    Raises `UsageError` for a reference that cannot be part of an order id.
    """
    rules = rules_for_sheet(rules, sheet.headers)
    derive = "client_orderid" not in sheet.headers
    if derive and reference is None:
        raise SheetQuestion(
            Asked.REFERENCE,
            say("{name} has no order ids (no column client_orderid).", name=sheet.name),
            hint=say("Name the payment run to get order ids: --reference payroll-2026-11. Or add a column of ids."),
            question=say("Your sheet has no order ids. What is this payment run called?"),
        )
    judge = Judge(sheet.operation, rules, derive=derive)
    unused = say("The sheet has its own order ids: the reference {reference} is not used.", reference=reference)
    passing = _SheetPass(judge, no_defects()["row"], None, [] if derive or reference is None else [unused])
    tally = tallied(sheet, passing.judged)
    _demand_columns(sheet, rules, tally.counts["country"].unique())
    repeated = no_defects()
    if derive:
        passing = replace(passing, ids=_derived(sheet, passing, reference or ""))
    elif (suspects := pl.concat([tally.take_same_ids(), tally.same_payees]).unique()).len():
        left_out = sheet.defects.filter(pl.col("code") == LEFT_OUT)
        ids = passing.lines_of(sheet, suspects).join(left_out, "row", "anti")  # rows left out repeat no others
        repeated = pl.concat([repeated_ids(ids), ids_spelled_alike(ids), ids_rewritten(ids)])
        passing = replace(passing, refused=repeated["row"])
    if derive or repeated.height:
        tally = tallied(sheet, passing.judged)
    return _validated(sheet, rules, passing, tally, repeated)


def _validated(
    sheet: Sheet, rules: Rules, passing: "_SheetPass", tally: SheetTally, repeated: pl.DataFrame
) -> Validated:
    notes = [*sheet.notes]
    used = [rules[code] for code in tally.counts["country"].unique().drop_nulls().sort() if code in rules]
    if names := ", ".join(say(rule.name) for rule in used if rule.account_from):
        notes.append(say("The sheet has no accounts: the phone is the account (a wallet) for {names}.", names=names))
    sheet = replace(sheet, notes=(*notes, *passing.notes))
    defects = tally.defects().joined(repeated, first=True)
    if not defects.rows.sort().equals(tally.invalid):
        raise InternalError("the rows with a defect are not the rows that are not valid")
    # A row with a defect is not paid, so doubts about it can wait until it is corrected.
    of_file = sheet.warnings.filter(~pl.col("row").is_in(tally.invalid.implode()))
    suspects = tally.same_payees
    payees = doubtful_payees(passing.lines_of(sheet, suspects)) if suspects.len() else no_defects()
    warnings = tally.warnings().joined(of_file, first=True).joined(payees)
    # Most commands never show rows with their defects. For a very bad sheet, computing them is expensive.
    only_piece, reasons = tally.lines, BuiltOnUse(lambda: _reasons(defects.every.frame))
    if only_piece is None:
        # Rows of a batch pass the contract's gate when it is opened, so nothing has to be checked again before.
        judge = Judge(sheet.operation, rules, derive=passing.ids is not None, checked=True)
        streamed = partial(_parts, sheet, replace(passing, judge=judge), reasons)
        lines = BuiltOnUse(lambda: pl.concat(part.rows for part in streamed()))
        instructions = BuiltOnUse(lambda: pl.concat(part.instructions for part in streamed()))
    else:
        streamed = None
        lines = BuiltOnUse(lambda: _shown(only_piece, reasons.frame, _own_columns(sheet.frame, sheet)))
        instructions = BuiltOnUse(lambda: passing.judge.instructions(sheet.frame, only_piece))
    return Validated(
        sheet=sheet,
        batch=tally.batch,
        lines=lines,
        made=instructions,
        defects_found=defects,
        warnings_found=warnings,
        totals=_totals(tally.counts, rules),
        counts=tally.counts,
        held=tally.held,
        streamed=streamed,
    )


@dataclass(frozen=True, slots=True)
class _SheetPass:
    """How pieces of a sheet are judged. `refused` rows repeat others. Derived `ids` have `row` and `client_orderid`."""

    judge: Judge
    refused: pl.Series
    ids: pl.DataFrame | None
    notes: Sequence[str] = ()
    """Sentences for the sender, in addition to the findings."""

    def judged(self, piece: Piece) -> Judged:
        judged = self.judge.piece(piece.frame, pl.concat([piece.defects["row"], self.refused]))
        if self.ids is None:
            return judged
        lines = judged.lines.drop("client_orderid").join(self.ids, on="row", how="left", maintain_order="left")
        return replace(judged, lines=lines.select(LINE_COLUMNS))

    def lines_of(self, sheet: Sheet, rows: pl.Series | None = None) -> pl.DataFrame:
        """Return the lines of these rows, or of all rows if None."""

        def lines(piece: Piece) -> pl.DataFrame | None:
            if rows is None:
                return self.judged(piece).lines
            frame = rows_of(piece.frame, piece.frame["row"].is_in(rows.implode()))
            return self.judged(replace(piece, frame=frame)).lines if frame.height else None

        return pl.concat(part for part in each(sheet, lines) if part is not None)


def _derived(sheet: Sheet, passing: _SheetPass, reference: str) -> pl.DataFrame:

    def payees(piece: Piece) -> pl.DataFrame:
        paid = passing.judge.instructions(piece.frame, passing.judged(piece).lines)
        if STAFF_NUMBER not in piece.frame.columns:
            return payees_of(paid, None)
        staff = cleaned(piece.frame.select("row", STAFF_NUMBER), [STAFF_NUMBER])
        return payees_of(paid, paid.join(staff, on="row", how="left", maintain_order="left")[STAFF_NUMBER])

    return derived_ids(pl.concat(each(sheet, payees)), reference)


def _parts(sheet: Sheet, passing: _SheetPass, reasons: BuiltOnUse) -> Iterator[ValidatedPart]:
    """Judge a validated sheet once more, and yield its rows and instructions, piece by piece."""

    def part(piece: Piece) -> ValidatedPart:
        numbers = piece.frame["row"]
        in_piece = reasons.frame.filter(pl.col("row").is_between(numbers[0], numbers[-1]))
        lines = replace(passing, refused=in_piece["row"]).judged(piece).lines
        rows = _shown(lines, in_piece, _own_columns(piece.frame, sheet))
        return ValidatedPart(piece.frame, rows, passing.judge.instructions(piece.frame, lines))

    # Pieces are judged one at a time, because a caller that stores each piece has no memory for others that wait.
    return map(part, pieces_of(sheet))


def with_defects(validated: Validated, defects: pl.DataFrame) -> Validated:
    """Return `validated` with further `defects` (columns as `DEFECT_SCHEMA`), whose rows are then invalid.

    The result is another batch, because fewer rows are paid. The rows are shown as before.
    """
    sheet = validated.sheet
    joined = validated.defects_found.joined(defects.match_to_schema(DEFECT_SCHEMA))
    is_refused = pl.col("row").is_in(defects["row"].unique().implode())
    reasons = _reasons(joined.every.frame)

    def refused(part: ValidatedPart) -> ValidatedPart:
        lines = part.rows.select(LINE_COLUMNS).with_columns(pl.col("valid") & ~is_refused)
        rows = _shown(lines, reasons, part.rows.drop(*lines.columns[1:], *REASON_COLUMNS))
        return ValidatedPart(part.raw, rows, part.instructions.filter(~is_refused))

    def parts() -> Iterator[ValidatedPart]:
        return map(refused, validated.parts())

    digest = BatchDigest(sheet.operation, sheet.unknown, validated.held)
    counts = []
    for part in parts():
        digest.add(part.rows, part.raw)
        counts.append(counted(part.rows))
    summed = pl.concat(counts).group_by(COUNT_KEYS).sum()
    if summed.filter(~pl.col("valid"))["count"].sum() != reasons.height:
        raise InternalError("the rows with a defect are not the rows that are not valid")
    return replace(
        validated,
        batch=digest.batch,
        lines=BuiltOnUse(lambda: pl.concat(part.rows for part in parts())),
        made=BuiltOnUse(lambda: pl.concat(part.instructions for part in parts())),
        defects_found=joined,
        warnings_found=Findings.of(validated.warnings.filter(~is_refused)),
        counts=summed,
        streamed=parts if validated.streamed is not None else None,
    )


def with_warnings(validated: Validated, warnings: pl.DataFrame) -> Validated:
    """Return `validated` with further `warnings` (columns as `DEFECT_SCHEMA`)."""
    return replace(validated, warnings_found=validated.warnings_found.joined(warnings.match_to_schema(DEFECT_SCHEMA)))


def warnings_as_defects(validated: Validated) -> Validated:
    """Return `validated` with every warning as a defect, under the same code."""
    return validated if validated.warnings_found.is_empty else with_defects(validated, validated.warnings)


def refused_as_a_whole(validated: Validated) -> str:
    """Return the sentence about `warnings_as_defects` that are about the whole sheet (row 0), or the empty text."""
    if not (validated.defects_found.rows == 0).any():
        return ""
    return say(
        "A warning about the whole sheet counts as a defect, because the check is strict: nothing was sent. Correct "
        "what the warning names, or check the sheet less strictly."
    )


def _demand_columns(sheet: Sheet, rules: Rules, countries: pl.Series) -> None:
    """Raise `SheetError` for a missing column that the form of some row requires."""
    have = {*sheet.headers, "client_orderid"}
    needed_by: dict[str, list[str]] = defaultdict(list)
    for code in countries.drop_nulls().sort():
        rule = rules.get(code)
        if rule is None or rule.form is None:
            continue
        for field in rule.form.fields:
            filled = field.name in rule.defaults or KINDS[field.kind].is_filled
            filled = filled or (bool(rule.account_from) and field.name in rule.accounts)
            if field.from_sheet and field.name in rule.required and not filled and field.name not in have:
                needed_by[field.name].append(say(rule.name))
    if needed_by:
        profile = _profile_that_has(needed_by, sheet)
        missing = "; ".join(
            say("{column} (needed for {names})", column=column, names=", ".join(names))
            for column, names in needed_by.items()
        )
        raise MissingColumns(
            list(needed_by),
            say("{name} has missing columns: {said}.", name=sheet.name, said=missing),
            hint=say("Add them, or correct their headings.") + profile,
            option="--column-profile" if profile else "",
        )


def _profile_that_has(missing: Collection[str], sheet: Sheet) -> str:
    """Return a sentence that names a profile in which an unknown heading means a missing column, or the empty text."""
    for profile in profile_names():
        columns = {fold(heading): column for heading, column in read_profile(profile).items()}
        for heading in sheet.unknown:
            if columns.get(fold(heading)) in missing:
                return " " + say(
                    "{heading!r} is a heading of the column profile {profile}: choose that profile.",
                    heading=heading,
                    profile=profile,
                )
    return ""


def _reasons(defects: pl.DataFrame) -> pl.DataFrame:
    """Return why each row is invalid: `row` and `REASON_COLUMNS`. Defects of the whole sheet (row 0) are left out."""
    return (
        defects.filter(pl.col("row") > 0)
        .group_by("row", maintain_order=True)
        .agg(error_code=pl.col("code").first(), message=pl.col("message").str.join(" "))
    )


def _own_columns(raw: pl.DataFrame, sheet: Sheet) -> pl.DataFrame:
    """Return `row`, and the further columns of rows as received that the reconciliation shows."""
    further = [name for name in reconciled_columns(sheet.operation) if name in sheet.headers]
    return raw.select("row", *further, *sheet.unknown)


def _shown(lines: pl.DataFrame, reasons: pl.DataFrame, further: pl.DataFrame) -> pl.DataFrame:
    """Return rows as in `Validated.rows`: `lines`, the reasons why a row is invalid, and the sender's own columns."""
    if lines["valid"].all():
        why = pl.DataFrame(schema=dict.fromkeys(REASON_COLUMNS, pl.String)).clear(lines.height)
    else:
        why = lines.select("row").join(reasons, on="row", how="left", maintain_order="left").drop("row")
    if not further["row"].equals(lines["row"]) or (lines["valid"] == why["error_code"].is_not_null()).any():
        raise InternalError("a row is valid with a defect, or not valid without one, or lost")
    return pl.concat([lines, why, further.drop("row")], how="horizontal")


def _totals(counts: pl.DataFrame, rules: Rules) -> ControlTotals:
    units = {rule.currency: rule.minor_units for rule in rules.values()}
    sums = counts.drop_nulls("currency").group_by("currency").agg(pl.col("sum").sum()).sort("currency")
    exact = {currency: _as_money(amount, units.get(currency)) for currency, amount in sums.iter_rows()}
    return ControlTotals(rows=int(counts["count"].sum()), sums=exact)


def _as_money(amount: Decimal, minor_units: int | None) -> Decimal:
    """Return an amount with the currency's decimals (two if unknown), or unchanged if that would lose digits."""
    rounded = round(amount, 2 if minor_units is None else minor_units)
    return rounded if rounded == amount else amount
