"""Checks the fields of requests to the sandbox against their country's form.

A body is read as strict JSON: one flat object, whose numbers keep the digits that were sent. Source: sections 2.1 to
2.4 of the gateway's interface, as given by the data in `config/`. The control hash and the amount are computed
independently of the code that builds requests, so that each tests the other. Phones and names are accepted in any form,
because other tests cover them.
"""

import hashlib
import hmac
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NoReturn

from paygw_batch.core.money import parse_amount
from paygw_batch.countries.rules import CountryRule, FieldKind, Form, FormField, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as sent, but with lower-case header names. The repr omits the signature and payee data."""

    http_version: str
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)

    def header_values(self, name: str) -> tuple[str, ...]:
        """Return all values of a header. `name` must be in lower case."""
        return tuple(value for header, value in self.headers if header == name)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for refusing a request.

    `message` names the field or header and the rule, but no payee data. `order_id` is None if it could not be read.
    """

    http_status: int
    code: str
    message: str
    order_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """A correctly signed order that matches its country's form.

    `amount` has the digits that were sent. `payee` is the account number or, in the receiver form, the receiver's
    phone. `purpose` and `callback_url` are None if the form has no such field. `callback_url` may contain a merchant's
    secret token.
    """

    order_id: str
    country: str
    currency: str
    amount: str
    payee: str = field(repr=False)
    purpose: str | None
    callback_url: str | None = field(default=None, repr=False)


_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Digits(str):
    """A JSON number with exactly the digits that were sent and signed."""

    __slots__ = ()


class _NotFlatJson(ValueError):
    """Raised for JSON that only a lenient parser would accept as one flat object."""


def parse_body(body: bytes) -> Mapping[str, str] | Refusal:
    """Return the fields of a body, with text as `str` and numbers as `Digits`, or a refusal.

    Follows RFC 8259 and section 2 of the gateway's interface strictly: UTF-8 without a byte order mark, one object, no
    duplicate names, no NaN or Infinity, and no values except text and numbers.
    """
    try:
        parsed = json.loads(
            body.decode("utf-8"),
            parse_int=Digits,
            parse_float=Digits,
            parse_constant=_refuse_constant,
            object_pairs_hook=_build_fields,
        )
    except UnicodeDecodeError:
        return Refusal(400, "body", "The body is not UTF-8.")
    except _NotFlatJson as error:
        return Refusal(400, "body", str(error))
    except (ValueError, RecursionError):
        return Refusal(400, "body", "The body is not JSON.")
    if not isinstance(parsed, dict):
        return Refusal(400, "body", "The body is not a JSON object.")
    for name, value in parsed.items():
        if not (isinstance(value, str) and _is_encodable(name) and _is_encodable(value)):
            return Refusal(400, "body", f"{printable_name(name)} is neither text nor a number.", parse_order_id(parsed))
    return parsed


def parse_order_id(fields: Mapping[str, object]) -> str | None:
    """Return the order id from a body's fields, or None if it is missing or not valid text."""
    value = fields.get("client_orderid")
    return value if type(value) is str and _is_encodable(value) else None


def printable_name(name: str) -> str:
    """Return a field's name for a message. Unusual names are not echoed, because they may contain anything."""
    return name if _PLAIN_NAME.fullmatch(name) else "A field"


def _refuse_constant(_: str) -> NoReturn:
    raise _NotFlatJson("The body contains NaN or Infinity, which are not JSON.")


def _build_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _NotFlatJson("The body names a field twice.")
    return fields


def _is_encodable(text: str) -> bool:
    """Return whether `text` can be encoded as UTF-8, unlike a lone surrogate such as U+D800."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_TWO_DECIMALS = re.compile(r"[0-9]+\.[0-9]{2}")


@dataclass(frozen=True, slots=True)
class ControlRule:
    """The configured way to compute the control hash, including the secret."""

    parts: tuple[str, ...]
    separator: str
    amount: str
    secret: str = field(default="", repr=False)
    is_keyed: bool = False
    """Whether the secret is the key of an HMAC."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """How an operation's requests must write the amount and compute the control hash."""

    amount_is_text: bool = False
    control: ControlRule | None = None


def amount_form_problem(expectations: Expectations, value: str, *, is_number: bool) -> str:
    """Return the problem with an amount's form, as text to follow the field's name, or an empty string."""
    if not expectations.amount_is_text:
        return "" if is_number else "must be a number, not text"
    return "must be text with two decimal places" if is_number or not _TWO_DECIMALS.fullmatch(value) else ""


def has_valid_control(rule: ControlRule, fields: Mapping[str, str], *, minor_units: int) -> bool:
    amount = Decimal(fields["amount"])
    amount_forms = {
        "as-sent": fields["amount"],
        "two-decimals": f"{amount:.2f}",
        "minor-units": f"{amount * 10**minor_units:.0f}",
    }
    if rule.amount not in amount_forms:
        raise ConfigurationError(
            say(
                "The sandbox does not support the control amount {amount}, only {written}.",
                amount=rule.amount,
                written=", ".join(amount_forms),
            )
        )
    part_values = {**fields, "amount": amount_forms[rule.amount], "secret": rule.secret}
    hasher = hmac.new(rule.secret.encode(), digestmod=hashlib.sha256) if rule.is_keyed else hashlib.sha256()
    for index, part in enumerate(rule.parts):
        hasher.update(((rule.separator if index else "") + part_values[part]).encode())
    return hmac.compare_digest(hasher.hexdigest().encode(), fields["control"].encode())


_SHA256 = re.compile("[0-9a-f]{64}")
_PAYEE_KINDS = (FieldKind.WALLET, FieldKind.LOCAL_PHONE, FieldKind.INTERNATIONAL_PHONE, FieldKind.MASKED_PHONE)
"""The kinds of fields that identify the payee or payer, in order of preference."""


class FormCheck:
    """Checks the fields of requests against the rules of one operation."""

    def __init__(self, rules: Rules, expectations: Expectations = Expectations()) -> None:
        self._expectations = expectations
        self._by_code = rules
        self._by_currency: defaultdict[str, list[CountryRule]] = defaultdict(list)
        for rule in rules.values():
            self._by_currency[rule.currency].append(rule)

    def check(self, fields: Mapping[str, str]) -> Order | Refusal:
        """Return the order in `fields`, or a refusal (HTTP 422) that names the first wrong field."""
        order_id = parse_order_id(fields)
        rule = self._find_rule(fields)
        if isinstance(rule, str):
            return Refusal(422, "currency", rule, order_id)
        if rule.form is None:
            return Refusal(422, "currency", f"currency: {rule.name} cannot be used here.", order_id)
        if (wrong_field := _find_wrong_field(rule, rule.form, fields)) is not None:
            return Refusal(422, *wrong_field, order_id)
        for form_field in rule.form.fields:
            if form_field.name in fields and (problem := self._field_problem(rule, form_field, fields)):
                return Refusal(422, form_field.name, f"{form_field.name} {problem}.", order_id)
        return _build_order(rule, rule.form, fields)

    def _field_problem(self, rule: CountryRule, form_field: FormField, fields: Mapping[str, str]) -> str:
        value = fields[form_field.name]
        is_number = isinstance(value, Digits)
        if form_field.kind is FieldKind.AMOUNT:
            problem = amount_form_problem(self._expectations, value, is_number=is_number)
            digits = value.removesuffix(".00") if self._expectations.amount_is_text and not rule.decimals else value
            return problem or _amount_problem(rule, digits)
        if is_number:
            return "must be text, not a number"
        if form_field.kind is FieldKind.CONTROL:
            return self._control_problem(rule, fields)
        return _value_problem(rule, form_field, value)

    def _control_problem(self, rule: CountryRule, fields: Mapping[str, str]) -> str:
        if not _SHA256.fullmatch(fields["control"]):
            return "must be a SHA-256 hash in lower-case hex"
        if self._expectations.control is None:
            return "cannot be checked: no control is configured"
        # An invalid amount is refused separately.
        is_valid_amount = parse_amount(fields["amount"], minor_units=4) is not None
        if is_valid_amount and has_valid_control(self._expectations.control, fields, minor_units=rule.minor_units):
            return ""
        return "is not the hash over this order id, amount and currency"

    def _find_rule(self, fields: Mapping[str, str]) -> CountryRule | str:
        """Return the rule for a request's country, or a message if there is none.

        A payout does not name its country, so the currency determines it. If several countries share the currency, the
        dialling code of the phone or, if there is none, of the account number decides.
        """
        if (rule_by_code := self._by_code.get(fields.get("country", ""))) is not None:
            return rule_by_code
        candidates = self._by_currency.get(fields.get("currency", ""), [])
        if not candidates:
            return "currency is missing or unknown here."
        if len(candidates) == 1:
            return candidates[0]
        number = fields.get("phone", fields.get("account_number", "")).removeprefix("+")
        for rule in candidates:
            if number.startswith(rule.numbers.dialling_code):
                return rule
        return "currency is shared by several countries, and phone has the dialling code of none of them."


def _find_wrong_field(rule: CountryRule, form: Form, fields: Mapping[str, str]) -> tuple[str, str] | None:
    names = [form_field.name for form_field in form.fields if form_field.name not in rule.omitted]
    for name in names:
        if name in rule.required and name not in fields:
            return name, f"{name} is missing."
    for name in fields:
        if name not in names:
            return "body", f"{printable_name(name)} is not a field of the {form.name} form in {rule.name}."
    return None


def _value_problem(rule: CountryRule, form_field: FormField, value: str) -> str:
    """Return the problem with a field's value, as text to follow the field's name, or an empty string."""
    match form_field.kind:
        case FieldKind.CURRENCY:
            return "" if value == rule.currency else f"must be {rule.currency}"
        case FieldKind.COUNTRY:
            return "" if value == rule.code else f"must be {rule.code}"
        case FieldKind.PURPOSE:
            codes = {rule.purpose, *(purpose.purpose for purpose in rule.purposes.values())}
            return "" if value in codes else f"is not a purpose code of {rule.name}"
        case _:
            return "" if value.strip() else "is empty"


def _amount_problem(rule: CountryRule, digits: str) -> str:
    amount = parse_amount(digits, minor_units=rule.decimals)
    if amount is None:
        return f"must be plain digits with at most {rule.decimals} decimal places"
    if amount == 0:
        return "must be above zero"
    if rule.min_amount is not None and amount < rule.min_amount:
        return "is below the minimum"
    if rule.max_amount is not None and amount > rule.max_amount:
        return "is above the maximum"
    return ""


def _build_order(rule: CountryRule, form: Form, fields: Mapping[str, str]) -> Order:
    payee_fields = [form_field.name for kind in _PAYEE_KINDS for form_field in form.fields if form_field.kind is kind]
    payee = next((fields[name] for name in payee_fields if name in fields), "")
    return Order(
        order_id=fields["client_orderid"],
        country=rule.code,
        currency=rule.currency,
        amount=fields["amount"],
        payee=payee,
        purpose=fields.get("purpose"),
        callback_url=fields.get("server_callback_url"),
    )
