"""Reads the body of a request: strict JSON, one flat object, numbers kept as the digits that were sent."""

import json
import re
from collections.abc import Mapping
from typing import NoReturn

from paygw_batch.sandbox.request import Refusal

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Digits(str):
    """A JSON number, as the very digits that were sent: a signature covers them, and money is never a float."""

    __slots__ = ()


class _NotFlatJson(ValueError):
    """The text is JSON to a lenient reader only."""


def parse_body(body: bytes) -> Mapping[str, str] | Refusal:
    """Return the fields of a body, text as `str` and numbers as `Digits`, or why it is not one flat JSON object.

    Strict as RFC 8259 and section 2 of the gateway's interface ask: UTF-8 without a byte order mark, one object, no
    name twice, no NaN or Infinity, nothing but text and numbers in it.
    """
    try:
        parsed = json.loads(
            body.decode("utf-8"),
            parse_int=Digits,
            parse_float=Digits,
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_duplicates,
        )
    except UnicodeDecodeError:
        return Refusal(400, "body", "The body is not UTF-8.")
    except _NotFlatJson as problem:
        return Refusal(400, "body", str(problem))
    except (ValueError, RecursionError):
        return Refusal(400, "body", "The body is not JSON.")
    if not isinstance(parsed, dict):
        return Refusal(400, "body", "The body is not a JSON object.")
    for name, value in parsed.items():
        if not (isinstance(value, str) and _is_unicode(name) and _is_unicode(value)):
            return Refusal(400, "body", f"{shown_name(name)} is neither text nor a number.", order_id_of(parsed))
    return parsed


def order_id_of(fields: Mapping[str, object]) -> str | None:
    """Return the order id that a body states, if it states one as text."""
    value = fields.get("client_orderid")
    return value if type(value) is str and _is_unicode(value) else None


def shown_name(name: str) -> str:
    """Return a field's name for a message; a name no form would have may hold anything and is not repeated."""
    return name if _PLAIN_NAME.fullmatch(name) else "A field"


def _refuse_constant(_: str) -> NoReturn:
    raise _NotFlatJson("The body holds NaN or Infinity, which are not JSON.")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _NotFlatJson("The body names a field twice.")
    return fields


def _is_unicode(text: str) -> bool:
    """Tell whether `text` can be written as UTF-8: an escape such as backslash-uD800 alone cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
