"""Checks a payout in preparation: reads and validates its sheet with all corrections, and drafts its plan.

The results are files in its folder: a summary, every defect and warning, and the sender's own table. Pages read them,
and nothing else of the sheet.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from paygw_batch.compose.actions.mend_sheet import suggestion, write_mending
from paygw_batch.compose.actions.payout_folder import FOUND, ROWS, PayoutFolder
from paygw_batch.compose.actions.plan_document import Prepared, draft_plan
from paygw_batch.compose.actions.submit_sheet import Submission, Surface, plan_sheet
from paygw_batch.compose.journal import journal_to_name
from paygw_batch.compose.operations import minor_units_of, require_complete
from paygw_batch.compose.sheet import read_options, validated_sheet
from paygw_batch.core.batch import PAYOUT, differences
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
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.model import SHOWN_CHARACTERS, Sheet, Validated
from paygw_batch.sheet.read.headings import NOT_OURS, HeadingError, known_names
from paygw_batch.sheet.read.profiles import guessed
from paygw_batch.sheet.write.rejects import write_marked

MENDED = "cell.mended"
"""The code of a mended cell among the findings of a plan."""
MEANT = "column.meant"
"""The code of a heading, among the findings of a plan, that a person gave another meaning than it has by itself."""


def check_payout(folder: PayoutFolder, settings: Settings, rules: Rules, maker: PublicKey) -> None:
    """Check a payout, and write the results into its folder. A sheet that cannot be read is a result as well."""
    folder.write_checked(_checked(folder, settings, rules, maker))


def _checked(folder: PayoutFolder, settings: Settings, rules: Rules, maker: PublicKey) -> Mapping[str, Any]:
    uploaded = folder.uploaded
    try:
        require_complete(settings, rules, set())
        mending = folder.mending
        if mending is None:
            mending = Mending(digest_of(folder.sheet))
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
        return unreadable(error)


def unreadable(error: PaygwError) -> Mapping[str, Any]:
    """Return the summary of a sheet that could not be checked, with its headings where these are the reason."""
    headings, columns = error.headings if isinstance(error, HeadingError) else (), columns_of_operation(PAYOUT)
    return {
        "error": {"message": error.message, "hint": error.hint, "is_sheet": isinstance(error, SheetError)},
        "guesses": [asdict(one) for one in guessed(headings, columns)],
        "known_columns": columns,
    }


def digest_of(sheet: Path) -> str:
    """Return the digest of a file, as `Sheet.sha256` has it."""
    with sheet.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mark_payout(folder: PayoutFolder, settings: Settings, rules: Rules, path: Path) -> None:
    """Write the sheet of a payout as a workbook to `path`: with all corrections, and every defect marked.

    Raises `OutputError` where there is none to be had.
    """
    uploaded, mending = folder.uploaded, folder.mending
    validated = validated_sheet(
        settings, rules, folder.sheet, reference=uploaded.reference, worksheet=uploaded.worksheet, mending=mending
    )
    options = read_options(settings, PAYOUT, uploaded.worksheet, mending)
    write_marked(validated, folder.sheet, options, path, () if mending is None else mending.edits)


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
    found, sheet = _found(plan, rules), plan.validated.sheet
    found.write_parquet(folder.path / FOUND)
    sheet.frame.write_parquet(folder.path / ROWS)
    left_out = {one.row for one in mending.left_out}
    to_mend = found.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))
    is_meant = plan.repeat is None or plan.is_meant(uploaded.repeats_meant)
    wrong_totals = differences(uploaded.stated, plan.validated.totals)
    has_new_rows = plan.existing is None and plan.known_rows < plan.validated.payable
    is_ready = to_mend.is_empty() and is_meant and has_new_rows and not wrong_totals
    if is_ready:
        require_complete(settings, rules, set(plan.validated.counts.filter("valid")["country"]))
        meant = replace(asked, repeats_meant=True)
        corrections = [*_meanings(settings, mending), *_corrections(mending, sheet.headers)]
        drafted = draft_plan(meant, settings, rules, journal, Surface(), maker, against=None, corrections=corrections)
        if isinstance(drafted, Prepared):
            folder.write_draft(drafted.document)
    return {
        **_of_sheet(sheet, found),
        "error": None,
        "rows": plan.validated.height,
        "payable": plan.validated.payable,
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
        "wrong_totals": wrong_totals,
        "totals": _totals(plan, minor_units_of(rules)),
    }


def _of_sheet(sheet: Sheet, found: pl.DataFrame) -> Mapping[str, Any]:
    """Return the part of a summary that is about the file: its columns, and the notes about it as a whole."""
    columns = columns_of_operation(PAYOUT)
    meant = [(heading, None if name in sheet.unknown else name) for name, heading in sheet.headers.items() if heading]
    return {
        "sha256": sheet.sha256,
        "sheet": sheet.name,
        "of_sheet": found.filter((pl.col("row") == 0) & ~pl.col("is_defect"))["message"].to_list(),
        "notes": list(sheet.notes),
        "columns": sheet.frame.columns[1:],
        "headings": {name: heading or name for name, heading in sheet.headers.items()},
        "guesses": [asdict(one) for one in guessed(meant, columns)],
        "known_columns": columns,
    }


def _found(plan: Plan, rules: Rules) -> pl.DataFrame:
    """Return every defect and warning, with the mended text where there is one answer."""
    defects = plan.validated.defects
    countries = dict(plan.validated.rows.select("row", "country").iter_rows()) if defects.height else {}
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
        {"code": code, **_meaning(code, is_defect=is_defect), "rows": rows, "is_defect": is_defect}
        for (code, is_defect), rows in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    ]


def _meaning(code: str, *, is_defect: bool) -> Mapping[str, str]:
    try:
        meaning = meaning_of(code, DEFECTS if is_defect else WARNINGS)
    except KeyError:
        return {"label": code, "sentence": "", "suggestion": ""}
    return asdict(meaning) | {"label": meaning.label[:1].upper() + meaning.label[1:].replace("_", " ")}


def _totals(plan: Plan, minor_units: Mapping[str, int]) -> Sequence[tuple[str, int, str]]:
    """Return currency, rows and sum of the rows that can be paid."""
    sums = plan.validated.instructions.group_by("currency").agg(
        pl.len().alias("rows"), pl.col("minor").cast(pl.Decimal(38, 0)).sum()
    )
    return [
        (currency, rows, from_minor(int(minor), minor_units=minor_units[currency]))
        for currency, rows, minor in sums.sort("currency").iter_rows()
    ]


def _meanings(settings: Settings, mending: Mending) -> Iterator[PlanFinding]:
    """Yield a finding for each heading that means something else than it would by itself."""
    vocabulary = read_options(settings, PAYOUT).vocabulary
    for one in mending.headings:
        (by_itself,) = known_names([one.heading], vocabulary)
        if one.column == (by_itself or NOT_OURS):
            continue
        values = {"heading": _short(one.heading), "column": one.column, "by": one.by, "at": one.at}
        message = (
            say("the heading {heading} means {column} ({by}, {at})", **values)
            if one.column
            else say("the heading {heading} is not used ({by}, {at})", **values)
        )
        yield PlanFinding(row=0, code=MEANT, message=message)


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
