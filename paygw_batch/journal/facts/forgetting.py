"""Forgets the people of a batch: removes their data, and digests the rest so that a later change is detected.

Names, numbers and texts about people are removed. The hash of each line stays, and with it the chain. A fact in that
chain records who forgot whom, and a digest of everything left. Pure.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Any

from paygw_batch.journal.values import canonical

MARK = "\x1e"
"""Marks a fingerprint: a control character, which no content and no payee contains."""


def fingerprint(key: bytes | None, kind: str, value: str) -> str:
    """Return a fingerprint by which the same value is recognised later; empty without a key."""
    return "" if key is None else MARK + hmac.digest(key, f"{kind}\0{value}".encode(), "sha256").hex()


def key_id(key: bytes | None) -> str:
    """Return the id of a key, which follows from the key and reveals nothing about it; empty without a key."""
    return "" if key is None else hmac.digest(key, b"which key", "sha256").hex()[:32]


class Remains:
    """Digests the lines that remain after one fact of forgetting, in order."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, lines: Iterable[Sequence[Any]]) -> int:
        """Add lines; return their number."""
        count = 0
        for count, line in enumerate(lines, start=1):  # noqa: B007 (the last one is wanted)
            texts = [value.hex() if isinstance(value, bytes) else value for value in line]
            self._sha256.update(canonical(texts).encode() + b"\n")
        self._sha256.update(b"\n")
        return count

    def hexdigest(self) -> str:
        """Return the digest, in hex."""
        return self._sha256.hexdigest()
