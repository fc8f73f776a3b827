"""Signed documents and people: any change is detected, and people are counted, whatever their keys and spellings."""

import base64
import hashlib
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.approval.approval_keys import (
    ApprovalKey,
    build_people,
    normalise_name,
    parse_canonical_key,
    parse_public_key,
)
from paygw_batch.approval.plan_document import build_plan
from paygw_batch.approval.signed_document import (
    Approval,
    ApprovalPolicy,
    SignedDocument,
    approve,
    require_reachable_approval,
    sign_document,
    verify_signatures,
)
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.errors import ApprovalError, ConfigurationError
from paygw_batch.settle.row_order import OrderedRow, RowAct, RowOrder, unsigned_order
from tests.support.signed_plans import (
    ADA,
    AT,
    BEN,
    CLEO,
    NOW,
    SECOND,
    STRANGER,
    forge_approval,
    has_valid_signatures,
    order_content,
    plan,
    policy,
)


def order() -> RowOrder:
    return sign_document(unsigned_order(order_content(), ADA.public, NOW), ADA)


KINDS = pytest.mark.parametrize("made", [plan, order])


def is_valid(document: SignedDocument, *, needed: int = 1, now: datetime = NOW) -> bool:
    return has_valid_signatures(document, policy(needed), now)


@KINDS
def test_approved_document_is_valid_until_expiry(made: Callable[[], SignedDocument]) -> None:
    document = approve(made(), CLEO, policy(), NOW)
    assert not is_valid(made())
    assert [person.name for person in verify_signatures(document, policy(), NOW).valid] == ["cleo"]
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    for after, valid in (
        (-6 * minute, False),
        (-4 * minute, True),
        (0 * hour, True),
        (71 * hour, True),
        (72 * hour, False),
    ):
        assert is_valid(document, now=NOW + after) is valid
    result = verify_signatures(approve(document, BEN, policy(), NOW + hour), policy(), NOW + hour)
    assert (result.maker.name, document.made_at, list(result.problems)) == ("ada", AT, [])
    approval_times = {person.name: approval.approved_at for person, approval in result.valid.items()}
    assert approval_times == {"cleo": AT, "ben": "2026-11-21T09:00:00.000Z"}


def changed_texts(text: str) -> list[str]:
    """Return `text` with each character changed by each bit that leaves plain text."""
    flipped = [
        text[:at] + chr(ord(text[at]) ^ (1 << bit)) + text[at + 1 :] for at in range(len(text)) for bit in range(7)
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
        others: list[Any] = [type(value)()]
        if isinstance(value, str):
            others = changed_texts(value or "a")
        elif isinstance(value, int):
            others = [value + 1, value - 1]
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
    for maker, approver in ((STRANGER, CLEO), (CLEO, BEN)):  # an approver cannot make a plan either
        foreign = sign_document(build_plan(plan().content, [], maker.public, NOW), maker)
        with pytest.raises(ApprovalError, match="does not list under makers"):
            approve(foreign, approver, policy(), NOW)
    people = build_people({"ada": ADA.public.text, "ben": BEN.public.text}, {"ben": SECOND.public.text})
    of_makers, document = ApprovalPolicy(1, {}, 72, people), plan()
    with pytest.raises(ApprovalError, match="does not list this key under approvers"):
        approve(document, BEN, of_makers, NOW)
    own = document.model_copy(update={"approvals": [forge_approval(BEN, document)]})
    result = verify_signatures(own, of_makers, NOW)
    unlisted = "the approval by ben was signed with a key that does not belong to a listed approver"
    assert (list(result.valid), list(result.problems)) == ([], [unlisted])
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
    '"endpoint":"gateway.example/1","journal":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","operation":"payout",'
    '"rows":[{"act":"not-received","amount":"1500.50","attempt":1,"basis":"person","client_orderid":"PAY-1",'
    '"currency":"KES","duplicate_of":0,"evidence":"Ticket 4711","hold":0,"order_id":"PAY-1","row":2,'
    '"sent_at":"2026-11-21T08:01:00.000Z","state":"in_doubt","words":""}],"sheet":"payroll.csv","statement":"",'
    '"statement_sha256":""},"document":"paygw-batch order 1","made_at":"2026-11-21T08:00:00.000Z","maker":"%s"}'
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
    (approval,) = document.approvals
    moved = approval.model_copy(update={"approved_at": "2026-11-21T09:00:00.000Z"})
    changed = document.model_copy(update={"approvals": [moved]})
    for one, after, problem in (
        (document, timedelta(hours=72), "expired at 2026-11-24T08:00:00.000Z"),
        (document, timedelta(minutes=-6), f"is dated {AT}, which is in the future"),
        (changed, timedelta(), "is for different content or has been changed"),
    ):
        assert list(verify_signatures(one, policy(), NOW + after).problems) == [f"the approval by cleo {problem}"]
    other = document.model_copy(update={"content": document.content.model_copy(update={"rows": 3})})
    with pytest.raises(ApprovalError, match="was changed after its maker signed it"):
        verify_signatures(other, policy(), NOW)


# People and their keys, compared by their meaning, not their spelling.

LINE = ADA.public.text


def test_similar_looking_names_are_equal() -> None:
    respelled = ["ada obi", "ADA OBI", " Ada  Obi ", "Ada\u00a0Obi", "Ada\u3000Obi", "Ada\u2800Obi", "Ada Obi\u00ad"]
    respelled += ["A\u200bda O\u200dbi\ufeff", "Ada Obi\ufe0f", "\uff21\uff44\uff41 Obi", "Ada\tObi", "Ada O\u2060bi"]
    assert {normalise_name(name) for name in (*respelled, "\u202eAda Obi")} == {normalise_name("Ada Obi")}
    assert normalise_name("Zoe\u0308 Stra\u00dfe") == normalise_name("ZO\u00cb STRASSE")
    for other in ("Ada Obl", "Ada", "Ada Obi 2", "AdaObi"):
        assert normalise_name(other) != normalise_name("Ada Obi")


@given(st.text(max_size=12))
def test_normalised_name_is_idempotent(name: str) -> None:
    assert normalise_name(normalise_name(name)) == normalise_name(name)


SPELLINGS = (LINE, LINE.rstrip("="), LINE + "=", LINE + "===", f"{LINE[:30]}\n{LINE[30:]}\n", " ".join(LINE))


@pytest.mark.parametrize("text", SPELLINGS)
def test_key_spacing_and_padding_are_ignored(text: str) -> None:
    assert parse_public_key(text) == ADA.public
    for invalid in ("", "x", "AAAA", "\u00e4", LINE[4:], LINE.replace("M", "!", 1)):
        assert parse_public_key(invalid) is None


def test_signed_documents_need_canonical_key_text() -> None:
    bare = LINE.rstrip("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    place = alphabet.index(bare[-1])
    others = [bare[:-1] + alphabet[place + step] + "=" for step in (1, 2, 3)]
    assert [parse_public_key(text) for text in others] == [ADA.public] * 3
    assert [parse_canonical_key(text) for text in (*others, LINE)] == [None, None, None, ADA.public]
    der = base64.b64decode(LINE)
    long_lengths = der[:1] + b"\x81" + der[1:]
    null_parameters = bytes.fromhex("302c300706032b65700500032100") + ADA.public.material[-32:]
    for encoding in (long_lengths, null_parameters, der + b"\0"):
        assert parse_public_key(base64.b64encode(encoding).decode()) in {ADA.public, None}


def test_keys_under_similar_names_belong_to_one_person() -> None:
    people = build_people(
        {"Ada": LINE, "BEN": BEN.public.text}, {"ada ": [SECOND.public.text, LINE], "ben": BEN.public.text}
    )
    ada, ben = people.listed
    assert (ada.name, ada.keys) == ("Ada", frozenset({ADA.public, SECOND.public}))
    assert (
        people.find_owner(SECOND.public),
        people.find_maker(SECOND.public),
        people.find_approver(SECOND.public),
    ) == (ada, None, ada)
    assert (list(people.approvers_for(ada)), list(people.approvers_for(ben))) == ([ben], [ada])
    (shown, _) = build_people({" Ada\u202e\n\x1b Obi": LINE}, {"ben": BEN.public.text}).listed
    assert shown.name == "Ada Obi"


@pytest.mark.parametrize("text", SPELLINGS)
def test_same_key_under_two_names_is_refused(text: str) -> None:
    for makers, approvers in (
        ({"ada": LINE}, {"eve": [BEN.public.text, text]}),
        ({"ada": LINE, "eve": text}, {"ben": BEN.public.text}),
        ({"ben": BEN.public.text}, {"ada": LINE, "eve": text}),
    ):
        with pytest.raises(ConfigurationError, match="under two names, ada and eve"):
            build_people(makers, approvers)


def test_fingerprint_matches_openssl_and_sha256sum() -> None:
    pem = f"-----BEGIN PUBLIC KEY-----\n{LINE}\n-----END PUBLIC KEY-----\n"
    command = ["openssl", "pkey", "-pubin", "-outform", "DER"]
    displayed = subprocess.run(command, input=pem.encode(), capture_output=True, check=True).stdout
    assert ADA.public.fingerprint == hashlib.sha256(displayed).hexdigest()[:16]
