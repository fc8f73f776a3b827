"""`paygw-batch run-folder`: submit the sheets that lie in a folder. What a timer calls."""

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
from paygw_batch.cli.runs.submit_sheet import Submission, submit_sheet
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.gateway import gateway_of, signer_key
from paygw_batch.compose.outputs import OutputGuard
from paygw_batch.compose.parts import PAYOUT, require_complete, rules_of, run_journal, utc_now, validated_sheet
from paygw_batch.core.batch import differences
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ApprovalError, ConfigurationError, PaygwError, ReferenceLookAlike, SheetError
from paygw_batch.journal import Journal
from paygw_batch.report.summary import ExitCode, Summary, worst
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.model import Validated

_UNFINISHED = {ExitCode.STOPPED_EARLY, ExitCode.INTERRUPTED}
_REFUSED = {ExitCode.USAGE, ExitCode.DEFECTS, ExitCode.APPROVAL}


@dataclass(frozen=True, slots=True)
class _Run:
    """What every sheet of a folder is submitted with."""

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
            run.screen.say(f"{claimed.name} is not finished: the next run continues it before any other.")
            return
        claimed.finish(summary, is_refused=summary.exit_code in _REFUSED)


def _submit(claimed: Claimed, run: _Run) -> Summary:
    """Submit one sheet. What is wrong with it is its summary; what is wrong with us ends the whole run."""
    try:
        validated = _read(claimed, run)
    except (SheetError, ConfigurationError) as error:
        return _refusal(claimed, run, error)
    submission = Submission(
        sheet=claimed.path_when_done,
        validated=validated,
        out=claimed.reconciliation,
        plan=claimed.plan,
        guard=run.guard,
        skip_invalid=run.skip_invalid,
        strict=run.strict,
        rejects=claimed.rejects,
        report=claimed.report,
        may_ask=False,
    )
    submission.check_outputs()
    with gateway_of(run.settings, run.rules, os.environ) as connection:
        try:
            return submit_sheet(submission, run.settings, run.rules, connection, run.journal, run.screen)
        except (ApprovalError, ReferenceLookAlike) as error:
            return _refusal(claimed, run, error)


def _read(claimed: Claimed, run: _Run) -> Validated:
    """Read and validate a sheet as its cover note says. Raises `SheetError`, and `ConfigurationError`."""
    note = claimed.note
    validated = validated_sheet(run.settings, run.rules, claimed.path, reference=note.reference, worksheet=note.sheet)
    run.screen.notes(validated.sheet.notes)
    if wrong := differences(note.totals, validated.totals):
        raise SheetError(" ".join(wrong), hint="Nothing was sent. Make sure that this is the right sheet.")
    require_complete(run.settings, run.rules, set(validated.rows.filter("valid")["country"].unique()))
    return validated


def _refusal(claimed: Claimed, run: _Run, error: PaygwError) -> Summary:
    run.screen.say(error.message)
    return Summary(ExitCode(error.exit_code), f"{error.message} {error.hint}".strip(), sheet=claimed.name)


def _told(sheets: list[tuple[str, Summary]]) -> Summary:
    """Return what a whole folder came to."""
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
        f"{count} {'sheet was' if count == 1 else 'sheets were'} taken." if sheets else "There was no settled sheet."
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
