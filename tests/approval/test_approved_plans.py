"""Plans: the payments they name, the amounts that need one, and approved plans that are refused."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.approval import plan_document as approval
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
from paygw_batch.approval.signed_document import ApprovalPolicy, approve, group_digits, sign_document, write_document
from paygw_batch.core.shown_states import render_record
from paygw_batch.errors import ApprovalError
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.values import BatchRecord
from paygw_batch.submit.plan import Plan
from tests.support.planned_sheets import MINOR_UNITS, sheet, submit
from tests.support.planned_sheets import plan as planned
from tests.support.scripted_scenario import ScriptedGateway, reply
from tests.support.signed_plans import ADA, BEN, CLEO, NOW, plan, policy


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


def test_unapproved_plan_cannot_open_batch() -> None:
    with pytest.raises(ApprovalError, match="The plan needs 1 valid approval but has 0"):
        check(plan())
    with pytest.raises(ApprovalError, match="needs 2 valid approvals but has 1"):
        check(approve(plan(), CLEO, policy(2), NOW), needed=2)


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


def test_used_plan_opens_no_second_batch() -> None:
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
def test_sum_decides_need_for_approval(from_amount: dict[str, int], totals: dict[str, str], *, is_needed: bool) -> None:
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


def content(place: Path, *rows: str) -> PlanContent:
    place.mkdir(exist_ok=True)
    return content_of(planned(sheet(place, *rows), in_memory_journal()))


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
