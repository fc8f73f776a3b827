"""Reads clocks and formats times. Code that depends on the time takes its clock as an argument (`Now`, `ElapsedS`)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

SIGNAL_CHECK_INTERVAL_S = 1.0
"""How often a waiting main thread wakes up. Only then does it handle a signal that reached another thread.

The operating system chooses the thread. Once a frozen process continues, that is often not the main thread.
"""

Now = Callable[[], datetime]
"""A function that reads the wall clock, in UTC."""
ElapsedS = Callable[[], float]
"""A function that returns seconds which nobody can set back, and which continue while the machine sleeps."""

_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def timestamp(now: datetime) -> str:
    """Format a time for facts and files: UTC, ISO 8601, with milliseconds and `Z`."""
    in_utc = now if now.tzinfo is UTC else now.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def format_minute(time: str | None) -> str:
    """Format a `timestamp` for people: to the minute, in UTC. Returns "" for None."""
    return (time or "")[:16].replace("T", " ")


def format_local_minute(time: str | None) -> str:
    """Format a `timestamp` in this machine's time zone: `2026-11-22 23:26 EAT`. Returns "" for None."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M %Z}" if time else ""


def elapsed_s() -> float:
    """Return the seconds since a fixed moment, including time during which the machine slept.

    `time.monotonic` stops while Linux sleeps, so an intent from before the sleep would look recent. On macOS,
    CLOCK_MONOTONIC continues during sleep. On a system without either clock, time asleep is not counted.
    """
    return time.clock_gettime(_ELAPSED_CLOCK)


def utc_now() -> datetime:
    return datetime.now(UTC)
