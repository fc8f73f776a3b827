"""The commands for sheets that need no journal: `validate` and `template`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, PathType
from paygw_batch.cli.options import (
    collect_option,
    complete_countries,
    force_option,
    output_guard,
    profile_option,
    settings_for,
    strict_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.sheet_questions import answers_options, read_with_answers, show_findings, show_totals
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.shown_states import INVALID
from paygw_batch.countries.load import select_countries
from paygw_batch.errors import UsageError
from paygw_batch.language import mark, say, say_count
from paygw_batch.opening.given_sheet import Reading, SheetSource, default_value_notes, rule_minor_units, rules_for
from paygw_batch.sheet.check.validate import warnings_as_defects, whole_sheet_refusal
from paygw_batch.sheet.findings import summary_findings, warning_summary
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.guesses import write_heading_map
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.profiles import PROFILE_EXTENSION
from paygw_batch.sheet.read.sheet_file import read_headings
from paygw_batch.sheet.write.rejects import write_rejects
from paygw_batch.sheet.write.template import GUIDE_HEADINGS, guided_columns, write_template
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.show.totals import sheet_totals

_STATE_LABELS: Mapping[str, str] = {"ready": mark("payable"), INVALID: mark("with defects")}
"""The labels of row states that `validate` shows."""


@click.command("validate", cls=HelpCommand)
@click.argument("sheet", type=PathType())
@answers_options
@profile_option
@click.option(
    "--map",
    "map_file",
    type=PathType(),
    metavar="FILE.toml",
    help="Write the sheet's headings to this file. Fill in their meanings, then use the file as --column-profile.",
)
@click.option("--rejects", type=PathType(), help="Write the refused rows and their defects to this file.")
@strict_option
@collect_option
@force_option
@click.pass_obj
def validate_command(
    invocation: Invocation,
    /,
    *,
    operation: str,
    sheet: Path,
    reading: Reading,
    map_file: Path | None,
    rejects: Path | None,
    strict: bool,
    force: bool,
) -> None:
    """Check every row of SHEET against its country's rules, and list every defect. Nothing is sent."""
    screen, settings = Screen(invocation), settings_for(invocation)
    output_guard(invocation, settings, force=force).check(
        RequestedOutput("--rejects", rejects, OutputKind.REJECTS),
        RequestedOutput("--map", map_file, OutputKind.MAP),
        inputs={say("the sheet"): sheet},
    )
    rules = rules_for(settings, operation)
    source = SheetSource(settings, rules, sheet, reading)
    if map_file is not None:
        _write_map(map_file, sheet, source.options, screen)
    validated, source = read_with_answers(screen, SheetSource.validated, source)
    if strict:
        validated = warnings_as_defects(validated)
    screen.notes(validated.sheet.notes)
    screen.notes(default_value_notes(rules, validated.counts["country"].to_list(), validated.sheet.headers))
    headings = validated.sheet.headers
    show_findings(screen, say("Defects"), validated.defects_found, headings)
    show_findings(screen, say("Warnings"), validated.warnings_found, headings)
    totals = sheet_totals(validated.counts, rule_minor_units(rules))
    show_totals(screen, [(*line[:2], _STATE_LABELS[line[2]], *line[3:]) for line in totals.lines])
    invalid_count = totals.states.get(INVALID, 0)
    sheet_refusal = whole_sheet_refusal(validated) if strict else ""
    message = _validation_message(validated, invalid_count) if invalid_count or not sheet_refusal else sheet_refusal
    if rejects is not None:
        message += _save_rejects(validated, invalid_count, source, rejects, screen)
    defects = summary_findings(validated.defects_found, headings)
    summary = Summary(
        ExitCode.DEFECTS if invalid_count or sheet_refusal else ExitCode.DONE,
        message,
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        states=totals.states,
        totals=totals.totals,
        defects=invalid_count + bool(sheet_refusal),
        extra={"defect_list": defects, **warning_summary(validated.warnings_found, headings)},
    )
    screen.finish(summary)


def _write_map(path: Path, sheet: Path, options: ReadOptions, screen: Screen) -> None:
    """Write a sheet's headings to a file, even if the sheet is refused because of them."""
    if path.suffix != PROFILE_EXTENSION:
        raise UsageError(say("{path} does not end in {ending}.", path=path, ending=PROFILE_EXTENSION))
    write_heading_map(path, sheet.name, read_headings(sheet, options), options.columns)
    template = mark("The headings of {name} are in {path}. Check every line, then use --column-profile {path}.")
    screen.say(say(template, name=sheet.name, path=path))


def _validation_message(validated: Validated, invalid_count: int) -> str:
    if not invalid_count:
        return say_count(validated.height, "{count:,} row, no defects.", "{count:,} rows, no defects.")
    rows = say_count(validated.height, "{count:,} row", "{count:,} rows")
    return say_count(invalid_count, "{count:,} of {rows} has defects.", "{count:,} of {rows} have defects.", rows=rows)


def _save_rejects(validated: Validated, invalid_count: int, source: SheetSource, rejects: Path, screen: Screen) -> str:
    """Write the refused rows to `rejects`, and return a message about them."""
    if not invalid_count:
        return " " + say("There are no refused rows to write.")
    result = write_rejects(validated, source.path, source.options, rejects)
    screen.notes(result.notes)
    if result.is_workbook:
        return " " + say("Correct the red cells in {rejects}, then submit that workbook.", rejects=rejects)
    template = (
        mark("The refused rows are in {rejects}. Correct them there and submit that file.")
        if "client_orderid" in validated.sheet.headers
        else mark("The refused rows are in {rejects}. Correct them in the sheet, and submit the whole sheet.")
    )
    return " " + say(template, rejects=rejects)


@click.command("template", cls=HelpCommand)
@click.argument("countries", metavar="COUNTRY...", nargs=-1, required=True, shell_complete=complete_countries)
@click.option("--out", type=PathType(), required=True, help="New file (.xlsx or .csv).")
@collect_option
@click.pass_obj
def template_command(invocation: Invocation, *, operation: str, countries: tuple[str, ...], out: Path) -> None:
    """Write an empty sheet for payments to each COUNTRY (KE, TZ, ...), with a guide to its columns."""
    screen, settings = Screen(invocation), settings_for(invocation)
    output_guard(invocation, settings).check(RequestedOutput("--out", out, OutputKind.NEW))
    chosen_rules = select_countries(countries, rules_for(settings, operation))
    guides = write_template(chosen_rules, out)
    if missing := ", ".join(key for rule in chosen_rules for key in rule.missing_terms):
        screen.notes([say("Before anything can be sent, you must configure {missing}.", missing=missing)])
    if out.suffix.lower() == ".csv":
        screen.table("", GUIDE_HEADINGS, [guide.cells for guide in guides])
        screen.notes([say("Spreadsheets drop leading zeros from .csv files, but keep them in .xlsx files.")])
    message = say(
        "The template is in {out}. Fill it in, then run: paygw-batch validate {further}{out}",
        out=shlex.quote(str(out)),
        further="" if operation == PAYOUT else "--collect ",
    )
    screen.finish(Summary(ExitCode.DONE, message, extra={"template": str(out), "columns": guided_columns(guides)}))
