"""Determines the outcome of an attempt, and the advice for the run, from a reply or a fault.

Only a complete, strict JSON reply about this payout decides its outcome, by its `status` field and never by the HTTP
status alone. If a byte of the request may have been sent, any other reply or fault is UNKNOWN, and an UNKNOWN payout is
never sent again. Source: rule 5 of section 4, and section 7, of the gateway's interface.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, assert_never

from paygw_batch.core.outcome import (
    ANSWERS,
    Advice,
    ContinueRun,
    Outcome,
    OutcomeKind,
    PauseRun,
    RetrySoon,
    StopRun,
    Verdict,
)
from paygw_batch.countries.rules import AmountUnit, Operation, ReplyNames
from paygw_batch.gateway.message import ExpectedReply, FaultKind, RawReply, TransportFault
from paygw_batch.gateway.strict_json import (
    first_value,
    parse_decimal,
    parse_json_object,
    printable_text,
    scalar_text,
    values_at,
)
from paygw_batch.language import say

STATUS_FIELD = "status"
"""The only reply field that the interface shows (section 4, rule 5)."""
MAX_URL_CHARACTERS = 2000
"""A longer URL is dropped, because a shortened one would not work."""
MAX_PAUSE_S = 900.0
"""The longest pause of a run, even if the gateway asks for more."""
DEFAULT_PAUSE_S = 60.0
"""The pause if the gateway asks for one without a readable length."""

_OTHER_PAYOUT = "reply.other_payout"
_URL = re.compile(rf"(?=.{{1,{MAX_URL_CHARACTERS}}}$)https?://[!-~]+")
_SECONDS = re.compile(r"[0-9]{1,12}")
_REDIRECTS = range(HTTPStatus.MULTIPLE_CHOICES, HTTPStatus.BAD_REQUEST)
_MIN_SERVER_ERROR = HTTPStatus.INTERNAL_SERVER_ERROR.value
_CREDENTIALS_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_PAUSE_REQUESTED = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def classify(
    reply: RawReply | TransportFault,
    expected: ExpectedReply,
    words: Mapping[str, OutcomeKind],
    operation: Operation,
    *,
    now: datetime | None = None,
) -> Verdict:
    """Return the outcome of an attempt and the advice for the run. Never raises.

    `words` maps the operator's status words (`[outcomes]`), which must match exactly, to outcomes. `now` (with a time
    zone) is needed only for a Retry-After date in a reply without a Date header.
    """
    if isinstance(reply, TransportFault):
        return _fault_verdict(reply)
    members = parse_json_object(reply.body)
    if isinstance(members, str):
        kind, cause, members = OutcomeKind.UNKNOWN, members, {}
    else:
        kind, cause = _stated_outcome(reply, members, expected, words, operation)
    is_conflict = cause == _OTHER_PAYOUT
    # A 5xx or a redirect may come from a proxy even though the gateway behind it paid, so the body is not trusted. But
    # a reply about another payout must still stop the run.
    if (http_cause := _http_status_cause(reply.http_status)) is not None and not is_conflict:
        kind, cause = OutcomeKind.UNKNOWN, http_cause
    outcome = Outcome(
        kind,
        cause,
        # The gateway's own words are cleaned before they are stored and displayed.
        gateway_status=printable_text(members.get(STATUS_FIELD)),
        gateway_reference=_first_text(members, operation.reply.reference),
        http_status=reply.http_status,
        error_code=_first_text(members, operation.reply.error_code),
        message=_first_text(members, operation.reply.message),
        conflict=is_conflict,
        customer_url=None if is_conflict else _customer_url(members, expected, operation),
    )
    return Verdict(outcome, _choose_advice(reply, outcome, now))


def reply_date(reply: RawReply) -> datetime | None:
    """Return the `Date` of a reply in UTC, or None if the header is missing or unreadable."""
    date = _parse_http_date(_single_header(reply, "date") or "")
    try:
        return date.astimezone(UTC) if date is not None else None
    except OverflowError:  # the time zone moves the date past the end of the calendar
        return None


def _fault_verdict(fault: TransportFault) -> Verdict:
    """Return the verdict on a fault: UNKNOWN if any byte may have been sent, otherwise NOT_SENT."""
    if fault.first_byte_sent or fault.bytes_written > 0:
        return Verdict(Outcome(OutcomeKind.UNKNOWN, cause=fault.kind.value))
    outcome = Outcome(OutcomeKind.NOT_SENT, cause=fault.kind.value)
    if fault.kind is FaultKind.TLS_UNTRUSTED:
        return Verdict(outcome, StopRun(say("The gateway's certificate is not trusted.")))
    if fault.kind is FaultKind.EARLY_REPLY:
        reason = say("The gateway replied before we sent a request, so its replies cannot be trusted.")
        return Verdict(outcome, StopRun(reason))
    return Verdict(outcome, RetrySoon())


def _http_status_cause(http_status: int) -> str | None:
    if http_status >= _MIN_SERVER_ERROR:
        return "reply.server_error"
    if http_status in _REDIRECTS:
        return "reply.redirect"
    return None


def _stated_outcome(
    reply: RawReply,
    members: Mapping[str, Any],
    expected: ExpectedReply,
    words: Mapping[str, OutcomeKind],
    operation: Operation,
) -> tuple[OutcomeKind, str]:
    """Return the outcome stated in the reply, and the cause if it is UNKNOWN."""
    order_id = first_value(members, operation.reply.order_id)
    if not _matches_request(order_id, members, expected, operation.reply):
        return OutcomeKind.UNKNOWN, _OTHER_PAYOUT
    # On a reused connection, only an order id distinguishes this reply from a late reply to an earlier request.
    if reply.reused_connection and order_id is None:
        return OutcomeKind.UNKNOWN, "reply.not_echoed"
    status = members.get(STATUS_FIELD)
    if status is None:
        return OutcomeKind.UNKNOWN, "reply.status_missing"
    if not isinstance(status, str):
        return OutcomeKind.UNKNOWN, "reply.status_not_text"
    # The word is neither trimmed nor case-folded, because a word that the operator has not listed may mean anything.
    kind = words.get(status)
    if kind not in ANSWERS:
        return OutcomeKind.UNKNOWN, "reply.status_unlisted"
    return kind, ""


def _matches_request(order_id: object, members: Mapping[str, Any], expected: ExpectedReply, names: ReplyNames) -> bool:
    """Return whether the reply's order id, amount and currency, if present, match the request."""
    amount, currency = first_value(members, names.amount), first_value(members, names.currency)
    return (
        (order_id is None or scalar_text(order_id) == expected.order_id)
        and (amount is None or _is_expected_amount(amount, expected, names))
        and (currency is None or currency == expected.currency)
    )


def _is_expected_amount(echoed_amount: object, expected: ExpectedReply, names: ReplyNames) -> bool:
    match names.amount_unit:
        case AmountUnit.UNCHECKED:
            return True
        case AmountUnit.MAJOR:
            return parse_decimal(echoed_amount) == expected.amount
        case AmountUnit.MINOR:
            decimals = names.minor_units.get(expected.currency)
            return decimals is not None and parse_decimal(echoed_amount) == expected.amount.scaleb(decimals)
        case _:
            assert_never(names.amount_unit)


def _customer_url(members: Mapping[str, Any], expected: ExpectedReply, operation: Operation) -> str | None:
    """Return the first well-formed customer URL in the reply that is not one of our own."""
    for value in values_at(members, operation.reply.customer_url):
        if isinstance(value, str) and value not in expected.own_urls and _URL.fullmatch(value):
            return value
    return None


def _first_text(members: Mapping[str, Any], paths: tuple[str, ...]) -> str | None:
    texts = map(printable_text, values_at(members, paths))
    return next((text for text in texts if text is not None), None)


def _choose_advice(reply: RawReply, outcome: Outcome, now: datetime | None) -> Advice:
    if outcome.conflict:
        return StopRun(say("The gateway's answer was about a different payout."))
    if reply.http_status in _CREDENTIALS_REFUSED:
        return StopRun(say("The gateway rejects our credentials (HTTP {http_status}).", http_status=reply.http_status))
    if reply.http_status in _PAUSE_REQUESTED:
        return _pause_advice(reply, now)
    return ContinueRun()


def _pause_advice(reply: RawReply, now: datetime | None) -> Advice:
    """Return the advice after HTTP 429 or 503. Without Retry-After, only 429 pauses the run."""
    retry_after = _single_header(reply, "retry-after")
    if retry_after is None:
        return PauseRun(DEFAULT_PAUSE_S) if reply.http_status == HTTPStatus.TOO_MANY_REQUESTS else ContinueRun()
    pause_s = _parse_retry_after(retry_after, _single_header(reply, "date"), now)
    if pause_s is None:
        return PauseRun(DEFAULT_PAUSE_S)
    return PauseRun(min(pause_s, MAX_PAUSE_S)) if pause_s > 0 else ContinueRun()


def _parse_retry_after(retry_after: str, date: str | None, now: datetime | None) -> float | None:
    """Parse a Retry-After header (RFC 9110 section 10.2.3) into seconds. Returns None if it is unreadable.

    If the header is a date, it is compared with `date`, which is from the same clock, or otherwise with `now`.
    """
    if _SECONDS.fullmatch(retry_after):
        return float(retry_after)
    until = _parse_http_date(retry_after)
    start = _parse_http_date(date or "") or now
    if until is None or start is None:
        return None
    return (until - start).total_seconds()


def _parse_http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _single_header(reply: RawReply, name: str) -> str | None:
    values = [value.strip() for header, value in reply.headers if header == name]
    return values[0] if len(values) == 1 else None
