"""`paygw-batch run-folder`: submits the sheets in a drop folder, usually on a timer."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import click

from paygw_batch.approval.policy import identify_person
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, Number, PathType
from paygw_batch.cli.options import collect_option, output_guard, settings_for, strict_option, wait_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import report_run, submit_and_report
from paygw_batch.cli.signals import interruption
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.choices import BatchSender, Choices
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import (
    ApprovalError,
    ConfigurationError,
    JournalError,
    PaygwError,
    ReferenceLookAlike,
    SheetError,
)
from paygw_batch.journal import Journal
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import load_signing_key, open_gateway
from paygw_batch.opening.given_sheet import Reading, SheetSource, require_complete, rules_for
from paygw_batch.opening.open_journal import exclusive_task, open_journal_for_run, reacquire_journal, require_journal_id
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.cover_note import CoverNote
from paygw_batch.sheet.read.profiles import read_profile
from paygw_batch.show.outputs import OutputGuard
from paygw_batch.show.summary import ExitCode, RunFailed, Summary, worst_code
from paygw_batch.submit.notices import add_refused_sheet_notice
from paygw_batch.submit.results import ResultFiles
from paygw_batch.submit.submission import Submission
from paygw_batch.unattended.drop_folder import ClaimedSheet, DropFolder, adopt_folder
from paygw_batch.unattended.dropped_files import NOTE_SUFFIX

_UNFINISHED_CODES = {ExitCode.STOPPED_EARLY, ExitCode.INTERRUPTED}
_REFUSED_CODES = {ExitCode.USAGE, ExitCode.DEFECTS, ExitCode.APPROVAL}


@dataclass(frozen=True, slots=True)
class _FolderRun:
    settings: Settings
    rules: Rules
    journal: Journal
    screen: Screen
    guard: OutputGuard
    choices: Choices
    wait: bool


@click.command("run-folder", cls=HelpCommand)
@click.argument("folder", type=PathType())
@click.option("--adopt", "is_adopting", is_flag=True, help="Confirm that FOLDER is a drop folder, and pay nothing.")
@click.option(
    "--settle-s", type=Number(0), default=60.0, show_default=True, help="Skip files that changed in the last N seconds."
)
@click.option("--skip-invalid", is_flag=True, help="Leave out rows with defects and pay the others.")
@strict_option
@wait_option
@collect_option
@click.pass_obj
def run_folder_command(
    invocation: Invocation,
    *,
    operation: str,
    folder: Path,
    is_adopting: bool,
    settle_s: float,
    skip_invalid: bool,
    strict: bool,
    wait: bool,
) -> None:
    """Submit every sheet in FOLDER that has not changed for a while, one after the other.

    Each sheet is moved to FOLDER/done or FOLDER/refused with its reports. A file that is not a sheet is moved to
    FOLDER/refused. If another run-folder is already running there, this one does nothing.

    A folder that contains a configuration, a key or a journal is refused until you confirm it once with --adopt.
    """
    screen = Screen(invocation)
    if is_adopting:
        adopt_folder(folder)
        message = say("{folder} is now a drop folder. Nothing was sent.", folder=folder)
        screen.finish(Summary(ExitCode.DONE, message))
    settings = settings_for(invocation)
    rules = rules_for(settings, operation)
    guard = output_guard(invocation, settings)
    guard.check(reporting=True)
    require_complete(settings, rules, set())
    drop_folder = DropFolder(folder, partial(_claim_key, settings, operation), guard, settle_s=settle_s, now=utc_now)
    with report_run(settings, "run-folder", screen) as report:
        report.files = drop_folder.file_counts()
        load_signing_key(settings, os.environ)
        with (
            exclusive_task(settings, f"run-folder {folder.resolve()} {operation}", screen.say, wait=wait),
            open_journal_for_run(settings, "run-folder", screen.say, wait=wait) as journal,
        ):
            choices = Choices(skip_invalid=skip_invalid, strict=strict, sent_by=BatchSender.WORKERS_UNATTENDED)
            run = _FolderRun(settings, rules, journal, screen, guard, choices, wait)
            sheets: list[tuple[str, Summary]] = []
            try:
                sheets.extend(_submit_sheets(drop_folder, run))  # keeps the sheets before an error
            except (Exception, KeyboardInterrupt) as error:
                raise RunFailed(error, interruption.message(), _folder_summary(sheets, {})) from error
        report.files = drop_folder.file_counts()
        remaining = drop_folder.list_files().untouched
        for reason in remaining.values():
            screen.say(reason)
            screen.say_if_quiet(reason)
        report.summary = _folder_summary(sheets, remaining)
    screen.finish(report.summary)


def _claim_key(settings: Settings, operation: str) -> str:
    """Return the key under which sheets are claimed. Only runs with the same journal and operation continue them."""
    journal_id = ""
    with suppress(JournalError):  # the run itself reports the error
        journal_id = require_journal_id(settings, "run-folder")
    return journal_id if operation == PAYOUT else f"{journal_id} {operation}"


def _submit_sheets(drop_folder: DropFolder, run: _FolderRun) -> Iterator[tuple[str, Summary]]:
    """Submit sheets one by one, starting with those claimed by an earlier run. Stop at an unfinished sheet."""
    # While workers send a sheet, another process may lock the journal.
    for sheet in drop_folder.claim_sheets(partial(reacquire_journal, run.journal, run.screen.say, wait=run.wait)):
        run.screen.say(f"{sheet.name}:")
        try:
            summary = _submit_sheet(sheet, run)
        except RunFailed as error:
            yield sheet.name, error.summary
            raise
        if summary.exit_code is not ExitCode.DONE:
            run.screen.say_if_quiet(f"{sheet.name}: {summary.message}")
        yield sheet.name, summary
        if summary.exit_code in _UNFINISHED_CODES or summary.is_under_way:
            message = say("{name} is not finished. The next run continues it first.", name=sheet.name)
            run.screen.say(message)
            return
        is_refused = summary.exit_code in _REFUSED_CODES
        if is_refused:
            # The notice is written before the sheet is moved. If the run is killed in between, the next run does not
            # write a second notice.
            add_refused_sheet_notice(
                run.settings, sheet.name, summary.defects, sheet.reply_path, run.screen.say, subject=sheet.stored_name
            )
        sheet.finish(summary, is_refused=is_refused)


def _submit_sheet(sheet: ClaimedSheet, run: _FolderRun) -> Summary:
    """Submit one sheet. If the sheet is refused, the summary gives the reason. Any other error ends the run."""
    try:
        if sheet.fault is not None:
            raise sheet.fault
        submission = _read_submission(sheet, run)
    except (SheetError, ConfigurationError, ApprovalError) as error:
        return _refusal_summary(sheet, run, error)
    files = ResultFiles(sheet.reconciliation_path, rejects=sheet.rejects_path, report=sheet.report_path)
    files.check(run.guard, submission)
    with open_gateway(run.settings, run.rules, os.environ) as gateway:
        try:
            return submit_and_report(submission, files, gateway, run.journal, run.screen, may_ask=False)
        except (ApprovalError, ReferenceLookAlike) as error:
            return _refusal_summary(sheet, run, error)


def _read_submission(sheet: ClaimedSheet, run: _FolderRun) -> Submission:
    note = sheet.note
    if note.column_profile is not None:
        try:
            read_profile(note.column_profile)
        except ConfigurationError as error:
            raise SheetError(f"{sheet.name}{NOTE_SUFFIX}: {error.message}") from None
    choices = replace(
        run.choices,
        **_note_values(note, Choices),
        strict=run.choices.strict or note.strict,
        is_plan_named=os.path.lexists(sheet.plan_path),
        expected=note.totals,
        decided_by=identify_person(note.by),
    )
    # The sheet was renamed when it was claimed. Plans and messages use the sender's file name.
    reading = Reading(**_note_values(note, Reading))
    source = SheetSource(run.settings, run.rules, sheet.path, reading, file=sheet.name, final_path=sheet.path_when_done)
    submission = Submission.read(source, choices, sheet.plan_path)
    run.screen.notes(submission.validated.sheet.notes)
    submission.require_ready_to_send()
    return submission


def _note_values(note: CoverNote, kind: type[Choices | Reading]) -> dict[str, Any]:
    return note.model_dump(include={field.name for field in fields(kind)} - {"strict"}, exclude_unset=True)


def _refusal_summary(sheet: ClaimedSheet, run: _FolderRun, error: PaygwError) -> Summary:
    run.screen.say(error.message)
    message = f"{error.message} {error.hint}".strip()
    return Summary(ExitCode(error.exit_code), message, sheet=sheet.name, option=error.option)


def _folder_summary(sheets: list[tuple[str, Summary]], remaining: Mapping[str, str]) -> Summary:
    states: Counter[str] = Counter()
    sums: dict[str, dict[str, Decimal]] = {}
    for _, summary in sheets:
        states.update(summary.states)
        for currency, state_sums in summary.totals.items():
            currency_sums = sums.setdefault(currency, {})
            for state, amount in state_sums.items():
                currency_sums[state] = currency_sums.get(state, Decimal(0)) + Decimal(amount)
    entries = [
        {
            "sheet": name,
            "batch": summary.batch,
            "exit_code": int(summary.exit_code),
            "states": dict(summary.states),
            "message": summary.message,
        }
        for name, summary in sheets
    ]
    message = say_count(len(sheets), "{count} sheet was processed.", "{count} sheets were processed.")
    if not sheets:
        message = say("No sheet is ready yet. Files are processed only after they stop changing (--settle-s).")
    if remaining:
        message += " " + say_count(
            len(remaining),
            "{count} file was left in the folder, because it does not belong to a sheet or cannot be read as one.",
            "{count} files were left in the folder, because they do not belong to a sheet or cannot be read as one.",
        )
    codes = {summary.exit_code for _, summary in sheets} | {ExitCode.SOME_REJECTED if remaining else ExitCode.DONE}
    if ExitCode.PERSON_NEEDED in codes:  # a refused sheet (3) must never hide a row in doubt (5)
        codes -= {ExitCode.DEFECTS}
    return Summary(
        worst_code(codes),
        message,
        rows=sum(summary.rows for _, summary in sheets),
        states=dict(states),
        totals={
            currency: {state: f"{amount:f}" for state, amount in state_sums.items()}
            for currency, state_sums in sorted(sums.items())
        },
        defects=sum(summary.defects for _, summary in sheets),
        known=sum(summary.known for _, summary in sheets),
        sent_this_run=sum(summary.sent_this_run for _, summary in sheets),
        extra={"sheets": entries, "left": [{"file": name, "message": reason} for name, reason in remaining.items()]},
    )
