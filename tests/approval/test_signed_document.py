"""Signed documents and people: any change is detected, and people are counted, whatever their keys and spellings."""

import base64
import hashlib
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.approval import plan_document as approval
from paygw_batch.approval.approval_keys import build_people, normalise_name, parse_canonical_key, parse_public_key
from paygw_batch.approval.plan_document import (
    NO_APPROVAL,
    PlanApproval,
    PlanContent,
    PlanDocument,
    build_content_and_people,
    build_plan,
    check_plan,
    needs_approval,
    payments_sha256,
    payout_code,
    read_plan,
)
from paygw_batch.approval.signed_document import (
    Approval,
    ApprovalPolicy,
    SignedDocument,
    approve,
    group_digits,
    require_reachable_approval,
    sign_document,
    verify_signatures,
    write_document,
)
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.core.shown_states import render_record
from paygw_batch.errors import ApprovalError, ConfigurationError
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.values import BatchRecord
from paygw_batch.settle.row_order import OrderedRow, RowAct, RowOrder, unsigned_order
from paygw_batch.submit.plan import Plan
from tests.support.planned_sheets import MINOR_UNITS, sheet, submit
from tests.support.planned_sheets import plan as planned
from tests.support.scripted_scenario import ScriptedGateway, reply
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
    for minutes, valid in ((-6, False), (-4, True), (0, True), (71 * 60, True), (72 * 60, False)):
        assert is_valid(document, now=NOW + timedelta(minutes=minutes)) is valid
    hour = timedelta(hours=1)
    result = verify_signatures(approve(document, BEN, policy(), NOW + hour), policy(), NOW + hour)
    assert (result.maker.name, document.made_at, list(result.problems)) == ("ada", AT, [])
    approval_times = {person.name: approval.approved_at for person, approval in result.valid.items()}
    assert approval_times == {"cleo": AT, "ben": "2026-11-21T09:00:00.000Z"}


def changed_texts(text: str) -> list[str]:
    """Return `text` with each character changed by each bit that leaves plain text."""
    others = [text[:at] + chr(ord(text[at]) ^ 1 << bit) + text[at + 1 :] for at in range(len(text)) for bit in range(7)]
    return [other for other in others if other.isprintable()]


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
def test_maker_cannot_approve_with_any_key(made: Callable[[], SignedDocument], key: Any) -> None:
    document = made()
    own = document.model_copy(update={"approvals": [forge_approval(key, document)]})
    assert not is_valid(own)
    (problem,) = verify_signatures(own, policy(), NOW).problems
    assert problem == f"the approval by ada is from the {document.noun}'s maker"
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


def test_unlisted_key_can_neither_prepare_nor_approve() -> None:
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
    respelt = approval.model_copy(update={"key": approval.key.rstrip("=")})
    unlisted = verify_signatures(document.model_copy(update={"approvals": [respelt]}), policy(), NOW)
    assert (list(unlisted.valid), "does not belong to a listed approver" in unlisted.problems[0]) == ([], True)
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
def test_normalising_name_twice_changes_nothing(name: str) -> None:
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
    text = BEN.public.text
    people = build_people({"Ada": LINE, "BEN": text}, {"ada ": [SECOND.public.text, LINE], "ben": text})
    ada, ben = people.listed
    assert (ada.name, ada.keys) == ("Ada", frozenset({ADA.public, SECOND.public}))
    finders = (people.find_owner, people.find_maker, people.find_approver)
    assert [find(SECOND.public) for find in finders] == [ada, None, ada]
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


# Plans: the payments they name, the amounts that need one, and approved plans that are refused.
def check(document: PlanDocument, content: PlanContent | None = None, *, needed: int = 1) -> PlanApproval:
    return check_plan(document, content or document.content, policy(needed), NOW, opened_batch=None)


def refusal_message(document: PlanDocument, content: PlanContent) -> str:
    with pytest.raises(ApprovalError) as result:
        check(document, content)
    assert result.value.hint == "Nothing was sent. Make a new plan for this sheet and have it approved."
    return result.value.message


def test_approved_plan_names_maker_approvers_and_answers() -> None:
    document = approve(approve(plan(), CLEO, policy(), NOW), BEN, policy(), NOW - timedelta(minutes=1))
    named = f"(plan {document.digest()[:16]})"
    result = check(document)
    assert (result.plan_sha256, result.answered) == (document.digest(), ())
    assert [render_record(approval) for approval in result.approvals] == [
        "prepared by ada at 2026-11-21T08:00:00.000Z",
        f"approved by cleo at 2026-11-21T08:00:00.000Z {named}",
        f"approved by ben at 2026-11-21T07:59:00.000Z {named}",
    ]
    meant = sign_document(build_plan(plan().content, [], ADA.public, NOW, answered=["b0"]), ADA)
    assert check(approve(meant, CLEO, policy(), NOW)).answered == ("b0",)
    assert PlanApproval("", ()) == NO_APPROVAL


def test_unapproved_or_used_plan_opens_no_batch() -> None:
    with pytest.raises(ApprovalError, match="The plan needs 1 valid approval but has 0"):
        check(plan())
    with pytest.raises(ApprovalError, match="needs 2 valid approvals but has 1"):
        check(approve(plan(), CLEO, policy(2), NOW), needed=2)
    document, batch = approve(plan(), CLEO, policy(), NOW), "b" * 16
    opened_batch = BatchRecord(1, batch, "payout", "payroll.csv", "c" * 64, 2, 0, "2026-11-21T08:30:00.000Z")
    with pytest.raises(ApprovalError) as result:
        check_plan(document, document.content, policy(), NOW, opened_batch=opened_batch)
    used = f"The plan was already used for batch {batch} (payroll.csv) at 2026-11-21T08:30:00.000Z."
    assert result.value.message == f"{used} A plan can be used only once."
    assert result.value.hint == (
        f"Nothing was sent. To continue that batch, run `paygw-batch resume {batch}`. "
        "To pay anything else, make a new plan and have it approved."
    )


CHANGED = "a row, a payee or an option has changed since the plan was made"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"endpoint": "other/2", "journal": "b" * 32}, "it is for gateway.example/1, not for other/2"),
        ({"journal": "b" * 32, "rows": 3}, "it is for the journal aaaaaaaa, not for the journal bbbbbbbb"),
        ({"totals": {"KES": "13001.00"}}, "it pays KES 3,001.00, but KES 13,001.00 would be paid now"),
        ({"totals": {}, "rows": 0}, "it pays KES 3,001.00, but nothing would be paid now"),
        ({"totals": {"KES": "3001.00", "UGX": "5"}}, "it pays KES 3,001.00, but KES 3,001.00, UGX 5 would be paid now"),
        ({"rows": 3, "batch": "x"}, "it pays 2 rows, but 3 would be paid now"),
        *(({name: value}, CHANGED) for name, value in (("instructions_sha256", "d" * 64), ("sheet", "other.csv"))),
        *(({name: value}, CHANGED) for name, value in (("operation", "payin"), ("amended", 1), ("invalid", 1))),
    ],
)
def test_plan_with_different_content_is_refused(changes: dict[str, object], sentence: str) -> None:
    document = approve(plan(), CLEO, policy(), NOW)
    message = refusal_message(document, document.content.model_copy(update=changes))
    assert message == f"The plan does not match: {sentence}."


@pytest.mark.parametrize(
    ("from_amount", "totals", "is_needed"),
    [
        ({"KES": 1000}, {"KES": "999.99"}, False),
        ({"KES": 1000}, {"KES": "1000.00"}, True),
        ({"KES": 1000}, {"KES": "5.00", "UGX": "1"}, True),
        ({"KES": 1000, "UGX": 100}, {"KES": "5.00", "UGX": "99"}, False),
        ({}, {"KES": "0.00"}, True),
        ({}, {}, False),
    ],
)
def test_sum_decides_whether_approval_is_needed(
    from_amount: dict[str, int], totals: dict[str, str], *, is_needed: bool
) -> None:
    rules = ApprovalPolicy(1, from_amount, 72, policy().people)  # type: ignore[arg-type]  # whole numbers compare alike
    assert needs_approval(plan().content.model_copy(update={"totals": totals}), rules) == is_needed


def test_payout_code_is_unchanged_by_signatures() -> None:
    document = plan()
    code = payout_code(document)
    # Two versions of the program must show the same code for the same payout.
    assert code == "7f7c5a9ec48555e9"
    assert document.code == "7f7c 5a9e c485 55e9" == approve(document, CLEO, policy(), NOW).code
    assert document.code == group_digits(code)
    changes: list[dict[str, Any]] = [
        *({"content": document.content.model_copy(update={"totals": {"KES": total}})} for total in "12"),
        *({"findings": findings} for findings in ([], [document.findings[0].model_copy(update={"message": "Row 2."})])),
        *({"answered": ["b0"]}, {"against": "b0"}, {"language": "fr"}),
    ]
    others = {payout_code(document.model_copy(update=change)) for change in changes}
    assert len({code, *others}) == 1 + len(changes)
    same = document.model_copy(update={"made_at": "2026-11-22T08:00:00.000Z", "maker": BEN.public.text})
    assert payout_code(same) == code


def test_plan_lists_and_counts_payments_in_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ("A 1000.50 001", "B 2000 002", "C 2.25 003", "C 2.25 003")
    result = content(tmp_path / "one", *rows)
    assert (result.endpoint, result.journal, result.operation) == ("gateway.example/1", "a" * 32, "payout")
    assert (result.sheet, result.batch) == ("payroll.csv", sheet(tmp_path / "one", *rows).batch)
    assert (result.rows, result.invalid, result.amended, result.totals) == (2, 2, 0, {"KES": "3000.50"})
    assert content(tmp_path / "one", *rows) == result
    monkeypatch.setattr(approval, "_ROWS_AT_ONCE", 1)
    assert content(tmp_path / "one", *rows) == result
    item, other = content(tmp_path / "one", *rows[:2]), content(tmp_path / "two", rows[0], "B 2000 009")
    assert item.instructions_sha256 != other.instructions_sha256
    assert item.totals == other.totals == {"KES": "3000.50"}
    assert payments_sha256(item) != payments_sha256(other)
    journal = in_memory_journal()
    declined = ScriptedGateway(lambda _order_id, _times: reply("declined"))
    submit(planned(sheet(tmp_path, "A 1000 001"), journal), journal, declined)
    result = content_of(planned(sheet(tmp_path, "A 900 001", "B 5 002"), journal, amend=True))
    assert (result.rows, result.amended, result.totals) == (2, 1, {"KES": "905.00"})


def content(folder: Path, *rows: str) -> PlanContent:
    folder.mkdir(exist_ok=True)
    return content_of(planned(sheet(folder, *rows), in_memory_journal()))


def content_of(made: Plan) -> PlanContent:
    own: dict[str, Any] = {"amended": len(made.amendments), "endpoint": "gateway.example/1", "journal_id": "a" * 32}
    return build_content_and_people(made.validated, made.sent_before, minor_units=MINOR_UNITS, **own)[0]


def test_written_plan_is_read_back_unchanged(tmp_path: Path) -> None:
    document = approve(plan(), CLEO, policy(), NOW)
    write_document(document, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == document
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ApprovalError, match=r"plan\.json is not a valid plan"):
        read_plan(tmp_path / "plan.json")
