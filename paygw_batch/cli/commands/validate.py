"""`paygw-batch validate`: read and validate a sheet; send nothing, write no journal."""

from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import (
    collect_option,
    force_option,
    guard_of,
    settings_of,
    strict_option,
    worksheet_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.sheet_tables import listed, show_findings, show_totals, warnings_told
from paygw_batch.compose.operations import filled_in_notes, minor_units_of, rules_of
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.sheet import read_options, validated_sheet
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.report.totals import totals_of_sheet
from paygw_batch.sheet.check.validate import warnings_as_defects
from paygw_batch.sheet.write.rejects import write_mendable


@click.command("validate", short_help="Check a sheet.")
@click.argument("sheet", type=click.Path(path_type=Path))
@worksheet_option
@click.option("--rejects", type=click.Path(path_type=Path), help="Write the refused rows here, with what is wrong.")
@click.option("--reference", metavar="TEXT", help="Names the payment run; order ids are derived from it.")
@strict_option
@collect_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    operation: str,
    sheet: Path,
    worksheet: str | None,
    rejects: Path | None,
    reference: str | None,
    strict: bool,
    force: bool,
) -> None:
    """Read SHEET, hold every row against its country's rules, and say in plain words what is wrong."""
    screen = Screen(invocation)
    settings = settings_of(invocation)
    guard_of(invocation, settings, force=force).check(
        Wanted("--rejects", rejects, OutputKind.REJECTS), inputs={"the sheet": sheet}
    )
    rules = rules_of(settings, operation)
    validated = validated_sheet(settings, rules, sheet, reference=reference, worksheet=worksheet)
    if strict:
        validated = warnings_as_defects(validated)
    screen.notes(validated.sheet.notes)
    screen.notes(filled_in_notes(rules, validated.counts["country"].to_list(), validated.sheet.headers))
    show_findings(screen, "Defects", validated.defects)
    show_findings(screen, "Warnings", validated.warnings)
    counted = totals_of_sheet(validated.counts, minor_units_of(rules))
    show_totals(screen, counted)
    bad = counted.states.get("invalid", 0)
    message = (
        f"{validated.height:,} rows, no defect." if not bad else f"{bad:,} of {validated.height:,} rows have defects."
    )
    if rejects is not None:
        if bad:
            written = write_mendable(validated, sheet, read_options(settings, operation, worksheet), rejects)
            screen.notes(written.notes)
            message += (
                f" The red cells in {rejects} are to be mended; then submit that workbook."
                if written.is_workbook
                else f" They are in {rejects}: mend them there and submit that file."
            )
        else:
            message += " There are no rejects to write."
    screen.finish(
        Summary(
            ExitCode.DEFECTS if bad else ExitCode.DONE,
            message,
            batch=validated.batch,
            sheet=validated.sheet.name,
            rows=validated.height,
            states=counted.states,
            totals=counted.totals,
            defects=bad,
            further={"defect_list": listed(validated.defects), **warnings_told(validated.warnings)},
        )
    )
