"""Reads a time of a statement: strictly, with its zone, and without guessing."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_EAST = timedelta(hours=14)
_WEST = timedelta(hours=12)
"""The zones of the earth in which a date begins first and ends last."""
_MILLISECOND = timedelta(milliseconds=1)

WRITTEN = "2026-11-20T14:05:00Z, 2026-11-20T17:05:00+03:00 or 2026-11-20"
"""How a time may be written, for a person."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stated time, as long as its unit: it was at `start` or later, and before `end`. Both are UTC."""

    start: datetime
    end: datetime


def read_time(text: str) -> TimeSpan | None:
    """Return the time that `text` states, or None where it states none in a way that leaves no doubt.

    ISO 8601 with a zone, down to minutes or finer; or a bare date, which is that day in any zone of the earth.
    """
    try:
        if _DATE.fullmatch(text):
            day = datetime.fromisoformat(text).replace(tzinfo=UTC)
            return TimeSpan(day - _EAST, day + timedelta(days=1) + _WEST)
        if (found := _TIME.fullmatch(text)) is None:
            return None
        seconds, fraction = found.group(1), found.group(2)
        # `fromisoformat` wants three or six digits of a second.
        plain = text.replace(fraction, f"{fraction:0<7}", 1) if fraction else text
        start = datetime.fromisoformat(plain).astimezone(UTC)
        start -= timedelta(microseconds=start.microsecond % 1000)
        return TimeSpan(start, start + _unit(seconds, fraction))
    except (ValueError, OverflowError):
        return None


def _unit(seconds: str | None, fraction: str | None) -> timedelta:
    """Return how long a time is that is stated in minutes, in seconds or in parts of one."""
    if seconds is None:
        return timedelta(minutes=1)
    if fraction is None:
        return timedelta(seconds=1)
    return max(timedelta(microseconds=10 ** (7 - len(fraction))), _MILLISECOND)
