"""`paygw-batch sign`: how one row of a sheet is signed, step by step. Nothing is sent."""

import json
import os
from pathlib import Path

import click
import polars as pl

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import collect_option, settings_of, worksheet_option
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.operations import require_complete, rules_of
from paygw_batch.compose.operator import in_words
from paygw_batch.compose.sheet import validated_sheet
from paygw_batch.compose.signing import SANDBOX_URL, signing_of
from paygw_batch.core.instruction import Instruction
from paygw_batch.errors import SheetError, UsageError
from paygw_batch.gateway.explain import Explanation
from paygw_batch.gateway.sign import SignatureProfile
from paygw_batch.journal import NewInstruction
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.sheet.model import Validated

STALE_NONCE = "0" * 32
STALE_TIMESTAMP_S = 1_700_000_000
"""The time that is signed by default: the same at each run, and years old."""

WARNING = (
    "What follows shows the row's data in clear, and body and header together are a signed payment order: "
    "whoever has them may be able to send it. Mind where you paste it."
)
_BRIEF = ("body", "authorization")


@click.command("sign", short_help="Show how a row is signed.")
@click.argument("sheet", type=click.Path(path_type=Path))
@click.option("--explain", is_flag=True, help="Show every step, and not only the body and the header.")
@click.option("--row", type=click.IntRange(1), help="The row of the sheet. Default: the first one without a defect.")
@click.option("--nonce", metavar="TEXT", help="The nonce to sign. Default: zeros.")
@click.option("--timestamp", "timestamp_s", type=click.IntRange(0), help="The time to sign, in Unix seconds.")
@click.option("--order-id", metavar="TEXT", help="The order id to send, where it is not the row's own (`ID-r2`).")
@click.option(
    "--profile", type=click.Choice([one.value for one in SignatureProfile]), help="Another signature profile."
)
@click.option("--reference", metavar="TEXT", help="As for submit.")
@worksheet_option
@collect_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    operation: str,
    sheet: Path,
    explain: bool,
    row: int | None,
    nonce: str | None,
    timestamp_s: int | None,
    order_id: str | None,
    profile: str | None,
    reference: str | None,
    worksheet: str | None,
) -> None:
    """Show how one row of SHEET is signed, to hold another implementation against it. Nothing is sent.

    The text shows the row's data in clear, because a signature can only be compared over all of it: mind where you
    paste it. Body and header together are a payment order; without --timestamp it is dated 2023, which a gateway that
    looks at the time refuses.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation, {("gateway", "signature_profile"): profile})
    rules = rules_of(settings, operation)
    validated = validated_sheet(settings, rules, sheet, reference=reference, worksheet=worksheet)
    found = _row(validated, row)
    require_complete(settings, rules, {found.country})
    fields = json.loads(found.fields)
    instruction = Instruction(found.client_orderid, found.country, found.currency, found.amount, found.form, fields)
    explanation = signing_of(settings, rules, os.environ).explain(
        instruction,
        order_id=found.client_orderid if order_id is None else in_words(order_id, "--order-id"),
        nonce=STALE_NONCE if nonce is None else in_words(nonce, "--nonce"),
        timestamp_s=STALE_TIMESTAMP_S if timestamp_s is None else timestamp_s,
    )
    screen.notes([WARNING])
    if settings.uses_sandbox:
        screen.notes([f"The built-in gateway has another port at each start; this is signed for {SANDBOX_URL}."])
    screen.say(f"Row {found.row}, {found.client_orderid}: POST {explanation.url}, profile {explanation.profile.value}.")
    show_steps(screen, explanation, *(() if explain else _BRIEF))
    screen.finish(
        Summary(
            ExitCode.DONE,
            f"Row {found.row} was signed. Nothing was sent.",
            batch=validated.batch,
            sheet=validated.sheet.name,
            rows=validated.height,
            further={"signed": {"row": found.row, "operation": operation, **explanation.as_json()}},
        )
    )


def show_steps(screen: Screen, explanation: Explanation, *names: str) -> None:
    """Show the steps called so, or all of them."""
    for step in explanation.steps():
        if not names or step.name in names:
            screen.say("")
            screen.say(f"{step.name.replace('_', ' ')} ({step.told}):")
            for line in step.text.split("\n"):
                screen.say(line)


def _row(validated: Validated, row: int | None) -> NewInstruction:
    """Return the instruction of a row, or of the first one that has no defect."""
    found = validated.instructions if row is None else validated.instructions.filter(pl.col("row") == row)
    if found.height:
        return NewInstruction(*found.row(0))
    if row is None:
        raise SheetError(f"{validated.sheet.name} has no row without a defect.")
    codes = validated.defects.filter(pl.col("row") == row)["code"].unique(maintain_order=True)
    if not len(codes):
        raise UsageError(f"{validated.sheet.name} has no row {row}.", hint="Rows are numbered as a spreadsheet does.")
    raise SheetError(
        f"Row {row} of {validated.sheet.name} has defects ({', '.join(codes)}), and is never signed.",
        hint="`paygw-batch validate SHEET` says what is wrong with it.",
    )
