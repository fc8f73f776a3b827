"""Configured names of reply fields: echoes are checked, and reasons are found, under any name."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.countries.rules import AmountUnit, Operation
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import ExpectedReply, RawReply
from tests.support.gateway_cases import OPERATION

OURS = ExpectedReply("PAY-1", Decimal("1500.50"), "KES")
WORDS = {"approved": OutcomeKind.PAID, "declined": OutcomeKind.REJECTED}


def configured_operation(**names: Any) -> Operation:
    return replace(OPERATION, reply=replace(OPERATION.reply, minor_units={"KES": 2, "RWF": 0}, **names))


def classify_members(
    operation: Operation, members: dict[str, Any], expected: ExpectedReply = OURS, *, reused: bool = False
) -> Outcome:
    reply = RawReply(200, (), json.dumps(members).encode(), reused_connection=reused)
    return classify(reply, expected, WORDS, operation).outcome


@pytest.mark.parametrize("path", ["merchant-order-id", "order.merchant.id"])
def test_echo_under_configured_name_is_checked(path: str) -> None:
    operation = configured_operation(order_id=("client_orderid", path))
    *outer, last = path.split(".")

    def reply(order_id: object) -> dict[str, Any]:
        inner: dict[str, Any] = {last: order_id}
        for name in reversed(outer):
            inner = {name: inner}
        return {"status": "approved", **inner}

    assert classify_members(operation, reply("PAY-1"), reused=True).kind is OutcomeKind.PAID
    other = classify_members(operation, reply("PAY-2"))
    assert (other.kind, other.conflict) == (OutcomeKind.UNKNOWN, True)
    assert classify_members(operation, reply({"id": "PAY-1"})).conflict
    assert classify_members(operation, reply(None), reused=True).cause == "reply.not_echoed"


def test_first_present_configured_reply_name_is_used() -> None:
    operation = configured_operation(order_id=("merchant-order-id", "client_orderid"))
    assert (
        classify_members(operation, {"status": "approved", "merchant-order-id": "PAY-1", "client_orderid": "7"}).kind
        is OutcomeKind.PAID
    )
    assert classify_members(
        operation, {"status": "approved", "merchant-order-id": None, "client_orderid": "7"}
    ).conflict


@pytest.mark.parametrize(
    ("expected", "repeated", "is_ours"),
    [
        (OURS, 150050, True),
        (OURS, "150050", True),
        (OURS, 1500.5, False),
        (OURS, 15005, False),
        (ExpectedReply("PAY-1", Decimal(1500), "RWF"), 1500, True),
        (ExpectedReply("PAY-1", Decimal(1500), "RWF"), 150000, False),
        (ExpectedReply("PAY-1", Decimal(1500), "???"), 1500, False),
    ],
)
def test_echoed_amount_in_minor_units_is_compared(expected: ExpectedReply, repeated: object, *, is_ours: bool) -> None:
    outcome = classify_members(
        configured_operation(amount_unit=AmountUnit.MINOR), {"status": "approved", "amount": repeated}, expected
    )
    assert outcome.conflict is not is_ours


def test_unchecked_amount_is_not_compared() -> None:
    members = {"status": "approved", "amount": "1480.00", "currency": "KES"}
    assert classify_members(configured_operation(), members).conflict
    assert classify_members(configured_operation(amount_unit=AmountUnit.UNCHECKED), members).kind is OutcomeKind.PAID


def test_configured_paths_find_reason_and_reference() -> None:
    operation = configured_operation(reference=("ids.bank",), error_code=("error.code",), message=("error.message",))
    members = {"status": "declined", "error": {"code": 51, "message": "No funds"}, "ids": {"bank": "R-1"}}
    outcome = classify_members(operation, members)
    assert (outcome.error_code, outcome.message, outcome.gateway_reference) == ("51", "No funds", "R-1")
    assert classify_members(operation, {"status": "declined", "error": "No funds"}).message is None
