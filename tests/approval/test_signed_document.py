"""Signed documents: any change to signature, text, key or time is detected, and people are counted, not keys."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from paygw_batch.approval.approval_keys import ApprovalKey, build_people
from paygw_batch.approval.plan_document import build_plan
from paygw_batch.approval.signed_document import (
    Approval,
    ApprovalPolicy,
    SignedDocument,
    approve,
    require_reachable_approval,
    require_signatures,
    sign_document,
    verify_signatures,
)
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.errors import ApprovalError, ConfigurationError
from paygw_batch.settle.row_order import OrderedRow, RowAct, RowOrder, unsigned_order
from tests.support.signed_plans import (
    ADA,
    BEN,
    CLEO,
    NOW,
    SECOND,
    STRANGER,
    forge_approval,
    order_content,
    plan,
    policy,
)


def order() -> RowOrder:
    return sign_document(unsigned_order(order_content(), ADA.public, NOW), ADA)


KINDS = pytest.mark.parametrize("made", [plan, order])


def is_valid(document: SignedDocument, *, needed: int = 1, now: datetime = NOW) -> bool:
    try:
        require_signatures(document, policy(needed), now)
    except ApprovalError:
        return False
    return True


@KINDS
def test_approved_document_is_valid_until_expiry(made: Callable[[], SignedDocument]) -> None:
    document = approve(made(), CLEO, policy(), NOW)
    assert is_valid(document)
    assert not is_valid(made())
    assert [person.name for person in verify_signatures(document, policy(), NOW).valid] == ["cleo"]
    document = approve(made(), CLEO, policy(), NOW)
    hours = timedelta(hours=1)
    assert is_valid(document, now=NOW - timedelta(minutes=4))
    assert not is_valid(document, now=NOW - timedelta(minutes=6))
    assert is_valid(document, now=NOW + 71 * hours)
    assert not is_valid(document, now=NOW + 72 * hours)
    document = approve(approve(made(), CLEO, policy(), NOW), BEN, policy(), NOW + timedelta(hours=1))
    result = verify_signatures(document, policy(), NOW + timedelta(hours=1))
    assert (result.maker.name, document.made_at, list(result.problems)) == ("ada", "2026-11-21T08:00:00.000Z", [])
    approval_times = {person.name: approval.approved_at for person, approval in result.valid.items()}
    assert approval_times == {"cleo": "2026-11-21T08:00:00.000Z", "ben": "2026-11-21T09:00:00.000Z"}


def changed_texts(text: str) -> list[str]:
    """Yield `text` with each character changed, and with each bit flipped that leaves plain text."""
    flipped = [
        text[:place] + chr(ord(item) ^ (1 << bit)) + text[place + 1 :]
        for place, item in enumerate(text)
        for bit in range(7)
    ]
    return [other for other in flipped if other.isprintable()]


@KINDS
@pytest.mark.parametrize("part", ["signature", "key", "approved_at"])
def test_approval_with_changed_byte_is_refused(made: Callable[[], SignedDocument], part: str) -> None:
    document = approve(made(), CLEO, policy(), NOW)
    (approval,) = document.approvals
    for other in changed_texts(getattr(approval, part)):
        changed = document.model_copy(update={"approvals": [approval.model_copy(update={part: other})]})
        assert not is_valid(changed), (part, other)


@KINDS
@pytest.mark.parametrize("part", ["signature", "maker", "made_at", "document"])
def test_document_with_changed_maker_signature_is_refused(made: Callable[[], SignedDocument], part: str) -> None:
    document = approve(made(), CLEO, policy(), NOW)
    for other in changed_texts(getattr(document, part)):
        assert not is_valid(document.model_copy(update={part: other})), (part, other)


@KINDS
def test_plan_with_changed_content_is_refused(made: Callable[[], SignedDocument]) -> None:
    document = approve(made(), CLEO, policy(), NOW)
    kept: dict[str, Any] = document.content.model_dump()
    for name, value in kept.items():
        if isinstance(value, str):
            others: list[Any] = changed_texts(value or "a")
        elif isinstance(value, int):
            others = [value + 1, value - 1]
        else:
            others = [type(value)()]
        for other in others:
            content = document.content.model_copy(update={name: other})
            assert not is_valid(document.model_copy(update={"content": content})), (name, other)


def test_order_with_changed_row_or_findings_is_refused() -> None:
    document = approve(order(), CLEO, policy(), NOW)
    (row,) = document.content.rows
    changes = {"row": 3, "attempt": 2, "state": State.ACCEPTED, "hold": 1, "duplicate_of": 1, "act": RowAct.PAID}
    changes["basis"] = Basis.GATEWAY
    texts = dict.fromkeys(("client_orderid", "order_id", "sent_at", "currency", "amount", "evidence", "words"), "x")
    assert set(changes | texts) == set(OrderedRow.model_fields)
    for name, value in (changes | texts).items():
        content = document.content.model_copy(update={"rows": [row.model_copy(update={name: value})]})
        assert not is_valid(document.model_copy(update={"content": content})), name
    assert not is_valid(approve(plan(), CLEO, policy(), NOW).model_copy(update={"findings": []}))


@KINDS
@pytest.mark.parametrize("key", [ADA, SECOND])
def test_maker_cannot_approve_with_any_key(made: Callable[[], SignedDocument], key: ApprovalKey) -> None:
    document = made()
    own = document.model_copy(update={"approvals": [forge_approval(key, document)]})
    assert not is_valid(own)
    (problem,) = verify_signatures(own, policy(), NOW).problems
    assert problem == f"the approval by ada is from the maker of the {document.noun}"
    assert not is_valid(approve(own, CLEO, policy(2), NOW), needed=2)
    with pytest.raises(ApprovalError, match="ada made this"):
        approve(document, key, policy(), NOW)


@KINDS
def test_signature_under_another_name_does_not_count(made: Callable[[], SignedDocument]) -> None:
    document = made()
    for key in (ADA, STRANGER):
        forged = forge_approval(key, document, named=CLEO.public)
        assert not is_valid(document.model_copy(update={"approvals": [forged]}))
    own = Approval(key=CLEO.public.text, approved_at=document.made_at, signature=CLEO.sign(document.signed_text()))
    assert not is_valid(document.model_copy(update={"approvals": [own]}))  # a maker's signature is no approval


def test_approval_of_plan_is_invalid_for_order() -> None:
    """This holds even if all values are equal, because the first line of the signed text names the kind."""
    of_plan = approve(plan(), CLEO, policy(), NOW)
    assert not is_valid(order().model_copy(update={"approvals": of_plan.approvals}))
    same = order().model_copy(update={"document": "paygw-batch plan 5"})
    assert same.signed_text().split(b"\n")[0] != order().signed_text().split(b"\n")[0]
    assert not is_valid(same)
    firsts = {item.approval_text(CLEO.public, "").split(b"\n")[0] for item in (order(), same)}
    assert len(firsts | {order().signed_text().split(b"\n")[0], same.signed_text().split(b"\n")[0]}) == 4


def test_policy_needs_enough_different_approvers() -> None:
    document = approve(approve(plan(), CLEO, policy(2), NOW), CLEO, policy(2), NOW)
    assert len(document.approvals) == 1
    assert not is_valid(document, needed=2)
    assert is_valid(approve(document, BEN, policy(2), NOW), needed=2)
    require_reachable_approval(policy(2))
    with pytest.raises(ConfigurationError, match="needed is 3, but at most 2 other people"):
        require_reachable_approval(policy(3))


def test_unlisted_key_can_neither_make_nor_approve() -> None:
    with pytest.raises(ApprovalError, match="does not list this key under approvers"):
        approve(plan(), STRANGER, policy(), NOW)
    foreign = sign_document(build_plan(plan().content, [], STRANGER.public, NOW), STRANGER)
    with pytest.raises(ApprovalError, match="does not list under makers"):
        approve(foreign, CLEO, policy(), NOW)
    by_an_approver = sign_document(build_plan(plan().content, [], CLEO.public, NOW), CLEO)
    with pytest.raises(ApprovalError, match="does not list under makers"):
        approve(by_an_approver, BEN, policy(), NOW)
    people = build_people({"ada": ADA.public.text, "ben": BEN.public.text}, {"ben": SECOND.public.text})
    of_makers = ApprovalPolicy(1, {}, 72, people)
    document = plan()
    with pytest.raises(ApprovalError, match="does not list this key under approvers"):
        approve(document, BEN, of_makers, NOW)
    own = document.model_copy(update={"approvals": [forge_approval(BEN, document)]})
    result = verify_signatures(own, of_makers, NOW)
    assert not result.valid
    assert list(result.problems) == [
        "the approval by ben was signed with a key that does not belong to a listed approver"
    ]
    assert len(verify_signatures(approve(own, SECOND, of_makers, NOW), of_makers, NOW).valid) == 1


PLAN_TEXT = (
    'paygw-batch plan 5\n{"against":"","answered":[],"content":{"amended":0,"batch":"bbbbbbbbbbbbbbbb",'
    '"endpoint":"gateway.example/1",'
    '"instructions_sha256":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc","invalid":0,'
    '"journal":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","known":0,'
    '"known_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","operation":"payout",'
    '"people_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","rows":2,"sheet":"payroll.csv",'
    '"totals":{"KES":"3001.00"}},"document":"paygw-batch plan 5","findings":['
    '{"code":"row.look_alike","message":"twice","row":2}],"language":"en","made_at":"2026-11-21T08:00:00.000Z","maker":"%s",'
    '"people":""}'
)
ORDER_TEXT = (
    'paygw-batch order 1\n{"content":{"attempts":[[1,1]],"batch":"bbbbbbbbbbbbbbbb",'
    '"endpoint":"gateway.example/1",'
    '"journal":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","operation":"payout","rows":[{"act":"not-received","amount":"1500.50",'
    '"attempt":1,"basis":"person","client_orderid":"PAY-1","currency":"KES","duplicate_of":0,"evidence":"Ticket 4711",'
    '"hold":0,"order_id":"PAY-1","row":2,"sent_at":"2026-11-21T08:01:00.000Z","state":"in_doubt",'
    '"words":""}],"sheet":"payroll.csv","statement":"","statement_sha256":""},'
    '"document":"paygw-batch order 1",'
    '"made_at":"2026-11-21T08:00:00.000Z",'
    '"maker":"%s"}'
)


@pytest.mark.parametrize(("made", "text"), [(plan, PLAN_TEXT), (order, ORDER_TEXT)])
def test_signed_text_matches_expected_bytes(made: Callable[[], SignedDocument], text: str) -> None:
    """Documents signed by an earlier version must verify. If the signed text changes, its kind needs a new name."""
    document = made()
    assert document.signed_text().decode() == text % ADA.public.text
    approval = document.approval_text(CLEO.public, "2026-11-21T09:00:00.000Z").decode()
    body = f'{{"approved_at":"2026-11-21T09:00:00.000Z","key":"{CLEO.public.text}","sha256":"{document.digest()}"}}'
    assert approval == f"{text.splitlines()[0]} approval\n{body}"


def test_non_ascii_letters_are_escaped_before_signing() -> None:
    content = plan().content.model_copy(update={"sheet": "Zo\u00eb.csv"})
    assert b'"sheet":"Zo\\u00eb.csv"' in build_plan(content, [], ADA.public, NOW).signed_text()


def test_invalid_approval_shows_reason() -> None:
    document = approve(plan(), CLEO, policy(), NOW)
    late = verify_signatures(document, policy(), NOW + timedelta(hours=72))
    assert list(late.problems) == ["the approval by cleo expired at 2026-11-24T08:00:00.000Z"]
    early = verify_signatures(document, policy(), NOW - timedelta(minutes=6))
    assert list(early.problems) == ["the approval by cleo is dated 2026-11-21T08:00:00.000Z, which is in the future"]
    other = document.model_copy(update={"content": document.content.model_copy(update={"rows": 3})})
    with pytest.raises(ApprovalError, match="was changed after its maker signed it"):
        verify_signatures(other, policy(), NOW)
    (approval,) = document.approvals
    moved = approval.model_copy(update={"approved_at": "2026-11-21T09:00:00.000Z"})
    (problem,) = verify_signatures(document.model_copy(update={"approvals": [moved]}), policy(), NOW).problems
    assert problem == "the approval by cleo is for different content or has been changed"
