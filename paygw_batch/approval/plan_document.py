"""Builds and checks plans. A plan states exactly what to pay. Its maker signs it, and others approve it.

A plan contains the endpoint, the journal, the batch, its totals, findings and a digest of all instructions. It can open
one batch, only once. `signed_document.py` signs and approves plans.
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
"""The code of rows whose accounts were first paid on the same day."""
ALREADY_SENT = "payee.sent_before"
"""The code of a row in an earlier batch, which is not sent again."""
CORRECTED = "cell.mended"
"""The code of a corrected cell."""
REASSIGNED_HEADING = "column.meant"
"""The code of a heading that a person reassigned to another column."""
NAMED_ENCODING = "sheet.encoding"
"""The code of a sheet's encoding, if a person chose it."""
SPELLED_COLUMN = "sheet.spelling"
"""The code of texts whose meaning a person chose. `value` is the first text, and `rows` lists all rows."""
WORKSHEET = "sheet.worksheet"
"""The code of the worksheet (`value`) that is paid, if the workbook has several."""
OTHER_WORKSHEET = "sheet.other_worksheet"
"""The code of a worksheet (`value`) that is not paid. `people` is the number of rows, if it lists payees."""
_ROWS_AT_ONCE = 100_000
PEOPLE_COLUMNS = ("row", "name", "account", "currency", "amount")


class PlanContent(SignedPart):
    """The payments in a plan: only the rows that would be sent, not the whole sheet.

    - `rows` counts the rows that would be sent, `totals` are their sums by currency, and `instructions_sha256` covers
      them.
    - `known` counts the rows already sent or held. `known_sha256` covers them, because they determine which other rows
      are sent. `invalid` counts the rows left out.
    - `people_sha256` covers the list that approvers read. `submit` computes it again, so exactly these people are paid.
    """

    endpoint: str
    journal: str
    """The id of the journal that will store the batch."""
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

    It is turned into a sentence when it is shown (`submit/plan_to_approve.py`). Only validation warnings have a
    `message`, with `column` and `value`. Row 0 means the whole sheet.

    - `name`, `account`, `amount`, `currency`: the payment in this sheet. `shared_with`: another name paid under the
      same account.
    - `old_account` and `before...`: the payment to compare with. `first...`: the account's first payment.
    - `people`, `found`, `paid_before`: how many people are in the sheet, and how many of them were paid by one earlier
      batch and by any earlier batch.
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
        """Every value except the message, for comparing findings in different languages."""
        return tuple(getattr(self, name) for name in type(self).model_fields if name != "message")


class PlanDocument(SignedDocument):
    """A plan, as stored in a file."""

    noun: ClassVar[str] = mark("plan")
    placeholder: ClassVar[str] = "PLAN"
    nothing_done: ClassVar[str] = mark("Nothing was sent.")
    renewal_hint: ClassVar[str] = mark("Make a new plan with `paygw-batch plan SHEET --out PLAN --key KEY`.")

    document: Literal["paygw-batch plan 5"] = "paygw-batch plan 5"
    content: PlanContent
    findings: list[PlanFinding]
    people: str
    """All people who are paid, as CSV with the columns `PEOPLE_COLUMNS`."""
    answered: list[str] = []  # noqa: RUF012 - pydantic copies it
    """The keys of the questions that the maker answered (`OpenQuestion.key`). The findings show all of them."""
    against: str = ""
    """An extra batch that the maker compared the sheet with, or empty."""
    language: str = ENGLISH
    """The language of the findings, also used when they are computed again."""

    def model_post_init(self, _: object, /) -> None:
        """Raise `ValueError` unless `people` matches its digest in the content."""
        if hashlib.sha256(self.people.encode()).hexdigest() != self.content.people_sha256:
            raise ValueError("the list of people is not the one that the content names")

    def select_findings(self, *codes: str) -> Sequence[PlanFinding]:
        return [finding for finding in self.findings if finding.code in codes]

    @property
    def code(self) -> str:
        """A code that two people can compare by phone. Signing does not change it."""
        return group_digits(payout_code(self))


@dataclass(frozen=True, slots=True)
class PlanApproval:
    """The approved plan that opened a batch: its digest, and who prepared and approved it.

    `answered` lists the keys of the questions that the maker answered and the approvers accepted.
    """

    plan_sha256: str
    approvals: tuple[str, ...]
    answered: tuple[str, ...] = ()


NO_APPROVAL = PlanApproval("", ())
"""The approval of a batch that needs none."""


def build_content_and_people(
    validated: Validated,
    known: Sequence[KnownRow],
    *,
    amended: int,
    endpoint: str,
    journal_id: str,
    minor_units: Mapping[str, int],
) -> tuple[PlanContent, str]:
    """Return the content of a sheet's plan, and the list of its people. `known` rows are not sent."""
    known_rows = {row.row for row in known}
    digest, known_digest, lines = hashlib.sha256(), hashlib.sha256(), []
    sums: Counter[str] = Counter()
    is_known = pl.col("row").is_in(pl.Series(sorted(known_rows), dtype=pl.UInt32).implode())
    for part in validated.parts():
        for chunk in part.instructions.iter_slices(_ROWS_AT_ONCE):
            known_digest.update(_csv_bytes(chunk.filter(is_known).select("row", "client_orderid")))
            due = chunk.filter(~is_known) if known else chunk
            digest.update(_csv_bytes(due))
            chunk_sums = due.group_by("currency").agg(pl.col("minor").cast(pl.Decimal(38, 0)).sum())
            sums.update({currency: int(minor) for currency, minor in chunk_sums.iter_rows()})
            lines.append(_people_csv(due, part.rows, minor_units))
    people = "".join(lines)
    content = PlanContent(
        endpoint=endpoint,
        journal=journal_id,
        operation=validated.sheet.operation,
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.payable_count - len(known_rows),
        known=len(known_rows),
        invalid=validated.height - validated.payable_count,
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
    """Return the people paid by `instructions`, as CSV with the columns `PEOPLE_COLUMNS`."""
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

    `people` is the list whose digest the content contains. `answered` lists the keys of the questions that the maker
    answered. `against` is an extra batch that the sheet was compared with.
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
    """Return the 16 hex digits that two people can compare: a digest of all payments and findings."""
    covered = document.model_dump_json(exclude={"document", "made_at", "maker", "signature", "approvals"})
    return hashlib.sha256(f"{document.document} code\n{covered}".encode()).hexdigest()[:16]


def payments_sha256(content: PlanContent) -> str:
    """Return the SHA-256 (hex) of a plan's payments, for finding other plans with the same payments."""
    return hashlib.sha256(content.model_dump_json().encode()).hexdigest()


def needs_approval(content: PlanContent, policy: ApprovalPolicy) -> bool:
    """Return whether a batch needs approval because of its sum in one of its currencies."""
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
    """Check a plan and return who approved it. Raises `ApprovalError` unless it is valid for `content` and unused."""
    if opened_batch is not None:
        raise ApprovalError(
            say(
                "The plan was already used for batch {batch} ({sheet_name}) at {opened_at}. A plan can be used only "
                "once.",
                opened_at=opened_batch.opened_at,
                batch=opened_batch.batch,
                sheet_name=opened_batch.sheet_name,
            ),
            hint=say(
                "Nothing was sent. To continue that batch, run `paygw-batch resume {batch}`. To pay anything else, "
                "make a new plan and have it approved.",
                batch=opened_batch.batch,
            ),
        )
    require_same_content(document, content)
    signatures = require_signatures(document, policy, now)
    digest = document.digest()
    valid = signatures.valid.items()
    records = (encode_record("approved", person.name, approval.approved_at, digest[:16]) for person, approval in valid)
    return PlanApproval(
        digest, (encode_record("prepared", signatures.maker.name, document.made_at), *records), tuple(document.answered)
    )


def require_same_content(document: PlanDocument, content: PlanContent) -> None:
    """Raise `ApprovalError` unless a plan has exactly this `content`."""
    if document.content != content:
        raise ApprovalError(
            say("The plan does not match: {content}.", content=_describe_difference(document.content, content)),
            hint=say("Nothing was sent. Make a new plan for this sheet and have it approved."),
        )


def require_same_findings(document: PlanDocument, recomputed: Sequence[PlanFinding], *, asked: Sequence[str]) -> None:
    """Raise `ApprovalError` unless a plan has exactly the `recomputed` findings, in the same order.

    The order matters, because people read only the first of many findings. `asked` lists the keys of the sheet's
    questions, and the maker must have answered exactly these.
    """
    if tuple(recomputed) == tuple(document.findings) and document.answered == list(asked):
        return
    planned, actual = (Counter(finding.values for finding in findings) for findings in (document.findings, recomputed))
    raise ApprovalError(
        say(
            "The plan does not show exactly what its approver must see, perhaps because payments have been made "
            "since. Missing findings: {missing:,}. Unexpected findings: {foreign:,}. Make a new plan for this "
            "sheet and have it approved.",
            missing=(actual - planned).total(),
            foreign=(planned - actual).total(),
        ),
        hint=say("Nothing was sent."),
    )


def _describe_difference(expected: PlanContent, actual: PlanContent) -> str:
    if expected.endpoint != actual.endpoint:
        return say("it is for {endpoint}, not for {actual}", endpoint=expected.endpoint, actual=actual.endpoint)
    if expected.journal != actual.journal:
        journals = {"journal": expected.journal[:8], "actual": actual.journal[:8]}
        return say("it is for the journal {journal}, not for the journal {actual}", **journals)
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
    """Read a plan from a file. Raises `ApprovalError` if it is missing or not a plan."""
    return read_document(path, PlanDocument)
