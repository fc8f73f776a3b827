"""Turns an instruction into the body of its request, once: what is signed and what is sent are these very bytes."""

import json
import re
from dataclasses import dataclass, field

from paygw_batch.core.instruction import Instruction
from paygw_batch.core.money import AMOUNT_PATTERN
from paygw_batch.countries.rules import CountryRule, FieldKind, Form, FormField
from paygw_batch.errors import ConfigurationError, InternalError

_AMOUNT = re.compile(AMOUNT_PATTERN)
_quoted = json.encoder.encode_basestring


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A request body, and the (name, value as text) pairs it holds, in the form's order.

    The value of `amount` has the very digits that stand in the body. Neither is shown: they name a payee.
    """

    body: bytes = field(repr=False)
    params: tuple[tuple[str, str], ...] = field(repr=False)


def encode_body(rule: CountryRule, instruction: Instruction, *, order_id: str, callback_url: str | None) -> EncodedBody:
    """Return the JSON object of the country's form for `instruction`, as UTF-8.

    Fields stand in the form's order, without those that the country omits and those that are optional and absent.
    `amount` is a JSON number with the sheet's own digits: it goes from text to text and is never a float. Source:
    section 2.2 of the gateway's interface.

    Raises `ConfigurationError` when the country is not configured for sending, or for another form than the one the
    instruction was validated for; `InternalError` when the instruction lacks what its form requires.
    """
    form = _form(rule, instruction)
    if _AMOUNT.fullmatch(instruction.amount) is None:
        raise InternalError("an instruction reached the gateway with an amount that is not plain digits")
    supplied = {
        FieldKind.ORDER_ID: order_id,
        FieldKind.AMOUNT: instruction.amount,
        FieldKind.CURRENCY: instruction.currency,
        FieldKind.PURPOSE: rule.purpose,
        FieldKind.COUNTRY: rule.code,
        FieldKind.CALLBACK_URL: callback_url,
    }
    params = []
    members = []
    for wanted in form.fields:
        name, kind = wanted.name, wanted.kind
        if name in rule.omitted:
            continue
        value = supplied[kind] if kind in supplied else instruction.fields.get(name)
        if not value:
            _may_be_absent(rule, wanted)
            continue
        params.append((name, value))
        members.append(f"{_quoted(name)}:{value if kind is FieldKind.AMOUNT else _quoted(value)}")
    return EncodedBody(_utf8("{" + ",".join(members) + "}"), tuple(params))


def _form(rule: CountryRule, instruction: Instruction) -> Form:
    """Return the form to fill, after making sure that rule and instruction belong together."""
    if rule.form is None:
        raise ConfigurationError(rule.unusable)
    if rule.missing_terms:
        raise ConfigurationError(f"{rule.name} cannot be paid out to yet: {', '.join(rule.missing_terms)} is not set.")
    if (instruction.country, instruction.currency) != (rule.code, rule.currency):
        raise InternalError(f"an instruction was held against the rule of {rule.name}, to which it does not belong")
    if instruction.form != rule.form.name:
        raise ConfigurationError(
            f"{rule.name} is configured for the {rule.form.name} form now; this batch was validated for the "
            f"{instruction.form} form.",
            hint=f'Set form = "{instruction.form}" for {rule.name} again, then resume.',
        )
    return rule.form


def _may_be_absent(rule: CountryRule, wanted: FormField) -> None:
    if wanted.name not in rule.required:
        return
    if not wanted.from_sheet:
        raise ConfigurationError(f"{rule.name} cannot be paid out to yet: gateway.{wanted.name} is not set.")
    raise InternalError(f"an instruction for {rule.name} reached the gateway without {wanted.name}")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # The original error would carry the text, which names a payee.
        raise InternalError("an instruction reached the gateway with text that is not Unicode") from None
