"""Encodes an instruction as a request body. The same bytes are signed and sent.

The control hash of a collection covers its order id, amount and currency (section 5 of the gateway's interface). The
interface does not document the order of these parts, the separator, the format of the amount, or whether a secret is
part of the text or the key of the hash. So the operator must configure them: there is no default.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from paygw_batch.core.batch import Instruction
from paygw_batch.core.money import AMOUNT_PATTERN, format_two_decimals, to_minor
from paygw_batch.countries.rules import AmountForm, CountryRule, FieldKind, Form, FormField
from paygw_batch.errors import ConfigurationError, InternalError
from paygw_batch.language import say


class ControlPart(StrEnum):
    """A part of the text covered by the control hash."""

    ORDER_ID = "client_orderid"
    AMOUNT = "amount"
    CURRENCY = "currency"
    SECRET = "secret"  # noqa: S105 (not a secret)
    """A secret shared by merchant and gateway. It is part of the text only if the configured order includes it."""


class ControlAmount(StrEnum):
    """The format of the amount in the hashed text."""

    AS_SENT = "as-sent"
    """As in the body."""
    TWO_DECIMALS = "two-decimals"
    """With two decimal places in every currency."""
    MINOR_UNITS = "minor-units"
    """In minor units: 1500.50 KES is 150050, and 1500 UGX is 1500, because UGX has no minor units."""


class ControlAlgorithm(StrEnum):
    """The algorithm of the control hash."""

    SHA256 = "sha256"
    """SHA-256, as in the examples of the interface."""
    HMAC_SHA256 = "hmac-sha256"
    """HMAC-SHA-256 with the secret as its key."""


@dataclass(frozen=True, slots=True)
class ControlProfile:
    """The configuration of the control hash. `secret` is empty if it is not used."""

    order: tuple[ControlPart, ...]
    separator: str
    amount: ControlAmount
    secret: str = field(default="", repr=False)
    algorithm: ControlAlgorithm = ControlAlgorithm.SHA256

    def text(self, instruction: Instruction, *, order_id: str, amount_sent: str, minor_units: int) -> str:
        """Return the text to hash, which may contain the secret. `amount_sent` is the amount as in the body."""
        amount = instruction.amount
        amounts: Mapping[ControlAmount, str] = {
            ControlAmount.AS_SENT: amount_sent,
            ControlAmount.TWO_DECIMALS: format_two_decimals(amount),
            ControlAmount.MINOR_UNITS: str(to_minor(Decimal(amount), minor_units=minor_units)),
        }
        parts: Mapping[ControlPart, str] = {
            ControlPart.ORDER_ID: order_id,
            ControlPart.AMOUNT: amounts[self.amount],
            ControlPart.CURRENCY: instruction.currency,
            ControlPart.SECRET: self.secret,
        }
        return self.separator.join(parts[part] for part in self.order)

    def control(self, instruction: Instruction, *, order_id: str, amount_sent: str, minor_units: int) -> str:
        """Return the control hash in lower-case hex."""
        text = self.text(instruction, order_id=order_id, amount_sent=amount_sent, minor_units=minor_units)
        if self.algorithm is ControlAlgorithm.HMAC_SHA256:
            return hmac.digest(self.secret.encode(), text.encode(), hashlib.sha256).hex()
        return hashlib.sha256(text.encode()).hexdigest()


_AMOUNT = re.compile(AMOUNT_PATTERN)
_quote_json = json.encoder.encode_basestring

_ORDER_ID, _AMOUNT_KIND, _CURRENCY = FieldKind.ORDER_ID, FieldKind.AMOUNT, FieldKind.CURRENCY
_PURPOSE, _COUNTRY, _CONTROL_KIND = FieldKind.PURPOSE, FieldKind.COUNTRY, FieldKind.CONTROL
_OPERATOR_URL = FieldKind.OPERATOR_URL
"""These are constants because Python 3.11 is slow to look up enum members, and a body has many fields."""


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A request body, and its fields as (name, text) pairs in the form's order.

    `amount` has the same digits in both. The repr omits both, because they contain personal data.
    """

    body: bytes = field(repr=False)
    params: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BodyConstants:
    """The configured values that go into every request body of an operation.

    `urls` maps fields to the operator's own URLs. `control` is None if no form has a control hash.
    """

    urls: Mapping[str, str | None]
    amount_form: AmountForm = AmountForm.NUMBER
    control: ControlProfile | None = None


def encode_body(rule: CountryRule, instruction: Instruction, *, order_id: str, constants: BodyConstants) -> EncodedBody:
    """Encode `instruction` as JSON, with the fields of its country's form in order.

    Optional fields without a value, and fields that the country omits, are left out. `amount` is a JSON number with the
    digits from the sheet, or a string with two decimal places, and never a float. Source: sections 2.1 and 2.2 of the
    gateway's interface.

    Raises `ConfigurationError` if the country is not configured for sending, or its form has changed since validation.
    Raises `InternalError` if the instruction lacks a field that the form requires.
    """
    form = _require_usable_form(rule, instruction)
    if _AMOUNT.fullmatch(instruction.amount) is None:
        raise InternalError("an instruction reached the gateway with an amount that is not plain digits")
    is_number = constants.amount_form is AmountForm.NUMBER
    amount = instruction.amount if is_number else format_two_decimals(instruction.amount)
    control = None
    if (profile := constants.control) is not None:
        control = profile.control(instruction, order_id=order_id, amount_sent=amount, minor_units=rule.minor_units)
    values_by_kind: Mapping[FieldKind, str | None] = {
        _ORDER_ID: order_id,
        _AMOUNT_KIND: amount,
        _CURRENCY: instruction.currency,
        _PURPOSE: instruction.fields.get("purpose") or rule.purpose,
        _COUNTRY: rule.code,
        _CONTROL_KIND: control,
    }
    params = []
    members = []
    for form_field in form.fields:
        name, kind = form_field.name, form_field.kind
        if name in rule.omitted:
            continue
        if kind is _OPERATOR_URL:
            value = constants.urls.get(name)
        else:
            value = values_by_kind[kind] if kind in values_by_kind else instruction.fields.get(name)
        if not value:
            _raise_if_required(rule, form_field)
            continue
        params.append((name, value))
        members.append(f"{_quote_json(name)}:{value if kind is _AMOUNT_KIND and is_number else _quote_json(value)}")
    try:
        return EncodedBody(f"{{{','.join(members)}}}".encode(), tuple(params))
    except UnicodeEncodeError:
        # The original error would contain the text, which is personal data.
        raise InternalError("an instruction reached the gateway with text that is not Unicode") from None


def _require_usable_form(rule: CountryRule, instruction: Instruction) -> Form:
    if rule.form is None:
        raise ConfigurationError(rule.unusable)
    if terms := ", ".join(rule.missing_terms):
        raise ConfigurationError(
            say("{name} cannot be used yet: {missing_terms} is not set.", name=rule.name, missing_terms=terms)
        )
    if (instruction.country, instruction.currency) != (rule.code, rule.currency):
        raise InternalError(
            f"an instruction was encoded by the rule of {rule.name}, which is for another country or currency"
        )
    if instruction.form != rule.form.name:
        raise ConfigurationError(
            say(
                "{name} is now configured for the {other} form, but this batch was checked for the {form} form.",
                name=rule.name,
                other=rule.form.name,
                form=instruction.form,
            ),
            hint=say(
                'Set form = "{form}" for {name} again, then resume the batch.', form=instruction.form, name=rule.name
            ),
        )
    return rule.form


def _raise_if_required(rule: CountryRule, form_field: FormField) -> None:
    if form_field.name not in rule.required:
        return
    if not form_field.from_sheet:
        raise ConfigurationError(
            say("{name} cannot be used yet: {other} is not set.", name=rule.name, other=form_field.name)
        )
    raise InternalError(f"an instruction for {rule.name} reached the gateway without {form_field.name}")
