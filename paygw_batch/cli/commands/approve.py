"""The commands for two-person approval: `plan`, `approve`, `withdraw` and `carry-out`."""

import os
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from paygw_batch.approval.order import ForgetOrder
from paygw_batch.approval.plan_document import PlanDocument, needs_approval, payout_code
from paygw_batch.approval.policy import identify_person, require_maker, require_policy
from paygw_batch.approval.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    approve,
    owner_name,
    read_document,
    require_not_withdrawn,
    sign_document,
    verify_signatures,
    write_document,
)
from paygw_batch.cli.commands.forget import report_forgotten
from paygw_batch.cli.commands.pay import send_released
from paygw_batch.cli.commands.settle import settlement_message, summary_after_settling
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, PathType
from paygw_batch.cli.options import (
    ResultOptions,
    by_option,
    choices_options,
    collect_option,
    complete_batches,
    excel_option,
    force_option,
    output_guard,
    plan_page_option,
    profile_option,
    require_csv,
    result_options,
    settings_for,
    skip_invalid_option,
    strict_option,
    wait_option,
)
from paygw_batch.cli.screen.approval_plan import (
    document_summary,
    load_own_key,
    show_document,
    show_signatures,
    write_plan_page,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import (
    continue_batch,
    lock_journal,
    read_submission,
    show_known_rows,
    show_plan_findings,
)
from paygw_batch.cli.sheet_questions import answers_options, show_findings
from paygw_batch.clock import utc_now
from paygw_batch.core.choices import Choices
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.extras import RUN_HOOK_MODULES, extras
from paygw_batch.forget_people import forget_by_order
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.given_sheet import Reading, SheetSource, rules_for
from paygw_batch.opening.open_journal import find_batch, journal_for_document, open_journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import sign_withdrawal
from paygw_batch.settle.row_order import RowOrder, find_order_batch
from paygw_batch.settle.settle_rows import carry_out_order
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.submit.approvals import (
    SharedPlan,
    load_plan_by_code,
    newest_shared_plan,
    parse_plan_code,
    require_in_force,
    share_plan,
    withdraw_document,
)
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.submission import Conversation, RefusedSheet, draft_plan, recompute_plan
from paygw_batch.submit.submit_sheet import refusal_summary, release_by_order


@click.command("plan", cls=HelpCommand)
@click.argument("sheet", type=PathType())
@click.option("--out", type=PathType(), required=True, help="File for the plan. `submit` looks for SHEET.plan.json.")
@click.option("--key", type=PathType(), required=True, help="The maker's private key (Ed25519, PEM).")
@answers_options
@profile_option
@skip_invalid_option
@choices_options
@click.option("--against", metavar="BATCH", help="Also compare the sheet with this batch.")
@collect_option
@plan_page_option
@force_option
@click.pass_obj
def plan_command(
    invocation: Invocation,
    /,
    *,
    operation: str,
    sheet: Path,
    out: Path,
    key: Path,
    reading: Reading,
    choices: Choices,
    against: str | None,
    report: Path | None,
    force: bool,
) -> None:
    """Write a plan for SHEET: its rows, totals, warnings and differences from the last run. Nothing is sent."""
    screen = Screen(invocation)
    if out.suffix.lower() != ".json":
        raise UsageError(say("{out} does not end in .json.", out=out), hint=say("A plan must not overwrite its sheet."))
    settings = settings_for(invocation)
    output_guard(invocation, settings, force=force).check(
        RequestedOutput("--out", out, OutputKind.PLAN),
        RequestedOutput("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the sheet"): sheet, say("a key"): key},
    )
    policy = require_policy(settings)
    notice_senders = [module.begin(settings, os.environ) for module in extras(RUN_HOOK_MODULES)]
    source, maker_key = SheetSource(settings, rules_for(settings, operation), sheet, reading), load_own_key(key)
    require_maker(maker_key.public, policy, say("No plan was made."))
    submission = read_submission(screen, source, choices, out)
    with journal_for_document(settings, "plan") as journal:
        show_defects = partial(_show_defects, screen, skip_invalid=choices.skip_invalid)
        conversation = Conversation(show_defects, screen.say, screen.confirm)
        draft = draft_plan(submission, journal, conversation, maker_key.public, against=against)
    if isinstance(draft, RefusedSheet):
        screen.finish(refusal_summary(draft, submission))
    plan, document = draft.plan, sign_document(draft.document, maker_key)
    write_document(document, out)
    is_shared = share_plan(settings, document, echo=screen.note_on_stderr)
    for send_notices in notice_senders:
        send_notices(screen.note_on_stderr)
    show_document(screen, document, policy, settings.submission.quarantine_h)
    show_known_rows(screen, plan)
    show_signatures(screen, document, policy)
    if report is not None:
        write_plan_page(document, policy, report)
    message = _plan_message(document, policy, out, report)
    if is_shared:
        message += " " + say("On another host: `paygw-batch approve {code} --key KEY`.", code=payout_code(document))
    screen.finish(document_summary(document, policy, message))


def _show_defects(screen: Screen, plan: Plan, *, skip_invalid: bool) -> None:
    """With `skip_invalid`, show the defects of rows left out. Otherwise, show all findings if there is a defect."""
    if skip_invalid:
        show_findings(screen, say("Defects"), plan.validated.defects_found, plan.validated.sheet.headers)
    elif not plan.validated.defects_found.is_empty:
        show_plan_findings(screen, plan)


def _plan_message(document: PlanDocument, policy: ApprovalPolicy, out: Path, report: Path | None) -> str:
    approval_text = (
        say_count(
            policy.needed,
            "{count} other person must approve it: `paygw-batch approve {out} --key KEY`.",
            "{count} other people must approve it: `paygw-batch approve {out} --key KEY`.",
            out=shlex.quote(str(out)),
        )
        if needs_approval(document.content, policy)
        else say("Its totals are too small to need approval.")
    )
    page_text = "" if report is None else say("The page is in {report}.", report=report) + " "
    return f"{say('The plan is in {out}.', out=out)} {page_text}{approval_text}"


@click.command("approve", cls=HelpCommand)
@click.argument("document", type=PathType())
@click.option("--key", type=PathType(), help="Your private key (Ed25519, PEM). Without it, nothing is signed.")
@click.option("--sheet", type=PathType(), help="The plan's sheet, to see your own view instead of its maker's.")
@answers_options
@profile_option
@strict_option
@plan_page_option
@force_option
@click.pass_obj
def approve_command(
    invocation: Invocation,
    /,
    *,
    document: Path,
    key: Path | None,
    sheet: Path | None,
    reading: Reading,
    strict: bool,
    report: Path | None,
    force: bool,
) -> None:
    """Show a plan or an order (DOCUMENT), and approve it with --key.

    The approval is added to the file. If the journal is in a database, you can use a plan's code instead.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    output_guard(invocation, settings, force=force).check(
        RequestedOutput("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the plan"): document, say("a key"): key, say("the sheet"): sheet},
    )
    policy = require_policy(settings)
    signed_document, shared = load_signed_document(settings, document)
    if (report is not None or sheet is not None) and not isinstance(signed_document, PlanDocument):
        noun = say(signed_document.noun)
        raise UsageError(
            say("--report and --sheet can be used only with a plan. This document is not a plan ({noun}).", noun=noun)
        )
    recomputed_plan = None
    if isinstance(signed_document, PlanDocument):
        operation = signed_document.content.operation
        source = None if sheet is None else SheetSource(settings, rules_for(settings, operation), sheet, reading)
        recomputed_plan = _choose_plan_view(screen, signed_document, policy, source, strict=strict)
    quarantine_h = settings.submission.quarantine_h
    # The document is shown first, so that nobody signs it unread.
    show_document(screen, signed_document, policy, quarantine_h, recomputed_plan=recomputed_plan, with_people=True)
    require_in_force(settings, signed_document)
    message = say("Nothing was approved. To approve it, add --key KEY.")
    if key is not None:
        own_key = load_own_key(key)
        signed_document = approve(signed_document, own_key, policy, utc_now())
        if isinstance(signed_document, PlanDocument):
            share_plan(settings, signed_document, None if shared is None else shared.stored, echo=screen.note_on_stderr)
        if parse_plan_code(settings, document) is None:
            write_document(signed_document, document)
        approver = policy.people.find_approver(own_key.public)
        name = approver.name if approver else say("no one")
        message = f"{say('Approved by {name}.', name=name)} {_approval_count_message(signed_document, policy)}"
    show_signatures(screen, signed_document, policy)
    if report is not None and isinstance(signed_document, PlanDocument):
        write_plan_page(signed_document, policy, report, recomputed_plan=recomputed_plan)
        message += " " + say("The page is in {report}.", report=report)
    screen.finish(document_summary(signed_document, policy, message))


def load_signed_document(settings: Settings, location: Path) -> tuple[SignedDocument, SharedPlan | None]:
    """Load a plan or an order from a file, or a plan by its code. Prefers a newer version in the database."""
    if (code := parse_plan_code(settings, location)) is not None:
        shared = load_plan_by_code(settings, code)
        return shared.document, shared
    document = read_document(location, PlanDocument, RowOrder, ForgetOrder)
    newest_plan = newest_shared_plan(settings, document) if isinstance(document, PlanDocument) else None
    return (document, None) if newest_plan is None else (newest_plan.document, newest_plan)


def _choose_plan_view(
    screen: Screen, plan: PlanDocument, policy: ApprovalPolicy, source: SheetSource | None, *, strict: bool
) -> PlanDocument:
    """Return the plan to show, and say which it is: the maker's or, with `source`, the approver's own."""
    if source is None:
        name = owner_name(plan.maker, policy.people)
        screen.say(
            say("This is the plan as signed by {name}, its maker. To see your own view, add --sheet SHEET.", name=name)
        )
        return plan
    content = plan.content
    choices = Choices(skip_invalid=content.invalid > 0, amend=content.amended > 0, strict=strict, repeats_meant=True)
    submission = read_submission(screen, source, choices, source.path)
    with open_journal_to_read(source.settings, screen.say, must_be_known=True) as journal:
        require_not_withdrawn(plan, journal.withdrawals())
        own_view = recompute_plan(plan, submission, journal)
    screen.say(say("This is your own view of the plan, from {sheet} and your journal.", sheet=source.path))
    return own_view


def _approval_count_message(document: SignedDocument, policy: ApprovalPolicy) -> str:
    valid_count = min(policy.needed, len(verify_signatures(document, policy, utc_now()).valid))
    return say_count(
        policy.needed,
        "The {noun} has {valid} of {count} required approval.",
        "The {noun} has {valid} of {count} required approvals.",
        noun=say(document.noun),
        valid=valid_count,
    )


@click.command("withdraw", cls=HelpCommand)
@click.argument("document", type=PathType())
@click.option("--key", type=PathType(), required=True, help="Your private key (Ed25519, PEM).")
@click.pass_obj
def withdraw_command(invocation: Invocation, *, document: Path, key: Path) -> None:
    """Withdraw a plan or an order (DOCUMENT). Copies of it are then no longer valid.

    Its maker or any approver can withdraw it until it is used. Like an approval, a withdrawal is signed.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    output_guard(invocation, settings).check(inputs={say("the plan"): document, say("a key"): key})
    policy = require_policy(settings)
    signed_document, _ = load_signed_document(settings, document)
    own_key = load_own_key(key)
    verify_signatures(signed_document, policy, utc_now())
    withdrawal = sign_withdrawal(signed_document, own_key, policy.people, utc_now())
    withdraw_document(settings, signed_document, withdrawal)
    message = say(
        "{name} withdrew this {noun}. Copies of it are no longer valid. To proceed anyway, make a new one.",
        name=withdrawal.by,
        noun=say(signed_document.noun),
    )
    screen.finish(document_summary(signed_document, policy, message))


_COMMAND = "carry-out"


@click.command(_COMMAND, cls=HelpCommand)
@click.argument("file", metavar="ORDER", type=PathType())
@click.option("--batch", shell_complete=complete_batches, help="Refuse ORDER unless it is for this batch.")
@click.option(
    "--statement",
    type=PathType(),
    help="The statement that ORDER is based on. Default: the file with that name in ORDER's folder.",
)
@click.option("--out", type=PathType(), help="Reconciliation file (.csv, .parquet or .xlsx), if rows are sent again.")
@excel_option
@by_option
@wait_option
@force_option
@click.pass_obj
@result_options
def carry_out_command(
    invocation: Invocation,
    *,
    file: Path,
    batch: str | None,
    statement: Path | None,
    by: str | None,
    results: ResultOptions,
) -> None:
    """Carry out ORDER, which another person approved: settle rows, send rows again, or forget people.

    An order can be carried out only once. If it is based on a statement from the gateway, the statement is read and its
    proof is checked again. If it releases rows, other rows that are ready are sent with them.
    """
    screen, actor, settings = Screen(invocation), identify_person(by), settings_for(invocation)
    require_csv(results.out, for_excel=results.for_excel)
    inputs = {say("the order"): file, say("the statement"): statement}
    output_guard(invocation, settings).check(inputs=inputs, reporting=True)
    require_policy(settings)
    order = _read_order(file)
    given_options = {"--out": results.out, "--for-excel": results.for_excel, "--force": results.force}
    if isinstance(order, ForgetOrder):
        _reject_options(order, {"--batch": batch, "--statement": statement, **given_options})
        with lock_journal(settings, _COMMAND, screen, wait=results.wait) as (journal, report):
            report.summary = report_forgotten(screen, journal, forget_by_order(settings, journal, order, actor))
    elif order.is_release:
        _reject_options(order, {"--statement": statement})
        find = partial(_require_order_batch, settings, order=order, batch=batch)
        with continue_batch(invocation, settings, _COMMAND, screen, order.batch, results, find) as run:
            report = run.report
            report.summary = send_released(run, screen, release_by_order(run.job, order, actor))
    else:
        _reject_options(order, given_options if order.cites_gateway else {"--statement": statement, **given_options})
        folder = file.parent if statement is None else statement.parent
        with lock_journal(settings, _COMMAND, screen, wait=results.wait) as (journal, report):
            record = _require_order_batch(settings, journal, order, batch)
            execution = carry_out_order(settings, journal, order, actor, folders=[folder])
            screen.say(settlement_message(order.settlements, execution.by))
            report.summary = summary_after_settling(journal, record, {"resolved": order.row_count})
    screen.finish(report.summary)


def _read_order(file: Path) -> RowOrder | ForgetOrder:
    document = read_document(file, RowOrder, ForgetOrder, PlanDocument)
    if isinstance(document, RowOrder | ForgetOrder):
        return document
    message = say("{name} is a plan, not an order.", name=file.name)
    hint = say("Nothing was sent. To send the plan's rows, run `paygw-batch submit SHEET --plan PLAN`.")
    raise ApprovalError(message, hint=hint)


def _reject_options(order: RowOrder | ForgetOrder, options: Mapping[str, object]) -> None:
    if unsupported := ", ".join(name for name, value in options.items() if value):
        raise UsageError(
            say("These options cannot be used with this {noun}: {options}.", options=unsupported, noun=say(order.noun)),
            hint=say(order.nothing_done),
        )


def _require_order_batch(settings: Settings, journal: JournalReader, order: RowOrder, batch: str | None) -> BatchRecord:
    if batch is not None and find_batch(journal, batch).batch != order.batch:
        raise UsageError(say("The order is for batch {batch}, not {other}.", batch=order.batch, other=batch))
    return find_order_batch(order, journal, settings.endpoint())
