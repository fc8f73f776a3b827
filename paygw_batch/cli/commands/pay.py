"""The commands that send rows (`submit`, `collect`, `resume`, `retry`), and `reconcile`."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from paygw_batch.approval.policy import default_plan_path, identify_person
from paygw_batch.cli.help_texts import HelpCommand, SheetCommand
from paygw_batch.cli.invocation import Invocation, Number, PathType, WholeNumber
from paygw_batch.cli.options import (
    ResultOptions,
    bundle_options,
    by_option,
    choices_options,
    complete_batches,
    excel_option,
    force_option,
    output_guard,
    parse_expected_totals,
    profile_option,
    require_csv,
    result_options,
    settings_for,
    skip_invalid_option,
    wait_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import (
    ContinuedBatch,
    continue_batch,
    read_submission,
    reconcile,
    report_run,
    send_and_reconcile,
    show_plan_findings,
    submit_and_report,
)
from paygw_batch.cli.sheet_questions import answers_options, show_totals
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.choices import BatchSender, Choices
from paygw_batch.core.money import format_amount
from paygw_batch.countries.load import load_operation
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import UsageError
from paygw_batch.files import write_atomically
from paygw_batch.language import say, say_count
from paygw_batch.opening.gateway_access import open_gateway
from paygw_batch.opening.given_sheet import Reading, SheetSource, require_complete, rule_minor_units, rules_for
from paygw_batch.opening.open_journal import (
    find_batch,
    journal_for_planning,
    open_journal_for_run,
    open_journal_to_read,
    require_workers,
)
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.corrections import read_corrections
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.remittance import render_batch_advices
from paygw_batch.show.summary import Summary, exit_code_for
from paygw_batch.show.totals import sum_pieces
from paygw_batch.submit.approvals import named_plan
from paygw_batch.submit.results import ResultFiles, default_output_path
from paygw_batch.submit.submission import (
    Conversation,
    Submission,
    ask_questions,
    plan_sheet,
    preview_rows,
    refusal_for_defects,
)
from paygw_batch.submit.submit_sheet import ReleasedRows, add_warnings, refusal_summary, release_rejected_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _SheetArguments(ResultOptions):
    """The argument and options of `submit` or `collect`."""

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


sheet_options = bundle_options(
    "arguments",
    _SheetArguments,
    click.argument("sheet", type=PathType()),
    answers_options,
    profile_option,
    click.option("--out", type=PathType(), help="Reconciliation file (.csv, .parquet or .xlsx)."),
    excel_option,
    skip_invalid_option,
    click.option("--mended", type=PathType(), metavar="FILE", help="File of corrections made in the console."),
    choices_options,
    click.option("--plan", type=PathType(), help="The approved plan. Default: SHEET.plan.json."),
    click.option("--first", type=WholeNumber(1), help="Send at most N rows, then stop (exit code 6)."),
    click.option("--detach", is_flag=True, help="Hand the batch over to workers, and return immediately."),
    click.option("--urgent", is_flag=True, help="Let workers send this batch before other batches."),
    click.option("--dry-run", is_flag=True, help="Show what would be sent, without sending or writing anything."),
    click.option("--concurrency", type=WholeNumber(1, 1024), help="Maximum number of requests in flight."),
    click.option("--rate-per-s", type=Number(0), help="Maximum number of requests a second (0 for no limit)."),
    click.option("--expect-rows", type=WholeNumber(0), help="Refuse the sheet unless it has exactly this many rows."),
    click.option(
        "--expect-total",
        multiple=True,
        metavar="CUR=AMOUNT",
        help="Refuse the sheet unless its total is exactly this amount. Repeatable.",
    ),
    wait_option,
    by_option,
    force_option,
)
"""Adds the argument and options of `submit` and `collect`, which these commands receive as `arguments`."""


@click.command("submit", cls=SheetCommand)
@sheet_options
@click.pass_obj
def submit_command(invocation: Invocation, arguments: _SheetArguments) -> None:
    """Pay the people in SHEET: start its batch, or continue it. Running the same command again is always safe."""
    _submit_or_collect(invocation, PAYOUT, arguments)


def _submit_or_collect(invocation: Invocation, operation: str, arguments: _SheetArguments) -> None:
    screen, sheet, out = Screen(invocation), arguments.sheet, arguments.out
    totals = parse_expected_totals(arguments.expect_rows, arguments.expect_total)
    require_csv(out, for_excel=arguments.for_excel)
    limits = {("submission", "concurrency"): arguments.concurrency, ("submission", "rate_per_s"): arguments.rate_per_s}
    settings = settings_for(invocation, limits)
    sent_by = _choose_sender(settings, arguments.choices, detach=arguments.detach)
    rules, plan = rules_for(settings, operation), arguments.plan or default_plan_path(sheet)
    command = load_operation(operation).command
    guard = output_guard(invocation, settings, force=arguments.force)
    inputs = {say("the sheet"): sheet, say("the plan"): plan, say("the corrections"): arguments.mended}
    output = RequestedOutput("--out", out, OutputKind.RECONCILIATION, sheet)
    guard.check(output, inputs=inputs, reporting=not arguments.dry_run)
    require_complete(settings, rules, set())
    actor = identify_person(arguments.by)
    corrections = None if arguments.mended is None else read_corrections(arguments.mended)
    choices = replace(
        arguments.choices, sent_by=sent_by, is_plan_named=arguments.plan is not None, expected=totals, decided_by=actor
    )
    source = SheetSource(settings, rules, sheet, replace(arguments.reading, corrections=corrections))

    def read() -> Submission:
        submission = read_submission(screen, source, choices, plan)
        screen.notes(submission.validated.sheet.notes)
        submission.require_ready_to_send()
        return submission

    if arguments.dry_run:
        screen.finish(_dry_run(read, settings, screen))
    with report_run(settings, command, screen) as report:
        report.sheet = sheet
        submission = read()
        out_path = out or default_output_path(sheet, submission.validated.sheet.name)
        files = ResultFiles(out_path, is_out_named=out is not None, for_excel=arguments.for_excel)
        files.check(guard, submission)
        with (
            open_gateway(settings, rules, os.environ) as gateway,
            open_journal_for_run(settings, command, screen.say, wait=arguments.wait) as journal,
        ):
            report.summary = submit_and_report(submission, files, gateway, journal, screen)
    screen.finish(report.summary)


def _choose_sender(settings: Settings, choices: Choices, *, detach: bool) -> BatchSender:
    if detach or choices.urgent:
        require_workers(settings)
    if not detach:
        return BatchSender.WORKERS_IF_ANY
    if choices.first is not None:
        message = say("--first cannot be used with --detach, because this command sends the first rows itself.")
        raise UsageError(message, hint=say("Send the first rows without --detach, then run the command again with it."))
    return BatchSender.WORKERS_LATER


def _dry_run(read: Callable[[], Submission], settings: Settings, screen: Screen) -> Summary:
    with journal_for_planning(settings) as journal:
        submission = read()
        plan, minor_units = plan_sheet(submission, journal), rule_minor_units(submission.source.rules)
        show_plan_findings(screen, plan)
        named_plan(submission)  # an unreadable plan is reported before defects
        if (refusal := refusal_for_defects(submission, plan, journal)) is not None:
            return refusal_summary(refusal, submission)
        totals = sum_pieces(preview_rows(plan, journal, minor_units), minor_units)
        show_totals(screen, totals.lines)
        if (refusal := ask_questions(submission, plan, journal, Conversation())) is not None:
            return refusal_summary(refusal, submission)
    ready_count = totals.states.get("ready", 0)
    sums = {currency: states["ready"] for currency, states in totals.totals.items() if "ready" in states}
    sums_text = ", ".join(f"{currency} {format_amount(amount)}" for currency, amount in sums.items())
    summary = Summary(
        exit_code_for({state: count for state, count in totals.states.items() if state != "ready"}),
        say_count(
            ready_count,
            "Dry run: {count:,} row would be sent ({sums}). Nothing was sent or written.",
            "Dry run: {count:,} rows would be sent ({sums}). Nothing was sent or written.",
            sums=sums_text or say("nothing"),
        ),
        batch=plan.validated.batch,
        sheet=plan.validated.sheet.name,
        rows=ready_count,
        states=totals.states,
        totals={currency: {"ready": amount} for currency, amount in sums.items()},
        defects=plan.validated.defects_found.rows.len(),
        known=plan.validated.payable_count - ready_count,
    )
    return add_warnings(summary, plan)


@click.command("collect", cls=SheetCommand)
@sheet_options
@click.pass_obj
def collect_command(invocation: Invocation, arguments: _SheetArguments) -> None:
    """Collect from the customers in SHEET: start its batch, or continue it. Running the same command again is safe.

    You can then resume, retry, resolve and reconcile the batch by its id, like any other.
    """
    _submit_or_collect(invocation, PAYIN, arguments)


@click.command("resume", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=PathType(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@wait_option
@force_option
@click.pass_obj
@result_options
def resume_command(invocation: Invocation, *, batch: str | None, results: ResultOptions) -> None:
    """Continue BATCH (its full or abbreviated id, or its sheet's path) using only the journal.

    Without BATCH, the command continues the only batch that has rows left to send.
    """
    screen = Screen(invocation)
    require_csv(results.out, for_excel=results.for_excel)
    settings = settings_for(invocation)
    with continue_batch(invocation, settings, "resume", screen, batch, results) as run:
        run.report.summary = send_and_reconcile(run.job, run.files, screen)
    screen.finish(run.report.summary)


MAX_SHOWN_WAITING = 20
"""The maximum number of rejected rows listed with the earliest time to retry them."""


@click.command("retry", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--out", type=PathType(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@by_option
@wait_option
@force_option
@click.pass_obj
@result_options
def retry_command(
    invocation: Invocation, *, batch: str, rows: tuple[int, ...], by: str | None, results: ResultOptions
) -> None:
    """Send the rejected rows of BATCH (its full or abbreviated id, or its sheet's path) again.

    Like `resume`, this command also sends other rows that are ready. Rows in doubt are never sent. If two people must
    decide, use `order release`.
    """
    screen = Screen(invocation)
    require_csv(results.out, for_excel=results.for_excel)
    settings = settings_for(invocation)
    actor = identify_person(by)
    with continue_batch(invocation, settings, "retry", screen, batch, results) as run:
        run.report.summary = send_released(run, screen, release_rejected_rows(run.job, rows or None, actor))
    screen.finish(run.report.summary)


def send_released(run: ContinuedBatch, screen: Screen, released: ReleasedRows) -> Summary:
    """Send a batch's due rows, including the released ones, and return the summary."""
    count_text = (
        say_count(released.rows, "{count:,} rejected row is released.", "{count:,} rejected rows are released.")
        if released.rows
        else say("No rejected row can be retried now.")
        if released.waiting
        else say("There is no rejected row to retry.")
    )
    screen.say(" ".join([count_text, *released.waiting[:MAX_SHOWN_WAITING]]))
    summary = send_and_reconcile(run.job, run.files, screen)
    waiting_count = len(released.waiting)
    reason = (
        say_count(waiting_count, "{count:,} rejected row must wait", "{count:,} rejected rows must wait")
        if waiting_count
        else say("no row is rejected")
    )
    message = summary.message if released.rows else f"{say('Nothing to retry: {why}.', why=reason)} {summary.message}"
    return replace(summary, message=message, extra={"released": released.rows, "waiting": waiting_count})


@click.command("reconcile", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--out", type=PathType(), required=True, help="Reconciliation file (.csv, .parquet or .xlsx).")
@click.option("--report", type=PathType(), help="Also write an HTML report.")
@click.option("--advices", type=PathType(), help="Also write a remittance advice (HTML) for each person who was paid.")
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
    """Rewrite the reconciliation file of BATCH (its full or abbreviated id, or its sheet's path)."""
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_for(invocation)
    guard = output_guard(invocation, settings, force=force)
    outputs = (
        RequestedOutput("--out", out, OutputKind.RECONCILIATION),
        RequestedOutput("--report", report, OutputKind.REPORT),
        RequestedOutput("--advices", advices, OutputKind.REMITTANCE),
    )
    guard.check(*outputs, inputs={say("the sheet"): Path(batch)})
    with open_journal_to_read(settings, screen.say) as journal:
        record = find_batch(journal, batch)
        guard.check(*outputs, inputs={say("the sheet"): Path(record.sheet_path)})
        files, end = ResultFiles(out, for_excel=for_excel, report=report), RunEnd(0, None, interrupted=False)
        summary = reconcile(settings, rules_for(settings, record.operation), journal, record, files, screen, end)
        if advices is not None:
            write_atomically(advices, render_batch_advices(journal, record, settings.reporting.payer).encode())
    screen.finish(summary)
