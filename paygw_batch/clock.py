"""Reads the wall clock, and formats times. Code that decides takes the clock as an argument (`Now`)."""

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
"""The wall clock, in UTC."""


def timestamp(now: datetime) -> str:
    """Return a time as facts and files show it: UTC, ISO 8601, milliseconds, `Z`."""
    in_utc = now if now.tzinfo is UTC else now.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def utc_now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)
