"""Maker and checker: a plan says exactly what is to be paid, its maker signs it, others approve it, submit checks.

What is signed is the canonical text of the plan: endpoint, batch, a digest of every instruction, totals and findings,
and who made it. An approval signs the digest of that and a time. So nobody can approve a plan they made, an approval
cannot be carried over to other content or another endpoint, and it grows old. What this cannot prove is told in
docs/day-two.md: it knows keys, not people.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from paygw_batch.core.money import from_minor
from paygw_batch.errors import ApprovalError, ConfigurationError
from paygw_batch.run.approval_keys import ApprovalKey, is_public_key, is_signed_by
from paygw_batch.run.ports import timestamp
from paygw_batch.run.submit import Plan
from paygw_batch.sheet.write import write_whole

MAX_PLAN_BYTES = 64 * 1024 * 1024
CLOCK_SKEW = timedelta(minutes=5)
"""How far ahead of this machine's clock an approver's may be."""

_MAKER_DOMAIN = b"paygw-batch plan 1\n"
_APPROVAL_DOMAIN = b"paygw-batch approval 1\n"
_ROWS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """Who may prepare and approve, and what needs it. `makers` and `approvers`: name -> public key.

    A batch needs approval when its sum in any currency reaches `from_amount`; a currency that is not listed always
    does.
    """

    needed: int
    from_amount: Mapping[str, Decimal]
    expires_h: float
    makers: Mapping[str, str]
    approvers: Mapping[str, str]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Content(_Part):
    """Exactly what would be paid. `totals`: currency -> sum of the valid rows; `instructions_sha256` covers each."""

    endpoint: str
    operation: str
    batch: str
    sheet: str
    rows: int
    invalid: int
    amended: int
    instructions_sha256: str
    totals: dict[str, str]


class Finding(_Part):
    """Something an approver should know: a warning of the validation, or what differs from the last run."""

    row: int
    code: str
    message: str


class Approval(_Part):
    """One person's yes, as signed."""

    key: str
    approved_at: str
    signature: str


class PlanDocument(_Part):
    """A plan as it stands in its file."""

    content: Content
    findings: list[Finding]
    made_at: str
    maker: str
    """The maker's public key."""
    signature: str
    approvals: list[Approval]
    repeats_meant: str = ""
    """The batch that the sheet is meant to repeat under other order ids, as its maker said; empty: none."""

    def signed_text(self) -> bytes:
        """Return what the maker's signature covers: everything but itself and the approvals.

        A part that has its default is left out, so that plans of earlier versions, which lack it, hold.
        """
        body = self.model_dump(exclude={"signature", "approvals"}, exclude_defaults=True)
        return _MAKER_DOMAIN + json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def digest(self) -> str:
        """Return the SHA-256 of what the maker signed, in hex."""
        return hashlib.sha256(self.signed_text()).hexdigest()

    def approval_text(self, approved_at: str) -> bytes:
        """Return what an approver's signature covers."""
        body = {"plan_sha256": self.digest(), "approved_at": approved_at}
        return _APPROVAL_DOMAIN + json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def content_of(plan: Plan, *, endpoint: str, operation: str, minor_units: Mapping[str, int]) -> Content:
    """Return what submitting a planned sheet to `endpoint` would pay."""
    validated = plan.validated
    return Content(
        endpoint=endpoint,
        operation=operation,
        batch=validated.batch,
        sheet=validated.sheet.name,
        rows=validated.height,
        invalid=validated.height - validated.instructions.height,
        amended=len(plan.amendments),
        instructions_sha256=_digest_of(validated.instructions),
        totals=_totals_of(validated.instructions, minor_units),
    )


def _digest_of(instructions: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for part in instructions.iter_slices(_ROWS_AT_ONCE):
        digest.update(part.write_csv(include_header=False, quote_style="always").encode())
    return digest.hexdigest()


def _totals_of(instructions: pl.DataFrame, minor_units: Mapping[str, int]) -> dict[str, str]:
    sums = instructions.group_by("currency").agg(pl.col("minor").cast(pl.Decimal(38, 0)).sum()).sort("currency")
    return {currency: from_minor(int(minor), minor_units=minor_units[currency]) for currency, minor in sums.iter_rows()}


def make_plan(
    content: Content, findings: Sequence[Finding], key: ApprovalKey, now: datetime, *, repeats_meant: str = ""
) -> PlanDocument:
    """Return a plan signed by its maker. `repeats_meant` is the batch that the maker says the sheet is to repeat."""
    unsigned = PlanDocument(
        content=content,
        findings=list(findings),
        made_at=timestamp(now),
        maker=key.public,
        signature="",
        approvals=[],
        repeats_meant=repeats_meant,
    )
    return unsigned.model_copy(update={"signature": key.sign(unsigned.signed_text())})


def approve_plan(document: PlanDocument, key: ApprovalKey, policy: ApprovalPolicy, now: datetime) -> PlanDocument:
    """Return the plan with an approval by `key`, in place of an earlier one by the same key.

    Raises `ApprovalError` for a plan that was changed, a maker or an approver whom the policy does not know, and the
    maker's own key.
    """
    _check_maker(document, policy)
    if key.public == document.maker:
        raise ApprovalError(
            "This is the key that the plan was made with: another person has to approve it.",
            hint="Nothing was approved.",
        )
    if key.public not in policy.approvers.values():
        raise ApprovalError(
            "This key is not among [approval.approvers] of the configuration.", hint="Nothing was approved."
        )
    approved_at = timestamp(now)
    approval = Approval(
        key=key.public, approved_at=approved_at, signature=key.sign(document.approval_text(approved_at))
    )
    others = [one for one in document.approvals if one.key != key.public]
    return document.model_copy(update={"approvals": [*others, approval]})


def needs_approval(content: Content, policy: ApprovalPolicy) -> bool:
    """Whether a batch is large enough, in any of its currencies, to need approval."""
    return any(
        Decimal(amount) >= policy.from_amount.get(currency, Decimal(0)) for currency, amount in content.totals.items()
    )


def check_approvals(document: PlanDocument, content: Content, policy: ApprovalPolicy, now: datetime) -> list[str]:
    """Return a sentence for each valid approval over exactly `content`.

    Raises `ApprovalError` when they are fewer than the policy needs, saying what is wrong with each.
    """
    _check_maker(document, policy)
    if document.content != content:
        raise ApprovalError(
            f"The plan is about other content: {_what_differs(document.content, content)}.",
            hint="Nothing was sent. Make a new plan of this sheet, and have it approved.",
        )
    valid: dict[str, str] = {}
    wrong = []
    for approval in document.approvals:
        name = _name_of(approval.key, policy.approvers)
        problem = _problem_with(approval, document, policy, now)
        if problem is None:
            valid[approval.key] = f"approved by {name} at {approval.approved_at} (plan {document.digest()[:16]})"
        else:
            wrong.append(f"that of {name} {problem}")
    if len(valid) < policy.needed:
        found = f"{policy.needed} {'is' if policy.needed == 1 else 'are'} needed, {len(valid)} valid"
        reasons = f"; {'; '.join(wrong)}" if wrong else ""
        raise ApprovalError(
            f"The plan has not enough approvals: {found}{reasons}.",
            hint="Nothing was sent. `paygw-batch approve PLAN --key KEY` approves it.",
        )
    maker = _name_of(document.maker, policy.makers)
    return [f"prepared by {maker} at {document.made_at}", *valid.values()]


def _problem_with(approval: Approval, document: PlanDocument, policy: ApprovalPolicy, now: datetime) -> str | None:
    if approval.key not in policy.approvers.values():
        return "is by a key that [approval.approvers] does not list"
    if approval.key == document.maker:
        return "is by the maker of the plan"
    if not is_signed_by(approval.key, document.approval_text(approval.approved_at), approval.signature):
        return "is over other content, or was changed"
    approved_at = datetime.fromisoformat(approval.approved_at)
    if approved_at > now + CLOCK_SKEW:
        return f"is of {approval.approved_at}, which is still to come"
    expires_at = approved_at + timedelta(hours=policy.expires_h)
    if now >= expires_at:
        return f"expired at {timestamp(expires_at)}"
    return None


def _check_maker(document: PlanDocument, policy: ApprovalPolicy) -> None:
    if not is_signed_by(document.maker, document.signed_text(), document.signature):
        raise ApprovalError(
            "The plan was changed after its maker signed it.", hint="Nothing was sent. Make a new plan."
        )
    if document.maker not in policy.makers.values():
        raise ApprovalError(
            "The plan was made with a key that [approval.makers] of the configuration does not list.",
            hint="Nothing was sent. A maker whom nobody knows could be the approver.",
        )


def _name_of(key: str, people: Mapping[str, str]) -> str:
    return next((name for name, public in people.items() if public == key), "an unknown key")


def _what_differs(planned: Content, actual: Content) -> str:
    if planned.endpoint != actual.endpoint:
        return f"it is for {planned.endpoint}, and this is {actual.endpoint}"
    if planned.totals != actual.totals:
        return f"it comes to {_sums(planned)}, and the sheet to {_sums(actual)}"
    if planned.rows != actual.rows:
        return f"it has {planned.rows} rows, and the sheet {actual.rows}"
    return "a row, a payee or the way to submit it has changed since"


def _sums(content: Content) -> str:
    return ", ".join(f"{currency} {amount}" for currency, amount in content.totals.items()) or "nothing"


def read_plan(path: Path) -> PlanDocument:
    """Return the plan in the file `path`. Raises `ApprovalError` when there is none, or it does not read as one."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_PLAN_BYTES)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ApprovalError(
            f"The plan {path} cannot be read: {reason}.",
            hint="Nothing was sent. `paygw-batch plan SHEET --out PLAN --key KEY` makes one.",
        ) from None
    try:
        document = PlanDocument.model_validate_json(data)
        for moment in (document.made_at, *(approval.approved_at for approval in document.approvals)):
            if datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError(moment)  # noqa: TRY301 (the same end as text that is no time at all)
    except (ValidationError, ValueError):
        raise ApprovalError(f"{path.name} does not read as a plan.", hint="Make a new plan.") from None
    return document


def write_plan(document: PlanDocument, path: Path) -> None:
    """Write a plan to `path`, whole or not at all."""
    write_whole(path, (document.model_dump_json(indent=1) + "\n").encode())


def check_people(policy: ApprovalPolicy) -> None:
    """Raise `ConfigurationError` when a public key is none, or fewer people may approve than have to."""
    for section, people in (("makers", policy.makers), ("approvers", policy.approvers)):
        for name, public in people.items():
            if not is_public_key(public):
                raise ConfigurationError(
                    f"approval.{section}.{name} is no Ed25519 public key.",
                    hint="It is the line between BEGIN and END of `openssl pkey -in approval.pem -pubout`.",
                )
    if len(set(policy.approvers.values())) < policy.needed:
        raise ConfigurationError(f"[approval] needs {policy.needed} approvals, and fewer different keys may approve.")
