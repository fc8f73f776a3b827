"""`paygw-batch carry-out`: do what an order says that two people agreed to."""

from collections.abc import Mapping
from pathlib import Path

import click

from paygw_batch.actions.continue_batch import release_by_order
from paygw_batch.actions.forget_people import forget_by_order
from paygw_batch.actions.settle_rows import carry_out_order
from paygw_batch.cli.commands.forget import forgotten
from paygw_batch.cli.commands.resolve import settled_sentence, summary_after_settling
from paygw_batch.cli.commands.retry import send_released
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import (
    by_option,
    complete_batches,
    excel_option,
    force_option,
    guard_of,
    require_csv,
    settings_of,
    wait_option,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, held
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.run.approval import PlanDocument
from paygw_batch.run.forget_order import ForgetOrder
from paygw_batch.run.row_order import RowOrder, batch_of_order
from paygw_batch.run.signed_document import read_document
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import person, required_policy
from paygw_batch.wiring.journal import find_batch

_NAME = "carry-out"


@click.command(_NAME, cls=HelpCommand)
@click.argument("file", metavar="ORDER", type=NamedFile())
@click.option("--batch", shell_complete=complete_batches, help="Refuse ORDER unless it is about this batch.")
@click.option(
    "--statement",
    type=NamedFile(),
    help="The statement that it names. Default: the file of that name beside ORDER.",
)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx), if rows are sent again.")
@excel_option
@by_option
@wait_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    file: Path,
    batch: str | None,
    statement: Path | None,
    out: Path | None,
    for_excel: bool,
    by: str | None,
    wait: bool,
    force: bool,
) -> None:
    """Carry out ORDER, which another person approved: settle rows, send rows again, or forget people.

    An order is carried out once. If it gives the gateway's word, the statement that it names is read, and its proof is
    checked again. Rows to be sent again are sent together with others that are ready, as by `resume`.
    """
    screen, who, settings = Screen(invocation), person(by), settings_of(invocation)
    require_csv(out, for_excel=for_excel)
    guard_of(invocation, settings).check(
        inputs={say("the order"): file, say("the statement"): statement}, reporting=True
    )
    required_policy(settings)
    found = _order_in(file)
    statement_of, results = {"--statement": statement}, {"--out": out, "--for-excel": for_excel, "--force": force}
    if isinstance(found, ForgetOrder):
        _refuse(found, {"--batch": batch, **statement_of, **results})
        with held(settings, _NAME, screen, wait=wait) as (journal, report):
            report.summary = forgotten(screen, journal, forget_by_order(settings, journal, found, who))
    elif found.is_release:
        _refuse(found, statement_of)
        with continued(
            *(invocation, settings, _NAME, screen, found.batch, out),
            wait=wait,
            force=force,
            for_excel=for_excel,
            find=lambda journal: _batch_of(settings, journal, found, batch),
        ) as run:
            report, run.report.summary = run.report, send_released(run, screen, release_by_order(run.task, found, who))
    else:
        _refuse(found, results)
        folder = file.parent if statement is None else statement.parent
        with held(settings, _NAME, screen, wait=wait) as (journal, report):
            record = _batch_of(settings, journal, found, batch)
            done = carry_out_order(settings, journal, found, who, folders=[folder])
            screen.say(settled_sentence(found.settlements, done.by))
            report.summary = summary_after_settling(journal, record, {"resolved": found.rows})
    screen.finish(report.summary)


def _order_in(file: Path) -> RowOrder | ForgetOrder:
    """Return the order in a file. Raises `ApprovalError` if it is none."""
    found = read_document(file, RowOrder, ForgetOrder, PlanDocument)
    if isinstance(found, RowOrder | ForgetOrder):
        return found
    raise ApprovalError(
        say("{name} is a plan, not an order.", name=file.name),
        hint=say("Nothing was sent. `paygw-batch submit SHEET --plan PLAN` starts it."),
    )


def _refuse(order: RowOrder | ForgetOrder, given: Mapping[str, object]) -> None:
    """Raise `UsageError` if one of these options is given."""
    if wrong := [name for name, value in given.items() if value]:
        raise UsageError(
            say("Not for this {noun}: {options}.", options=", ".join(wrong), noun=say(order.noun)),
            hint=say(order.nothing_done),
        )


def _batch_of(settings: Settings, journal: JournalReader, order: RowOrder, batch: str | None) -> BatchRecord:
    """Return the batch of an order. Raises `UsageError` if it is not the `batch` that the person named."""
    if batch is not None and find_batch(journal, batch).batch != order.batch:
        raise UsageError(say("The order is about batch {batch}, not {other}.", batch=order.batch, other=batch))
    return batch_of_order(order, journal, settings.endpoint())
