"""Makes salts: random bytes beside a value, without which its digest says nothing about it once it is forgotten."""

from os import urandom

from paygw_batch.journal.facts.codec import SALT_BYTES


def new_salts(count: int) -> list[bytes]:
    """Return this many salts."""
    random = urandom(SALT_BYTES * count)
    return [random[start : start + SALT_BYTES] for start in range(0, len(random), SALT_BYTES)]


def new_salt() -> bytes:
    """Return one salt."""
    return urandom(SALT_BYTES)
