"""Formats times, and types the clock that others pass in."""

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
"""The wall clock, in UTC."""


def timestamp(now: datetime) -> str:
    """Return a time as facts and files show it: UTC, ISO 8601, milliseconds, `Z`."""
    in_utc = now if now.tzinfo is UTC else now.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
