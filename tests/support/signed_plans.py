"""A plan and an order, their signers, and the policy for them."""

from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from paygw_batch.approval.approval_keys import ApprovalKey, PublicKey, build_people, encode_public_key
from paygw_batch.approval.plan_document import PlanContent, PlanDocument, PlanFinding, build_plan
from paygw_batch.approval.signed_document import (
    Approval,
    ApprovalPolicy,
    SignedDocument,
    require_signatures,
    sign_document,
)
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.errors import ApprovalError
from paygw_batch.settle.row_order import OrderedRow, RowAct, RowContent

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
AT = "2026-11-21T08:00:00.000Z"


def create_private_key(seed: int) -> ApprovalKey:
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    return ApprovalKey(encode_public_key(key.public_key()), key.sign)


ADA, SECOND, BEN, CLEO, STRANGER = (create_private_key(seed) for seed in range(1, 6))


def policy(needed: int = 1) -> ApprovalPolicy:
    both = {"ada": [ADA.public.text, SECOND.public.text], "ben": BEN.public.text}
    return ApprovalPolicy(needed, {}, 72, build_people(both, {**both, "cleo": CLEO.public.text}))


PLACE = {"endpoint": "gateway.example/1", "journal": "a" * 32}
BATCH = {"operation": "payout", "batch": "b" * 16, "sheet": "payroll.csv"}


def plan_content(**other: Any) -> PlanContent:
    counts = {"rows": 2, "known": 0, "invalid": 0, "amended": 0}
    paid = {"instructions_sha256": "c" * 64, "totals": {"KES": "3001.00"}}
    return PlanContent(**{**PLACE, **BATCH, **counts, **paid, **other})


def order_content(**other: Any) -> RowContent:
    row = OrderedRow(
        row=2,
        client_orderid="PAY-1",
        order_id="PAY-1",
        attempt=1,
        sent_at="2026-11-21T08:01:00.000Z",
        state=State.IN_DOUBT,
        hold=0,
        duplicate_of=0,
        currency="KES",
        amount="1500.50",
        act=RowAct.NOT_RECEIVED,
        evidence="Ticket 4711",
        basis=Basis.PERSON,
    )
    settlement = {"statement": "", "statement_sha256": "", "attempts": [(1, 1)], "rows": [row]}
    return RowContent(**{**PLACE, **BATCH, **settlement, **other})


def plan() -> PlanDocument:
    findings = [PlanFinding(row=2, code="row.look_alike", message="twice")]
    return sign_document(build_plan(plan_content(), findings, ADA.public, NOW), ADA)


def has_valid_signatures(document: SignedDocument, rules: ApprovalPolicy, now: datetime = NOW) -> bool:
    try:
        require_signatures(document, rules, now)
    except ApprovalError:
        return False
    return True


def forge_approval(
    key: ApprovalKey, document: SignedDocument, *, named: PublicKey | None = None, at: str = AT
) -> Approval:
    """Return an approval with any key, as a forger would write it, bypassing all checks of `approve`."""
    public = named or key.public
    return Approval(key=public.text, approved_at=at, signature=key.sign(document.approval_text(public, at)))
