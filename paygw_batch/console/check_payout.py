"""Checks a payout in preparation: reads and validates its sheet with all corrections, and drafts its plan.

The results are files in the payout's folder: a summary, all defects and warnings, and the corrected table. The pages
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
from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.clock import utc_now
from paygw_batch.console.payout_folder import (
    FINDINGS_FILE,
    HEADINGS_QUESTION,
    ROWS_FILE,
    AskedQuestion,
    CheckedSheet,
    FindingKind,
    PayoutFolder,
    UnreadableSheet,
    UploadedSheet,
    payout_folders,
)
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import from_minor
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import PaygwError, QuestionKind, SheetError, SheetQuestion
from paygw_batch.files import write_atomically
from paygw_batch.journal import JournalReader
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import Reading, SheetSource, require_complete, rule_minor_units, suggest_reference
from paygw_batch.opening.open_journal import journal_for_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.catalogue import DEFECTS, WARNINGS, code_meaning
from paygw_batch.sheet.check.corrections import Corrections, write_corrections
from paygw_batch.sheet.check.spelling import AS_WRITTEN, replace_cells
from paygw_batch.sheet.columns import REQUIRED_COLUMNS, column_label, operation_columns
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.guesses import HeadingSuggestion, suggest_columns
from paygw_batch.sheet.read.headings import HEADER_ROWS, FileHeading, HeadingError, MissingColumns, UnknownHeadings
from paygw_batch.sheet.read.sheet_file import list_worksheets, read_headings, sheet_headings
from paygw_batch.sheet.write.rejects import write_marked_workbook
from paygw_batch.submit.compare_sheet import ComparisonMemory, exclude_rows
from paygw_batch.submit.open_questions import QUESTION_CODES, OpenQuestion
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.submission import Conversation, DraftPlan, Submission, draft_plan, plan_sheet

_MAX_EARLIER_PAYOUTS = 50
"""Maximum number of earlier payouts considered when a new sheet is read."""
_MAX_READINGS = 4
"""Maximum number of earlier readings to try. Each one reads the whole sheet."""


def check_payout(folder: PayoutFolder, settings: Settings, rules: Rules, maker_key: PublicKey) -> None:
    """Check a payout and write the result to its folder. If its sheet is unreadable, the result says why."""
    folder.write_check_result(_check_sheet(folder, settings, rules, maker_key))


def recheck_cached_sheet(folder: PayoutFolder, settings: Settings, rules: Rules, memory: ComparisonMemory) -> bool:
    """Recheck a payout from its cached sheet and write the result.

    Only rows that changed since the last check are compared with the journal. No plan is drafted, because that requires
    reading the file itself. Returns False without checking if the payout has no up-to-date cached sheet.
    """
    if (cached_sheet := _read_cached_sheet(folder)) is None:
        return False
    corrections, sheet = cached_sheet
    try:
        require_complete(settings, rules, set())
        submission = _build_submission(folder, _sheet_source(folder, settings, rules, corrections), sheet)
        with journal_for_document(settings, "console") as journal:
            folder.write_check_result(_check_against_journal(folder, corrections, submission, journal, memory=memory))
    except PaygwError as error:
        head = sheet.frame.head(HEADER_ROWS)
        folder.write_check_result(unreadable_result(error, partial(sheet_headings, sheet.headers, sheet.unknown, head)))
    return True


def has_cached_sheet(folder: PayoutFolder) -> bool:
    return _read_cached_values(folder) is not None


def fill_memory(folder: PayoutFolder, settings: Settings, rules: Rules, memory: ComparisonMemory) -> None:
    """Load a checked payout into `memory`, so that its first correction is checked as fast as later ones."""
    if (cached_sheet := _read_cached_sheet(folder)) is not None:
        corrections, sheet = cached_sheet
        submission = _build_submission(folder, _sheet_source(folder, settings, rules, corrections), sheet)
        with journal_for_document(settings, "console") as journal:
            plan_sheet(submission, journal, memory=memory)


_FRAME_FIELDS = ("frame", "defects", "warnings")
_VALUES_FILE = "sheet.json"
MAX_CACHED_ROWS = 200_000
"""Maximum number of rows in a cached sheet. A larger sheet would not fit in the memory of the console process."""


def _cache_sheet(folder: PayoutFolder, corrections: Corrections, sheet: Sheet) -> None:
    folder.cache.mkdir(mode=0o700, exist_ok=True)
    (folder.cache / _VALUES_FILE).unlink(missing_ok=True)
    if sheet.frame.height > MAX_CACHED_ROWS:
        return
    for name in _FRAME_FIELDS:
        getattr(sheet, name).write_ipc(folder.cache / f"{name}.arrow", compression="lz4")
    values = {field.name: getattr(sheet, field.name) for field in fields(sheet) if field.name not in _FRAME_FIELDS}
    content = {"reading": folder.reading_key(corrections), "sheet": values}
    write_atomically(folder.cache / _VALUES_FILE, json.dumps(content, default=dict).encode())


def _read_cached_sheet(folder: PayoutFolder) -> tuple[Corrections, Sheet] | None:
    """Return the corrections and the cached sheet, or None if the cache is missing or outdated."""
    if (cached := _read_cached_values(folder)) is None:
        return None
    corrections, cached_values = cached
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in cached_values.items()
    }
    return corrections, Sheet(**values | {name: pl.read_ipc(folder.cache / f"{name}.arrow") for name in _FRAME_FIELDS})


def _read_cached_values(folder: PayoutFolder) -> tuple[Corrections, dict[str, Any]] | None:
    if (corrections := folder.corrections) is None:
        return None
    try:
        content: dict[str, Any] = json.loads((folder.cache / _VALUES_FILE).read_bytes())
    except FileNotFoundError:
        return None
    return (corrections, content["sheet"]) if content["reading"] == folder.reading_key(corrections) else None


def _check_sheet(
    folder: PayoutFolder, settings: Settings, rules: Rules, maker_key: PublicKey
) -> CheckedSheet | UnreadableSheet:
    try:
        require_complete(settings, rules, set())
        corrections, sheet = folder.corrections, None
        if corrections is None:
            corrections = Corrections(sheet_digest(folder.sheet))
            write_corrections(corrections, folder.corrections_file)
            corrections, sheet = _read_with_earlier_answers(folder, settings, rules, corrections)
        sheet_source = _sheet_source(folder, settings, rules, corrections)
        sheet = sheet or sheet_source.read()
        _cache_sheet(folder, corrections, sheet)
        with journal_for_document(settings, "console") as journal:
            submission = _build_submission(folder, sheet_source, sheet)
            return _check_against_journal(folder, corrections, submission, journal, maker_key)
    except PaygwError as error:
        options = _sheet_source(folder, settings, rules, None).options
        return unreadable_result(error, partial(read_headings, folder.sheet, options))


def _sheet_source(
    folder: PayoutFolder, settings: Settings, rules: Rules, corrections: Corrections | None
) -> SheetSource:
    reading = replace(folder.uploaded.reading, corrections=corrections)
    return SheetSource(settings, rules, folder.sheet, reading, asks=True)


def _read_with_earlier_answers(
    folder: PayoutFolder, settings: Settings, rules: Rules, corrections: Corrections
) -> tuple[Corrections, Sheet | None]:
    """Read a new upload with the answers from the newest signed payout whose sheet has the same headings.

    Records these answers and returns the corrections and the sheet. If there is no such payout, returns `corrections`
    and None.
    """
    uploaded = folder.uploaded
    tried_keys: list[Any] = []
    signed_folders = (old_folder for old_folder in payout_folders(folder.path.parent) if old_folder.plan_file.exists())
    for old_folder in islice(signed_folders, _MAX_EARLIER_PAYOUTS):
        if (old_corrections := old_folder.corrections) is None or len(tried_keys) == _MAX_READINGS:
            continue
        old_upload, reused = old_folder.uploaded, replace(corrections, headings=old_corrections.headings)
        old_answers: dict[str, Any] = {name: getattr(old_upload, name) for name in QuestionKind}
        old_answers["reference"] = _next_reference(old_upload)
        old_answers = {name: None if answer == AS_WRITTEN else answer for name, answer in old_answers.items()}
        if old_upload.is_one_of_several:  # The sender must choose the worksheets again.
            old_answers["worksheet"] = None
        answers: dict[str, Any] = {name: getattr(uploaded, name) or answer for name, answer in old_answers.items()}
        reading_key = (answers["worksheet"], answers["encoding"], reused.columns, old_headings := old_folder.headings)
        if reading_key in tried_keys:
            continue
        tried_keys.append(reading_key)
        with suppress(SheetError):
            sheet_source = SheetSource(settings, rules, folder.sheet, Reading(**answers, corrections=reused))
            sheet, names_in = sheet_source.read(), partial(list_worksheets, options=sheet_source.options)
            # If the workbook now has different worksheets, the sender may want to pay another one.
            is_same_workbook = not old_upload.worksheet or names_in(folder.sheet) == names_in(old_folder.sheet)
            if {*sheet.headers.values()} == old_headings and is_same_workbook:
                folder.write_upload(replace(uploaded, **answers, like=old_upload.display_name))
                write_corrections(reused, folder.corrections_file)
                return reused, sheet
    return corrections, None


def _next_reference(old_upload: UploadedSheet) -> str | None:
    """Return this month's default reference if the previous payout used its own month's default."""
    reference = suggest_reference(PAYOUT, utc_now())
    was_default = old_upload.reference == suggest_reference(PAYOUT, datetime.fromisoformat(old_upload.at))
    return reference if was_default and old_upload.reference != reference else None


def _build_submission(folder: PayoutFolder, sheet_source: SheetSource, sheet: Sheet) -> Submission:
    return Submission(sheet_source, sheet_source.validated(sheet), folder.uploaded.choices, folder.plan_file)


def unreadable_result(error: PaygwError, load_headings: Callable[[], Sequence[FileHeading]] = tuple) -> UnreadableSheet:
    """Return the result for a sheet that cannot be checked. `load_headings` reads the sheet's headings."""
    columns = operation_columns(PAYOUT)
    headings: Sequence[FileHeading] = ()
    if isinstance(error, HeadingError):
        headings = error.headings
    elif isinstance(error, SheetError):
        with suppress(SheetError):
            headings = load_headings()
    guesses = suggest_columns(headings, columns)
    result = UnreadableSheet(error.message, error.page_hint, guesses, columns)
    if isinstance(error, UnknownHeadings | MissingColumns) and headings:
        required = error.columns if isinstance(error, MissingColumns) else REQUIRED_COLUMNS
        return replace(result, asks=HEADINGS_QUESTION, message=_headings_message(guesses, required))
    if not isinstance(error, SheetQuestion):
        return result
    suggestions = (suggest_reference(PAYOUT, utc_now()),) if error.asks is QuestionKind.REFERENCE else ()
    return replace(
        result,
        asks=error.asks.value,
        question=error.question,
        choices=error.choices or suggestions,
        samples=error.samples,
    )


def _headings_message(guesses: Sequence[HeadingSuggestion], required: Sequence[str]) -> str:
    columns = {guess.column for guess in guesses}
    if any(guess.column == "phone" and not guess.is_known for guess in guesses):
        columns.add("account_number")  # a guessed phone column may also serve as the account
    missing = [column_label(name) for name in required if name not in columns]
    if not missing:
        return say("This sheet uses its own headings. Check our guesses below.")
    return say("Choose a column below for: {columns}.", columns=", ".join(missing))


def sheet_digest(sheet: Path) -> str:
    """Return the SHA-256 digest of a sheet in hex, as in `Sheet.sha256`."""
    with sheet.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_marked_copy(folder: PayoutFolder, settings: Settings, rules: Rules, path: Path) -> None:
    """Write a payout's corrected sheet to `path` with its defects marked. Raises `OutputError` on failure."""
    corrections = folder.corrections
    sheet_source = _sheet_source(folder, settings, rules, corrections)
    edits = () if corrections is None else corrections.edits
    write_marked_workbook(sheet_source.validated(), sheet_source.path, sheet_source.options, path, edits)


def _check_against_journal(
    folder: PayoutFolder,
    corrections: Corrections,
    submission: Submission,
    journal: JournalReader,
    maker_key: PublicKey | None = None,
    memory: ComparisonMemory | None = None,
) -> CheckedSheet:
    """Check a sheet against the journal and write its findings. Given a `maker_key`, also draft a plan if possible."""
    batch_count, plan = len(journal.batches()), plan_sheet(submission, journal, memory=memory)
    defects = plan.validated.defects.with_columns(is_defect=pl.lit(value=True))
    warnings = plan.warnings.with_columns(is_defect=pl.lit(value=False))
    findings, sheet = pl.concat([defects, warnings]).sort("row", maintain_order=True), plan.validated.sheet
    findings.write_parquet(folder.path / FINDINGS_FILE)
    replace_cells(sheet.frame, plan.validated.interpreted, "value").write_parquet(folder.path / ROWS_FILE)
    left_out = {row.row for row in corrections.left_out}
    open_defects = findings.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))
    open_questions = plan.unanswered_questions(submission.choices)
    has_new_rows = plan.existing is None and plan.known_row_count < plan.validated.payable_count
    is_ready = open_defects.is_empty() and not open_questions and has_new_rows and not submission.wrong_totals
    if is_ready and maker_key is not None:
        submission.require_complete()
        prepared = draft_plan(submission, journal, Conversation(), maker_key)
        # Keep an identical draft, because replacing it would invalidate forms that show it.
        if isinstance(prepared, DraftPlan) and not _is_same_plan(prepared.document, folder.draft):
            folder.write_draft(prepared.document)
    columns, head = operation_columns(PAYOUT), sheet.frame.head(HEADER_ROWS)
    headings = {name: sheet.headers.get(name) or column_label(name) for name in columns}
    return CheckedSheet(
        batch=plan.validated.batch,
        rows=plan.validated.height,
        payable=plan.validated.payable_count,
        known=plan.known_row_count,
        rows_to_mend=open_defects["row"].n_unique(),
        is_ready=is_ready,
        is_drafted=is_ready and maker_key is not None,
        batches=batch_count,
        questions=_asked_questions(plan, open_questions),
        left_out=sorted(left_out),
        mended=[(edit.row, edit.column) for edit in corrections.edits],
        kinds=[
            *_finding_kinds(open_defects, headings),
            *_finding_kinds(findings.filter(~pl.col("is_defect") & (pl.col("row") > 0)), headings),
        ],
        wrong_totals=submission.wrong_totals,
        totals=_unsent_totals(plan, rule_minor_units(submission.source.rules)),
        of_sheet=findings.filter((pl.col("row") == 0) & ~pl.col("is_defect") & ~pl.col("code").is_in(QUESTION_CODES))[
            "message"
        ].to_list(),
        notes=list(sheet.notes),
        columns=sheet.frame.columns[1:],
        headings={name: heading or name for name, heading in sheet.headers.items()},
        guesses=suggest_columns(sheet_headings(sheet.headers, sheet.unknown, head), columns),
        known_columns=columns,
        worksheet=sheet.worksheet,
        other_worksheets=sheet.other_worksheets,
    )


def _is_same_plan(document: PlanDocument, draft: PlanDocument | None) -> bool:
    return draft is not None and document.model_copy(update={"made_at": draft.made_at}) == draft


def _asked_questions(plan: Plan, unanswered: Sequence[OpenQuestion]) -> Sequence[AskedQuestion]:
    return [
        AskedQuestion(
            entry.key,
            entry.message,
            [sentence for *_, sentence in entry.people],
            entry.question,
            entry not in unanswered,
        )
        for entry in plan.questions
    ]


def _finding_kinds(findings: pl.DataFrame, headings: Mapping[str, str]) -> Sequence[FindingKind]:
    counts = findings.group_by("code", "is_defect").agg(pl.col("row").n_unique()).iter_rows()
    return [
        FindingKind(code, *kind_meaning(code, headings, is_defect=is_defect), rows, is_defect)
        for code, is_defect, rows in sorted(counts, key=lambda kind: (-kind[2], kind[0], kind[1]))
    ]


def kind_meaning(code: str, headings: Mapping[str, str], *, is_defect: bool) -> tuple[str, str, str]:
    """Return a defect's or warning's label, sentence and suggestion. `headings` maps columns to headings."""
    try:
        meaning = code_meaning(code, DEFECTS if is_defect else WARNINGS, headings)
    except KeyError:
        return code, "", ""
    label = meaning.label[:1].upper() + meaning.label[1:]
    return label, meaning.sentence, meaning.suggestion


def _unsent_totals(plan: Plan, minor_units: Mapping[str, int]) -> Sequence[tuple[str, int, str]]:
    """Return (currency, rows, sum) for each currency, excluding rows sent in earlier payouts."""
    sent_rows = [row.row for row in plan.sent_before]
    sums: dict[str, tuple[int, int]] = {}
    for part in plan.validated.parts():
        totals = exclude_rows(part.instructions, sent_rows).group_by("currency").agg(pl.len(), pl.col("minor").sum())
        for currency, rows, minor in totals.iter_rows():
            total_rows, total_minor = sums.get(currency, (0, 0))
            sums[currency] = total_rows + rows, total_minor + minor
    return [
        (currency, rows, from_minor(minor, minor_units=minor_units[currency]))
        for currency, (rows, minor) in sorted(sums.items())
    ]
