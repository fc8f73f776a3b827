"""Checks a payout in preparation: reads and validates its sheet with all corrections, and drafts its plan.

The results are files in the payout's folder: a summary, all defects and warnings, and the sender's own table. The pages
read only these files, never the sheet itself.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.clock import utc_now
from paygw_batch.console.payout_folder import (
    FOUND,
    HEADINGS,
    ROWS,
    AskedQuestion,
    CheckedSheet,
    FoundKind,
    PayoutFolder,
    UnreadableSheet,
    UploadedSheet,
    all_folders,
)
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import from_minor
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import Asked, PaygwError, SheetError, SheetQuestion
from paygw_batch.files import write_whole
from paygw_batch.journal import JournalReader
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import GivenSheet, Reading, minor_units_of, require_complete, suggested_reference
from paygw_batch.opening.open_journal import journal_for_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.catalogue import DEFECTS, WARNINGS, meaning_of
from paygw_batch.sheet.check.mending import Mending, write_mending
from paygw_batch.sheet.check.spelling import AS_WRITTEN, with_texts
from paygw_batch.sheet.columns import ALWAYS_NEEDED, columns_of_operation, label_of
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.guesses import GuessedHeading, guessed
from paygw_batch.sheet.read.headings import HEADER_ROWS, HeadingError, MissingColumns, SeenHeading, UnknownHeadings
from paygw_batch.sheet.read.sheet_file import headings_in, seen_headings, worksheets_in
from paygw_batch.sheet.write.rejects import write_marked
from paygw_batch.submit.compare_sheet import ComparisonMemory, without_rows
from paygw_batch.submit.open_questions import QUESTION_CODES
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.submission import Conversation, Prepared, Submission, draft_plan, plan_sheet

_MAX_LOOKED_AT = 50
"""The maximum number of earlier payouts that are considered for the reading of a new sheet."""
_MAX_TRIED = 4
"""The maximum number of earlier payouts whose reading is tried. Few are tried, because each reads the whole sheet."""


def check_payout(folder: PayoutFolder, settings: Settings, rules: Rules, maker: PublicKey) -> None:
    """Check a payout, and write the result into its folder. For an unreadable sheet, the result says why."""
    folder.write_checked(_checked(folder, settings, rules, maker))


def check_again(folder: PayoutFolder, settings: Settings, rules: Rules, memory: ComparisonMemory) -> bool:
    """Check a payout again after corrections, with its sheet as it was read before, and write the result.

    Only rows that changed since the last check are compared with the journal. No plan is drafted, because only
    `check_payout` reads the file itself. Returns False, without a check, if the sheet was not kept or was read in
    another way.
    """
    if (kept := _kept_sheet(folder)) is None:
        return False
    mending, sheet = kept
    try:
        require_complete(settings, rules, set())
        submission = _submission(folder, _given_sheet(folder, settings, rules, mending), sheet)
        with journal_for_document(settings, "console") as journal:
            folder.write_checked(_planned(folder, mending, submission, journal, memory=memory))
    except PaygwError as error:
        first = sheet.frame.head(HEADER_ROWS)
        folder.write_checked(unreadable(error, partial(seen_headings, sheet.headers, sheet.unknown, first)))
    return True


def is_kept(folder: PayoutFolder) -> bool:
    """Return whether `check_again` can check a payout."""
    return _kept_values(folder) is not None


def remember(folder: PayoutFolder, settings: Settings, rules: Rules, memory: ComparisonMemory) -> None:
    """Load a checked payout into `memory`, so that the first correction is as fast as later corrections."""
    if (kept := _kept_sheet(folder)) is not None:
        mending, sheet = kept
        submission = _submission(folder, _given_sheet(folder, settings, rules, mending), sheet)
        with journal_for_document(settings, "console") as journal:
            plan_sheet(submission, journal, memory=memory)


_FRAMES = ("frame", "defects", "warnings")
_VALUES = "sheet.json"
MAX_KEPT_ROWS = 200_000
"""The maximum number of rows of a kept sheet. The process of the pages has too little memory for a larger one."""


def _keep_sheet(folder: PayoutFolder, mending: Mending, sheet: Sheet) -> None:
    """Write a sheet as it was read into the folder, so that the check of a correction needs no new process."""
    folder.kept.mkdir(mode=0o700, exist_ok=True)
    (folder.kept / _VALUES).unlink(missing_ok=True)
    if sheet.frame.height > MAX_KEPT_ROWS:
        return
    for name in _FRAMES:
        getattr(sheet, name).write_ipc(folder.kept / f"{name}.arrow", compression="lz4")
    values = {field.name: getattr(sheet, field.name) for field in fields(sheet) if field.name not in _FRAMES}
    content = {"reading": folder.reading(mending), "sheet": values}
    write_whole(folder.kept / _VALUES, json.dumps(content, default=dict).encode())


def _kept_sheet(folder: PayoutFolder) -> tuple[Mending, Sheet] | None:
    """Return the corrections, and the sheet as it was read; None if it was not kept, or was read in another way."""
    if (kept := _kept_values(folder)) is None:
        return None
    mending, kept_values = kept
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in kept_values.items()
    }
    return mending, Sheet(**values | {name: pl.read_ipc(folder.kept / f"{name}.arrow") for name in _FRAMES})


def _kept_values(folder: PayoutFolder) -> tuple[Mending, dict[str, Any]] | None:
    """Return the same as `_kept_sheet`, but with a dictionary of the sheet's values without its frames."""
    if (mending := folder.mending) is None:
        return None
    try:
        kept: dict[str, Any] = json.loads((folder.kept / _VALUES).read_bytes())
    except FileNotFoundError:
        return None
    return (mending, kept["sheet"]) if kept["reading"] == folder.reading(mending) else None


def _checked(
    folder: PayoutFolder, settings: Settings, rules: Rules, maker: PublicKey
) -> CheckedSheet | UnreadableSheet:
    try:
        require_complete(settings, rules, set())
        mending, sheet = folder.mending, None
        if mending is None:
            mending = Mending(digest_of(folder.sheet))
            write_mending(mending, folder.mending_file)
            mending, sheet = _read_as_before(folder, settings, rules, mending)
        given_sheet = _given_sheet(folder, settings, rules, mending)
        sheet = sheet or given_sheet.read()
        _keep_sheet(folder, mending, sheet)
        with journal_for_document(settings, "console") as journal:
            return _planned(folder, mending, _submission(folder, given_sheet, sheet), journal, maker)
    except PaygwError as error:
        options = _given_sheet(folder, settings, rules, None).options
        return unreadable(error, partial(headings_in, folder.sheet, options))


def _given_sheet(folder: PayoutFolder, settings: Settings, rules: Rules, mending: Mending | None) -> GivenSheet:
    return GivenSheet(settings, rules, folder.sheet, replace(folder.uploaded.reading, mending=mending), asks=True)


def _read_as_before(
    folder: PayoutFolder, settings: Settings, rules: Rules, mending: Mending
) -> tuple[Mending, Sheet | None]:
    """Read a new upload with the answers of the newest signed payout whose sheet had the same headings.

    Records these answers, and returns the corrections and the sheet. Without such a payout, returns `mending` and None.
    """
    uploaded = folder.uploaded
    tried: list[Any] = []
    signed = (other for other in all_folders(folder.path.parent) if other.plan_file.exists())
    for other in islice(signed, _MAX_LOOKED_AT):
        if (before := other.mending) is None or len(tried) == _MAX_TRIED:
            continue
        earlier, meant = other.uploaded, replace(mending, headings=before.headings)
        earlier_answers = {name: getattr(earlier, name) for name in Asked} | {"reference": _next_reference(earlier)}
        earlier_answers = {name: None if answer == AS_WRITTEN else answer for name, answer in earlier_answers.items()}
        answers: dict[str, Any] = {name: getattr(uploaded, name) or answer for name, answer in earlier_answers.items()}
        how = (answers["worksheet"], answers["encoding"], meant.columns, known := other.headings)
        if how in tried:
            continue
        tried.append(how)
        with suppress(SheetError):
            given_sheet = GivenSheet(settings, rules, folder.sheet, Reading(**answers, mending=meant))
            sheet, names = given_sheet.read(), partial(worksheets_in, options=given_sheet.options)
            # If the workbook has other worksheets now, the sender may mean one of them.
            is_same_book = not earlier.worksheet or names(folder.sheet) == names(other.sheet)
            if {*sheet.headers.values()} == known and is_same_book:
                folder.note(replace(uploaded, **answers, like=earlier.called))
                write_mending(meant, folder.mending_file)
                return meant, sheet
    return mending, None


def _next_reference(earlier: UploadedSheet) -> str | None:
    """Return the payment run's name for this month if the `earlier` payout had the usual name for an earlier month."""
    suggested = suggested_reference(PAYOUT, utc_now())
    is_usual = earlier.reference == suggested_reference(PAYOUT, datetime.fromisoformat(earlier.at))
    return suggested if is_usual and earlier.reference != suggested else None


def _submission(folder: PayoutFolder, given_sheet: GivenSheet, sheet: Sheet) -> Submission:
    return Submission(given_sheet, given_sheet.validated(sheet), folder.uploaded.choices, folder.plan_file)


def unreadable(error: PaygwError, headings_of: Callable[[], Sequence[SeenHeading]] = tuple) -> UnreadableSheet:
    """Return the result for a sheet that could not be checked. `headings_of` returns the headings of the sheet."""
    columns = columns_of_operation(PAYOUT)
    headings: Sequence[SeenHeading] = ()
    if isinstance(error, HeadingError):
        headings = error.headings
    elif isinstance(error, SheetError):
        with suppress(SheetError):
            headings = headings_of()
    guesses = guessed(headings, columns)
    result = UnreadableSheet(error.message, error.page_hint, guesses, columns)
    if isinstance(error, UnknownHeadings | MissingColumns) and headings:
        needed = error.columns if isinstance(error, MissingColumns) else ALWAYS_NEEDED
        return replace(result, asks=HEADINGS, message=_about_headings(guesses, needed))
    if not isinstance(error, SheetQuestion):
        return result
    suggested = (suggested_reference(PAYOUT, utc_now()),) if error.asks is Asked.REFERENCE else ()
    return replace(
        result,
        asks=error.asks.value,
        question=error.question,
        choices=error.choices or suggested,
        samples=error.samples,
    )


def _about_headings(guesses: Sequence[GuessedHeading], needed: Sequence[str]) -> str:
    """Return a sentence about the columns of a sheet that uses the sender's own headings."""
    columns = {guess.column for guess in guesses}
    if any(guess.column == "phone" and not guess.is_known for guess in guesses):
        columns.add("account_number")  # a guessed phone column may also serve as the account
    lacking = [label_of(name) for name in needed if name not in columns]
    if not lacking:
        return say("The sheet has its own headings. Our guesses are filled in below.")
    return say("No column has been chosen yet for: {columns}. Choose it below.", columns=", ".join(lacking))


def digest_of(sheet: Path) -> str:
    """Return the SHA-256 digest of a file in hex, as in `Sheet.sha256`."""
    with sheet.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mark_payout(folder: PayoutFolder, settings: Settings, rules: Rules, path: Path) -> None:
    """Write the sheet of a payout to `path` as a workbook, with all corrections and a mark at every defect.

    Raises `OutputError` if the sheet cannot be written as a workbook.
    """
    mending = folder.mending
    given_sheet = _given_sheet(folder, settings, rules, mending)
    edits = () if mending is None else mending.edits
    write_marked(given_sheet.validated(), given_sheet.path, given_sheet.options, path, edits)


def _planned(
    folder: PayoutFolder,
    mending: Mending,
    submission: Submission,
    journal: JournalReader,
    maker: PublicKey | None = None,
    memory: ComparisonMemory | None = None,
) -> CheckedSheet:
    """Return the result of the check of a sheet, and draft its plan if there is a `maker` and nothing is open."""
    plan = plan_sheet(submission, journal, memory=memory)
    defects = plan.validated.defects.with_columns(is_defect=pl.lit(value=True))
    warnings = plan.warnings.with_columns(is_defect=pl.lit(value=False))
    findings, sheet = pl.concat([defects, warnings]).sort("row", maintain_order=True), plan.validated.sheet
    findings.write_parquet(folder.path / FOUND)
    with_texts(sheet.frame, plan.validated.read, "value").write_parquet(folder.path / ROWS)
    left_out = {row.row for row in mending.left_out}
    to_mend = findings.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))
    left = plan.unanswered(submission.choices)
    has_new_rows = plan.existing is None and plan.known_rows < plan.validated.payable
    is_ready = to_mend.is_empty() and not left and has_new_rows and not submission.wrong_totals
    if is_ready and maker is not None:
        submission.require_complete()
        drafted = draft_plan(submission, journal, Conversation(), maker)
        if isinstance(drafted, Prepared):
            folder.write_draft(drafted.document)
    columns = columns_of_operation(PAYOUT)
    headings = seen_headings(sheet.headers, sheet.unknown, sheet.frame.head(HEADER_ROWS))
    names = {name: sheet.headers.get(name) or label_of(name) for name in columns}
    return CheckedSheet(
        batch=plan.validated.batch,
        rows=plan.validated.height,
        payable=plan.validated.payable,
        known=plan.known_rows,
        rows_to_mend=to_mend["row"].n_unique(),
        is_ready=is_ready,
        is_drafted=is_ready and maker is not None,
        questions=[
            AskedQuestion(
                question.key,
                question.message,
                [person[-1] for person in question.people],
                question.question,
                question not in left,
            )
            for question in plan.questions
        ],
        left_out=sorted(left_out),
        mended=[(edit.row, edit.column) for edit in mending.edits],
        kinds=[*_kinds(to_mend, names), *_kinds(findings.filter(~pl.col("is_defect") & (pl.col("row") > 0)), names)],
        wrong_totals=submission.wrong_totals,
        totals=_totals(plan, minor_units_of(submission.given.rules)),
        of_sheet=findings.filter((pl.col("row") == 0) & ~pl.col("is_defect") & ~pl.col("code").is_in(QUESTION_CODES))[
            "message"
        ].to_list(),
        notes=list(sheet.notes),
        columns=sheet.frame.columns[1:],
        headings={name: heading or name for name, heading in sheet.headers.items()},
        guesses=guessed(headings, columns),
        known_columns=columns,
    )


def _kinds(findings: pl.DataFrame, names: Mapping[str, str]) -> Sequence[FoundKind]:
    """Return the kinds of defects and warnings among findings, the most frequent first."""
    counts = findings.group_by("code", "is_defect").agg(pl.col("row").n_unique()).iter_rows()
    return [
        FoundKind(code, *kind_meaning(code, names, is_defect=is_defect), rows, is_defect)
        for code, is_defect, rows in sorted(counts, key=lambda kind: (-kind[2], kind[0], kind[1]))
    ]


def kind_meaning(code: str, names: Mapping[str, str], *, is_defect: bool) -> tuple[str, str, str]:
    """Return the label, sentence and suggestion for a code of a defect or warning. `names` are the columns' names."""
    try:
        meaning = meaning_of(code, DEFECTS if is_defect else WARNINGS, names)
    except KeyError:
        return code, "", ""
    label = meaning.label[:1].upper() + meaning.label[1:]
    return label, meaning.sentence, meaning.suggestion


def _totals(plan: Plan, minor_units: Mapping[str, int]) -> Sequence[tuple[str, int, str]]:
    """Return the number and the sum of the rows that would be sent, as (currency, rows, sum)."""
    sent = [row.row for row in plan.sent_before]
    sums: dict[str, tuple[int, int]] = {}
    for part in plan.validated.parts():
        leaving = without_rows(part.instructions, sent).group_by("currency").agg(pl.len(), pl.col("minor").sum())
        for currency, rows, minor in leaving.iter_rows():
            before = sums.get(currency, (0, 0))
            sums[currency] = before[0] + rows, before[1] + minor
    return [
        (currency, rows, from_minor(minor, minor_units=minor_units[currency]))
        for currency, (rows, minor) in sorted(sums.items())
    ]
