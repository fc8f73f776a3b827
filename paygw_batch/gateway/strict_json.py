"""Parses the gateway's JSON strictly, and returns only values that can be stored."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_EVIDENCE_CHARACTERS = 200
MAX_NESTING = 32
_NUMBER = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?")


class _AmbiguousJson(ValueError):
    """Raised for JSON that different parsers could interpret differently."""


def parse_json_object(body: bytes) -> Mapping[str, Any] | str:
    """Parse the JSON object in `body`. Returns the reason if that fails.

    `body` must be UTF-8, without a byte order mark, duplicate names, NaN or Infinity, and at most `MAX_NESTING` levels
    deep. Numbers become exact `Decimal` values. Source: RFC 8259, applied strictly.
    """
    try:
        text = body.decode()
        members = _DECODER.decode(text)
    except (ValueError, InvalidOperation, RecursionError):
        return "reply.not_json"
    if not isinstance(members, dict):
        return "reply.not_object"
    if text.count("[") + text.count("{") > MAX_NESTING and _is_deeper_than(members, MAX_NESTING):
        return "reply.not_json"
    return members


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _AmbiguousJson("a name occurs twice")
    return members


def _reject_non_number(_: str) -> None:
    raise _AmbiguousJson("NaN and Infinity are not numbers")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_object, parse_float=Decimal, parse_int=Decimal, parse_constant=_reject_non_number
)


def _is_deeper_than(value: object, levels: int) -> bool:
    containers: list[Any] = [value]
    for _ in range(levels):
        items = (item for outer in containers for item in (outer.values() if isinstance(outer, dict) else outer))
        containers = [item for item in items if isinstance(item, dict | list)]
    return bool(containers)


def values_at(members: Mapping[str, Any], paths: Iterable[str]) -> Iterator[Any]:
    """Yield the values at dotted `paths` (`error.message`). Missing and null values are skipped."""
    for path in paths:
        value: Any = members
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            yield value


def first_value(members: Mapping[str, Any], paths: Iterable[str]) -> Any:
    """Return the first value at `paths` that is neither missing nor null, or None."""
    return next(values_at(members, paths), None)


def parse_decimal(value: object) -> Decimal | None:
    """Parse an exact amount from a number or a plain decimal string. Returns None for anything else."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    return value if isinstance(value, Decimal) else None


def scalar_text(value: object) -> str | None:
    """Return a string unchanged, or a number as text. Returns None for anything else."""
    if isinstance(value, Decimal):
        return str(value)
    return value if isinstance(value, str) else None


def printable_text(value: object) -> str | None:
    """Return a string or number as printable text of limited length, or None if nothing printable remains."""
    text = scalar_text(value)
    if text is None:
        return None
    if not text.isprintable():
        # Control, format and surrogate characters are not printable, and neither is any whitespace except the space.
        text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    return text.strip()[:MAX_EVIDENCE_CHARACTERS] or None
