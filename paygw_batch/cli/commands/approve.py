"""The commands for two people: `plan`, `approve`, `withdraw` and `carry-out`."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from paygw_batch.approval.order import ForgetOrder
from paygw_batch.approval.plan_document import PlanDocument, needs_approval, payout_code
from paygw_batch.approval.policy import known_maker, person, required_policy
from paygw_batch.approval.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    approve,
    name_of,
    read_document,
    require_not_withdrawn,
    signatures_of,
    signed,
    write_document,
)
from paygw_batch.cli.commands.forget import forgotten
from paygw_batch.cli.commands.pay import send_released
from paygw_batch.cli.commands.settle import settled_sentence, summary_after_settling
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import (
    ResultOptions,
    by_option,
    choices_options,
    collect_option,
    complete_batches,
    excel_option,
    force_option,
    guard_of,
    plan_page_option,
    profile_option,
    require_csv,
    result_options,
    settings_of,
    skip_invalid_option,
    strict_option,
    wait_option,
)
from paygw_batch.cli.screen.approval_plan import own_key, show_content, show_signatures, signed_summary, write_plan_page
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import continued, held, show_known, show_planned, submission
from paygw_batch.cli.sheet_questions import answers_options, show_findings
from paygw_batch.clock import utc_now
from paygw_batch.core.choices import Choices
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.extras import AFTER_A_COMMAND, extras
from paygw_batch.forget_people import forget_by_order
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.given_sheet import GivenSheet, Reading, rules_of
from paygw_batch.opening.open_journal import find_batch, journal_for_document, journal_to_read
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import withdrawn_with
from paygw_batch.settle.row_order import RowOrder, batch_of_order
from paygw_batch.settle.settle_rows import carry_out_order
from paygw_batch.show.outputs import OutputKind, RequestedOutput
from paygw_batch.submit.approvals import (
    SharedPlan,
    code_in,
    newest_version,
    require_in_force,
    required_plan,
    share_plan,
    withdraw_document,
)
from paygw_batch.submit.plan import Plan
from paygw_batch.submit.submission import Conversation, RefusedSheet, draft_plan, own_view
from paygw_batch.submit.submit_sheet import refused_summary, release_by_order


@click.command("plan", cls=HelpCommand)
@click.argument("sheet", type=NamedFile())
@click.option("--out", type=NamedFile(), required=True, help="The plan's file. `submit` finds SHEET.plan.json.")
@click.option("--key", type=NamedFile(), required=True, help="The maker's private key (Ed25519, PEM).")
@answers_options
@profile_option
@skip_invalid_option
@choices_options
@click.option("--against", metavar="BATCH", help="Also compare with this batch. It can only add differences.")
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
    """Write a plan of SHEET: rows, totals, warnings, differences from the last run. Nothing is sent."""
    screen = Screen(invocation)
    if out.suffix.lower() != ".json":
        raise UsageError(say("{out} does not end in .json.", out=out), hint=say("A plan must not overwrite its sheet."))
    settings = settings_of(invocation)
    guard_of(invocation, settings, force=force).check(
        RequestedOutput("--out", out, OutputKind.PLAN),
        RequestedOutput("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the sheet"): sheet, say("a key"): key},
    )
    policy = required_policy(settings)
    heard = [module.begin(settings, os.environ) for module in extras(AFTER_A_COMMAND)]
    given_sheet, maker = GivenSheet(settings, rules_of(settings, operation), sheet, reading), own_key(key)
    known_maker(maker.public, policy, say("No plan was made."))
    request = submission(screen, given_sheet, choices, out)
    with journal_for_document(settings, "plan") as journal:
        show = partial(_show, screen, skip_invalid=choices.skip_invalid)
        conversation = Conversation(show, screen.say, screen.confirm)
        prepared = draft_plan(request, journal, conversation, maker.public, against=against)
    if isinstance(prepared, RefusedSheet):
        screen.finish(refused_summary(prepared, request))
    plan, document = prepared.plan, signed(prepared.document, maker)
    write_document(document, out)
    is_shared = share_plan(settings, document, tell=screen.note_aside)
    for end in heard:
        end(screen.note_aside)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_known(screen, plan)
    show_signatures(screen, document, policy)
    if report is not None:
        write_plan_page(document, policy, report)
    message = _message(document, policy, out, report)
    if is_shared:
        message += " " + say("On another host: `paygw-batch approve {code} --key KEY`.", code=payout_code(document))
    defects = plan.validated.defects_found.rows.len()
    screen.finish(replace(signed_summary(document, policy, message), defects=defects, known=document.content.known))


def _show(screen: Screen, plan: Plan, *, skip_invalid: bool) -> None:
    """Show the defects of a sheet, and all findings if the defects refuse it. Otherwise the plan shows its warnings."""
    if skip_invalid:
        show_findings(screen, say("Defects"), plan.validated.defects_found, plan.validated.sheet.headers)
    elif not plan.validated.defects_found.is_empty:
        show_planned(screen, plan)


def _message(document: PlanDocument, policy: ApprovalPolicy, out: Path, report: Path | None) -> str:
    asks = (
        say_count(
            policy.needed,
            "It needs {count} approval by others: `paygw-batch approve {out} --key KEY`.",
            "It needs {count} approvals by others: `paygw-batch approve {out} --key KEY`.",
            out=shlex.quote(str(out)),
        )
        if needs_approval(document.content, policy)
        else say("It is too small to need approval.")
    )
    page = "" if report is None else say("The page is in {report}.", report=report) + " "
    return f"{say('The plan is in {out}.', out=out)} {page}{asks}"


@click.command("approve", cls=HelpCommand)
@click.argument("document", type=NamedFile())
@click.option("--key", type=NamedFile(), help="Your private key (Ed25519, PEM). Without it, nothing is signed.")
@click.option("--sheet", type=NamedFile(), help="The plan's sheet: show it as you read it, not as its maker did.")
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
    """Show DOCUMENT, a plan or an order to settle, release or forget, and approve it with your key.

    The approval is written into its file. If the journal is in a database, you can also name a plan by its code
    there.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    guard_of(invocation, settings, force=force).check(
        RequestedOutput("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the plan"): document, say("a key"): key, say("the sheet"): sheet},
    )
    policy = required_policy(settings)
    current, shared = signed_document_at(settings, document)
    if (report is not None or sheet is not None) and not isinstance(current, PlanDocument):
        raise UsageError(say("--report and --sheet are for a plan, but this is a {noun}.", noun=say(current.noun)))
    viewed = None
    if isinstance(current, PlanDocument):
        operation = current.content.operation
        given_sheet = None if sheet is None else GivenSheet(settings, rules_of(settings, operation), sheet, reading)
        viewed = _viewed(screen, current, policy, given_sheet, strict=strict)
    waits_h = settings.submission.quarantine_h
    show_content(screen, current, policy, waits_h, own=viewed, with_people=True)  # this comes before the signature
    require_in_force(settings, current)
    message = say("Nothing was approved: --key KEY approves it.")
    if key is not None:
        own = own_key(key)
        current = approve(current, own, policy, utc_now())
        if isinstance(current, PlanDocument):
            share_plan(settings, current, None if shared is None else shared.kept, tell=screen.note_aside)
        if code_in(settings, document) is None:
            write_document(current, document)
        who = policy.people.approver_with(own.public)
        message = f"{say('Approved by {name}.', name=who.name if who else say('nobody'))} {_count(current, policy)}"
    show_signatures(screen, current, policy)
    if report is not None and isinstance(current, PlanDocument):
        write_plan_page(current, policy, report, own=viewed)
        message += " " + say("The page is in {report}.", report=report)
    screen.finish(signed_summary(current, policy, message))


def signed_document_at(settings: Settings, place: Path) -> tuple[SignedDocument, SharedPlan | None]:
    """Return the plan or order in a file, or the plan of a code. The database has the newest version of a plan."""
    if (code := code_in(settings, place)) is not None:
        shared = required_plan(settings, code)
        return shared.document, shared
    document = read_document(place, PlanDocument, RowOrder, ForgetOrder)
    newest = newest_version(settings, document) if isinstance(document, PlanDocument) else None
    return (document, None) if newest is None else (newest.document, newest)


def _viewed(
    screen: Screen, plan: PlanDocument, policy: ApprovalPolicy, given_sheet: GivenSheet | None, *, strict: bool
) -> PlanDocument:
    """Return the plan to show: as its maker signed it or, if its sheet is given, as its approver finds it.

    Raises `ApprovalError` if the plan was withdrawn, is for another sheet, or has other findings.
    """
    if given_sheet is None:
        signed_by = name_of(plan.maker, policy.people)
        screen.say(say("Shown as its maker {name} signed it. --sheet SHEET shows your own view.", name=signed_by))
        return plan
    content = plan.content
    choices = Choices(skip_invalid=content.invalid > 0, amend=content.amended > 0, strict=strict, repeats_meant=True)
    request = submission(screen, given_sheet, choices, given_sheet.path)
    with journal_to_read(given_sheet.settings, screen.say, must_be_known=True) as journal:
        require_not_withdrawn(plan, journal.withdrawals())
        viewed = own_view(plan, request, journal)
    screen.say(say("This is your own view, from {sheet} and your journal.", sheet=given_sheet.path))
    return viewed


def _count(document: SignedDocument, policy: ApprovalPolicy) -> str:
    valid = min(policy.needed, len(signatures_of(document, policy, utc_now()).valid))
    return say_count(
        policy.needed,
        "The {noun} has {valid} of {count} approval.",
        "The {noun} has {valid} of {count} approvals.",
        noun=say(document.noun),
        valid=valid,
    )


@click.command("withdraw", cls=HelpCommand)
@click.argument("document", type=NamedFile())
@click.option("--key", type=NamedFile(), required=True, help="Your private key (Ed25519, PEM).")
@click.pass_obj
def withdraw_command(invocation: Invocation, *, document: Path, key: Path) -> None:
    """Withdraw DOCUMENT, a plan or an order: no copy of it is valid after that.

    Its maker or any approver can withdraw it, unless it was used already. A withdrawal is signed, like an approval.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    guard_of(invocation, settings).check(inputs={say("the plan"): document, say("a key"): key})
    policy = required_policy(settings)
    target, _ = signed_document_at(settings, document)
    own = own_key(key)
    signatures_of(target, policy, utc_now())
    withdrawal = withdrawn_with(target, own, policy.people, utc_now())
    withdraw_document(settings, target, withdrawal)
    message = say(
        "Withdrawn by {name}: no copy of this {noun} is valid any longer. To go ahead after all, make a new one.",
        name=withdrawal.by,
        noun=say(target.noun),
    )
    screen.finish(signed_summary(target, policy, message))


_NAME = "carry-out"


@click.command(_NAME, cls=HelpCommand)
@click.argument("file", metavar="ORDER", type=NamedFile())
@click.option("--batch", shell_complete=complete_batches, help="Refuse ORDER unless it is about this batch.")
@click.option(
    "--statement", type=NamedFile(), help="The statement that it names. Default: the file of that name beside ORDER."
)
@click.option("--out", type=NamedFile(), help="Reconciliation file (.csv, .parquet or .xlsx), if rows are sent again.")
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

    An order is carried out once. If it relies on a statement from the gateway, the program reads that statement and
    checks its proof again. Rows to be sent again are sent together with others that are ready, as by `resume`.
    """
    screen, who, settings = Screen(invocation), person(by), settings_of(invocation)
    require_csv(results.out, for_excel=results.for_excel)
    inputs = {say("the order"): file, say("the statement"): statement}
    guard_of(invocation, settings).check(inputs=inputs, reporting=True)
    required_policy(settings)
    order = _order_in(file)
    of_results = {"--out": results.out, "--for-excel": results.for_excel, "--force": results.force}
    if isinstance(order, ForgetOrder):
        _refuse(order, {"--batch": batch, "--statement": statement, **of_results})
        with held(settings, _NAME, screen, wait=results.wait) as (journal, report):
            report.summary = forgotten(screen, journal, forget_by_order(settings, journal, order, who))
    elif order.is_release:
        _refuse(order, {"--statement": statement})
        find = partial(_batch_of, settings, order=order, batch=batch)
        with continued(invocation, settings, _NAME, screen, order.batch, results, find) as run:
            report, run.report.summary = run.report, send_released(run, screen, release_by_order(run.task, order, who))
    else:
        _refuse(order, of_results)
        folder = file.parent if statement is None else statement.parent
        with held(settings, _NAME, screen, wait=results.wait) as (journal, report):
            record = _batch_of(settings, journal, order, batch)
            done = carry_out_order(settings, journal, order, who, folders=[folder])
            screen.say(settled_sentence(order.settlements, done.by))
            report.summary = summary_after_settling(journal, record, {"resolved": order.rows})
    screen.finish(report.summary)


def _order_in(file: Path) -> RowOrder | ForgetOrder:
    """Return the order in a file. Raises `ApprovalError` if the file has a plan."""
    document = read_document(file, RowOrder, ForgetOrder, PlanDocument)
    if isinstance(document, RowOrder | ForgetOrder):
        return document
    raise ApprovalError(
        say("{name} is a plan, not an order.", name=file.name),
        hint=say("Nothing was sent. `paygw-batch submit SHEET --plan PLAN` starts it."),
    )


def _refuse(order: RowOrder | ForgetOrder, options: Mapping[str, object]) -> None:
    """Raise `UsageError` if one of these options, which do not fit the order, has a value."""
    if wrong := [name for name, value in options.items() if value]:
        raise UsageError(
            say("These options are not for this {noun}: {options}.", options=", ".join(wrong), noun=say(order.noun)),
            hint=say(order.nothing_done),
        )


def _batch_of(settings: Settings, journal: JournalReader, order: RowOrder, batch: str | None) -> BatchRecord:
    """Return the batch of an order. Raises `UsageError` if a person named another `batch`."""
    if batch is not None and find_batch(journal, batch).batch != order.batch:
        raise UsageError(say("The order is about batch {batch}, not {other}.", batch=order.batch, other=batch))
    return batch_of_order(order, journal, settings.endpoint())
