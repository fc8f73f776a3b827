"""The commands that send rows (`submit`, `collect`, `resume`, `retry`), and `reconcile`, which writes results again."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from paygw_batch.approval.policy import default_plan, person
from paygw_batch.cli.help_texts import HelpCommand, SheetCommand
from paygw_batch.cli.invocation import Invocation, NamedFile, Number, WholeNumber
from paygw_batch.cli.options import (
    ResultOptions,
    by_option,
    choices_options,
    complete_batches,
    excel_option,
    force_option,
    guard_of,
    made_into,
    profile_option,
    require_csv,
    result_options,
    settings_of,
    skip_invalid_option,
    stated_totals,
    wait_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import (
    Continued,
    continued,
    reconcile,
    reported,
    send_and_reconcile,
    show_planned,
    submission,
    submit_and_report,
)
from paygw_batch.cli.sheet_questions import answers_options, show_totals
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.choices import Choices, SentBy
from paygw_batch.core.money import with_separators
from paygw_batch.countries.load import load_operation
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import UsageError
from paygw_batch.files import write_whole
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import gateway_of
from paygw_batch.opening.given_sheet import GivenSheet, Reading, minor_units_of, require_complete, rules_of
from paygw_batch.opening.open_journal import (
    find_batch,
    journal_for_planning,
    journal_to_read,
    require_workers,
    run_journal,
)
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.mending import read_mending
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.remittance import advices_of_batch
from paygw_batch.show.summary import Summary, of_states
from paygw_batch.show.totals import books_of_pieces
from paygw_batch.submit.approvals import named_plan
from paygw_batch.submit.results import ResultFiles, default_out
from paygw_batch.submit.submission import (
    Conversation,
    Submission,
    plan_sheet,
    preview,
    refused_for_defects,
    refused_for_questions,
)
from paygw_batch.submit.submit_sheet import (
    ReleasedRows,
    refused_summary,
    release_rejected,
    with_warnings_told,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Typed(ResultOptions):
    """The argument and the options of `submit` or `collect`."""

    sheet: Path
    reading: Reading
    choices: Choices
    mended: Path | None
    plan: Path | None
    detach: bool
    dry_run: bool
    concurrency: int | None
    rate_per_s: float | None
    expect_rows: int | None
    expect_total: tuple[str, ...]
    by: str | None


sheet_options = made_into(
    "typed",
    _Typed,
    click.argument("sheet", type=NamedFile()),
    answers_options,
    profile_option,
    click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx)."),
    excel_option,
    skip_invalid_option,
    click.option("--mended", type=NamedFile(), metavar="FILE", help="File of corrections made in the console."),
    choices_options,
    click.option("--plan", type=NamedFile(), help="The approved plan. Default: SHEET.plan.json."),
    click.option("--first", type=WholeNumber(1), help="Send at most N rows, then stop (exit code 6)."),
    click.option("--detach", is_flag=True, help="Let the workers send the batch, and return at once."),
    click.option("--urgent", is_flag=True, help="Let workers send this batch before others."),
    click.option("--dry-run", is_flag=True, help="Show what would be sent; send and write nothing."),
    click.option("--concurrency", type=WholeNumber(1, 1024), help="Maximum number of requests in flight."),
    click.option("--rate-per-s", type=Number(0), help="Maximum number of requests a second; 0: no limit."),
    click.option(
        "--expect-rows", type=WholeNumber(0), help="Refuse the sheet unless it has exactly this number of rows."
    ),
    click.option(
        "--expect-total",
        multiple=True,
        metavar="CUR=AMOUNT",
        help="Refuse the sheet unless its total is exactly this. Repeatable.",
    ),
    wait_option,
    by_option,
    force_option,
)
"""Adds the argument and the options of a command that runs a sheet. The command gets them as one value, `typed`."""


@click.command("submit", cls=SheetCommand)
@sheet_options
@click.pass_obj
def submit_command(invocation: Invocation, typed: _Typed) -> None:
    """Pay the people on SHEET: start its batch, or continue it. Running the same command again is always safe."""
    run_sheet(invocation, PAYOUT, typed)


def run_sheet(invocation: Invocation, operation: str, typed: _Typed) -> None:
    screen, sheet, out = Screen(invocation), typed.sheet, typed.out
    expected = stated_totals(typed.expect_rows, typed.expect_total)
    require_csv(out, for_excel=typed.for_excel)
    pace = {("submission", "concurrency"): typed.concurrency, ("submission", "rate_per_s"): typed.rate_per_s}
    settings = settings_of(invocation, pace)
    sent_by = _sent_by(settings, typed.choices, detach=typed.detach)
    rules, plan = rules_of(settings, operation), typed.plan or default_plan(sheet)
    command = load_operation(operation).command
    guard = guard_of(invocation, settings, force=typed.force)
    inputs = {say("the sheet"): sheet, say("the plan"): plan, say("the corrections"): typed.mended}
    output = RequestedOutput("--out", out, OutputKind.RECONCILIATION, sheet)
    guard.check(output, inputs=inputs, reporting=not typed.dry_run)
    require_complete(settings, rules, set())
    by, mending = person(typed.by), None if typed.mended is None else read_mending(typed.mended)
    choices = replace(
        typed.choices, sent_by=sent_by, is_plan_named=typed.plan is not None, expected=expected, decided_by=by
    )
    given_sheet = GivenSheet(settings, rules, sheet, replace(typed.reading, mending=mending))

    def read() -> Submission:
        request = submission(screen, given_sheet, choices, plan)
        screen.notes(request.validated.sheet.notes)
        request.require_allowed()
        return request

    if typed.dry_run:
        screen.finish(_tried(read, settings, screen))
    with reported(settings, command, screen) as report:
        report.sheet = sheet
        request = read()
        place = out or default_out(sheet, request.validated.sheet.name)
        files = ResultFiles(place, is_out_named=out is not None, for_excel=typed.for_excel)
        files.check(guard, request)
        with (
            gateway_of(settings, rules, os.environ) as gateway,
            run_journal(settings, command, screen.say, wait=typed.wait) as journal,
        ):
            report.summary = submit_and_report(request, files, gateway, journal, screen)
    screen.finish(report.summary)


def _sent_by(settings: Settings, choices: Choices, *, detach: bool) -> SentBy:
    """Return who sends the batch. Raises `UsageError` if workers cannot send it, or if there can be no workers."""
    if detach or choices.urgent:
        require_workers(settings)
    if not detach:
        return SentBy.WORKERS_IF_ANY
    if choices.first is not None:
        raise UsageError(
            say("--first and --detach cannot be combined: the command itself sends the first rows."),
            hint=say("Send the first rows without --detach, then the others with it."),
        )
    return SentBy.WORKERS_LATER


def _tried(read: Callable[[], Submission], settings: Settings, screen: Screen) -> Summary:
    """Show the defects, warnings and totals of a submission, and return its summary. Nothing is sent or asked."""
    with journal_for_planning(settings) as journal:
        request = read()
        plan, minor_units = plan_sheet(request, journal), minor_units_of(request.given.rules)
        show_planned(screen, plan)
        named_plan(request)  # a plan that cannot be read is refused first
        if (refused := refused_for_defects(request, plan, journal)) is not None:
            return refused_summary(refused, request)
        counted = books_of_pieces(preview(plan, journal, minor_units), minor_units)
        show_totals(screen, counted.lines)
        if (refused := refused_for_questions(request, plan, journal, Conversation())) is not None:
            return refused_summary(refused, request)
    ready = counted.states.get("ready", 0)
    sums = {currency: states["ready"] for currency, states in counted.totals.items() if "ready" in states}
    sums_text = ", ".join(f"{currency} {with_separators(amount)}" for currency, amount in sums.items())
    summary = Summary(
        of_states({state: count for state, count in counted.states.items() if state != "ready"}),
        say_count(
            ready,
            "Dry run: {count:,} row would be sent ({sums}). Nothing was sent or written.",
            "Dry run: {count:,} rows would be sent ({sums}). Nothing was sent or written.",
            sums=sums_text or say("nothing"),
        ),
        batch=plan.validated.batch,
        sheet=plan.validated.sheet.name,
        rows=ready,
        states=counted.states,
        totals={currency: {"ready": amount} for currency, amount in sums.items()},
        defects=plan.validated.defects_found.rows.len(),
        known=plan.validated.payable - ready,
    )
    return with_warnings_told(summary, plan)


@click.command("collect", cls=SheetCommand)
@sheet_options
@click.pass_obj
def collect_command(invocation: Invocation, typed: _Typed) -> None:
    """Collect from the customers on SHEET: start its batch, or continue it. Running the same command again is safe.

    The batch is then resumed, retried, resolved and reconciled like any other, by its id.
    """
    run_sheet(invocation, PAYIN, typed)


@click.command("resume", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@wait_option
@force_option
@click.pass_obj
@result_options
def resume_command(invocation: Invocation, *, batch: str | None, results: ResultOptions) -> None:
    """Continue BATCH (its id, a prefix of it, or its sheet's path) from the journal alone.

    Without BATCH: continue the only batch that has rows left to send.
    """
    screen = Screen(invocation)
    require_csv(results.out, for_excel=results.for_excel)
    settings = settings_of(invocation)
    with continued(invocation, settings, "resume", screen, batch, results) as run:
        run.report.summary = send_and_reconcile(run.task, run.files, screen)
    screen.finish(run.report.summary)


SHOWN_WAITING = 20
"""The maximum number of rows that are listed because they must wait, each with the time when it can be released."""


@click.command("retry", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@by_option
@wait_option
@force_option
@click.pass_obj
@result_options
def retry_command(
    invocation: Invocation, *, batch: str, rows: tuple[int, ...], by: str | None, results: ResultOptions
) -> None:
    """Send the rejected rows of BATCH (its id, a prefix of it, or its sheet's path) again.

    Other rows that are ready are also sent, as by `resume`. Rows in doubt are never included. `order release` has two
    people decide it instead.
    """
    screen = Screen(invocation)
    require_csv(results.out, for_excel=results.for_excel)
    settings = settings_of(invocation)
    who = person(by)
    with continued(invocation, settings, "retry", screen, batch, results) as run:
        run.report.summary = send_released(run, screen, release_rejected(run.task, rows, who))
    screen.finish(run.report.summary)


def send_released(run: Continued, screen: Screen, released: ReleasedRows) -> Summary:
    """Send the released rows of a batch with all other due rows, and return the summary."""
    sentence = (
        say_count(released.rows, "{count:,} rejected row is released.", "{count:,} rejected rows are released.")
        if released.rows
        else say("There is no rejected row to retry.")
    )
    screen.say(" ".join([sentence, *released.waiting[:SHOWN_WAITING]]))
    summary = send_and_reconcile(run.task, run.files, screen)
    waiting = len(released.waiting)
    why = (
        say_count(waiting, "{count:,} rejected row must wait", "{count:,} rejected rows must wait")
        if waiting
        else say("no row is rejected")
    )
    message = summary.message if released.rows else f"{say('Nothing to retry: {why}.', why=why)} {summary.message}"
    return replace(summary, message=message, further={"released": released.rows, "waiting": waiting})


@click.command("reconcile", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), required=True, help="The file (.csv, .parquet or .xlsx).")
@click.option("--report", type=NamedFile(), help="Also write an HTML report.")
@click.option("--advices", type=NamedFile(), help="Also write a remittance advice (HTML) for each person who is paid.")
@excel_option
@force_option
@click.pass_obj
def reconcile_command(
    invocation: Invocation,
    *,
    batch: str,
    out: Path,
    report: Path | None,
    advices: Path | None,
    for_excel: bool,
    force: bool,
) -> None:
    """Write the reconciliation file of BATCH (its id, a prefix of it, or its sheet's path) again."""
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    guard = guard_of(invocation, settings, force=force)
    outputs = (
        RequestedOutput("--out", out, OutputKind.RECONCILIATION),
        RequestedOutput("--report", report, OutputKind.REPORT),
        RequestedOutput("--advices", advices, OutputKind.REMITTANCE),
    )
    guard.check(*outputs, inputs={say("the sheet"): Path(batch)})
    with journal_to_read(settings, screen.say) as journal:
        record = find_batch(journal, batch)
        guard.check(*outputs, inputs={say("the sheet"): Path(record.sheet_path)})
        files, end = ResultFiles(out, for_excel=for_excel, report=report), RunEnd(0, None, interrupted=False)
        summary = reconcile(settings, rules_of(settings, record.operation), journal, record, files, screen, end)
        if advices is not None:
            write_whole(advices, advices_of_batch(journal, record).encode())
    screen.finish(summary)
