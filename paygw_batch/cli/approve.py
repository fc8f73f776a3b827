"""`paygw-batch approve`: look at a plan, and approve it with a key that is not its maker's."""

import time
from pathlib import Path

import click

from paygw_batch.cli.options import settings_of
from paygw_batch.cli.render import Screen
from paygw_batch.cli.root import Invocation
from paygw_batch.cli.two_people import own_key, plan_told, required_policy, show_plan
from paygw_batch.compose.parts import utc_now
from paygw_batch.run.approval import approve_plan, read_plan, write_plan
from paygw_batch.run.summary import ExitCode, Summary


@click.command("approve", short_help="Approve a plan.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="Your private key (Ed25519, PEM). Without it: only look.")
@click.pass_obj
def command(invocation: Invocation, *, plan: Path, key: Path | None) -> None:
    """Show PLAN, and approve it with your key. The approval is written into the plan's file."""
    started_s = time.monotonic()
    screen = Screen(invocation)
    settings = settings_of(invocation)
    policy = required_policy(settings)
    document = read_plan(plan)
    message = "Nothing was approved: --key KEY approves it."
    if key is not None:
        document = approve_plan(document, own_key(key), policy, utc_now())
        write_plan(document, plan)
        message = f"Approved. The plan has {len(document.approvals)} of {policy.needed} approvals."
    show_plan(screen, document, settings)
    screen.finish(
        Summary(
            ExitCode.DONE,
            message,
            batch=document.content.batch,
            sheet=document.content.sheet,
            rows=document.content.rows,
            totals={currency: {"ready": amount} for currency, amount in document.content.totals.items()},
            seconds=time.monotonic() - started_s,
            further=plan_told(document),
        )
    )
