"""The outcome and the advice for each reply or fault, under any configured name of a field."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.outcome import Advice, ContinueRun, Outcome, OutcomeKind, PauseRun, RetrySoon, StopRun, Verdict
from paygw_batch.countries.rules import AmountUnit, Operation
from paygw_batch.gateway.classify import DEFAULT_PAUSE_S, MAX_PAUSE_S, classify, reply_date
from paygw_batch.gateway.message import ExpectedReply, FaultKind, RawReply, TransportFault
from paygw_batch.gateway.strict_json import MAX_NESTING
from tests.support.gateway_cases import OPERATION

WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}
OURS = ExpectedReply("PAY-1", Decimal("1500.50"), "KES")
GOOD = {"status": "approved", "client_orderid": "PAY-1", "amount": 1500.5, "currency": "KES"}
NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def classify_reply(
    body: bytes | str | dict[str, Any],
    http_status: int = 200,
    headers: tuple[tuple[str, str], ...] = (),
    *,
    reused: bool = False,
    now: datetime | None = None,
    expected: ExpectedReply = OURS,
    operation: Operation = OPERATION,
) -> Verdict:
    text = json.dumps(body) if isinstance(body, dict) else body
    raw = text.encode() if isinstance(text, str) else text
    return classify(RawReply(http_status, headers, raw, reused), expected, WORDS, operation, now=now)


def classify_fault(kind: FaultKind, *, left: bool, written: int = 0) -> Verdict:
    return classify(TransportFault(kind, left, written), OURS, WORDS, OPERATION)


UNTRUSTWORTHY = {
    FaultKind.TLS_UNTRUSTED: "The gateway's certificate is not trusted.",
    FaultKind.EARLY_REPLY: "The gateway replied before we sent a request, so its replies cannot be trusted.",
}


@pytest.mark.parametrize("kind", FaultKind)
def test_fault_is_unknown_only_after_first_byte(kind: FaultKind) -> None:
    assert classify_fault(kind, left=True) == Verdict(Outcome(OutcomeKind.UNKNOWN, cause=kind.value), ContinueRun())
    assert classify_fault(kind, left=False, written=1).outcome.kind is OutcomeKind.UNKNOWN
    advice = StopRun(UNTRUSTWORTHY[kind]) if kind in UNTRUSTWORTHY else RetrySoon()
    assert classify_fault(kind, left=False) == Verdict(Outcome(OutcomeKind.NOT_SENT, cause=kind.value), advice)


# Complete replies: the words.
@pytest.mark.parametrize(("word", "kind"), WORDS.items())
@pytest.mark.parametrize("http_status", [200, 201, 204, 299, 400, 404, 409, 422, 499])
def test_listed_status_determines_outcome_below_http_500(word: str, kind: OutcomeKind, http_status: int) -> None:
    verdict = classify_reply({"status": word}, http_status)
    assert verdict == Verdict(Outcome(kind, gateway_status=word, http_status=http_status), ContinueRun())


@pytest.mark.parametrize("word", ["Approved", "APPROVED", "approved ", " approved", "approve", "", "\u0430pproved"])
def test_unlisted_reply_status_is_unknown(word: str) -> None:
    reply = RawReply(200, (), json.dumps({"status": word}).encode())
    for words in (WORDS, {word: OutcomeKind.NOT_SENT}):
        outcome = classify(reply, OURS, words, OPERATION).outcome
        assert (outcome.kind, outcome.cause) == (OutcomeKind.UNKNOWN, "reply.status_unlisted")


@pytest.mark.parametrize("http_status", [*range(300, 309), 399, *range(500, 505), 520, 599, 600, 999])
@pytest.mark.parametrize("body", [GOOD, {"status": "declined"}, "<html>Bad gateway</html>", ""])
@pytest.mark.parametrize("location", ["https://gateway.example/paynet/api/v4/payout/1234", "http://elsewhere.example"])
def test_redirect_or_server_error_is_unknown(http_status: int, body: str | dict[str, Any], location: str) -> None:
    outcome = classify_reply(body, http_status, (("location", location),)).outcome
    cause = "reply.redirect" if http_status < 400 else "reply.server_error"
    assert (outcome.kind, outcome.cause) == (OutcomeKind.UNKNOWN, cause)


NOT_JSON = [
    *(b"", b"<html>OK</html>", b"status=approved", b'{"status":"approved"', b'{"status":"approved"}x'),
    *(b'\xef\xbb\xbf{"status":"approved"}', b'{"status":"approved","name":"\xe9"}'),
    *('{"status":"approved"}'.encode(encoding) for encoding in ("utf-16", "utf-16-le")),
    *(b'{"status":"approved"}{"status":"declined"}', b"{'status':'approved'}", b'{"status":"approved",}'),
    *(b'{"status":"approved" /* paid */}', b'{"status":"approved","a":"\n"}'),
    *(b'{"status":"declined","status":"approved"}', b'{"status":"approved","status":"approved"}'),
    *(b'{"status":"approved","st\\u0061tus":"declined"}', b'{"status":"approved","a":[{"b":1,"b":1}]}'),
    *(b'{"status":"approved","fee":%s}' % text for text in (b"NaN", b"Infinity", b"-Infinity")),
    *(b'{"status":"approved","fee":%s}' % text for text in (b"01", b"1e" + b"9" * 20)),
    b'{"status":"approved","a":' + b"[" * 60_000,
    b'{"status":"approved","a":' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}",
    b'{"status":"approved","a":' + b'{"a":' * MAX_NESTING + b"1" + b"}" * MAX_NESTING + b"}",
]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        *((body, "reply.not_json") for body in NOT_JSON),
        *((text, "reply.not_object") for text in (b'[{"status":"approved"}]', b'"approved"', b"null", b"200")),
        *((b"{%s}" % item, "reply.status_missing") for item in (b"", b'"state":"approved"', b'"Status":"approved"')),
        *((b"{%s}" % item, "reply.status_missing") for item in (b'"status":null', b'"result":{"status":"approved"}')),
        *((b'{"status":%s}' % text, "reply.status_not_text") for text in (b"1", b"true", b'["approved"]', b'{"a":1}')),
    ],
)
def test_malformed_reply_is_unknown(body: bytes, cause: str) -> None:
    verdict = classify_reply(body)
    assert (verdict.outcome.kind, verdict.outcome.cause) == (OutcomeKind.UNKNOWN, cause)
    assert verdict.advice == ContinueRun()


def test_json_nested_up_to_limit_is_accepted() -> None:
    inner = "[" * (MAX_NESTING - 1) + "]" * (MAX_NESTING - 1)
    assert classify_reply(f'{{"status":"approved","a":{inner}}}').outcome.kind is OutcomeKind.PAID
    assert classify_reply({"status": "approved", "a": "[{" * 500}).outcome.kind is OutcomeKind.PAID
    assert classify_reply({"status": "approved", "a": [[]] * 500}).outcome.kind is OutcomeKind.PAID


@pytest.mark.parametrize("content_type", ["text/html", "application/json; charset=utf-16", "", "nonsense"])
def test_reply_content_type_is_ignored(content_type: str) -> None:
    assert classify_reply(GOOD, headers=(("content-type", content_type),)).outcome.kind is OutcomeKind.PAID


def test_truncated_reply_is_unknown() -> None:
    body = json.dumps({**GOOD, "message": "ünïcode"}, ensure_ascii=False).encode()
    assert classify_reply(body).outcome.kind is OutcomeKind.PAID
    for cut in range(len(body)):
        assert classify_reply(body[:cut]).outcome.kind is OutcomeKind.UNKNOWN, cut


# Complete replies: whose payout they speak of.
@pytest.mark.parametrize(
    "echo",
    [
        *("", ',"client_orderid":null,"amount":null,"currency":null', ',"client_orderid":"PAY-1"', ',"currency":"KES"'),
        *(f',"amount":"{text}"' for text in ("1500.50", "1500.5", "1500.500", "01500.50")),
        *(f',"amount":{number}' for number in ("1500.50", "1500.5", "1500.5000", "1.50050e3", "150050E-2")),
    ],
)
def test_matching_or_absent_echo_keeps_reply_status(echo: str) -> None:
    assert classify_reply(f'{{"status":"approved"{echo}}}').outcome.kind is OutcomeKind.PAID


@pytest.mark.parametrize(
    "number", ["1500.51", "1500.500000000000000000001", "150050", "-1500.50", "0", "1e99999", "1e-99999", "9" * 5000]
)
def test_different_echoed_amount_is_conflict(number: str) -> None:
    assert classify_reply(f'{{"status":"approved","amount":{number}}}').outcome.conflict


@pytest.mark.parametrize(
    "echo",
    [
        *({"client_orderid": other} for other in ("PAY-2", "pay-1", "PAY-1 ", "", 1, ["PAY-1"], True)),
        *({"currency": other} for other in ("kes", "UGX", 404)),
        *({"amount": other} for other in ("", "1,500.50", "1500.50 KES", " 1500.50", "NaN", "Infinity", "1500_50")),
        *({"amount": other} for other in ("\u0661500.50", True, {"value": 1500.50})),
    ],
)
@pytest.mark.parametrize("http_status", [200, 302, 401, 422, 429, 500])
def test_reply_about_other_payout_stops_run(echo: dict[str, Any], http_status: int) -> None:
    verdict = classify_reply({"status": "approved", **echo}, http_status)
    assert (verdict.outcome.kind, verdict.outcome.cause) == (OutcomeKind.UNKNOWN, "reply.other_payout")
    assert verdict.outcome.conflict
    assert verdict.outcome.gateway_status == "approved"
    assert verdict.advice == StopRun("The gateway's answer was about a different payout.")


def test_numeric_order_id_may_be_echoed_as_number() -> None:
    for order_id, echoed, is_ours in (("20261121", 20261121, True), ("20261121", 20261122, False), ("007", 7, False)):
        reply = {"status": "approved", "client_orderid": echoed}
        outcome = classify_reply(reply, expected=ExpectedReply(order_id, Decimal(1), "KES")).outcome
        assert (outcome.kind is OutcomeKind.PAID, outcome.conflict) == (is_ours, not is_ours), echoed


@pytest.mark.parametrize("echo", [{}, {"client_orderid": None}, {"amount": "1500.50", "currency": "KES"}])
def test_reply_on_reused_connection_must_have_order_id(echo: dict[str, Any]) -> None:
    outcome = classify_reply({"status": "approved", **echo}, reused=True).outcome
    assert (outcome.kind, outcome.cause, outcome.conflict) == (OutcomeKind.UNKNOWN, "reply.not_echoed", False)
    named = {"status": "approved", "client_orderid": "PAY-1"}
    assert classify_reply(named, reused=True).outcome.kind is OutcomeKind.PAID


def test_evidence_is_first_usable_and_printable_text() -> None:
    body = {"status": "declined", "paynet-order-id": 987654321, "reference": "not this one"}
    result = classify_reply({**body, "error-code": "51", "error-message": "Insufficient balance"}, 422).outcome
    evidence: dict[str, Any] = {"gateway_reference": "987654321", "error_code": "51", "message": "Insufficient balance"}
    assert result == Outcome(OutcomeKind.REJECTED, gateway_status="declined", http_status=422, **evidence)
    unusable: dict[str, Any] = {"paynet-order-id": None, "reference": "  ", "code": []}
    outcome = classify_reply({"status": "odd", "id": "abc", "message": "what?", **unusable}, 500).outcome
    assert (outcome.gateway_status, outcome.gateway_reference) == ("odd", "abc")
    assert (outcome.error_code, outcome.message) == (None, "what?")
    hostile = "\x1b[31mred\x00\u202edesrever\ud800\u2028line\nnext\ttab\u00a0" + "x" * 500
    outcome = classify_reply({"status": "declined", "message": hostile, "id": hostile, "code": "1" * 300}).outcome
    texts = [text or "" for text in (outcome.message, outcome.gateway_reference, outcome.error_code)]
    assert all(text.isprintable() and 0 < len(text.encode()) <= 200 for text in texts)
    assert texts[0].startswith("[31mreddesrever line next tab x")


# Advice.
@pytest.mark.parametrize("http_status", [401, 403])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        *(({"status": "declined"}, OutcomeKind.REJECTED), ({"status": "odd"}, OutcomeKind.UNKNOWN)),
        ("Unauthorized", OutcomeKind.UNKNOWN),
    ],
)
def test_refused_credentials_stop_run(http_status: int, body: str | dict[str, Any], kind: OutcomeKind) -> None:
    verdict = classify_reply(body, http_status)
    assert verdict.outcome.kind is kind
    assert verdict.advice == StopRun(f"The gateway rejects our credentials (HTTP {http_status}).")


RETRY_AFTER = {
    ContinueRun(): ("0", "Sat, 21 Nov 2026 11:59:00 GMT", "Sat, 21 Nov 2026 12:00:00 GMT"),
    PauseRun(1.0): ("1",),
    PauseRun(7.0): (" 7 ",),
    PauseRun(120.0): (
        *("120", "Sat, 21 Nov 2026 12:02:00 GMT", "Saturday, 21-Nov-26 12:02:00 GMT", "Sat Nov 21 12:02:00 2026"),
        "Sat, 21 Nov 2026 15:02:00 +0300",
    ),
    PauseRun(MAX_PAUSE_S): ("900", "901", "1000000000", "Fri, 31 Dec 9999 23:59:59 GMT"),
    PauseRun(DEFAULT_PAUSE_S): (
        *("9" * 400, "-1", "1.5", "", "soon", "\u0661\u0662"),
        *("Sat, 99 Nov 2026 12:02:00 GMT", "Sat, 21 Nov 99999999 12:02:00 +999999"),
    ),
}


@pytest.mark.parametrize("http_status", [429, 503])
@pytest.mark.parametrize(("asked", "advice"), [(one, advice) for advice in RETRY_AFTER for one in RETRY_AFTER[advice]])
def test_requested_pause_is_limited(http_status: int, asked: str, advice: Advice) -> None:
    verdict = classify_reply({"status": "declined"}, http_status, (("retry-after", asked),), now=NOW)
    assert verdict.advice == advice
    assert verdict.outcome.kind is (OutcomeKind.REJECTED if http_status == 429 else OutcomeKind.UNKNOWN)


def test_pause_uses_reply_date_or_default() -> None:
    retry_after = ("retry-after", "Sat, 21 Nov 2026 12:00:30 GMT")
    headers = (("date", "Sat, 21 Nov 2026 12:00:00 GMT"), retry_after)
    assert classify_reply({}, 429, headers, now=NOW.replace(year=2030)).advice == PauseRun(30.0)
    assert classify_reply({}, 429, headers).advice == PauseRun(30.0)
    assert classify_reply({}, 503, (retry_after,)).advice == PauseRun(DEFAULT_PAUSE_S)
    assert classify_reply({}, 429).advice == PauseRun(DEFAULT_PAUSE_S)
    assert classify_reply({}, 429, (("retry-after", "1"), ("retry-after", "2"))).advice == PauseRun(DEFAULT_PAUSE_S)
    assert classify_reply({}, 503).advice == ContinueRun()
    assert classify_reply(GOOD, 200, (("retry-after", "60"),)).advice == ContinueRun()


@pytest.mark.parametrize(
    ("headers", "stated"),
    [
        ((), None),
        ((("date", "Sat, 21 Nov 2026 12:00:00 GMT"),), NOW),
        ((("server", "x"), ("date", " Sat, 21 Nov 2026 15:00:00 +0300 ")), NOW),
        ((("date", "Sat, 21 Nov 2026 12:00:00"),), NOW),
        *(((("date", text),), None) for text in ("yesterday", "Sat, 21 Nov 2026 12:00:00 +9999")),
        ((("date", "Fri, 31 Dec 9999 23:59:59 -1200"),), None),
        ((("date", "Sat, 21 Nov 2026 12:00:00 GMT"), ("date", "Sat, 21 Nov 2026 12:00:01 GMT")), None),
    ],
)
def test_only_single_date_header_gives_gateway_time(
    headers: tuple[tuple[str, str], ...], stated: datetime | None
) -> None:
    result = reply_date(RawReply(200, headers, b""))
    assert result == stated
    assert result is None or result.tzinfo is UTC


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["status", "client_orderid", "amount", "currency", "id", "code", "message", "x"]),
    st.sampled_from(["approved", "PAY-1", "KES", "1500.50", 1500.5]) | JSON,
)


@given(
    body=st.binary() | MEMBERS.map(lambda members: json.dumps(members).encode()),
    http_status=st.integers(100, 999),
    headers=st.lists(st.tuples(st.sampled_from(["retry-after", "date", "x"]), st.text(max_size=60)), max_size=3),
    reused=st.booleans(),
)
def test_only_listed_status_determines_outcome(body: bytes, http_status: int, headers: Any, *, reused: bool) -> None:
    outcome = classify_reply(body, http_status, tuple(headers), reused=reused, now=NOW).outcome
    assert outcome.kind is not OutcomeKind.NOT_SENT
    if outcome.kind is not OutcomeKind.UNKNOWN:
        members = json.loads(body)
        assert WORDS[members["status"]] is outcome.kind
        assert http_status < 300 or 400 <= http_status < 500
        assert members.get("client_orderid") == "PAY-1" or (members.get("client_orderid") is None and not reused)


# Configured names of fields.
def configured_operation(**names: Any) -> Operation:
    return replace(OPERATION, reply=replace(OPERATION.reply, minor_units={"KES": 2, "RWF": 0}, **names))


@pytest.mark.parametrize("path", ["merchant-order-id", "order.merchant.id"])
def test_echo_under_configured_name_is_checked(path: str) -> None:
    def outcome(order_id: object, *, reused: bool = False) -> Outcome:
        inner = order_id
        for name in reversed(path.split(".")):
            inner = {name: inner}
        assert isinstance(inner, dict)
        operation = configured_operation(order_id=("client_orderid", path))
        return classify_reply({"status": "approved", **inner}, reused=reused, operation=operation).outcome

    assert outcome("PAY-1", reused=True).kind is OutcomeKind.PAID
    assert (outcome("PAY-2").kind, outcome("PAY-2").conflict) == (OutcomeKind.UNKNOWN, True)
    assert outcome({"id": "PAY-1"}).conflict
    assert outcome(None, reused=True).cause == "reply.not_echoed"


def test_configured_names_and_paths_are_used() -> None:
    operation = configured_operation(order_id=("merchant-order-id", "client_orderid"))
    for order_id, is_ours in (("PAY-1", True), (None, False)):
        reply = {"status": "approved", "client_orderid": "7", "merchant-order-id": order_id}
        outcome = classify_reply(reply, operation=operation).outcome
        assert (outcome.kind is OutcomeKind.PAID, outcome.conflict) == (is_ours, not is_ours)
    operation = configured_operation(reference=("ids.bank",), error_code=("error.code",), message=("error.message",))
    members = {"status": "declined", "error": {"code": 51, "message": "No funds"}, "ids": {"bank": "R-1"}}
    outcome = classify_reply(members, operation=operation).outcome
    assert (outcome.error_code, outcome.message, outcome.gateway_reference) == ("51", "No funds", "R-1")
    assert classify_reply({"status": "declined", "error": "No funds"}, operation=operation).outcome.message is None


@pytest.mark.parametrize(
    ("unit", "repeated", "expected", "is_ours"),
    [
        (AmountUnit.MINOR, 150050, OURS, True),
        (AmountUnit.MINOR, "150050", OURS, True),
        (AmountUnit.MINOR, 1500.5, OURS, False),
        (AmountUnit.MINOR, 15005, OURS, False),
        (AmountUnit.MINOR, 1500, ExpectedReply("PAY-1", Decimal(1500), "RWF"), True),
        (AmountUnit.MINOR, 150000, ExpectedReply("PAY-1", Decimal(1500), "RWF"), False),
        (AmountUnit.MINOR, 1500, ExpectedReply("PAY-1", Decimal(1500), "???"), False),
        (AmountUnit.MAJOR, "1480.00", OURS, False),
        (AmountUnit.UNCHECKED, "1480.00", OURS, True),
    ],
)
def test_echo_is_compared_in_configured_unit(unit: AmountUnit, repeated: Any, expected: Any, *, is_ours: bool) -> None:
    members = {"status": "approved", "amount": repeated, "currency": expected.currency}
    operation = configured_operation(amount_unit=unit)
    assert classify_reply(members, expected=expected, operation=operation).outcome.conflict is not is_ours
