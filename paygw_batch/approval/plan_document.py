"""Builds and checks plans. A plan names the exact instructions to pay; its maker signs it, and others approve it.

A plan names the endpoint, the journal and the batch, with a digest of every instruction, totals and findings. A plan
opens one batch, once. Signing and approving are in `signed_document.py`.
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

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.signed_document import (
    ApprovalPolicy,
    SignedDocument,
    SignedPart,
    SparsePart,
    group_digits,
    read_document,
    require_signatures,
)
from paygw_batch.clock import timestamp
from paygw_batch.core.money import format_amount, from_minor
from paygw_batch.core.shown_states import encode_record
from paygw_batch.errors import ApprovalError
from paygw_batch.journal import BatchRecord, KnownRow
from paygw_batch.language import ENGLISH, language, mark, say, say_count
from paygw_batch.sheet.model import Validated

FIRST_RUN = "payee.first_run"
COMPARED_BATCH = "payee.compared"
ACCOUNTS_FIRST_PAID = "payee.known_since"
"""The code of a finding with the rows whose accounts were first paid on one day."""
ALREADY_SENT = "payee.sent_before"
"""The code of a row that is in an earlier batch and is not sent again."""
CORRECTED = "cell.mended"
"""The code of a corrected cell."""
REASSIGNED_HEADING = "column.meant"
"""The code of a heading to which a person gave a different meaning."""
NAMED_ENCODING = "sheet.encoding"
"""The code of a finding with the encoding that somebody had to name for a sheet."""
SPELLED_COLUMN = "sheet.spelling"
"""The code of a column's texts that are read as a person said. `value` is the first text, and `rows` are all rows."""
WORKSHEET = "sheet.worksheet"
"""The code of the worksheet that is paid, if the workbook has several (`value`)."""
OTHER_WORKSHEET = "sheet.other_worksheet"
"""The code of a worksheet that the plan does not pay (`value`); `people` is its number of rows, if it lists payees."""
_ROWS_AT_ONCE = 100_000


class PlanContent(SignedPart):
    """The payments of a plan: only the rows that would be sent, not the whole sheet.

    - `rows` is the number of rows that would be sent, `totals` has their sums by currency, and `instructions_sha256`
      covers each of them.
    - `known` is the number of rows that were sent before. `known_sha256` covers these rows, because they decide which
      other rows are sent. `invalid` is the number of rows left out.
    - `people_sha256` covers the list that approvers read. `submit` computes it again, so exactly these people are paid.
    """

    endpoint: str
    journal: str
    """The id of the journal in which the batch will be."""
    operation: str
    batch: str
    sheet: str
    rows: int
    known: int
    invalid: int
    amended: int
    instructions_sha256: str
    known_sha256: str = hashlib.sha256().hexdigest()
    people_sha256: str = hashlib.sha256().hexdigest()
    totals: dict[str, str]


class PlanFinding(SparsePart):
    """A finding for an approver: a difference from earlier payments, a row left out, or a warning.

    It is turned into a sentence when it is shown (`submit/plan_to_approve.py`). Only a validation warning has a
    `message`, with its `column` and `value`. Row 0 means the whole sheet.

    - `name`, `account`, `amount`, `currency`: the payee in this sheet. `shared_with`: another name paid into the
      account.
    - `old_account` and `before...`: the payment to compare with. `first...`: the account's first payment.
    - `people`, `found`, `paid_before`: the numbers of people in the sheet, of those whom one earlier batch paid, and of
      those whom any earlier batch paid.
    - `by` and `at`: who changed something, and when. `becomes`: the new text of a cell. `reasons`: codes of defects.
      `rows`: ranges of rows.
    """

    row: int
    code: str
    message: str = ""
    column: str = ""
    value: str = ""
    name: str = ""
    account: str = ""
    amount: str = ""
    currency: str = ""
    old_account: str = ""
    before: str = ""
    before_batch: str = ""
    before_sheet: str = ""
    before_at: str = ""
    first_amount: str = ""
    first_sheet: str = ""
    first_at: str = ""
    shared_with: str = ""
    people: int = 0
    found: int = 0
    paid_before: int = 0
    becomes: str = ""
    reasons: str = ""
    by: str = ""
    at: str = ""
    rows: str = ""

    @property
    def values(self) -> tuple[object, ...]:
        """Every value except the message, so that the same finding is equal in two languages."""
        return tuple(getattr(self, name) for name in type(self).model_fields if name != "message")


class PlanDocument(SignedDocument):
    """The file of a plan."""

    noun: ClassVar[str] = mark("plan")
    placeholder: ClassVar[str] = "PLAN"
    nothing_done: ClassVar[str] = mark("Nothing was sent.")
    renewal_hint: ClassVar[str] = mark("Make a new plan: `paygw-batch plan SHEET --out PLAN --key KEY`.")

    document: Literal["paygw-batch plan 5"] = "paygw-batch plan 5"
    content: PlanContent
    findings: list[PlanFinding]
    people: str
    """Everyone who is paid, one line of CSV each, with the columns `PEOPLE_COLUMNS`."""
    answered: list[str] = []  # noqa: RUF012 - pydantic copies it
    """The keys of the questions that the maker answered (`OpenQuestion.key`). The findings show all of them."""
    against: str = ""
    """A batch with which the maker compared the sheet, besides the usual comparison; empty for none."""
    language: str = ENGLISH
    """The language of the findings. They are computed again in this language."""

    def model_post_init(self, _: object, /) -> None:
        """Raise `ValueError` unless the list of people matches the digest in the content."""
        if hashlib.sha256(self.people.encode()).hexdigest() != self.content.people_sha256:
            raise ValueError("the list of people is not the one that the content names")

    def select_findings(self, *codes: str) -> Sequence[PlanFinding]:
        return [finding for finding in self.findings if finding.code in codes]

    @property
    def code(self) -> str:
        """The code that two people compare by phone. Signing does not change it."""
        return group_digits(payout_code(self))


PEOPLE_COLUMNS = ("row", "name", "account", "currency", "amount")


@dataclass(frozen=True, slots=True)
class PlanApproval:
    """The journal's record of the plan that opened a batch: its digest, and who prepared and approved it.

    `answered` has the keys of the questions about the sheet that the maker answered and the others approved.
    """

    plan_sha256: str
    approvals: tuple[str, ...]
    answered: tuple[str, ...] = ()


NO_APPROVAL = PlanApproval("", ())
"""The record if no approval is required."""


def build_content_and_people(
    validated: Validated,
    known: Sequence[KnownRow],
    *,
    amended: int,
    endpoint: str,
    journal_id: str,
    minor_units: Mapping[str, int],
) -> tuple[PlanContent, str]:
    """Return the payments of a sheet that would be sent, and their people. `known` rows are not sent."""
    known_rows = {row.row for row in known}
    digest, known_digest, lines = hashlib.sha256(), hashlib.sha256(), []
    sums: Counter[str] = Counter()
    is_known = pl.col("row").is_in(pl.Series(sorted(known_rows), dtype=pl.UInt32).implode())
    for part in validated.parts():  # only one part is in memory at a time
        for chunk in part.instructions.iter_slices(_ROWS_AT_ONCE):
            known_digest.update(_csv_bytes(chunk.filter(is_known).select("row", "client_orderid")))
            due = chunk.filter(~is_known) if known else chunk
            digest.update(_csv_bytes(due))
            exact = due.group_by("currency").agg(pl.col("minor").cast(pl.Decimal(38, 0)).sum())
            sums.update({currency: int(minor) for currency, minor in exact.iter_rows()})
            lines.append(_people_csv(due, part.rows, minor_units))
    people = "".join(lines)
    content = PlanContent(
        endpoint=endpoint,
        journal=journal_id,
        operation=validated.sheet.operation,
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.payable - len(known_rows),
        known=len(known_rows),
        invalid=validated.height - validated.payable,
        amended=amended,
        instructions_sha256=digest.hexdigest(),
        known_sha256=known_digest.hexdigest(),
        people_sha256=hashlib.sha256(people.encode()).hexdigest(),
        totals={code: from_minor(minor, minor_units=minor_units[code]) for code, minor in sorted(sums.items())},
    )
    return content, people


def _csv_bytes(frame: pl.DataFrame) -> bytes:
    return frame.write_csv(include_header=False, quote_style="always").encode()


def _people_csv(instructions: pl.DataFrame, rows: pl.DataFrame, minor_units: Mapping[str, int]) -> str:
    """Return the instructions' `PEOPLE_COLUMNS` as CSV, with the accounts and amounts that are sent."""
    names = rows.select("row", name=pl.col("account_name").fill_null(""))
    digits = pl.col("currency").replace_strict(minor_units, return_dtype=pl.Int64, default=0)
    factor = pl.lit(10, pl.Int64).pow(digits)
    whole, fraction = pl.col("minor") // factor, (pl.col("minor") % factor).cast(pl.String)
    decimals = (
        pl.when(digits > 0).then(pl.concat_str(pl.lit("."), fraction.str.pad_start(digits, "0"))).otherwise(pl.lit(""))
    )
    amount = pl.concat_str(whole.cast(pl.String), decimals)
    with_names = instructions.join(names, on="row", how="left", maintain_order="left")
    people = with_names.with_columns(account="payee", amount=amount).select(PEOPLE_COLUMNS)
    return people.write_csv(include_header=False)


def build_plan(
    content: PlanContent,
    findings: Sequence[PlanFinding],
    maker: PublicKey,
    now: datetime,
    *,
    people: str = "",
    answered: Sequence[str] = (),
    against: str = "",
) -> PlanDocument:
    """Build an unsigned plan, with findings in the current language.

    `people` is the list that the content covers. `answered` has the keys of the questions that the maker answered.
    `against` is a batch with which the sheet was compared.
    """
    return PlanDocument(
        content=content,
        findings=list(findings),
        made_at=timestamp(now),
        maker=maker.text,
        signature="",
        approvals=[],
        people=people,
        answered=list(answered),
        against=against,
        language=language(),
    )


def payout_code(document: PlanDocument) -> str:
    """Return the 16 hex digits that two people compare. They depend on every payment and finding.

    Signing the plan does not change them.
    """
    covered = document.model_dump_json(exclude={"document", "made_at", "maker", "signature", "approvals"})
    return hashlib.sha256(f"{document.document} code\n{covered}".encode()).hexdigest()[:16]


def payments_sha256(content: PlanContent) -> str:
    """Return the SHA-256 (hex) of a plan's payments, which identifies other plans of the same payments."""
    return hashlib.sha256(content.model_dump_json().encode()).hexdigest()


def needs_approval(content: PlanContent, policy: ApprovalPolicy) -> bool:
    """Return whether a batch needs approval because of its sum in any currency."""
    return any(
        Decimal(amount) >= policy.from_amount.get(currency, Decimal(0)) for currency, amount in content.totals.items()
    )


def check_plan(
    document: PlanDocument,
    content: PlanContent,
    policy: ApprovalPolicy,
    now: datetime,
    *,
    opened_batch: BatchRecord | None,
) -> PlanApproval:
    """Return who prepared and approved the plan of exactly `content`.

    `opened_batch` is the batch that the plan already opened, if any. Raises `ApprovalError` if there is one, if the
    content differs, or if fewer people approved the plan than the policy needs.
    """
    if opened_batch is not None:
        raise ApprovalError(
            say(
                "The plan was already used at {opened_at} for batch {batch} ({sheet_name}), "
                "and a plan can be used only once.",
                opened_at=opened_batch.opened_at,
                batch=opened_batch.batch,
                sheet_name=opened_batch.sheet_name,
            ),
            hint=say(
                "Nothing was sent. `paygw-batch resume {batch}` continues that batch; anything else needs a new "
                "plan, and its own approvals.",
                batch=opened_batch.batch,
            ),
        )
    require_same_content(document, content)
    signed = require_signatures(document, policy, now)
    digest = document.digest()
    valid = signed.valid.items()
    records = (encode_record("approved", person.name, approval.approved_at, digest[:16]) for person, approval in valid)
    return PlanApproval(
        digest, (encode_record("prepared", signed.maker.name, document.made_at), *records), tuple(document.answered)
    )


def require_same_content(document: PlanDocument, content: PlanContent) -> None:
    """Raise `ApprovalError` unless a plan has exactly this `content`."""
    if document.content != content:
        raise ApprovalError(
            say("The plan does not match: {content}.", content=_describe_difference(document.content, content)),
            hint=say("Nothing was sent. Make a new plan of this sheet, and have it approved."),
        )


def require_same_findings(document: PlanDocument, recomputed: Sequence[PlanFinding], *, asked: Sequence[str]) -> None:
    """Raise `ApprovalError` unless a plan has exactly the `recomputed` findings in the same order.

    The order matters, because people read only the first of many findings. `asked` has the keys of the sheet's
    questions; the plan's maker must have answered exactly these.
    """
    if tuple(recomputed) == tuple(document.findings) and document.answered == list(asked):
        return
    planned, actual = (Counter(finding.values for finding in findings) for findings in (document.findings, recomputed))
    raise ApprovalError(
        say(
            "The plan does not show what its approver must see, perhaps because payments were made since. Missing "
            "findings: {missing:,}; findings that should not be there: {foreign:,}. Make a new plan of this sheet, and "
            "have it approved.",
            missing=(actual - planned).total(),
            foreign=(planned - actual).total(),
        ),
        hint=say("Nothing was sent."),
    )


def _describe_difference(expected: PlanContent, actual: PlanContent) -> str:
    if expected.endpoint != actual.endpoint:
        return say("it is for {endpoint}, but this is {actual}", endpoint=expected.endpoint, actual=actual.endpoint)
    if expected.journal != actual.journal:
        journals = {"journal": expected.journal[:8], "actual": actual.journal[:8]}
        return say("it is for the journal {journal}, but this is the journal {actual}", **journals)
    if expected.totals != actual.totals:
        return say("it pays {planned}, but {actual} would be paid now", planned=_sums(expected), actual=_sums(actual))
    if expected.rows != actual.rows:
        return say_count(
            expected.rows,
            "it pays {count:,} row, but {actual:,} would be paid now",
            "it pays {count:,} rows, but {actual:,} would be paid now",
            actual=actual.rows,
        )
    return say("a row, a payee or an option has changed since the plan was made")


def _sums(content: PlanContent) -> str:
    sums = ", ".join(f"{currency} {format_amount(amount)}" for currency, amount in content.totals.items())
    return sums or say("nothing")


def read_plan(path: Path) -> PlanDocument:
    """Return the plan in the file `path`. Raises `ApprovalError` if it is missing or not a plan."""
    return read_document(path, PlanDocument)
