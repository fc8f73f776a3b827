"""`paygw-batch plan`: write a plan of the exact payments of a sheet, signed by its maker, for others to approve."""

import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from paygw_batch.actions.approvals import share_plan
from paygw_batch.actions.notices import send_after
from paygw_batch.actions.plan_document import Conversation, RefusedSheet, SheetOptions, Submission, prepare_plan
from paygw_batch.actions.submit_sheet import refused_summary
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, NamedFile
from paygw_batch.cli.options import (
    answers_of,
    answers_options,
    collect_option,
    force_option,
    guard_of,
    meant_options,
    plan_page_option,
    profile_option,
    settings_of,
    strict_option,
)
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures, write_plan_page
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.send_batch import show_known, show_planned
from paygw_batch.cli.sheet_questions import answered, as_typed, show_findings
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval import PlanDocument, needs_approval, payout_code
from paygw_batch.run.signed_document import ApprovalPolicy, write_document
from paygw_batch.run.submit import Plan
from paygw_batch.wiring.approvals import known_maker, required_policy
from paygw_batch.wiring.journal import journal_for_document
from paygw_batch.wiring.notices import channels_of
from paygw_batch.wiring.operations import rules_of
from paygw_batch.wiring.outputs import OutputKind, RequestedOutput
from paygw_batch.wiring.sheet import validated_sheet


@click.command("plan", cls=HelpCommand)
@click.argument("sheet", type=NamedFile())
@click.option("--out", type=NamedFile(), required=True, help="The plan's file. `submit` finds SHEET.plan.json.")
@click.option("--key", type=NamedFile(), required=True, help="The maker's private key (Ed25519, PEM).")
@answers_options
@profile_option
@click.option("--skip-invalid", is_flag=True, help="Leave rows with defects out and send the others.")
@click.option("--amend", is_flag=True, help="Let changed rows replace those that are rejected or were never sent.")
@strict_option
@meant_options
@click.option("--against", metavar="BATCH", help="Also compare with this batch. It can only add differences.")
@collect_option
@plan_page_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation,
    /,
    *,
    operation: str,
    sheet: Path,
    out: Path,
    key: Path,
    column_profile: str | None,
    skip_invalid: bool,
    amend: bool,
    strict: bool,
    repeats_meant: bool,
    new_payees: tuple[str, ...],
    against: str | None,
    report: Path | None,
    force: bool,
    **answers_given: Any,
) -> None:
    """Write a plan of SHEET: rows, totals, warnings, differences from the last run. Nothing is sent."""
    screen = Screen(invocation)
    _require_json(out)
    settings = settings_of(invocation, {("sheet", "column_profile"): column_profile})
    guard_of(invocation, settings, force=force).check(
        RequestedOutput("--out", out, OutputKind.PLAN),
        RequestedOutput("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the sheet"): sheet, say("a key"): key},
    )
    policy, channels = required_policy(settings), channels_of(settings, os.environ)
    rules = rules_of(settings, operation)
    maker = own_key(key)
    known_maker(maker.public, policy, say("No plan was made."))
    reading = partial(validated_sheet, settings, rules, sheet)
    validated, answered_by = answered(screen, reading, answers_of(answers_given), operation, sheet)
    options = SheetOptions(
        skip_invalid=skip_invalid, amend=amend, strict=strict, repeats_meant=repeats_meant, new_payees=new_payees
    )
    typed = as_typed(sheet, answered_by, column_profile)
    asked = Submission(validated, sheet, out, "", options, typed=typed)
    with journal_for_document(settings, "plan") as journal:
        conversation = Conversation(partial(_show, screen, skip_invalid=skip_invalid), screen.say, screen.confirm)
        prepared = prepare_plan(asked, settings, rules, journal, conversation, maker, against=against)
    if isinstance(prepared, RefusedSheet):
        screen.finish(refused_summary(prepared, asked))
    plan, document = prepared.plan, prepared.document
    write_document(document, out)
    is_shared = share_plan(settings, document, tell=screen.note_aside)
    send_after(settings, channels, screen.note_aside)
    show_content(screen, document, policy, settings.submission.quarantine_h)
    show_known(screen, plan)
    show_signatures(screen, document, policy)
    if report is not None:
        write_plan_page(document, policy, report)
    message = _message(document, policy, out, report)
    if is_shared:
        message += " " + say("On another host: `paygw-batch approve {code} --key KEY`.", code=payout_code(document))
    summary = _summary(document, plan, message)
    screen.finish(replace(summary, further=document_told(document, policy)))


def _show(screen: Screen, plan: Plan, *, skip_invalid: bool) -> None:
    """Show a sheet's defects, and everything else if they refuse it; otherwise the plan has its warnings."""
    if skip_invalid:
        show_findings(screen, say("Defects"), plan.validated.defects_found, plan.validated.sheet.headers)
    elif not plan.validated.defects_found.is_empty:
        show_planned(screen, plan)


def _require_json(out: Path) -> None:
    if out.suffix.lower() != ".json":
        raise UsageError(say("{out} does not end in .json.", out=out), hint=say("A plan must not overwrite its sheet."))


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


def _summary(document: PlanDocument, plan: Plan, message: str) -> Summary:
    content = document.content
    return Summary(
        ExitCode.DONE,
        message,
        batch=content.batch,
        sheet=content.sheet,
        rows=content.rows,
        totals={currency: {"ready": amount} for currency, amount in content.totals.items()},
        defects=plan.validated.defects_found.rows.len(),
        known=content.known,
    )
