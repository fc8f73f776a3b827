"""`paygw-batch reconcile`: write the reconciliation file again."""

from pathlib import Path

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import complete_batches, excel_option, force_option, guard_of, require_csv, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import reconcile
from paygw_batch.engine.engine import RunEnd
from paygw_batch.language import say
from paygw_batch.wiring.journal import find_batch, journal_to_read
from paygw_batch.wiring.operations import rules_of
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput


@click.command("reconcile", cls=HelpCommand)
@click.argument("batch", shell_complete=complete_batches)
@click.option("--out", type=NamedFile(), required=True, help="The file (.csv, .parquet or .xlsx).")
@click.option("--report", type=NamedFile(), help="Also write an HTML report.")
@excel_option
@force_option
@click.pass_obj
def command(
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
