"""`paygw-batch sign`: shows step by step how a row of a sheet is signed."""

import json
import os
from pathlib import Path

import click
import polars as pl

from paygw_batch.approval.policy import require_line
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, PathType, WholeNumber
from paygw_batch.cli.options import collect_option, settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.sheet_questions import answers_options, read_with_answers
from paygw_batch.core.batch import Instruction
from paygw_batch.errors import SheetError, UsageError
from paygw_batch.gateway.sign import Explanation, SignatureProfile
from paygw_batch.journal import NewInstruction
from paygw_batch.language import mark, say
from paygw_batch.opening.gateway_access import SANDBOX_URL, build_signing
from paygw_batch.opening.given_sheet import Reading, SheetSource, require_complete, rules_for
from paygw_batch.sheet.model import Validated
from paygw_batch.show.summary import ExitCode, Summary

STALE_NONCE = "0" * 32
STALE_TIMESTAMP_S = 1_700_000_000
"""The default timestamp: the same in every run, and old enough for gateways to refuse it."""

CLEAR_DATA_WARNING = mark(
    "The following shows the row's data unencrypted. The body and header together are a signed payment order, and "
    "anyone who has both may be able to send it. Be careful where you paste them."
)
_BRIEF_STEPS = ("body", "authorization")


@click.command("sign", cls=HelpCommand)
@click.argument("sheet", type=PathType())
@click.option("--explain", is_flag=True, help="Show every step, not only the body and the header.")
@click.option("--row", type=WholeNumber(1), help="The row to sign. Default: the first row without a defect.")
@click.option("--nonce", metavar="TEXT", help="The nonce to sign. Default: zeros.")
@click.option("--timestamp", "timestamp_s", type=WholeNumber(0), help="The timestamp to sign, in Unix seconds.")
@click.option("--order-id", metavar="TEXT", help="The order id to send, if not the row's own (such as `ID-r2`).")
@click.option(
    "--profile", type=click.Choice([name.value for name in SignatureProfile]), help="Use another signature profile."
)
@answers_options
@collect_option
@click.pass_obj
def sign_command(
    invocation: Invocation,
    /,
    *,
    operation: str,
    sheet: Path,
    reading: Reading,
    explain: bool,
    row: int | None,
    nonce: str | None,
    timestamp_s: int | None,
    order_id: str | None,
    profile: str | None,
) -> None:
    """Show how one row of SHEET is signed, to compare it with another implementation. Nothing is sent.

    The output shows the row's data unencrypted, because the signature covers all of it. The body and header together
    are a payment order, so be careful where you paste them. Without --timestamp, the order is dated 2023, and a gateway
    that checks the time refuses it.
    """
    screen = Screen(invocation, is_read_only=True)
    settings = settings_for(invocation, {("gateway", "signature_profile"): profile})
    rules = rules_for(settings, operation)
    validated, _ = read_with_answers(screen, SheetSource.validated, SheetSource(settings, rules, sheet, reading))
    entry = _find_instruction(validated, row)
    require_complete(settings, rules, {entry.country})
    fields = json.loads(entry.fields)
    instruction = Instruction(entry.client_orderid, entry.country, entry.currency, entry.amount, entry.form, fields)
    explanation = build_signing(settings, rules, os.environ).explain(
        instruction,
        order_id=entry.client_orderid if order_id is None else require_line(order_id, "--order-id"),
        nonce=STALE_NONCE if nonce is None else require_line(nonce, "--nonce"),
        timestamp_s=STALE_TIMESTAMP_S if timestamp_s is None else timestamp_s,
    )
    notes = [say(CLEAR_DATA_WARNING)]
    if settings.uses_sandbox:
        notes += [
            say("The built-in gateway uses a new port at each start. This sample is signed for {url}.", url=SANDBOX_URL)
        ]
    screen.notes(notes)
    order = {"row": entry.row, "order_id": entry.client_orderid, "url": explanation.url}
    screen.say(say("Row {row}, {order_id}: POST {url}, profile {profile}.", **order, profile=explanation.profile.value))
    show_steps(screen, explanation, *(() if explain else _BRIEF_STEPS))
    summary = Summary(
        ExitCode.DONE,
        say("Row {row} was signed. Nothing was sent.", row=entry.row),
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        extra={"signed": {"row": entry.row, "operation": operation, **explanation.as_json()}},
    )
    screen.finish(summary)


def show_steps(screen: Screen, explanation: Explanation, *names: str) -> None:
    """Show the named steps, or all steps if none is named."""
    for step in explanation.steps():
        if not names or step.name in names:
            screen.say("")
            screen.say(f"{step.name.replace('_', ' ')} ({step.meaning}):")
            screen.print_verbatim(step.text)


def _find_instruction(validated: Validated, row: int | None) -> NewInstruction:
    instructions = validated.instructions if row is None else validated.instructions.filter(pl.col("row") == row)
    if instructions.height:
        return NewInstruction(*instructions.row(0))
    if row is None:
        raise SheetError(say("{sheet} has no rows without defects.", sheet=validated.sheet.name))
    codes = validated.defects.filter(pl.col("row") == row)["code"].unique(maintain_order=True)
    if not len(codes):
        message = say("{sheet} has no row {row}.", sheet=validated.sheet.name, row=row)
        raise UsageError(message, hint=say("Use the row numbers that a spreadsheet shows."))
    values = {"row": row, "sheet": validated.sheet.name, "codes": ", ".join(codes)}
    message = say("Row {row} of {sheet} was not signed, because it has defects ({codes}).", **values)
    raise SheetError(message, hint=say("To see what is wrong, run `paygw-batch validate SHEET`."))
