"""Checks a payout in preparation: reads and validates its sheet with all corrections, and drafts its plan.

The results are files in its folder: a summary, every defect and warning, and the sender's own table. Pages read them,
and nothing else of the sheet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from paygw_batch.compose.actions.mend_sheet import suggestion, write_mending
from paygw_batch.compose.actions.payout_folder import PayoutFolder
from paygw_batch.compose.actions.plan_document import Prepared, draft_plan
from paygw_batch.compose.actions.submit_sheet import Submission, Surface, plan_sheet
from paygw_batch.compose.journal import journal_to_name
from paygw_batch.compose.operations import minor_units_of, require_complete
from paygw_batch.compose.sheet import read_options, validated_sheet
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import from_minor
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import PaygwError, SheetError
from paygw_batch.journal import JournalReader
from paygw_batch.language import say
from paygw_batch.run.approval import PlanFinding
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.submit import Plan
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.catalogue import DEFECTS, WARNINGS, meaning_of
from paygw_batch.sheet.check.mending import LEFT_OUT, Mending
from paygw_batch.sheet.model import SHOWN_CHARACTERS, Validated
from paygw_batch.sheet.read.sheet_file import read_sheet

FOUND = "found.parquet"
"""Every defect and warning: `row, column, value, code, message, is_defect, suggestion`."""
ROWS = "rows.parquet"
"""The sender's own table with all corrections: `row`, then its columns."""
MENDED = "cell.mended"
"""The code of a mended cell among the findings of a plan."""


def check_payout(folder: PayoutFolder, settings: Settings, rules: Rules, maker: PublicKey) -> None:
    """Check a payout, and write the results into its folder. A sheet that cannot be read is a result as well."""
    folder.write_checked(_checked(folder, settings, rules, maker))


def _checked(folder: PayoutFolder, settings: Settings, rules: Rules, maker: PublicKey) -> Mapping[str, Any]:
    uploaded = folder.uploaded
    try:
        require_complete(settings, rules, set())
        options = read_options(settings, PAYOUT, uploaded.worksheet)
        mending = folder.mending
        if mending is None:
            mending = Mending(read_sheet(folder.sheet, options).sha256)
            write_mending(mending, folder.mending_file)
        validated = validated_sheet(
            settings,
            rules,
            folder.sheet,
            reference=uploaded.reference,
            worksheet=uploaded.worksheet,
            mending=mending,
        )
        with journal_to_name(settings, "console") as journal:
            return _planned(folder, settings, rules, maker, validated, mending, journal)
    except PaygwError as error:
        return {"error": {"message": error.message, "hint": error.hint, "is_sheet": isinstance(error, SheetError)}}


def _planned(
    folder: PayoutFolder,
    settings: Settings,
    rules: Rules,
    maker: PublicKey,
    validated: Validated,
    mending: Mending,
    journal: JournalReader,
) -> Mapping[str, Any]:
    uploaded = folder.uploaded
    asked = Submission(validated, folder.sheet, folder.plan_file, uploaded.by, skip_invalid=True)
    plan = plan_sheet(asked, settings, journal)
    found = _found(plan, rules)
    sheet = plan.validated.sheet
    found.write_parquet(folder.path / FOUND)
    sheet.frame.write_parquet(folder.path / ROWS)
    left_out = {one.row for one in mending.left_out}
    to_mend = found.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))
    is_meant = plan.repeat is None or plan.is_meant(uploaded.repeats_meant)
    payable = plan.validated.instructions.height
    is_ready = to_mend.is_empty() and is_meant and payable > 0 and plan.existing is None
    if is_ready:
        require_complete(settings, rules, set(plan.validated.counts.filter("valid")["country"]))
        meant = Submission(
            validated, folder.sheet, folder.plan_file, uploaded.by, skip_invalid=True, repeats_meant=True
        )
        drafted = draft_plan(
            meant,
            settings,
            rules,
            journal,
            Surface(),
            maker,
            against=None,
            corrections=list(_corrections(mending, sheet.headers)),
        )
        if isinstance(drafted, Prepared):
            folder.write_draft(drafted.document)
    return {
        "error": None,
        "sha256": sheet.sha256,
        "sheet": sheet.name,
        "rows": plan.validated.height,
        "payable": payable,
        "known": plan.known_rows,
        "batch": plan.validated.batch,
        "is_open": plan.existing is not None,
        "repeat": None if plan.repeat is None else {"batch": plan.repeat.batch, "question": plan.repeat.question},
        "is_meant": is_meant,
        "is_ready": is_ready,
        "rows_to_mend": to_mend["row"].n_unique(),
        "left_out": sorted(left_out),
        "mended": [[edit.row, edit.column] for edit in mending.edits],
        "kinds": _kinds(to_mend) + _kinds(found.filter(~pl.col("is_defect") & (pl.col("row") > 0))),
        "of_sheet": found.filter((pl.col("row") == 0) & ~pl.col("is_defect"))["message"].to_list(),
        "notes": list(sheet.notes),
        "columns": sheet.frame.columns[1:],
        "headings": {name: heading or name for name, heading in sheet.headers.items()},
        "totals": _totals(plan, minor_units_of(rules)),
    }


def _found(plan: Plan, rules: Rules) -> pl.DataFrame:
    """Return every defect and warning, with the mended text where there is one answer."""
    countries = dict(plan.validated.rows.select("row", "country").iter_rows()) if plan.validated.defects.height else {}
    defects = plan.validated.defects
    suggested = [
        suggestion(code, message, countries.get(row), rules)
        for row, code, message in defects.select("row", "code", "message").iter_rows()
    ]
    return pl.concat(
        [
            defects.with_columns(is_defect=pl.lit(value=True), suggestion=pl.Series(suggested, dtype=pl.String)),
            plan.warnings.with_columns(is_defect=pl.lit(value=False), suggestion=pl.lit(None, dtype=pl.String)),
        ]
    ).sort("row", maintain_order=True)


def _kinds(found: pl.DataFrame) -> list[dict[str, Any]]:
    """Return each kind of defect or warning with its label and how many rows have it, the most frequent first."""
    counts: Counter[tuple[str, bool]] = Counter()
    for code, is_defect, rows in found.group_by("code", "is_defect").agg(pl.col("row").n_unique()).iter_rows():
        counts[code, is_defect] = rows
    return [
        {"code": code, "label": _label(code, is_defect=is_defect), "rows": rows, "is_defect": is_defect}
        for (code, is_defect), rows in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    ]


def _label(code: str, *, is_defect: bool) -> str:
    try:
        label = meaning_of(code, DEFECTS if is_defect else WARNINGS).label
    except KeyError:
        label = code
    return label[:1].upper() + label[1:].replace("_", " ")


def _totals(plan: Plan, minor_units: Mapping[str, int]) -> Sequence[tuple[str, int, str]]:
    """Return currency, rows and sum of the rows that can be paid."""
    sums = plan.validated.instructions.group_by("currency").agg(
        pl.len().alias("rows"), pl.col("minor").cast(pl.Decimal(38, 0)).sum()
    )
    return [
        (currency, rows, from_minor(int(minor), minor_units=minor_units[currency]))
        for currency, rows, minor in sums.sort("currency").iter_rows()
    ]


def _corrections(mending: Mending, headers: Mapping[str, str]) -> Iterator[PlanFinding]:
    for edit in sorted(mending.edits, key=lambda edit: (edit.row, edit.column)):
        was, now = (_short(text) for text in (edit.was, edit.now))
        message = say(
            "{column} was {was}, is {now} ({by}, {at})",
            column=headers.get(edit.column) or edit.column,
            was=was,
            now=now,
            by=edit.by,
            at=edit.at,
        )
        yield PlanFinding(row=edit.row, code=MENDED, message=message)
    for one in sorted(mending.left_out, key=lambda one: one.row):
        yield PlanFinding(row=one.row, code=LEFT_OUT, message=say("left out by {by} at {at}", by=one.by, at=one.at))


def _short(text: str | None) -> str:
    if text is None:
        return say("empty")
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
