"""The commands that send rows (`submit`, `collect`, `resume`, `retry`), and `reconcile`, which writes results again."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from paygw_batch.actions.check_payout import corrections_of
from paygw_batch.actions.plan_document import (
    Conversation,
    SentBy,
    SheetOptions,
    Submission,
    plan_sheet,
    preview,
    refused_for_defects,
    refused_for_questions,
)
from paygw_batch.actions.results import ResultFiles, default_out
from paygw_batch.actions.submit_sheet import (
    ReleasedRows,
    refused_summary,
    release_rejected,
    require_named_plan,
    with_warnings_told,
)
from paygw_batch.cli.help_texts import HelpCommand, SheetCommand
from paygw_batch.cli.invocation import Invocation, NamedFile, Number, WholeNumber
from paygw_batch.cli.options import (
    answers_of,
    answers_options,
    by_option,
    complete_batches,
    excel_option,
    force_option,
    guard_of,
    meant_options,
    profile_option,
    require_csv,
    settings_of,
    stated_totals,
    strict_option,
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
    submit_and_report,
)
from paygw_batch.cli.sheet_questions import answered, as_typed, show_totals
from paygw_batch.core.batch import PAYIN, PAYOUT
from paygw_batch.core.money import with_separators
from paygw_batch.engine.engine import RunEnd
from paygw_batch.errors import UsageError
from paygw_batch.journal import JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import Summary, of_states
from paygw_batch.report.totals import books_of_pieces
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.check.mending import read_mending
from paygw_batch.wiring.approvals import default_plan, person
from paygw_batch.wiring.gateway import gateway_of
from paygw_batch.wiring.journal import find_batch, journal_for_planning, journal_to_read, require_workers, run_journal
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput
from paygw_batch.wiring.sheet import minor_units_of, require_as_stated, require_complete, rules_of, validated_sheet

_OPTIONS = (
    click.argument("sheet", type=NamedFile()),
    answers_options,
    profile_option,
    click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx)."),
    excel_option,
    click.option("--skip-invalid", is_flag=True, help="Leave rows with defects out and send the others."),
    click.option("--mended", type=NamedFile(), metavar="FILE", help="File of corrections made in the console."),
    click.option("--amend", is_flag=True, help="Let changed rows replace those that are rejected or were never sent."),
    strict_option,
    meant_options,
    click.option("--plan", type=NamedFile(), help="The approved plan. Default: SHEET.plan.json."),
    click.option("--first", type=WholeNumber(1), help="Send at most N rows, then stop (exit code 6)."),
    click.option("--detach", is_flag=True, help="Hand the batch over to the workers and return at once."),
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


def sheet_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument and the options of `run_sheet` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("submit", cls=SheetCommand)
@sheet_options
@click.pass_obj
def submit_command(invocation: Invocation, /, **asked: Any) -> None:
    """Pay the people on SHEET: start its batch, or continue it. Running the same command again is always safe."""
    run_sheet(invocation, PAYOUT, "submit", **asked)


def run_sheet(
    invocation: Invocation,
    operation: str,
    command_name: str,
    *,
    sheet: Path,
    column_profile: str | None,
    out: Path | None,
    for_excel: bool,
    mended: Path | None,
    plan: Path | None,
    first: int | None,
    detach: bool,
    dry_run: bool,
    concurrency: int | None,
    rate_per_s: float | None,
    expect_rows: int | None,
    expect_total: tuple[str, ...],
    wait: bool,
    by: str | None,
    force: bool,
    **further: Any,
) -> None:
    """Run a sheet of `operation`. `further` has the values of `answers_options` and of `SheetOptions`."""
    screen, answers, stated = Screen(invocation), answers_of(further), stated_totals(expect_rows, expect_total)
    require_csv(out, for_excel=for_excel)
    pace = {("submission", "concurrency"): concurrency, ("submission", "rate_per_s"): rate_per_s}
    settings = settings_of(invocation, {**pace, ("sheet", "column_profile"): column_profile})
    sent_by = _sent_by(settings, first, detach=detach, urgent=further["urgent"])
    options = SheetOptions(**further, first=first, sent_by=sent_by, is_plan_named=plan is not None)
    rules, plan_file = rules_of(settings, operation), plan or default_plan(sheet)
    guard = guard_of(invocation, settings, force=force)
    inputs = {say("the sheet"): sheet, say("the plan"): plan_file, say("the corrections"): mended}
    guard.check(RequestedOutput("--out", out, OutputKind.RECONCILIATION, sheet), inputs=inputs, reporting=not dry_run)
    require_complete(settings, rules, set())
    decider, mending = person(by), None if mended is None else read_mending(mended)
    reading = partial(validated_sheet, settings, rules, sheet, mending=mending)
    corrections = partial(corrections_of, settings, mending)

    def read() -> Submission:
        validated, answered_by = answered(screen, reading, answers, operation, sheet)
        screen.notes(validated.sheet.notes)
        require_as_stated(settings, rules, validated, stated)
        again, typed = partial(reading, answered_by), as_typed(sheet, answered_by, column_profile)
        return Submission(validated, sheet, plan_file, decider, options, again, corrections, typed)

    if dry_run:
        screen.finish(_tried(read, settings, minor_units_of(rules), screen))
    with reported(settings, command_name, screen) as report:
        report.sheet = sheet
        asked = read()
        place = out or default_out(sheet, asked.validated.sheet.name)
        files = ResultFiles(place, is_out_named=out is not None, for_excel=for_excel)
        files.check(guard, asked)
        with (
            gateway_of(settings, rules, os.environ) as gateway,
            run_journal(settings, command_name, screen.say, wait=wait) as journal,
        ):
            report.summary = submit_and_report(asked, files, settings, rules, gateway, journal, screen)
    screen.finish(report.summary)


def _sent_by(settings: Settings, first: int | None, *, detach: bool, urgent: bool) -> SentBy:
    """Return who sends the batch. Raises `UsageError` if it cannot be handed over, or there can be no workers."""
    if detach or urgent:
        require_workers(settings)
    if not detach:
        return SentBy.WORKERS_IF_ANY
    if first is not None:
        raise UsageError(
            say("--first and --detach cannot be combined: the command itself sends the first rows."),
            hint=say("Send the first rows without --detach, then hand over the others."),
        )
    return SentBy.WORKERS_LATER


def _tried(
    read: Callable[[], Submission], settings: Settings, minor_units: Mapping[str, int], screen: Screen
) -> Summary:
    """Show a submission's defects, warnings and totals; return its summary. Sends nothing, and asks nobody."""
    with journal_for_planning(settings) as journal:
        return _tried_with(journal, read(), settings, minor_units, screen)


def _tried_with(
    journal: JournalReader, asked: Submission, settings: Settings, minor_units: Mapping[str, int], screen: Screen
) -> Summary:
    plan = plan_sheet(asked, settings, journal)
    show_planned(screen, plan)
    require_named_plan(asked, settings)
    if (refused := refused_for_defects(asked, plan, journal)) is not None:
        return refused_summary(refused, asked)
    counted = books_of_pieces(preview(plan, journal, minor_units), minor_units)
    show_totals(screen, counted)
    if (refused := refused_for_questions(asked, plan, journal, Conversation())) is not None:
        return refused_summary(refused, asked)
    ready = counted.states.get("ready", 0)
    sums = ", ".join(
        f"{currency} {with_separators(by_state['ready'])}"
        for currency, by_state in counted.totals.items()
        if "ready" in by_state
    )
    summary = Summary(
        of_states({state: count for state, count in counted.states.items() if state != "ready"}),
        say_count(
            ready,
            "Dry run: {count:,} row would be sent ({sums}). Nothing was sent or written.",
            "Dry run: {count:,} rows would be sent ({sums}). Nothing was sent or written.",
            sums=sums or say("nothing"),
        ),
        batch=plan.validated.batch,
        sheet=plan.validated.sheet.name,
        rows=ready,
        states=counted.states,
        totals={
            currency: {"ready": by_state["ready"]}
            for currency, by_state in counted.totals.items()
            if "ready" in by_state
        },
        defects=plan.validated.defects_found.rows.len(),
        known=plan.validated.payable - ready,
    )
    return with_warnings_told(summary, plan)


@click.command("collect", cls=SheetCommand)
@sheet_options
@click.pass_obj
def collect_command(invocation: Invocation, /, **asked: Any) -> None:
    """Collect from the customers on SHEET: start its batch, or continue it. Running the same command again is safe.

    The batch is then resumed, retried, resolved and reconciled like any other, by its id.
    """
    run_sheet(invocation, PAYIN, "collect", **asked)


@click.command("resume", cls=HelpCommand)
@click.argument("batch", required=False, shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@wait_option
@force_option
@click.pass_obj
def resume_command(
    invocation: Invocation, *, batch: str | None, out: Path | None, for_excel: bool, wait: bool, force: bool
) -> None:
    """Continue BATCH (its id, a prefix of it, or its sheet's path) from the journal alone.

    Without BATCH: continue the only batch that has rows left to send.
    """
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    with continued(
        invocation, settings, "resume", screen, batch, out, wait=wait, force=force, for_excel=for_excel
    ) as run:
        run.report.summary = send_and_reconcile(run.task, run.out, screen, for_excel=run.for_excel)
    screen.finish(run.report.summary)


SHOWN_WAITING = 20
"""The maximum number of listed rows that cannot be released yet, each with the time when they can."""


@click.command("retry", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--row", "rows", type=WholeNumber(1), multiple=True, help="Only this row of the sheet. Repeatable.")
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx).")
@excel_option
@by_option
@wait_option
@force_option
@click.pass_obj
def retry_command(
    invocation: Invocation,
    *,
    batch: str,
    rows: tuple[int, ...],
    out: Path | None,
    for_excel: bool,
    by: str | None,
    wait: bool,
    force: bool,
) -> None:
    """Send the rejected rows of BATCH (its id, a prefix of it, or its sheet's path) again.

    Other rows that are ready are also sent, as by `resume`. Rows in doubt are never included. `order release` has two
    people decide it instead.
    """
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    who = person(by)
    with continued(
        invocation, settings, "retry", screen, batch, out, wait=wait, force=force, for_excel=for_excel
    ) as run:
        run.report.summary = send_released(run, screen, release_rejected(run.task, rows, who))
    screen.finish(run.report.summary)


def send_released(run: Continued, screen: Screen, released: ReleasedRows) -> Summary:
    """Send the released rows of a batch, with the others that are due, and return the summary."""
    said = (
        say_count(released.rows, "{count:,} rejected row is released.", "{count:,} rejected rows are released.")
        if released.rows
        else say("There is no rejected row to retry.")
    )
    screen.say(" ".join([said, *released.waiting[:SHOWN_WAITING]]))
    summary = send_and_reconcile(run.task, run.out, screen, for_excel=run.for_excel)
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
@excel_option
@force_option
@click.pass_obj
def reconcile_command(
    invocation: Invocation, *, batch: str, out: Path, report: Path | None, for_excel: bool, force: bool
) -> None:
    """Write the reconciliation file of BATCH (its id, a prefix of it, or its sheet's path) again."""
    screen = Screen(invocation)
    require_csv(out, for_excel=for_excel)
    settings = settings_of(invocation)
    guard = guard_of(invocation, settings, force=force)
    wanted = (
        RequestedOutput("--out", out, OutputKind.RECONCILIATION),
        RequestedOutput("--report", report, OutputKind.REPORT),
    )
    guard.check(*wanted, inputs={say("the sheet"): Path(batch)})
    with journal_to_read(settings, screen.say) as journal:
        record = find_batch(journal, batch)
        guard.check(*wanted, inputs={say("the sheet"): Path(record.sheet_path)})
        end, rules = RunEnd(0, None, interrupted=False), rules_of(settings, record.operation)
        quarantine_h = settings.submission.quarantine_h
        summary = reconcile(
            *(journal, record, rules, out, screen),
            end=end,
            report=report,
            quarantine_h=quarantine_h,
            for_excel=for_excel,
        )
    screen.finish(summary)
