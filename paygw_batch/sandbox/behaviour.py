"""Chooses the sandbox's reply: the first rule of a TOML file that matches an order."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paygw_batch.countries.data import nearest, reason_of
from paygw_batch.countries.load import config_dir
from paygw_batch.errors import ConfigurationError
from paygw_batch.sandbox.request import Order


class Fault(StrEnum):
    """How the sandbox misbehaves. All but DROP_BEFORE take the order first: the money moves, with any reply or none."""

    SILENCE = "silence"
    """No answer, ever; the connection stays open until the client or the sandbox ends."""
    GARBAGE = "garbage"
    """An answer that is not JSON."""
    DROP_BEFORE = "drop_before"
    """The connection is closed and the order is not taken. To the client it looks like DROP_AFTER."""
    DROP_AFTER = "drop_after"
    """The connection is closed after the order was taken."""
    HTTP_500 = "http_500"
    """A bare HTTP 500."""
    WRONG_ECHO = "wrong_echo"
    """An answer that speaks of another order id."""
    SLOW_DRIP = "slow_drip"
    """The right answer, byte by byte, `drip_interval_s` apart."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to an order. `commits` says whether the money moves; `delay_s` passes after that."""

    status: str = "approved"
    http_status: int = 200
    delay_s: float = 0.0
    drip_interval_s: float = 1.0
    headers: tuple[tuple[str, str], ...] = ()
    error_code: str | None = None
    message: str | None = None
    fault: Fault | None = None
    commits: bool = True


@dataclass(frozen=True, slots=True)
class BehaviourRule:
    """An answer, and the orders it is for: those that fit every condition that is not None.

    `amount_whole` is the whole part of the amount, `order_id` a regular expression over the whole order id, `every_nth`
    takes only each n-th order that fits the rest and that no earlier rule took.
    """

    answer: Answer
    amount_whole: int | None = None
    order_id: re.Pattern[str] | None = None
    country: str | None = None
    every_nth: int | None = None


@dataclass(frozen=True, slots=True)
class Callback:
    """A notification that orders of some kind bring about: those that fit every condition that is not None.

    It leaves `delay_s` after the order was taken, and up to `jitter_s` later, `times` times. `amount` makes it speak of
    another amount, `forged` gives it a wrong hash.
    """

    status: str
    delay_s: float = 0.0
    jitter_s: float = 0.0
    times: int = 1
    method: str = "POST"
    format: str = "json"
    amount: str | None = None
    forged: bool = False
    amount_whole: int | None = None
    order_id: re.Pattern[str] | None = None
    country: str | None = None


@dataclass(frozen=True, slots=True)
class Enquiries:
    """The answer to an enquiry: the word that the order got, or after `after_s` the word that `later` gives.

    `not_found` is the word for an order that was never taken.
    """

    later: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    not_found: str = "not-found"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The rules in their order, the answer for every order that none of them fits, notifications, and enquiries."""

    rules: tuple[BehaviourRule, ...] = ()
    default: Answer = Answer()
    callbacks: tuple[Callback, ...] = ()
    enquiries: Enquiries = field(default_factory=Enquiries)


class AnswerChoice:
    """Chooses answers, and counts for `every_nth`. One thread only."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._fitted = [0] * len(behaviour.rules)

    def choose(self, order: Order) -> Answer:
        """Return the answer of the first rule that fits `order`, or the default."""
        for index, rule in enumerate(self._behaviour.rules):
            if not _fits(rule, order):
                continue
            self._fitted[index] += 1
            if rule.every_nth is None or self._fitted[index] % rule.every_nth == 0:
                return rule.answer
        return self._behaviour.default

    def callbacks(self, order: Order) -> Iterator[Callback]:
        """Yield every notification that `order` brings about."""
        return (callback for callback in self._behaviour.callbacks if _fits(callback, order))


def _fits(rule: BehaviourRule | Callback, order: Order) -> bool:
    return (
        (rule.amount_whole is None or rule.amount_whole == int(order.amount.partition(".")[0]))
        and (rule.country is None or rule.country == order.country)
        and (rule.order_id is None or rule.order_id.fullmatch(order.order_id) is not None)
    )


_HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
_HeaderValue = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]
_FRAMING = frozenset({"content-length", "transfer-encoding"})


class _AnswerData(BaseModel):
    """An answer as the file states it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    status: Annotated[str, Field(min_length=1)] = "approved"
    http_status: Annotated[int, Field(ge=200, le=599)] = 200
    delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    drip_interval_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    headers: dict[_HeaderName, _HeaderValue] = {}
    error_code: str | None = None
    message: str | None = None
    fault: Annotated[Fault | None, Field(strict=False)] = None
    commits: bool | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if self.fault is Fault.DROP_BEFORE and self.commits:
            raise ValueError("drop_before takes no order: `commits` cannot be true")
        if any(name.lower() in _FRAMING for name in self.headers):
            raise ValueError("Content-Length and Transfer-Encoding are set by the sandbox itself")
        return self

    def to_answer(self) -> Answer:
        commits = self.fault is not Fault.DROP_BEFORE if self.commits is None else self.commits
        return Answer(
            status=self.status,
            http_status=self.http_status,
            delay_s=self.delay_s,
            drip_interval_s=self.drip_interval_s,
            headers=tuple(self.headers.items()),
            error_code=self.error_code,
            message=self.message,
            fault=self.fault,
            commits=commits,
        )


class _RuleData(_AnswerData):
    """A rule as the file states it: conditions and answer in one table."""

    amount_whole: Annotated[int | None, Field(ge=0)] = None
    order_id: str | None = None
    country: str | None = None
    every_nth: Annotated[int | None, Field(ge=1)] = None

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if (self.amount_whole, self.order_id, self.country, self.every_nth) == (None, None, None, None):
            raise ValueError("a rule needs `amount_whole`, `order_id`, `country` or `every_nth`; see [default]")
        return self

    def to_rule(self) -> BehaviourRule:
        return BehaviourRule(
            answer=self.to_answer(),
            amount_whole=self.amount_whole,
            order_id=None if self.order_id is None else re.compile(self.order_id),
            country=self.country,
            every_nth=self.every_nth,
        )


class _CallbackData(BaseModel):
    """A notification as the file states it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    status: Annotated[str, Field(min_length=1)]
    delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    jitter_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    method: Literal["GET", "POST"] = "POST"
    format: Literal["form", "json"] = "json"
    amount: str | None = None
    forged: bool = False
    amount_whole: Annotated[int | None, Field(ge=0)] = None
    order_id: str | None = None
    country: str | None = None

    def to_callback(self) -> Callback:
        order_id = None if self.order_id is None else re.compile(self.order_id)
        return Callback(**{**self.model_dump(), "order_id": order_id})


class _EnquiryData(BaseModel):
    """The answers to enquiries, as the file states them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    later: dict[str, str] = {}
    after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    not_found: Annotated[str, Field(min_length=1)] = "not-found"


class _BehaviourData(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    default: _AnswerData = _AnswerData()
    rule: list[_RuleData] = []
    notification: list[_CallbackData] = []
    enquiry: _EnquiryData = _EnquiryData()


_KEYS: Mapping[str, Collection[str]] = {
    "rule": _RuleData.model_fields,
    "default": _AnswerData.model_fields,
    "notification": _CallbackData.model_fields,
    "enquiry": _EnquiryData.model_fields,
}


def parse_behaviour(text: str, *, name: str) -> Behaviour:
    """Return the behaviour that TOML `text` states; raise `ConfigurationError` that names the key in file `name`."""
    try:
        data = _BehaviourData.model_validate(tomllib.loads(text))
        return Behaviour(
            tuple(each.to_rule() for each in data.rule),
            data.default.to_answer(),
            tuple(each.to_callback() for each in data.notification),
            Enquiries(**data.enquiry.model_dump()),
        )
    except tomllib.TOMLDecodeError as problem:
        raise ConfigurationError(f"{name} is not TOML: {problem}") from None
    except ValidationError as problem:
        raise ConfigurationError(" ".join(f"{name}: {each}" for each in _sentences(problem))) from None
    except re.error as problem:
        raise ConfigurationError(f"{name}: an `order_id` is no regular expression: {problem}") from None


def _sentences(problem: ValidationError) -> Iterator[str]:
    for each in problem.errors(include_url=False, include_input=False):
        place = ".".join(str(step) for step in each["loc"])
        if each["type"] == "extra_forbidden":
            known = _KEYS.get(str(each["loc"][0]), _BehaviourData.model_fields)
            yield f"{place} is not a known key; {nearest(str(each['loc'][-1]), known)}"
        else:
            yield f"{place}: {reason_of(each)}."


def load_behaviour(path: Path) -> Behaviour:
    """Return the behaviour in the file at `path`; raise `ConfigurationError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigurationError(f"{path.name} cannot be read: {problem}") from None
    return parse_behaviour(text, name=path.name)


def shipped_behaviour() -> Behaviour:
    """Return the behaviour that the program ships: everything approved but amounts of 9001 to 9012."""
    return load_behaviour(config_dir() / "sandbox-behaviour.toml")
