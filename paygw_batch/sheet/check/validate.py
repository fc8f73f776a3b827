"""Validates a sheet against its countries' rules, and finds every defect of every row.

Rows are checked in pieces, and each piece country by country (`row_checker`). The results are added up (`tally`), and
the checked rows are dropped. If a later row affects an earlier one (by a repeated order id), all are checked again.
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
from paygw_batch.errors import InternalError, QuestionKind, SheetQuestion
from paygw_batch.language import say
from paygw_batch.sheet.check.contract import rules_for_sheet
from paygw_batch.sheet.check.corrections import LEFT_OUT
from paygw_batch.sheet.check.repeats import find_duplicate_ids, find_look_alike_ids, find_rewritten_ids, payee_warnings
from paygw_batch.sheet.check.row_checker import CheckedRows, RowChecker
from paygw_batch.sheet.check.tally import Piece, SheetTally, count_lines, map_pieces, split_sheet, tally_sheet
from paygw_batch.sheet.clean import clean_columns
from paygw_batch.sheet.columns import reconciled_columns
from paygw_batch.sheet.findings import DEFECT_SCHEMA, DeferredFrame, Findings, empty_findings
from paygw_batch.sheet.instructions import BatchDigest, derive_order_ids, payee_digests
from paygw_batch.sheet.model import COUNT_KEYS, LINE_COLUMNS, Sheet, Validated, ValidatedPart
from paygw_batch.sheet.read.frame import filter_rows
from paygw_batch.sheet.read.headings import MissingColumns, fold_heading
from paygw_batch.sheet.read.profiles import profile_names, read_profile

REASON_COLUMNS = ("error_code", "message")
"""The columns of `Validated.rows` that say why a row is invalid."""


def validate(sheet: Sheet, rules: Rules, *, reference: str | None = None) -> Validated:
    """Validate a sheet against the rules of its countries.

    If the sheet has no order ids, they are derived from `reference`. Raises `SheetError` if `reference` is needed but
    None, or if a column that the rows need is missing. Raises `UsageError` for an invalid reference.
    """
    rules = rules_for_sheet(rules, sheet.headers)
    derives_ids = "client_orderid" not in sheet.headers
    if derives_ids and reference is None:
        raise SheetQuestion(
            QuestionKind.REFERENCE,
            say("{name} has no order ids (no column client_orderid).", name=sheet.name),
            hint=say(
                "To get order ids, name the payment run, for example --reference payroll-2026-11. Or add a column"
                " with order ids."
            ),
            question=say("Your sheet has no order ids. What is this payment run called?"),
        )
    checker = RowChecker(sheet.operation, rules, derives_ids=derives_ids)
    note = say("The sheet has its own order ids, so the reference {reference} is not used.", reference=reference)
    sheet_pass = _SheetPass(checker, empty_findings()["row"], None, [] if derives_ids or reference is None else [note])
    tally = tally_sheet(sheet, sheet_pass.check_piece)
    _require_columns(sheet, rules, tally.counts["country"].unique())
    repeats = empty_findings()
    if derives_ids:
        sheet_pass = replace(sheet_pass, ids=_derive_ids(sheet, sheet_pass, reference or ""))
    elif (similar_rows := pl.concat([tally.pop_repeated_id_rows(), tally.repeated_payee_rows]).unique()).len():
        left_out = sheet.defects.filter(pl.col("code") == LEFT_OUT)  # these rows cannot repeat others
        similar = sheet_pass.lines_for(sheet, similar_rows).join(left_out, "row", "anti")
        repeats = pl.concat([find_duplicate_ids(similar), find_look_alike_ids(similar), find_rewritten_ids(similar)])
        sheet_pass = replace(sheet_pass, refused=repeats["row"])
    if derives_ids or repeats.height:
        tally = tally_sheet(sheet, sheet_pass.check_piece)
    return _build_validated(sheet, rules, sheet_pass, tally, repeats)


def _build_validated(
    sheet: Sheet, rules: Rules, sheet_pass: "_SheetPass", tally: SheetTally, repeats: pl.DataFrame
) -> Validated:
    notes = [*sheet.notes]
    used_rules = [rules[code] for code in tally.counts["country"].unique().drop_nulls().sort() if code in rules]
    if names := ", ".join(say(rule.name) for rule in used_rules if rule.account_from):
        notes.append(
            say(
                "The sheet has no account column, so payments to these countries go to the mobile wallet with the"
                " row's phone number: {names}.",
                names=names,
            )
        )
    sheet = replace(sheet, notes=(*notes, *sheet_pass.notes))
    defects = tally.defects().with_findings(repeats, added_first=True)
    if not defects.rows.sort().equals(tally.invalid_rows):
        raise InternalError("the rows with a defect are not the rows that are not valid")
    # Warnings about rows with defects are not needed until the rows are corrected.
    file_warnings = sheet.warnings.filter(~pl.col("row").is_in(tally.invalid_rows.implode()))
    similar = tally.repeated_payee_rows
    repeat_warnings = payee_warnings(sheet_pass.lines_for(sheet, similar)) if similar.len() else empty_findings()
    warnings = tally.warnings().with_findings(file_warnings, added_first=True).with_findings(repeat_warnings)
    # Computing the rows is expensive if many have defects, and most commands never show them.
    lines, reasons = tally.lines, DeferredFrame(lambda: _row_reasons(defects.all_findings.frame))
    if lines is None:
        # No more checks are needed here, because rows pass `ContractGate` when their batch is opened.
        row_checker = RowChecker(sheet.operation, rules, derives_ids=sheet_pass.ids is not None, skips_checks=True)
        streamed = partial(_stream_parts, sheet, replace(sheet_pass, row_checker=row_checker), reasons)
        rows = DeferredFrame(lambda: pl.concat(part.rows for part in streamed()))
        instructions = DeferredFrame(lambda: pl.concat(part.instructions for part in streamed()))
    else:
        streamed = None
        rows = DeferredFrame(lambda: _result_rows(lines, reasons.frame, _sender_columns(sheet.frame, sheet)))
        instructions = DeferredFrame(lambda: sheet_pass.row_checker.instructions(sheet.frame, lines))
    return Validated(
        sheet=sheet,
        batch=tally.batch,
        deferred_rows=rows,
        deferred_instructions=instructions,
        defects_found=defects,
        warnings_found=warnings,
        totals=_control_totals(tally.counts, rules),
        counts=tally.counts,
        filled_columns=tally.filled_columns,
        streamed=streamed,
    )


@dataclass(frozen=True, slots=True)
class _SheetPass:
    """One pass over a sheet. `refused` rows repeat others, and `ids` holds derived order ids by `row`."""

    row_checker: RowChecker
    refused: pl.Series
    ids: pl.DataFrame | None
    notes: Sequence[str] = ()
    """Notes for a person, in addition to the findings."""

    def check_piece(self, piece: Piece) -> CheckedRows:
        checked_rows = self.row_checker.check_piece(piece.frame, pl.concat([piece.defects["row"], self.refused]))
        if self.ids is None:
            return checked_rows
        lines = checked_rows.lines.drop("client_orderid").join(self.ids, on="row", how="left", maintain_order="left")
        return replace(checked_rows, lines=lines.select(LINE_COLUMNS))

    def lines_for(self, sheet: Sheet, rows: pl.Series) -> pl.DataFrame:

        def check_lines(piece: Piece) -> pl.DataFrame | None:
            frame = filter_rows(piece.frame, piece.frame["row"].is_in(rows.implode()))
            return self.check_piece(replace(piece, frame=frame)).lines if frame.height else None

        return pl.concat(part for part in map_pieces(sheet, check_lines) if part is not None)


def _derive_ids(sheet: Sheet, sheet_pass: _SheetPass, reference: str) -> pl.DataFrame:

    def digest_payees(piece: Piece) -> pl.DataFrame:
        rows = sheet_pass.row_checker.instructions(piece.frame, sheet_pass.check_piece(piece).lines)
        if STAFF_NUMBER not in piece.frame.columns:
            return payee_digests(rows, None)
        staff = clean_columns(piece.frame.select("row", STAFF_NUMBER), [STAFF_NUMBER])
        return payee_digests(rows, rows.join(staff, on="row", how="left", maintain_order="left")[STAFF_NUMBER])

    return derive_order_ids(pl.concat(map_pieces(sheet, digest_payees)), reference)


def _stream_parts(sheet: Sheet, sheet_pass: _SheetPass, reasons: DeferredFrame) -> Iterator[ValidatedPart]:
    """Check a validated sheet again, yielding its rows and instructions in parts."""

    def rebuild_part(piece: Piece) -> ValidatedPart:
        row_numbers = piece.frame["row"]
        piece_reasons = reasons.frame.filter(pl.col("row").is_between(row_numbers[0], row_numbers[-1]))
        lines = replace(sheet_pass, refused=piece_reasons["row"]).check_piece(piece).lines
        rows = _result_rows(lines, piece_reasons, _sender_columns(piece.frame, sheet))
        return ValidatedPart(piece.frame, rows, sheet_pass.row_checker.instructions(piece.frame, lines))

    # `map` checks a piece only when the caller asks for the next part, so few are in memory.
    return map(rebuild_part, split_sheet(sheet))


def with_defects(validated: Validated, defects: pl.DataFrame) -> Validated:
    """Return `validated` with more defects (`DEFECT_SCHEMA`). Their rows become invalid, which changes the batch id."""
    sheet = validated.sheet
    all_defects = validated.defects_found.with_findings(defects.match_to_schema(DEFECT_SCHEMA))
    is_refused = pl.col("row").is_in(defects["row"].unique().implode())
    reasons = _row_reasons(all_defects.all_findings.frame)

    def refuse_rows(part: ValidatedPart) -> ValidatedPart:
        lines = part.rows.select(LINE_COLUMNS).with_columns(pl.col("valid") & ~is_refused)
        rows = _result_rows(lines, reasons, part.rows.drop(*lines.columns[1:], *REASON_COLUMNS))
        return ValidatedPart(part.raw, rows, part.instructions.filter(~is_refused))

    def stream_parts() -> Iterator[ValidatedPart]:
        return map(refuse_rows, validated.parts())

    digest = BatchDigest(sheet.operation, sheet.unknown, validated.filled_columns)
    part_counts = []
    for part in stream_parts():
        digest.add(part.rows, part.raw)
        part_counts.append(count_lines(part.rows))
    total_counts = pl.concat(part_counts).group_by(COUNT_KEYS).sum()
    if total_counts.filter(~pl.col("valid"))["count"].sum() != reasons.height:
        raise InternalError("the rows with a defect are not the rows that are not valid")
    return replace(
        validated,
        batch=digest.batch,
        deferred_rows=DeferredFrame(lambda: pl.concat(part.rows for part in stream_parts())),
        deferred_instructions=DeferredFrame(lambda: pl.concat(part.instructions for part in stream_parts())),
        defects_found=all_defects,
        warnings_found=Findings.from_frame(validated.warnings.filter(~is_refused)),
        counts=total_counts,
        streamed=stream_parts if validated.streamed is not None else None,
    )


def with_warnings(validated: Validated, warnings: pl.DataFrame) -> Validated:
    findings = warnings.match_to_schema(DEFECT_SCHEMA)
    return replace(validated, warnings_found=validated.warnings_found.with_findings(findings))


def warnings_as_defects(validated: Validated) -> Validated:
    """Turn warnings into defects with the same codes."""
    return validated if validated.warnings_found.is_empty else with_defects(validated, validated.warnings)


def whole_sheet_refusal(validated: Validated) -> str:
    """Return a message if a warning about the whole sheet became a defect (`warnings_as_defects`), otherwise ""."""
    if not (validated.defects_found.rows == 0).any():
        return ""
    return say(
        "Nothing was sent. The check is strict, so a warning about the whole sheet counts as a defect. Correct "
        "what the warning describes, or check the sheet less strictly."
    )


def _require_columns(sheet: Sheet, rules: Rules, countries: pl.Series) -> None:
    available = {*sheet.headers, "client_orderid"}
    countries_by_column: dict[str, list[str]] = defaultdict(list)
    for code in countries.drop_nulls().sort():
        rule = rules.get(code)
        if rule is None or rule.form is None:
            continue
        for field in rule.form.fields:
            has_default = field.name in rule.defaults or KINDS[field.kind].is_filled
            has_default = has_default or (bool(rule.account_from) and field.name in rule.accounts)
            if field.from_sheet and field.name in rule.required and not has_default and field.name not in available:
                countries_by_column[field.name].append(say(rule.name))
    if countries_by_column:
        profile_hint = _profile_hint(countries_by_column, sheet)
        missing_columns = "; ".join(
            say("{column} (needed for {names})", column=column, names=", ".join(names))
            for column, names in countries_by_column.items()
        )
        raise MissingColumns(
            list(countries_by_column),
            say("{name} does not have these columns: {said}.", name=sheet.name, said=missing_columns),
            hint=say("Add the columns, or correct their headings.") + profile_hint,
            option="--column-profile" if profile_hint else "",
        )


def _profile_hint(missing: Collection[str], sheet: Sheet) -> str:
    """Return a hint about a profile that maps an unknown heading to a missing column, or "" if there is none."""
    for profile in profile_names():
        columns = {fold_heading(heading): column for heading, column in read_profile(profile).items()}
        for heading in sheet.unknown:
            if columns.get(fold_heading(heading)) in missing:
                return " " + say(
                    "{heading!r} is a heading of the column profile {profile}. Choose that profile.",
                    heading=heading,
                    profile=profile,
                )
    return ""


def _row_reasons(defects: pl.DataFrame) -> pl.DataFrame:
    """Return `row` and `REASON_COLUMNS` for each row with a defect, ignoring defects of the whole sheet (row 0)."""
    by_row = defects.filter(pl.col("row") > 0).group_by("row", maintain_order=True)
    return by_row.agg(error_code=pl.col("code").first(), message=pl.col("message").str.join(" "))


def _sender_columns(raw: pl.DataFrame, sheet: Sheet) -> pl.DataFrame:
    sender_columns = [name for name in reconciled_columns(sheet.operation) if name in sheet.headers]
    return raw.select("row", *sender_columns, *sheet.unknown)


def _result_rows(lines: pl.DataFrame, reasons: pl.DataFrame, sender_columns: pl.DataFrame) -> pl.DataFrame:
    if lines["valid"].all():
        row_reasons = pl.DataFrame(schema=dict.fromkeys(REASON_COLUMNS, pl.String)).clear(lines.height)
    else:
        row_reasons = lines.select("row").join(reasons, on="row", how="left", maintain_order="left").drop("row")
    if (
        not sender_columns["row"].equals(lines["row"])
        or (lines["valid"] == row_reasons["error_code"].is_not_null()).any()
    ):
        raise InternalError("a row is valid with a defect, or not valid without one, or lost")
    return pl.concat([lines, row_reasons, sender_columns.drop("row")], how="horizontal")


def _control_totals(counts: pl.DataFrame, rules: Rules) -> ControlTotals:
    decimals = {rule.currency: rule.minor_units for rule in rules.values()}
    sums = counts.drop_nulls("currency").group_by("currency").agg(pl.col("sum").sum()).sort("currency")
    rounded = {currency: _round_to_currency(amount, decimals.get(currency)) for currency, amount in sums.iter_rows()}
    return ControlTotals(rows=int(counts["count"].sum()), sums=rounded)


def _round_to_currency(amount: Decimal, minor_units: int | None) -> Decimal:
    """Round an amount to the currency's decimals (two if unknown), unless digits would be lost."""
    rounded = round(amount, 2 if minor_units is None else minor_units)
    return rounded if rounded == amount else amount
