"""`paygw-batch plan`: write a plan of the exact payments of a sheet, signed by its maker, for others to approve."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import (
    collect_option,
    force_option,
    guard_of,
    plan_page_option,
    profile_option,
    repeats_option,
    settings_of,
    strict_option,
    worksheet_option,
)
from paygw_batch.cli.runs.sheet_results import refused_summary, show_known, show_planned
from paygw_batch.cli.screen.approval_plan import document_told, own_key, show_content, show_signatures, write_plan_page
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.sheet_tables import show_findings
from paygw_batch.compose.actions.plan_document import prepare_plan
from paygw_batch.compose.actions.submit_sheet import RefusedSheet, Submission, Surface
from paygw_batch.compose.approvals import known_maker, required_policy
from paygw_batch.compose.journal import journal_to_name
from paygw_batch.compose.operations import rules_of
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.shared_plans import share_plan
from paygw_batch.compose.sheet import validated_sheet
from paygw_batch.errors import UsageError
from paygw_batch.language import say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval import PlanDocument, needs_approval, payout_code
from paygw_batch.run.signed_document import ApprovalPolicy, write_document
from paygw_batch.run.submit import Plan


@click.command("plan", short_help="Prepare a sheet for approval.")
@click.argument("sheet", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The plan's file; SHEET.plan.json is found."
)
@click.option("--key", type=click.Path(path_type=Path), required=True, help="The maker's private key (Ed25519, PEM).")
@worksheet_option
@profile_option
@click.option("--reference", metavar="TEXT", help="As for submit.")
@click.option("--skip-invalid", is_flag=True, help="As for submit.")
@click.option("--amend", is_flag=True, help="As for submit.")
@strict_option
@repeats_option
@click.option("--against", metavar="BATCH", help="The run to compare with. Default: the newest batch of the journal.")
@collect_option
@plan_page_option
@force_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    operation: str,
    sheet: Path,
    out: Path,
    key: Path,
    worksheet: str | None,
    column_profile: str | None,
    reference: str | None,
    skip_invalid: bool,
    amend: bool,
    strict: bool,
    repeats_meant: bool,
    against: str | None,
    report: Path | None,
    force: bool,
) -> None:
    """Write the plan of SHEET: rows, totals, warnings, differences from the last run. Nothing is sent."""
    screen = Screen(invocation)
    _require_json(out)
    settings = settings_of(invocation, {("sheet", "column_profile"): column_profile})
    guard_of(invocation, settings, force=force).check(
        Wanted("--out", out, OutputKind.PLAN),
        Wanted("--report", report, OutputKind.PLAN_PAGE),
        inputs={say("the sheet"): sheet, say("a key"): key},
    )
    policy = required_policy(settings)
    rules = rules_of(settings, operation)
    maker = own_key(key)
    known_maker(maker.public, policy, say("No plan was made."))
    validated = validated_sheet(settings, rules, sheet, reference=reference, worksheet=worksheet)
    asked = Submission(validated, sheet, out, "", skip_invalid, amend, strict, repeats_meant)
    with journal_to_name(settings, "plan") as journal:
        surface = Surface(partial(_show, screen, skip_invalid=skip_invalid), screen.say, screen.confirm)
        prepared = prepare_plan(asked, settings, rules, journal, surface, maker, against=against)
    if isinstance(prepared, RefusedSheet):
        screen.finish(refused_summary(prepared, strict=strict))
    plan, document = prepared.plan, prepared.document
    write_document(document, out)
    is_shared = share_plan(settings, document)
    show_content(screen, document, policy)
    show_known(screen, plan)
    show_signatures(screen, document, policy)
    if report is not None:
        write_plan_page(document, policy, report)
    message = _message(document, policy, out, report)
    if is_shared:
        message += " " + say(
            "On another host: `paygw-batch approve {code} --key KEY`.", code=payout_code(document.content)
        )
    summary = _summary(document, plan, message)
    screen.finish(replace(summary, further=document_told(document, policy)))


def _show(screen: Screen, plan: Plan, *, skip_invalid: bool) -> None:
    """Show the defects of a sheet, and of one that they refuse everything else too: a document has its warnings."""
    if skip_invalid:
        show_findings(screen, say("Defects"), plan.validated.defects_found)
    elif not plan.validated.defects_found.is_empty:
        show_planned(screen, plan)


def _require_json(out: Path) -> None:
    if out.suffix.lower() != ".json":
        raise UsageError(
            say("{out} does not end in .json.", out=out), hint=say("A plan is no sheet, and must not take its place.")
        )


def _message(document: PlanDocument, policy: ApprovalPolicy, out: Path, report: Path | None) -> str:
    asks = (
        say_count(
            policy.needed,
            "It needs {count} approval by others: `paygw-batch approve {out} --key KEY`.",
            "It needs {count} approvals by others: `paygw-batch approve {out} --key KEY`.",
            out=out,
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
        known=plan.known_rows,
    )
