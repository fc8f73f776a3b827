"""`paygw-batch approve`: look at a plan or an order, and approve it with a key that is not its maker's."""

from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import force_option, guard_of, plan_page_option, settings_of
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures, write_plan_page
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import utc_now
from paygw_batch.compose.approvals import required_policy
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.shared_plans import code_in, required_plan, share_plan
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval import PlanDocument
from paygw_batch.run.orders.release_order import ReleaseOrder
from paygw_batch.run.orders.settlement_order import SettlementOrder
from paygw_batch.run.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    approve,
    read_document,
    signatures_of,
    write_document,
)


@click.command("approve", short_help="Approve a plan or an order.")
@click.argument("document", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="Your private key (Ed25519, PEM). Without it: only look.")
@plan_page_option
@force_option
@click.pass_obj
def command(invocation: Invocation, *, document: Path, key: Path | None, report: Path | None, force: bool) -> None:
    """Show DOCUMENT, a plan or an order to settle or release rows, and approve it with your key.

    The approval is written into its file. Where the journal is in a database, a plan is also found by its code there.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    guard_of(invocation, settings, force=force).check(
        Wanted("--report", report, OutputKind.PLAN_PAGE), inputs={say("the plan"): document, say("a key"): key}
    )
    policy = required_policy(settings)
    code = code_in(settings, document)
    shared = None if code is None else required_plan(settings, code)
    found = read_document(document, PlanDocument, SettlementOrder, ReleaseOrder) if shared is None else shared.document
    if report is not None and not isinstance(found, PlanDocument):
        raise UsageError(say("--report writes a plan as a page, and this is a {noun}.", noun=say(found.noun)))
    show_content(screen, found, policy)  # before anything is signed
    message = say("Nothing was approved: --key KEY approves it.")
    if key is not None:
        own = own_key(key)
        found = approve(found, own, policy, utc_now())
        if shared is not None and isinstance(found, PlanDocument):
            share_plan(settings, found, shared.kept)
        else:
            write_document(found, document)
        who = policy.people.approver_with(own.public)
        message = f"{say('Approved by {name}.', name=who.name if who else say('nobody'))} {_count(found, policy)}"
    show_signatures(screen, found, policy)
    if report is not None and isinstance(found, PlanDocument):
        write_plan_page(found, policy, report)
        message += " " + say("The page is in {report}.", report=report)
    screen.finish(_summary(found, policy, message))


def _count(found: SignedDocument, policy: ApprovalPolicy) -> str:
    valid = len(signatures_of(found, policy, utc_now()).valid)
    return say_count(
        policy.needed,
        "The {noun} has {valid} of {count} approval.",
        "The {noun} has {valid} of {count} approvals.",
        noun=say(found.noun),
        valid=valid,
    )


def _summary(found: SignedDocument, policy: ApprovalPolicy, message: str) -> Summary:
    is_plan = isinstance(found, PlanDocument)
    return Summary(
        ExitCode.DONE,
        message,
        batch=found.content.batch,
        sheet=found.content.sheet,
        rows=found.content.rows if is_plan else len(found.content.rows),
        totals={currency: {"ready": amount} for currency, amount in found.content.totals.items()} if is_plan else {},
        further=document_told(found, policy),
    )
