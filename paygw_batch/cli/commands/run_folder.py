"""`paygw-batch run-folder`: submit the sheets that are in a folder. A timer calls this command."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import collect_option, guard_of, settings_of, strict_option, wait_option
from paygw_batch.cli.runs.drop_folder import Claimed, Drop
from paygw_batch.cli.runs.run_report import reported
from paygw_batch.cli.runs.sheet_results import Rejects, ResultFiles, submit_and_report
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.submit_sheet import Submission
from paygw_batch.compose.gateway import gateway_of
from paygw_batch.compose.operations import operation_of, require_complete, rules_of
from paygw_batch.compose.operator import person
from paygw_batch.compose.outputs import OutputGuard
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.compose.sheet import read_options, require_as_stated, validated_sheet
from paygw_batch.compose.signing import signer_key
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ApprovalError, ConfigurationError, PaygwError, ReferenceLookAlike, SheetError
from paygw_batch.journal import Journal
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.model import Validated

_UNFINISHED = {ExitCode.STOPPED_EARLY, ExitCode.INTERRUPTED}
_REFUSED = {ExitCode.USAGE, ExitCode.DEFECTS, ExitCode.APPROVAL}


@dataclass(frozen=True, slots=True)
class _Run:
    """The parts that every sheet of a folder is submitted with."""

    settings: Settings
    rules: Rules
    journal: Journal
    screen: Screen
    guard: OutputGuard
    skip_invalid: bool
    strict: bool


@click.command("run-folder", short_help="Submit the sheets of a folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--settle-s", type=click.FloatRange(0), default=60.0, show_default=True, help="Leave younger files alone."
)
@click.option("--skip-invalid", is_flag=True, help="Leave rows with defects out and pay the others.")
@strict_option
@wait_option
@collect_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    operation: str,
    folder: Path,
    settle_s: float,
    skip_invalid: bool,
    strict: bool,
    wait: bool,
) -> None:
    """Submit every sheet in FOLDER that nobody has written to for a while, one after the other.

    Each is moved to FOLDER/done or FOLDER/refused with its reports. A second start while one is on does nothing.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    rules = rules_of(settings, operation)
    guard = guard_of(invocation, settings)
    guard.check(reporting=True)
    require_complete(settings, rules, set())
    # Sheets of an operation are claimed apart: what was begun as one must never be continued as another.
    endpoint = settings.endpoint_identity().name
    owner = endpoint if operation == PAYOUT else f"{endpoint} {operation}"
    drop = Drop(folder, owner, settle_s=settle_s, now=utc_now)
    with reported(settings, "run-folder", screen) as report:
        signer_key(settings, os.environ)
        with run_journal(settings, "run-folder", screen.say, wait=wait) as journal:
            run = _Run(settings, rules, journal, screen, guard, skip_invalid, strict)
            report.summary = _told(list(_submit_all(drop, run)))
    screen.finish(report.summary)


def _submit_all(drop: Drop, run: _Run) -> Iterator[tuple[str, Summary]]:
    """Submit sheet after sheet, those first that an earlier run left; stop where going on makes no sense."""
    for claimed in drop.claim_all():
        run.screen.say(f"{claimed.name}:")
        summary = _submit(claimed, run)
        if summary.exit_code is not ExitCode.DONE:
            run.screen.insist(f"{claimed.name}: {summary.message}")
        yield claimed.name, summary
        if summary.exit_code in _UNFINISHED:
            run.screen.say(
                say("{name} is not finished: the next run continues it before any other.", name=claimed.name)
            )
            return
        claimed.finish(summary, is_refused=summary.exit_code in _REFUSED)


def _submit(claimed: Claimed, run: _Run) -> Summary:
    """Submit one sheet. A fault of the sheet is its summary; a fault of ours ends the whole run."""
    try:
        validated = _read(claimed, run)
    except (SheetError, ConfigurationError) as error:
        return _refusal(claimed, run, error)
    asked = Submission(
        validated, claimed.path_when_done, claimed.plan, person(None), run.skip_invalid, strict=run.strict
    )
    options = read_options(run.settings, operation_of(run.rules).name, claimed.note.sheet)
    rejects = Rejects(claimed.rejects, claimed.path, options)
    files = ResultFiles(claimed.reconciliation, rejects=rejects, report=claimed.report)
    files.check(run.guard, asked)
    with gateway_of(run.settings, run.rules, os.environ) as gateway:
        try:
            return submit_and_report(
                asked, files, run.settings, run.rules, gateway, run.journal, run.screen, may_ask=False
            )
        except (ApprovalError, ReferenceLookAlike) as error:
            return _refusal(claimed, run, error)


def _read(claimed: Claimed, run: _Run) -> Validated:
    """Read and validate a sheet as its cover note says. Raises `SheetError`, and `ConfigurationError`."""
    note = claimed.note
    validated = validated_sheet(run.settings, run.rules, claimed.path, reference=note.reference, worksheet=note.sheet)
    run.screen.notes(validated.sheet.notes)
    require_as_stated(run.settings, run.rules, validated, note.totals)
    return validated


def _refusal(claimed: Claimed, run: _Run, error: PaygwError) -> Summary:
    run.screen.say(error.message)
    return Summary(ExitCode(error.exit_code), f"{error.message} {error.hint}".strip(), sheet=claimed.name)


def _told(sheets: list[tuple[str, Summary]]) -> Summary:
    """Return the summary of a whole folder."""
    states: Counter[str] = Counter()
    sums: dict[str, dict[str, Decimal]] = {}
    for _, summary in sheets:
        states.update(summary.states)
        for currency, by_state in summary.totals.items():
            of_currency = sums.setdefault(currency, {})
            for state, amount in by_state.items():
                of_currency[state] = of_currency.get(state, Decimal(0)) + Decimal(amount)
    listed = [
        {
            "sheet": name,
            "batch": summary.batch,
            "exit_code": int(summary.exit_code),
            "states": dict(summary.states),
            "message": summary.message,
        }
        for name, summary in sheets
    ]
    count = len(sheets)
    message = (
        say_count(count, "{count} sheet was taken.", "{count} sheets were taken.")
        if sheets
        else say("There was no settled sheet.")
    )
    return Summary(
        _worst_of([summary for _, summary in sheets]),
        message,
        rows=sum(summary.rows for _, summary in sheets),
        states=dict(states),
        totals={
            currency: {state: f"{amount:f}" for state, amount in by_state.items()}
            for currency, by_state in sorted(sums.items())
        },
        defects=sum(summary.defects for _, summary in sheets),
        known=sum(summary.known for _, summary in sheets),
        sent_this_run=sum(summary.sent_this_run for _, summary in sheets),
        further={"sheets": listed},
    )


def _worst_of(sheets: list[Summary]) -> ExitCode:
    """Return the exit code of a folder: the worst of its sheets, but no refused sheet (3) hides a row in doubt (5)."""
    codes = {summary.exit_code for summary in sheets} | {ExitCode.DONE}
    if ExitCode.PERSON_NEEDED in codes:
        codes -= {ExitCode.DEFECTS}
    return worst(codes)
