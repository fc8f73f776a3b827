"""`paygw-batch plan`: write down exactly what a sheet would pay, signed by its maker, for others to approve."""

import time
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import click
import polars as pl

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
from paygw_batch.cli.runs.submit_sheet import known_sentence, may_repeat, refused, repeat_refused, show_findings
from paygw_batch.cli.screen.approval_plan import (
    document_told,
    known_maker,
    own_key,
    required_policy,
    show_content,
    show_signatures,
    write_plan_page,
)
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.compose.outputs import OutputKind, Wanted
from paygw_batch.compose.parts import (
    find_batch,
    journal_to_name,
    minor_units_of,
    rules_of,
    utc_now,
    validated_sheet,
)
from paygw_batch.compose.planning import planned_submission
from paygw_batch.errors import SheetRepeatsBatch, UsageError
from paygw_batch.journal import JournalReader
from paygw_batch.report.changes import Change, changes
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.run.approval import PlanDocument, PlanFinding, content_of, make_plan, needs_approval
from paygw_batch.run.signed_document import ApprovalPolicy, write_document
from paygw_batch.run.submit import Plan
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.instructions.pages import from_pages


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
    """Write the plan of SHEET: rows, totals, warnings, what differs from the last run. Nothing is sent."""
    started_s = time.monotonic()
    screen = Screen(invocation)
    _require_json(out)
    settings = settings_of(invocation, {("sheet", "column_profile"): column_profile})
    guard_of(invocation, settings, force=force).check(
        Wanted("--out", out, OutputKind.PLAN),
        Wanted("--report", report, OutputKind.PLAN_PAGE),
        inputs={"the sheet": sheet, "a key": key},
    )
    policy = required_policy(settings)
    rules = rules_of(settings, operation)
    maker = own_key(key)
    known_maker(maker, policy, "No plan was made.")
    validated = validated_sheet(settings, rules, sheet, reference=reference, worksheet=worksheet)
    with journal_to_name(settings, "plan") as journal:
        planned = planned_submission(settings, validated, journal, operation=operation, amend=amend, strict=strict)
        if planned.validated.defects.height and not skip_invalid:
            show_findings(screen, planned)
            screen.finish(refused(planned, journal, strict=strict))
        screen.findings("Defects", planned.validated.defects)
        if not may_repeat(planned, screen, is_meant=repeats_meant):
            screen.finish(repeat_refused(planned, journal))
        findings = _findings(planned, journal, against, settings, minor_units := minor_units_of(rules))
        content = content_of(
            planned,
            endpoint=settings.endpoint(),
            journal_id=journal.journal_id,
            operation=operation,
            minor_units=minor_units,
        )
    document = make_plan(content, findings, maker, utc_now(), repeats_meant=planned.repeated_batch)
    write_document(document, out)
    show_content(screen, document, policy)
    if planned.known_rows:
        screen.say(known_sentence(planned.known_rows))
    show_signatures(screen, document, policy)
    if report is not None:
        write_plan_page(document, policy, report)
    message = _message(document, policy, out, report)
    summary = _summary(document, planned, message, time.monotonic() - started_s)
    screen.finish(replace(summary, further=document_told(document, policy)))


def _require_json(out: Path) -> None:
    if out.suffix.lower() != ".json":
        raise UsageError(f"{out} does not end in .json.", hint="A plan is no sheet, and must not take its place.")


def _message(document: PlanDocument, policy: ApprovalPolicy, out: Path, report: Path | None) -> str:
    approvals = "1 approval" if policy.needed == 1 else f"{policy.needed} approvals"
    asks = (
        f"It needs {approvals} by others: `paygw-batch approve {out} --key KEY`."
        if needs_approval(document.content, policy)
        else "It is too small to need approval."
    )
    page = "" if report is None else f"The page is in {report}. "
    return f"The plan is in {out}. {page}{asks}"


def _findings(
    planned: Plan, journal: JournalReader, against: str | None, settings: Settings, minor_units: Mapping[str, int]
) -> list[PlanFinding]:
    """Return what an approver should know: a repeated batch, which the maker had to answer for, comes first."""
    share = Decimal(str(settings.approval.changed_share))
    found = [*_changes(planned, journal, against, share, minor_units), *_warnings(planned)]
    return sorted(found, key=lambda one: one.code != SheetRepeatsBatch.code)


def _summary(document: PlanDocument, planned: Plan, message: str, seconds: float) -> Summary:
    content = document.content
    return Summary(
        ExitCode.DONE,
        message,
        batch=content.batch,
        sheet=content.sheet,
        rows=content.rows,
        totals={currency: {"ready": amount} for currency, amount in content.totals.items()},
        defects=planned.validated.defects["row"].n_unique(),
        known=planned.known_rows,
        seconds=seconds,
    )


def _warnings(planned: Plan) -> list[PlanFinding]:
    """Return the warnings of the validation. They may quote the sheet, as the sheet's own defects do."""
    payees = planned.validated.rows.select(
        "row", *(pl.col(name).fill_null("") for name in ("account_name", "amount", "currency"))
    )
    lines = planned.warnings.join(payees, on="row", how="left", maintain_order="left")
    return [
        PlanFinding(
            row=row,
            code=code,
            message=f"Row {row}: {message}" if row else message,
            name=name or "",
            amount=amount or "",
            currency=currency or "",
        )
        for row, code, message, name, amount, currency in lines.select(
            pl.col("row").cast(pl.Int64), "code", "message", "account_name", "amount", "currency"
        ).iter_rows()
    ]


def _changes(
    planned: Plan, journal: JournalReader, against: str | None, share: Decimal, minor_units: Mapping[str, int]
) -> list[PlanFinding]:
    """Return what differs from the run before: the batch that is named, or the newest that is not this sheet's own."""
    validated = planned.validated
    same = [record for record in journal.batches() if record.operation == validated.sheet.operation]
    others = [record for record in same if record.batch != validated.batch]
    if against is not None:
        others = [find_batch(journal, against)]
        if others[0].operation != validated.sheet.operation:
            raise UsageError(f"--against {against}: one of the two runs pays people, and the other collects.")
    if not others:
        return [PlanFinding(row=0, code="payee.first_run", message="There is no run before this one to compare with.")]
    before = others[-1]
    found = changes(validated.rows, from_pages(journal.pages(before.number)), share=share, minor_units=minor_units)
    compared = PlanFinding(
        row=0,
        code="payee.compared",
        message=f"Compared with batch {before.batch} ({before.sheet_name}, {before.opened_at[:10]}).",
    )
    return [compared, *(_finding(one) for one in found)]


def _finding(one: Change) -> PlanFinding:
    return PlanFinding(
        row=one.row,
        code=one.code,
        message=one.message,
        name=one.name,
        amount=one.amount,
        currency=one.currency,
        before=one.before,
    )
