"""Prepares the plan of a sheet for approval: exactly the instructions to send, and the findings for an approver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import polars as pl

from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.submit_sheet import (
    RefusedSheet,
    Submission,
    Surface,
    plan_sheet,
    refused_as_repeat,
    refused_for_defects,
)
from paygw_batch.compose.journal import find_batch
from paygw_batch.compose.operations import minor_units_of
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetRepeatsBatch, UsageError
from paygw_batch.journal import JournalReader
from paygw_batch.language import say
from paygw_batch.report.changes import Change, changes
from paygw_batch.run.approval import PlanDocument, PlanFinding, content_of, unsigned_plan
from paygw_batch.run.approval_keys import ApprovalKey, PublicKey
from paygw_batch.run.signed_document import signed
from paygw_batch.run.submit import Plan
from paygw_batch.settings.configuration import Settings
from paygw_batch.sheet.instructions.pages import from_pages


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, and the document that its maker signs or has signed."""

    plan: Plan
    document: PlanDocument


def prepare_plan(
    asked: Submission,
    settings: Settings,
    rules: Rules,
    journal: JournalReader,
    surface: Surface,
    maker: ApprovalKey,
    *,
    against: str | None,
) -> Prepared | RefusedSheet:
    """Return the plan of a sheet, signed by its maker. It is written nowhere yet.

    `against` names the batch to compare with; None: the newest batch that is not the sheet's own.
    """
    drafted = draft_plan(asked, settings, rules, journal, surface, maker.public, against=against)
    if isinstance(drafted, RefusedSheet):
        return drafted
    return Prepared(drafted.plan, signed(drafted.document, maker))


def draft_plan(
    asked: Submission,
    settings: Settings,
    rules: Rules,
    journal: JournalReader,
    surface: Surface,
    maker: PublicKey,
    *,
    against: str | None,
    corrections: Sequence[PlanFinding] = (),
) -> Prepared | RefusedSheet:
    """Return the plan of a sheet as its maker has yet to sign it. `against` is as for `prepare_plan`.

    `corrections` say what was mended or left out after the upload: they are signed with everything else.
    """
    plan = plan_sheet(asked, settings, journal)
    surface.show(plan)
    if (refused := refused_for_defects(asked, plan, journal)) is not None:
        return refused
    if (refused := refused_as_repeat(asked, plan, journal, surface)) is not None:
        return refused
    minor_units = minor_units_of(rules)
    share = Decimal(str(settings.approval.changed_share))
    findings = [*_changes(plan, journal, against, share, minor_units), *corrections, *_warnings(plan)]
    findings.sort(key=lambda one: one.code != SheetRepeatsBatch.code)  # the maker had to answer for it: it comes first
    content = content_of(
        plan,
        endpoint=settings.endpoint(),
        journal_id=journal.head().journal_id,
        operation=asked.operation,
        minor_units=minor_units,
    )
    return Prepared(plan, unsigned_plan(content, findings, maker, utc_now(), repeats_meant=plan.repeated_batch))


def _warnings(plan: Plan) -> list[PlanFinding]:
    """Return the warnings of the validation. They may quote the sheet, as the sheet's own defects do."""
    payees = plan.validated.rows.select(
        "row", *(pl.col(name).fill_null("") for name in ("account_name", "amount", "currency"))
    )
    lines = plan.warnings.join(payees, on="row", how="left", maintain_order="left")
    return [
        PlanFinding(
            row=row,
            code=code,
            message=say("Row {row}: {message}", row=row, message=message) if row else message,
            name=name or "",
            amount=amount or "",
            currency=currency or "",
        )
        for row, code, message, name, amount, currency in lines.select(
            pl.col("row").cast(pl.Int64), "code", "message", "account_name", "amount", "currency"
        ).iter_rows()
    ]


def _changes(
    plan: Plan, journal: JournalReader, against: str | None, share: Decimal, minor_units: Mapping[str, int]
) -> list[PlanFinding]:
    """Return the changes since the run before: the batch that is named, or the newest that is not this sheet's own."""
    validated = plan.validated
    same = [record for record in journal.batches() if record.operation == validated.sheet.operation]
    others = [record for record in same if record.batch != validated.batch]
    if against is not None:
        others = [find_batch(journal, against)]
        if others[0].operation != validated.sheet.operation:
            raise UsageError(
                say("--against {against}: one of the two runs pays people, and the other collects.", against=against)
            )
    if not others:
        return [
            PlanFinding(row=0, code="payee.first_run", message=say("There is no run before this one to compare with."))
        ]
    before = others[-1]
    found = changes(validated.rows, from_pages(journal.pages(before.number)), share=share, minor_units=minor_units)
    compared = PlanFinding(
        row=0,
        code="payee.compared",
        message=say(
            "Compared with batch {batch} ({sheet_name}, {opened_at}).",
            batch=before.batch,
            sheet_name=before.sheet_name,
            opened_at=before.opened_at[:10],
        ),
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
