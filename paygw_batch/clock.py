"""Reads clocks and formats times. Code that depends on the time takes a clock as an argument (`Now`, `ElapsedS`)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

SIGNAL_CHECK_INTERVAL_S = 1.0
"""How often a waiting main thread wakes up to handle signals that the system delivered to another thread."""

Now = Callable[[], datetime]
"""A function that returns the wall clock's time in UTC."""
ElapsedS = Callable[[], float]
"""A function that returns the seconds of a clock that cannot be set and that runs while the machine sleeps."""

_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def timestamp(moment: datetime) -> str:
    """Format a time for facts and files: UTC, ISO 8601, with milliseconds and `Z`."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def format_minute(time: str | None) -> str:
    """Format a `timestamp` for display, in UTC and without seconds. Returns "" for None."""
    return (time or "")[:16].replace("T", " ")


def format_local_minute(time: str | None) -> str:
    """Format a `timestamp` in this machine's time zone: `2026-11-22 23:26 EAT`. Returns "" for None."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M %Z}" if time else ""


def elapsed_s() -> float:
    """Return the seconds since a fixed moment, including the time that the machine slept.

    `time.monotonic` cannot be used, because it stops while Linux sleeps, so an old intent would look recent.
    """
    return time.clock_gettime(_ELAPSED_CLOCK)


def utc_now() -> datetime:
    return datetime.now(UTC)
