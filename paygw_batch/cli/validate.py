"""`paygw-batch validate`: read and validate a sheet; send nothing, write no journal."""

import time
from pathlib import Path
from typing import Any

import click
import polars as pl

from paygw_batch.cli.options import settings_of, worksheet_option
from paygw_batch.cli.render import Screen
from paygw_batch.cli.root import Invocation
from paygw_batch.compose.parts import minor_units_of, rules_of, validated_sheet
from paygw_batch.run.books import books
from paygw_batch.run.summary import ExitCode, Summary
from paygw_batch.sheet.write import write_rejects

LISTED_DEFECTS = 1000
"""How many defects the JSON summary lists."""


@click.command("validate", short_help="Check a sheet.")
@click.argument("sheet", type=click.Path(path_type=Path))
@worksheet_option
@click.option("--rejects", type=click.Path(path_type=Path), help="Write the refused rows here, with what is wrong.")
@click.option("--reference", metavar="TEXT", help="Names the payment run; order ids are derived from it.")
@click.pass_obj
def command(
    invocation: Invocation, *, sheet: Path, worksheet: str | None, rejects: Path | None, reference: str | None
) -> None:
    """Read SHEET, hold every row against its country's rules, and say in plain words what is wrong."""
    started_s = time.monotonic()
    screen = Screen(invocation)
    settings = settings_of(invocation)
    rules = rules_of(settings)
    validated = validated_sheet(settings, rules, sheet, reference=reference, worksheet=worksheet)
    screen.notes(validated.sheet.notes)
    screen.findings("Defects", validated.defects)
    screen.findings("Warnings", validated.warnings)
    state = pl.when("valid").then(pl.lit("ready")).otherwise(pl.lit("invalid"))
    counted = books(validated.rows.with_columns(state=state), minor_units_of(rules))
    screen.books(counted)
    bad = counted.states.get("invalid", 0)
    message = (
        f"{validated.rows.height:,} rows, no defect."
        if not bad
        else f"{bad:,} of {validated.rows.height:,} rows have defects."
    )
    if rejects is not None:
        if bad:
            write_rejects(validated, rejects)
            message += f" They are in {rejects}: mend them there and submit that file."
        else:
            message += " There are no rejects to write."
    screen.finish(
        Summary(
            ExitCode.DEFECTS if bad else ExitCode.DONE,
            message,
            batch=validated.batch,
            sheet=validated.sheet.name,
            rows=validated.rows.height,
            states=counted.states,
            totals=counted.totals,
            defects=bad,
            seconds=time.monotonic() - started_s,
            further={"defect_list": _defect_list(validated.defects)},
        )
    )


def _defect_list(defects: pl.DataFrame) -> list[dict[str, Any]]:
    return defects.head(LISTED_DEFECTS).select("row", "column", "value", "code", "message").to_dicts()
