"""Chooses and builds the sandbox's replies, according to the rules in a TOML file."""

import json
import re
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

from paygw_batch.countries.data import config_dir, nearest, validation_message
from paygw_batch.countries.rules import AmountUnit, Operation
from paygw_batch.errors import ConfigurationError
from paygw_batch.files import read_regular
from paygw_batch.language import say
from paygw_batch.sandbox.form import Order, Refusal, Request
from paygw_batch.sandbox.record import RecordLine, read_record
from paygw_batch.sandbox.verifier import Verifier


class Fault(StrEnum):
    """A fault that the sandbox simulates. Except with DROP_BEFORE, the order is accepted first, so the money moves."""

    SILENCE = "silence"
    """There is no answer. The connection stays open until the client or the sandbox closes it."""
    GARBAGE = "garbage"
    """The answer is not JSON."""
    DROP_BEFORE = "drop_before"
    """The connection is closed before the order is accepted. The client cannot distinguish this from DROP_AFTER."""
    DROP_AFTER = "drop_after"
    """The connection is closed after the order was accepted."""
    HTTP_500 = "http_500"
    """The answer is a bare HTTP 500."""
    WRONG_ECHO = "wrong_echo"
    """The answer contains a different order id."""
    SLOW_DRIP = "slow_drip"
    """The answer is correct, but arrives one byte every `drip_interval_s` seconds."""


_HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
_HeaderValue = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]
_StatusWord = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_MAX_FILE_BYTES = 1024 * 1024
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Answer(_Table):
    """How to answer an order. The reply is sent after `delay_s` seconds. The money moves if `commits` is true."""

    status: _StatusWord = "approved"
    http_status: Annotated[int, Field(ge=200, le=599)] = 200
    delay_s: _Seconds = 0.0
    drip_interval_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    headers: dict[_HeaderName, _HeaderValue] = {}
    error_code: str | None = None
    message: str | None = None
    fault: Annotated[Fault | None, Field(strict=False)] = None
    commits: bool = Field(default_factory=lambda values: values.get("fault") is not Fault.DROP_BEFORE)

    @model_validator(mode="after")
    def _validate_fault_and_headers(self) -> Self:
        if self.fault is Fault.DROP_BEFORE and self.commits:
            raise ValueError(say("`commits` cannot be true with drop_before, because no order is accepted"))
        if any(name.lower() in _FRAMING_HEADERS for name in self.headers):
            raise ValueError(say("the sandbox sets Content-Length and Transfer-Encoding itself"))
        return self


class _Conditions(_Table):
    """The conditions that an order must meet. A condition that is None is ignored.

    `amount_whole` is the integer part of the amount. `order_id` is a regular expression for the whole order id.
    """

    amount_whole: Annotated[int | None, Field(ge=0)] = None
    order_id: re.Pattern[str] | None = None
    country: str | None = None

    def matches(self, order: Order) -> bool:
        return (
            (self.amount_whole is None or self.amount_whole == int(order.amount.partition(".")[0]))
            and (self.country is None or self.country == order.country)
            and (self.order_id is None or self.order_id.fullmatch(order.order_id) is not None)
        )


class Rule(_Conditions, Answer):
    """An answer to orders that meet the conditions, or to every n-th of them that no earlier rule has answered."""

    every_nth: Annotated[int | None, Field(ge=1)] = None

    @model_validator(mode="after")
    def _require_condition(self) -> Self:
        if (self.amount_whole, self.order_id, self.country, self.every_nth) == (None, None, None, None):
            raise ValueError(
                say(
                    "a rule needs `amount_whole`, `order_id`, `country` or `every_nth` ([default] applies to all "
                    "other orders)"
                )
            )
        return self


class NotificationRule(_Conditions):
    """A notification about orders that meet the conditions.

    It is sent `times` times, each `delay_s` to `delay_s + jitter_s` seconds after the order was accepted. `amount`
    replaces the order's amount. If `forged` is true, the proof is wrong.
    """

    status: _StatusWord
    delay_s: _Seconds = 0.0
    jitter_s: _Seconds = 0.0
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    method: Literal["GET", "POST"] = "POST"
    format: Literal["form", "json"] = "json"
    amount: str | None = None
    forged: bool = False


class Enquiries(_Table):
    """How to answer status enquiries. `later` maps the reply's status word to the one reported after `after_s` seconds.

    `not_found` is the status word for orders that were never accepted.
    """

    later: dict[str, str] = {}
    after_s: _Seconds = 0.0
    not_found: _StatusWord = "not-found"


class Behaviour(_Table):
    """The content of a behaviour file: rules in order, the default answer, notifications and enquiries."""

    rule: Sequence[Rule] = ()
    default: Answer = Answer()
    notification: Sequence[NotificationRule] = ()
    enquiry: Enquiries = Enquiries()


_KNOWN_KEYS: Mapping[str, Collection[str]] = {
    "rule": Rule.model_fields,
    "default": Answer.model_fields,
    "notification": NotificationRule.model_fields,
    "enquiry": Enquiries.model_fields,
}


class AnswerChooser:
    """Chooses answers, counting orders for `every_nth`. Not thread-safe."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._match_counts = [0] * len(behaviour.rule)

    def choose(self, order: Order) -> Answer:
        """Return the answer of the first matching rule, or the default."""
        for index, rule in enumerate(self._behaviour.rule):
            if not rule.matches(order):
                continue
            self._match_counts[index] += 1
            if rule.every_nth is None or self._match_counts[index] % rule.every_nth == 0:
                return rule
        return self._behaviour.default

    def notification_rules(self, order: Order) -> Iterator[NotificationRule]:
        return (rule for rule in self._behaviour.notification if rule.matches(order))


def parse_behaviour(text: str, *, name: str) -> Behaviour:
    """Parse the TOML text of the file `name`. Raises `ConfigurationError`, naming any invalid keys."""
    try:
        return Behaviour.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(say("{name} is not valid TOML: {problem}", name=name, problem=error)) from None
    except ValidationError as error:
        raise ConfigurationError(" ".join(f"{name}: {message}" for message in _error_messages(error))) from None


def _error_messages(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False):
        key = ".".join(str(step) for step in detail["loc"])
        if detail["type"] == "extra_forbidden":
            known_keys = _KNOWN_KEYS.get(str(detail["loc"][0]), Behaviour.model_fields)
            nearest_key = nearest(str(detail["loc"][-1]), known_keys)
            yield say("{key} is not a known key. {nearest}", key=key, nearest=nearest_key)
        else:
            yield f"{key}: {validation_message(detail)}."


def load_behaviour(path: Path) -> Behaviour:
    """Load a behaviour file. Raises `ConfigurationError` if it cannot be read or is invalid."""
    try:
        text = read_regular(path, _MAX_FILE_BYTES).decode()
    except OSError as error:
        reason = say(error.strerror or "unknown reason")
        raise ConfigurationError(
            say("{path} cannot be read: {reason}.", path=path, reason=reason), hint=say("Check the path.")
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(say("{path} is not UTF-8 text.", path=path), hint="") from None
    return parse_behaviour(text, name=path.name)


def default_behaviour() -> Behaviour:
    """Return the default behaviour: orders are approved, except for amounts from 9001 to 9012."""
    return load_behaviour(config_dir() / "sandbox-behaviour.toml")


_JSON_HEADERS = {"Content-Type": "application/json"}
_AMOUNT_PLACEHOLDER = "(the amount)"
"""Text in the JSON to be replaced by a number with exactly the amount's digits."""
CUSTOMER_URL = "https://sandbox.example/pay/"
"""The URL where a customer would pay, without the order's reference at the end."""
_REFUSAL_HEADERS = {401: {"WWW-Authenticate": "OAuth"}, 405: {"Allow": "POST"}}
"""The headers that RFC 9110 requires with these status codes."""

GARBAGE = Response('{"status": "approv<html>', 200, _JSON_HEADERS)
BARE_500 = Response("Internal Server Error", 500, {"Content-Type": "text/plain"})


def build_refusal_reply(operation: Operation, refusal: Refusal, *, status: str = "error") -> Response:
    """Return the reply to a refused request, with `status` as the status word."""
    names = operation.reply
    members: dict[str, object] = {"status": status}
    _set_member(members, names.error_code, refusal.code)
    _set_member(members, names.message, refusal.message)
    if refusal.order_id is not None:
        _set_member(members, names.order_id, refusal.order_id)
    headers = _JSON_HEADERS | _REFUSAL_HEADERS.get(refusal.http_status, {})
    return Response(_encode_json(members), refusal.http_status, headers)


def build_reply(operation: Operation, order: Order, answer: Answer, *, order_id: str, reference: str) -> Response:
    """Return the reply to an order. Its amount is a JSON number with every digit that was sent."""
    names = operation.reply
    members: dict[str, object] = {"status": answer.status}
    _set_member(members, names.order_id, order_id)
    _set_member(members, names.currency, order.currency)
    _set_member(members, names.reference, reference)
    if names.customer_url and answer.commits:
        _set_member(members, names.customer_url, CUSTOMER_URL + reference)
    if answer.error_code is not None:
        _set_member(members, names.error_code, answer.error_code)
    if answer.message is not None:
        _set_member(members, names.message, answer.message)
    amount = Decimal(order.amount)
    if names.amount_unit is AmountUnit.MINOR:
        amount = amount.scaleb(names.minor_units[order.currency])
    _set_member(members, names.amount, _AMOUNT_PLACEHOLDER)
    body = _encode_json(members).replace(f'"{_AMOUNT_PLACEHOLDER}"'.encode("ascii"), f"{amount:f}".encode("ascii"), 1)
    return Response(body, answer.http_status, _JSON_HEADERS | answer.headers)


def _set_member(members: dict[str, object], paths: Sequence[str], value: str) -> None:
    """Set a member at the first of `paths`, creating outer objects. Does nothing if an outer value is not an object."""
    *outer, member_name = paths[0].split(".")
    for name in outer:
        inner = members.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        members = inner
    members[member_name] = value


def _encode_json(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, ensure_ascii=False).encode("utf-8")


_FAULTS = frozenset(Fault)


class EnquiryResponder:
    """Answers status enquiries from the records of accepted orders."""

    def __init__(
        self, verifier: Verifier, paths: Sequence[Path], enquiries: Enquiries, clock: Callable[[], float] = time.time
    ) -> None:
        self._operation = verifier.operation
        self._verifier = verifier
        self._record_paths = paths
        self._enquiries = enquiries
        self._clock = clock
        self._lines: Mapping[str, RecordLine] = {}
        self._sizes: list[int] = []

    def can_serve(self, request: Request) -> bool:
        return self._verifier.can_serve(request)

    def reply(self, request: Request) -> Response:
        """Return the reply to an enquiry: the order's status, or a refusal."""
        fields = self._verifier.authenticate(request)
        if isinstance(fields, Refusal):
            return build_refusal_reply(self._operation, fields)
        if set(fields) != {"client_orderid"}:
            refusal = Refusal(422, "body", "The body must have exactly one field, client_orderid.")
            return build_refusal_reply(self._operation, refusal)
        order_id = fields["client_orderid"]
        line = self._latest_lines().get(order_id)
        status = None if line is None else self._current_status(line)
        if line is None or status is None:
            refusal = Refusal(200, "unknown", "There is no such order.", order_id)
            return build_refusal_reply(self._operation, refusal, status=self._enquiries.not_found)
        order = Order(order_id, line.country, line.currency, line.amount, line.account_number, line.purpose)
        return build_reply(self._operation, order, Answer(status=status), order_id=order_id, reference=line.reference)

    def _latest_lines(self) -> Mapping[str, RecordLine]:
        """Return each order's latest line. Rereads the records if any has grown."""
        sizes = [path.stat().st_size for path in self._record_paths]
        if sizes != self._sizes:
            self._lines = {line.client_orderid: line for path in self._record_paths for line in read_record(path)}
            self._sizes = sizes
        return self._lines

    def _current_status(self, line: RecordLine) -> str | None:
        """Return the order's status word, or None if the order was never accepted."""
        status = line.answer
        if status in _FAULTS:
            return "approved" if line.committed == "yes" else None
        age_s = self._clock() - datetime.fromisoformat(line.received_at).timestamp()
        return self._enquiries.later.get(status, status) if age_s >= self._enquiries.after_s else status
