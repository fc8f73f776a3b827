"""`paygw-batch approve`: check a plan or an order, and approve it with a key that is not its maker's."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from paygw_batch.actions.approvals import SharedPlan, code_in, require_in_force, required_plan, share_plan
from paygw_batch.actions.plan_document import SheetOptions, Submission, own_view
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import (
    answers_of,
    answers_options,
    force_option,
    guard_of,
    plan_page_option,
    profile_option,
    settings_of,
    strict_option,
)
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures, write_plan_page
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.sheet_questions import answered
from paygw_batch.clock import utc_now
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval import PlanDocument
from paygw_batch.run.forget_order import ForgetOrder
from paygw_batch.run.order import Order
from paygw_batch.run.row_order import RowOrder
from paygw_batch.run.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    approve,
    name_of,
    read_document,
    require_not_withdrawn,
    signatures_of,
    write_document,
)
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.approvals import required_policy
from paygw_batch.wiring.journal import journal_to_read
from paygw_batch.wiring.operations import rules_of
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput
from paygw_batch.wiring.sheet import validated_sheet


@click.command("approve", cls=HelpCommand)
@click.argument("document", type=NamedFile())
@click.option("--key", type=NamedFile(), help="Your private key (Ed25519, PEM). Without it, nothing is signed.")
@click.option(
    "--sheet",
    type=NamedFile(),
    help="The plan's sheet: show it as you read it, not as its maker did.",
)
@answers_options
@profile_option
@strict_option
@plan_page_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation,
    /,
    *,
    document: Path,
    key: Path | None,
    report: Path | None,
    force: bool,
    column_profile: str | None,
    **read_as: Any,
) -> None:
    """Show DOCUMENT, a plan or an order to settle, release or forget, and approve it with your key.

    The approval is written into its file. If the journal is in a database, you can also name a plan by its code
    there.
    """
    screen, sheet = Screen(invocation), read_as["sheet"]
    settings = settings_of(invocation, {("sheet", "column_profile"): column_profile})
    guard_of(invocation, settings, force=force).check(
        RequestedOutput("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the plan"): document, say("a key"): key, say("the sheet"): sheet},
    )
    policy = required_policy(settings)
    found, shared = signed_document_at(settings, document)
    if (report is not None or sheet is not None) and not isinstance(found, PlanDocument):
        raise UsageError(say("--report and --sheet are for a plan, but this is a {noun}.", noun=say(found.noun)))
    viewed = _viewed(screen, settings, found, policy, **read_as) if isinstance(found, PlanDocument) else None
    waits_h = settings.submission.quarantine_h
    show_content(screen, found, policy, waits_h, own=viewed, with_people=True)  # before anything is signed
    require_in_force(settings, found)
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
        write_plan_page(found, policy, report, own=viewed)
        message += " " + say("The page is in {report}.", report=report)
    screen.finish(signed_summary(found, policy, message))


def signed_document_at(settings: Settings, place: Path) -> tuple[SignedDocument, SharedPlan | None]:
    """Return the plan or order in a file, or the plan of a code in the database, as it is there."""
    if (code := code_in(settings, place)) is not None:
        shared = required_plan(settings, code)
        return shared.document, shared
    return read_document(place, PlanDocument, RowOrder, ForgetOrder), None


def _viewed(
    screen: Screen,
    settings: Settings,
    found: PlanDocument,
    policy: ApprovalPolicy,
    *,
    sheet: Path | None,
    strict: bool,
    **answers_given: Any,
) -> PlanDocument:
    """Return the plan to show: as its maker signed it or, with its sheet, as its approver finds it.

    Raises `ApprovalError` if the plan was withdrawn, is for another sheet, or does not show what is found.
    """
    if sheet is None:
        signed_by = name_of(found.maker, policy.people)
        screen.say(say("Shown as its maker {name} signed it. --sheet SHEET shows your own view.", name=signed_by))
        return found
    rules, content = rules_of(settings, found.content.operation), found.content

    reading = partial(validated_sheet, settings, rules, sheet)
    validated, answers = answered(screen, reading, answers_of(answers_given), content.operation, sheet)
    options = SheetOptions(
        skip_invalid=content.invalid > 0, amend=content.amended > 0, strict=strict, repeats_meant=True
    )
    asked = Submission(validated, sheet, sheet, "", options, partial(reading, answers))
    with journal_to_read(settings, screen.say, must_be_known=True) as journal:
        require_not_withdrawn(found, journal.withdrawals())
        viewed = own_view(found, asked, settings, rules, journal)
    screen.say(say("Shown as you find it in {sheet} and in your journal.", sheet=sheet))
    return viewed


def _count(found: SignedDocument, policy: ApprovalPolicy) -> str:
    valid = min(policy.needed, len(signatures_of(found, policy, utc_now()).valid))
    return say_count(
        policy.needed,
        "The {noun} has {valid} of {count} approval.",
        "The {noun} has {valid} of {count} approvals.",
        noun=say(found.noun),
        valid=valid,
    )


def signed_summary(found: SignedDocument, policy: ApprovalPolicy, message: str) -> Summary:
    """Return the summary of a command about a plan or an order."""
    told, content = Summary(ExitCode.DONE, message, further=document_told(found, policy)), found.content
    if isinstance(found, Order):
        told = replace(told, rows=found.rows)
    if isinstance(found, RowOrder):
        told = replace(told, batch=content.batch, sheet=content.sheet)
    if isinstance(found, PlanDocument):
        totals = {currency: {"ready": amount} for currency, amount in content.totals.items()}
        told = replace(told, batch=content.batch, sheet=content.sheet, rows=content.rows, totals=totals)
    return told
