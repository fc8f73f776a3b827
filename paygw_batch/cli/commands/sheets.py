"""The commands about a sheet that read no journal: `validate`, which finds its defects, and `template`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import (
    collect_option,
    complete_countries,
    force_option,
    guard_of,
    profile_option,
    settings_of,
    strict_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.sheet_questions import answered, answers_options, show_findings, show_totals
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.shown_states import INVALID
from paygw_batch.countries.load import chosen_countries
from paygw_batch.errors import UsageError
from paygw_batch.language import mark, say, say_count
from paygw_batch.opening.given_sheet import GivenSheet, Reading, filled_in_notes, minor_units_of, rules_of
from paygw_batch.sheet.check.validate import refused_as_a_whole, warnings_as_defects
from paygw_batch.sheet.findings import listed, warnings_told
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.guesses import write_heading_map
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.profiles import OWN_ENDING
from paygw_batch.sheet.read.sheet_file import headings_in
from paygw_batch.sheet.write.rejects import write_mendable
from paygw_batch.sheet.write.template import GUIDE_HEADINGS, columns_of, write_template
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.show.totals import totals_of_sheet

_CHECKED: Mapping[str, str] = {"ready": mark("payable"), INVALID: mark("with defects")}
"""The words for the states of a checked row, which is not part of a batch yet."""


@click.command("validate", cls=HelpCommand)
@click.argument("sheet", type=NamedFile())
@answers_options
@profile_option
@click.option(
    "--map",
    "map_file",
    type=NamedFile(),
    metavar="FILE.toml",
    help="Write the sheet's headings to this file. Fill in their meanings, then pass it as --column-profile.",
)
@click.option("--rejects", type=NamedFile(), help="Write the refused rows and their defects to this file.")
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
    """Check every row of SHEET by its country's rules, and list every defect. Nothing is sent."""
    screen, settings = Screen(invocation), settings_of(invocation)
    guard_of(invocation, settings, force=force).check(
        RequestedOutput("--rejects", rejects, OutputKind.REJECTS),
        RequestedOutput("--map", map_file, OutputKind.MAP),
        inputs={say("the sheet"): sheet},
    )
    rules = rules_of(settings, operation)
    given_sheet = GivenSheet(settings, rules, sheet, reading)
    if map_file is not None:
        _write_map(map_file, sheet, given_sheet.options, screen)
    validated, given_sheet = answered(screen, GivenSheet.validated, given_sheet)
    if strict:
        validated = warnings_as_defects(validated)
    screen.notes(validated.sheet.notes)
    screen.notes(filled_in_notes(rules, validated.counts["country"].to_list(), validated.sheet.headers))
    headings = validated.sheet.headers
    show_findings(screen, say("Defects"), validated.defects_found, headings)
    show_findings(screen, say("Warnings"), validated.warnings_found, headings)
    counted = totals_of_sheet(validated.counts, minor_units_of(rules))
    show_totals(screen, [(*line[:2], _CHECKED[line[2]], *line[3:]) for line in counted.lines])
    bad = counted.states.get(INVALID, 0)
    whole = refused_as_a_whole(validated) if strict else ""
    message = _message(validated, bad) if bad or not whole else whole
    if rejects is not None:
        message += _rejects_written(validated, bad, given_sheet, rejects, screen)
    defects = listed(validated.defects_found, headings)
    summary = Summary(
        ExitCode.DEFECTS if bad or whole else ExitCode.DONE,
        message,
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        states=counted.states,
        totals=counted.totals,
        defects=bad + bool(whole),
        further={"defect_list": defects, **warnings_told(validated.warnings_found, headings)},
    )
    screen.finish(summary)


def _write_map(path: Path, sheet: Path, options: ReadOptions, screen: Screen) -> None:
    """Write the headings of a sheet to a file, even if the sheet is refused because of them."""
    if path.suffix != OWN_ENDING:
        raise UsageError(say("{path} does not end in {ending}.", path=path, ending=OWN_ENDING))
    write_heading_map(path, sheet.name, headings_in(sheet, options), options.columns)
    sentence = mark("The headings of {name} are in {path}. Look at every line; then --column-profile {path}.")
    screen.say(say(sentence, name=sheet.name, path=path))


def _message(validated: Validated, bad: int) -> str:
    if not bad:
        return say_count(validated.height, "{count:,} row, no defect.", "{count:,} rows, no defect.")
    rows = say_count(validated.height, "{count:,} row", "{count:,} rows")
    return say_count(bad, "{count:,} of {rows} has defects.", "{count:,} of {rows} have defects.", rows=rows)


def _rejects_written(validated: Validated, bad: int, given_sheet: GivenSheet, rejects: Path, screen: Screen) -> str:
    if not bad:
        return " " + say("There are no refused rows to write.")
    result = write_mendable(validated, given_sheet.path, given_sheet.options, rejects)
    screen.notes(result.notes)
    if result.is_workbook:
        return " " + say("Correct the red cells in {rejects}, then submit that workbook.", rejects=rejects)
    return " " + say("They are in {rejects}. Correct them there and submit that file.", rejects=rejects)


@click.command("template", cls=HelpCommand)
@click.argument("countries", metavar="COUNTRY...", nargs=-1, required=True, shell_complete=complete_countries)
@click.option("--out", type=NamedFile(), required=True, help="The new file (.xlsx or .csv).")
@collect_option
@click.pass_obj
def template_command(invocation: Invocation, *, operation: str, countries: tuple[str, ...], out: Path) -> None:
    """Write an empty sheet for payments to each COUNTRY (KE, TZ, ...), with help beside it."""
    screen, settings = Screen(invocation), settings_of(invocation)
    guard_of(invocation, settings).check(RequestedOutput("--out", out, OutputKind.NEW))
    chosen = chosen_countries(countries, rules_of(settings, operation))
    guides = write_template(chosen, out)
    if missing := ", ".join(key for rule in chosen for key in rule.missing_terms):
        screen.notes([say("Before anything can be sent, the configuration must set {missing}.", missing=missing)])
    if out.suffix.lower() == ".csv":
        screen.table("", GUIDE_HEADINGS, [guide.cells for guide in guides])
        screen.notes([say("A spreadsheet drops leading zeros from a .csv file; an .xlsx keeps them.")])
    message = say(
        "The template is in {out}. Fill it in, then: paygw-batch validate {further}{out}",
        out=shlex.quote(str(out)),
        further="" if operation == PAYOUT else "--collect ",
    )
    screen.finish(Summary(ExitCode.DONE, message, further={"template": str(out), "columns": columns_of(guides)}))
