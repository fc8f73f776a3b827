"""`paygw-batch submit`: start the sheet's batch, or continue it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from paygw_batch.cli.help_texts import SheetCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import (
    by_option,
    force_option,
    guard_of,
    profile_option,
    repeats_option,
    settings_of,
    stated_totals,
    strict_option,
    wait_option,
    worksheet_option,
)
from paygw_batch.cli.runs.run_report import reported
from paygw_batch.cli.runs.send_batch import default_out
from paygw_batch.cli.runs.sheet_results import (
    ResultFiles,
    refused_summary,
    show_planned,
    submit_and_report,
    with_warnings_told,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.sheet_tables import show_totals
from paygw_batch.compose.actions.mend_sheet import read_mending
from paygw_batch.compose.actions.send import SentBy
from paygw_batch.compose.actions.submit_sheet import (
    Submission,
    Surface,
    plan_sheet,
    preview,
    refused_as_repeat,
    refused_for_defects,
)
from paygw_batch.compose.approvals import default_plan
from paygw_batch.compose.gateway import gateway_of
from paygw_batch.compose.journal import journal_to_plan_with, shared_database
from paygw_batch.compose.operations import minor_units_of, require_complete, rules_of
from paygw_batch.compose.operator import person
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.compose.sheet import require_as_stated, validated_sheet
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.money import with_separators
from paygw_batch.errors import UsageError
from paygw_batch.journal import JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import Summary, of_states
from paygw_batch.report.totals import books_of_pieces
from paygw_batch.settings.configuration import Settings

_OPTIONS = (
    click.argument("sheet", type=click.Path(path_type=Path)),
    worksheet_option,
    profile_option,
    click.option("--out", type=click.Path(path_type=Path), help="Reconciliation file (.csv, .parquet or .xlsx)."),
    click.option("--reference", metavar="TEXT", help="Names the payment run; order ids are derived from it."),
    click.option("--skip-invalid", is_flag=True, help="Leave rows with defects out and send the others."),
    click.option(
        "--mended", type=click.Path(path_type=Path), metavar="FILE", help="Corrections that were made in the console."
    ),
    click.option("--amend", is_flag=True, help="Let changed rows replace those that are rejected or were never sent."),
    strict_option,
    repeats_option,
    click.option("--plan", type=click.Path(path_type=Path), help="The approved plan. Default: SHEET.plan.json."),
    click.option("--first", type=click.IntRange(1), help="Send only the first N due rows, and stop (6)."),
    click.option("--detach", is_flag=True, help="Hand the batch over to the workers, and end at once."),
    click.option("--dry-run", is_flag=True, help="Show what would be sent; send and write nothing."),
    click.option("--concurrency", type=click.IntRange(1, 1024), help="Requests in flight at the most."),
    click.option("--rate-per-s", type=click.FloatRange(0), help="Requests a second at the most; 0: no limit."),
    click.option("--expect-rows", type=click.IntRange(0), help="Refuse the sheet unless it has so many rows."),
    click.option(
        "--expect-total",
        multiple=True,
        metavar="CUR=AMOUNT",
        help="Refuse the sheet unless it comes to this. Repeatable.",
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


@click.command("submit", cls=SheetCommand, short_help="Pay a sheet.")
@sheet_options
@click.pass_obj
def command(invocation: Invocation, /, **asked: Any) -> None:
    """Pay the people on SHEET: start its batch, or continue it. Running the same command again is always safe."""
    run_sheet(invocation, PAYOUT, "submit", **asked)


def run_sheet(
    invocation: Invocation,
    operation: str,
    command_name: str,
    *,
    sheet: Path,
    worksheet: str | None,
    column_profile: str | None,
    out: Path | None,
    reference: str | None,
    skip_invalid: bool,
    mended: Path | None,
    amend: bool,
    strict: bool,
    repeats_meant: bool,
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
) -> None:
    """Run a sheet of `operation`: start its batch, or continue it."""
    screen, stated = Screen(invocation), stated_totals(expect_rows, expect_total)
    pace = {("submission", "concurrency"): concurrency, ("submission", "rate_per_s"): rate_per_s}
    settings = settings_of(invocation, {**pace, ("sheet", "column_profile"): column_profile})
    choices = (skip_invalid, amend, strict, repeats_meant, first, _sent_by(settings, first, detach=detach))
    rules, plan_file = rules_of(settings, operation), plan or default_plan(sheet)
    guard = guard_of(invocation, settings, force=force)
    inputs = {say("the sheet"): sheet, say("the plan"): plan_file}
    inputs |= {} if mended is None else {say("the corrections"): mended}
    guard.check(Wanted("--out", out, OutputKind.RECONCILIATION), inputs=inputs, reporting=not dry_run)
    require_complete(settings, rules, set())
    mending = None if mended is None else read_mending(mended)

    def read() -> Submission:
        validated = validated_sheet(settings, rules, sheet, reference=reference, worksheet=worksheet, mending=mending)
        screen.notes(validated.sheet.notes)
        require_as_stated(settings, rules, validated, stated)
        return Submission(validated, sheet, plan_file, person(by), *choices)

    if dry_run:
        with journal_to_plan_with(settings) as reader:
            summary = _tried(read(), settings, reader, minor_units_of(rules), screen)
        screen.finish(summary)
    with reported(settings, command_name, screen) as report:
        asked = read()
        files = ResultFiles(out or default_out(sheet, asked.validated.sheet.name), is_out_named=out is not None)
        files.check(guard, asked)
        with (
            gateway_of(settings, rules, os.environ) as gateway,
            run_journal(settings, command_name, screen.say, wait=wait) as journal,
        ):
            report.summary = submit_and_report(asked, files, settings, rules, gateway, journal, screen)
    screen.finish(report.summary)


def _sent_by(settings: Settings, first: int | None, *, detach: bool) -> SentBy:
    """Return who sends the batch. Raises `UsageError` where it cannot be handed over."""
    if not detach:
        return SentBy.WORKERS_IF_ANY
    shared_database(settings)
    if first is not None:
        raise UsageError(
            say("--first and --detach are both given: the first rows are sent by the command itself."),
            hint=say("Send the first rows without --detach, then hand over the others."),
        )
    return SentBy.WORKERS_LATER


def _tried(
    asked: Submission, settings: Settings, journal: JournalReader, minor_units: Mapping[str, int], screen: Screen
) -> Summary:
    """Show defects, warnings and totals of a submission; return its summary. Nothing is sent, and nobody is asked."""
    plan = plan_sheet(asked, settings, journal)
    show_planned(screen, plan)
    if (refused := refused_for_defects(asked, plan, journal)) is not None:
        return refused_summary(refused, strict=asked.strict)
    counted = books_of_pieces(preview(plan, journal, minor_units), minor_units)
    show_totals(screen, counted)
    if (refused := refused_as_repeat(asked, plan, journal, Surface())) is not None:
        return refused_summary(refused, strict=asked.strict)
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
        rows=plan.validated.height,
        states=counted.states,
        totals=counted.totals,
        defects=plan.validated.defects_found.rows.len(),
        known=plan.known_rows,
    )
    return with_warnings_told(summary, plan)
