"""Checks plans: a plan names exactly the instructions to pay, its maker signs it, others approve it.

A plan names the endpoint, the journal and the batch, with a digest of every instruction, totals and findings. It opens
one batch, once. How it is signed and approved, and by whom: `signed_document.py`.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import ClassVar, Literal

import polars as pl

from paygw_batch.clock import timestamp
from paygw_batch.core.money import from_minor, with_separators
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    SignedPart,
    in_groups,
    read_document,
    require_signatures,
)
from paygw_batch.run.submit import Plan
from paygw_batch.sheet.model import Validated

_ROWS_AT_ONCE = 100_000


class Content(SignedPart):
    """The payments of a plan. `totals`: currency -> sum of the valid rows; `instructions_sha256` covers each."""

    endpoint: str
    journal: str
    """The id of the journal whose batch this will be."""
    operation: str
    batch: str
    sheet: str
    rows: int
    invalid: int
    amended: int
    instructions_sha256: str
    totals: dict[str, str]


class PlanFinding(SignedPart):
    """A finding for an approver: a difference from the last run, or a warning of the validation.

    `name`, `amount` and `currency` are those of the payee in this sheet, `before` is the amount of the last run; empty
    where there is none. Row 0: no row of the sheet.
    """

    row: int
    code: str
    message: str
    name: str = ""
    amount: str = ""
    currency: str = ""
    before: str = ""


class PlanDocument(SignedDocument):
    """A plan as it is in its file."""

    noun: ClassVar[str] = mark("plan")
    placeholder: ClassVar[str] = "PLAN"
    nothing_done: ClassVar[str] = mark("Nothing was sent.")
    make_another: ClassVar[str] = mark("Make a new plan: `paygw-batch plan SHEET --out PLAN --key KEY`.")

    document: Literal["paygw-batch plan 3"] = "paygw-batch plan 3"
    content: Content
    findings: list[PlanFinding]
    repeats_meant: str = ""
    """The batch that the sheet is meant to repeat under other order ids, as its maker said; empty: none."""

    @property
    def code(self) -> str:
        """The code that two people compare by phone: that of the payout, the same before and after it is signed."""
        return in_groups(payout_code(self.content))


@dataclass(frozen=True, slots=True)
class Approved:
    """The journal's note of a plan that opens a batch: its digest, and a sentence for each person.

    `repeats_meant` is the batch that the sheet is meant to repeat, as its maker said and the others approved.
    """

    plan_sha256: str
    sentences: tuple[str, ...]
    repeats_meant: str = ""


NOT_ASKED_FOR = Approved("", ())
"""The note where no approval is asked for."""


def content_of(
    plan: Plan, *, endpoint: str, journal_id: str, operation: str, minor_units: Mapping[str, int]
) -> Content:
    """Return the payments of a planned sheet, submitted to `endpoint` from one journal."""
    validated = plan.validated
    digest, totals = _digest_and_totals(validated, minor_units)
    return Content(
        endpoint=endpoint,
        journal=journal_id,
        operation=operation,
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        invalid=validated.height - validated.payable,
        amended=len(plan.amendments),
        instructions_sha256=digest,
        totals=totals,
    )


def _digest_and_totals(validated: Validated, minor_units: Mapping[str, int]) -> tuple[str, dict[str, str]]:
    """Return a digest of the instructions of a sheet, and the sum of each currency; no more than a part is held."""
    digest = hashlib.sha256()
    sums: Counter[str] = Counter()
    for part in validated.parts():
        for some in part.instructions.iter_slices(_ROWS_AT_ONCE):
            digest.update(some.write_csv(include_header=False, quote_style="always").encode())
            exact = some.group_by("currency").agg(pl.col("minor").cast(pl.Decimal(38, 0)).sum())
            sums.update({currency: int(minor) for currency, minor in exact.iter_rows()})
    totals = {
        currency: from_minor(minor, minor_units=minor_units[currency]) for currency, minor in sorted(sums.items())
    }
    return digest.hexdigest(), totals


def unsigned_plan(
    content: Content, findings: Sequence[PlanFinding], maker: PublicKey, now: datetime, *, repeats_meant: str = ""
) -> PlanDocument:
    """Return a plan that its maker has yet to sign.

    `repeats_meant` is the batch that the maker says the sheet is to repeat.
    """
    return PlanDocument(
        content=content,
        findings=list(findings),
        made_at=timestamp(now),
        maker=maker.text,
        signature="",
        approvals=[],
        repeats_meant=repeats_meant,
    )


def payout_code(content: Content) -> str:
    """Return the 16 hex digits that two people compare: where one account or amount differs, so do they.

    They are the same before and after the plan is signed.
    """
    return hashlib.sha256(f"{Content.__name__}\n{content.model_dump_json()}".encode()).hexdigest()[:16]


def needs_approval(content: Content, policy: ApprovalPolicy) -> bool:
    """Whether a batch is large enough, in any of its currencies, to need approval."""
    return any(
        Decimal(amount) >= policy.from_amount.get(currency, Decimal(0)) for currency, amount in content.totals.items()
    )


def check_plan(
    document: PlanDocument, content: Content, policy: ApprovalPolicy, now: datetime, *, used: BatchRecord | None
) -> Approved:
    """Return who prepared and approved exactly `content`.

    `used` is the batch that the plan has opened already, if there is one: it opens no other. Raises `ApprovalError`
    when the plan is used, about other content, or approved by fewer people than the policy needs.
    """
    if used is not None:
        raise ApprovalError(
            say(
                "The plan was used at {opened_at}, to open batch {batch} ({sheet_name}): a plan opens one batch, once.",
                opened_at=used.opened_at,
                batch=used.batch,
                sheet_name=used.sheet_name,
            ),
            hint=say(
                "Nothing was sent. `paygw-batch resume {batch}` continues that batch; anything else needs a new "
                "plan, and its own approvals.",
                batch=used.batch,
            ),
        )
    if document.content != content:
        raise ApprovalError(
            say("The plan is about other content: {content}.", content=_what_differs(document.content, content)),
            hint=say("Nothing was sent. Make a new plan of this sheet, and have it approved."),
        )
    found = require_signatures(document, policy, now)
    digest = document.digest()
    approvals = (
        f"approved by {person.name} at {approval.approved_at} (plan {digest[:16]})"
        for person, approval in found.valid.items()
    )
    sentences = (f"prepared by {found.maker.name} at {document.made_at}", *approvals)
    return Approved(digest, sentences, document.repeats_meant)


def _what_differs(planned: Content, actual: Content) -> str:
    if planned.endpoint != actual.endpoint:
        return say("it is for {endpoint}, and this is {actual}", endpoint=planned.endpoint, actual=actual.endpoint)
    if planned.journal != actual.journal:
        return say(
            "it is for the journal {journal}, and this is the journal {actual}",
            journal=planned.journal[:8],
            actual=actual.journal[:8],
        )
    if planned.totals != actual.totals:
        return say("it comes to {planned}, and the sheet to {actual}", planned=_sums(planned), actual=_sums(actual))
    if planned.rows != actual.rows:
        return say("it has {rows} rows, and the sheet {actual}", rows=planned.rows, actual=actual.rows)
    return say("a row, a payee or the way to submit it has changed since")


def _sums(content: Content) -> str:
    sums = ", ".join(f"{currency} {with_separators(amount)}" for currency, amount in content.totals.items())
    return sums or say("nothing")


def read_plan(path: Path) -> PlanDocument:
    """Return the plan in the file `path`. Raises `ApprovalError` when there is none, or it does not read as one."""
    return read_document(path, PlanDocument)
