"""`paygw-batch template`: write an empty sheet with the columns that some countries need."""

import shlex
from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import collect_option, complete_countries, guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import chosen_countries
from paygw_batch.language import say
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.sheet.write.template import GUIDE_HEADINGS, columns_of, write_template
from paygw_batch.wiring.operations import rules_of
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput


@click.command("template", cls=HelpCommand)
@click.argument("countries", metavar="COUNTRY...", nargs=-1, required=True, shell_complete=complete_countries)
@click.option("--out", type=NamedFile(), required=True, help="The new file (.xlsx or .csv).")
@collect_option
@click.pass_obj
def command(invocation: Invocation, *, operation: str, countries: tuple[str, ...], out: Path) -> None:
    """Write an empty sheet for payments to each COUNTRY (KE, TZ, ...), with help beside it."""
    screen = Screen(invocation)
    settings = settings_of(invocation)
    guard_of(invocation, settings).check(RequestedOutput("--out", out, OutputKind.NEW))
    chosen = chosen_countries(countries, rules_of(settings, operation))
    guides = write_template(chosen, out)
    missing = [key for rule in chosen for key in rule.missing_terms]
    if missing:
        screen.notes(
            [say("Before anything can be sent, the configuration must set {missing}.", missing=", ".join(missing))]
        )
    if out.suffix.lower() == ".csv":
        screen.table("", GUIDE_HEADINGS, [guide.cells for guide in guides])
        screen.notes([say("A spreadsheet drops leading zeros from a .csv file; an .xlsx keeps them.")])
    further = "" if operation == PAYOUT else "--collect "
    screen.finish(
        Summary(
            ExitCode.DONE,
            say(
                "The template is in {out}. Fill it in, then: paygw-batch validate {further}{out}",
                out=shlex.quote(str(out)),
                further=further,
            ),
            further={"template": str(out), "columns": columns_of(guides)},
        )
    )
