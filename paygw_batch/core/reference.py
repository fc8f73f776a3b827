"""Derived order ids: the reference of a payment run, a digest of the row's content, and a count, in one text."""

import hashlib
import re

_DIGEST_DIGITS = 16
_DERIVED = re.compile(rf"(.+)-([0-9a-f]{{{_DIGEST_DIGITS}}})-[1-9][0-9]*", re.DOTALL)


def content_digest(content: str) -> str:
    """Return the part of a derived order id that the row's own content decides."""
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGEST_DIGITS]


def reference_of(order_id: str, content: str) -> str | None:
    """Return the reference that an order id was derived from; None for an id that was not derived.

    `content` is that of the row: an id that only looks like a derived one does not carry its digest.
    """
    found = _DERIVED.fullmatch(order_id)
    if found is None or found[2] != content_digest(content):
        return None
    return found[1]
