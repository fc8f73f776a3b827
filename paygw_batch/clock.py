"""Reads the clocks, and formats times. Code that decides takes its clock as an argument (`Now`, `ElapsedS`)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

HEED_EVERY_S = 1.0
"""How often a waiting main thread wakes up. Only then does it handle a signal that reached another thread.

The system chooses the thread: once a frozen process continues, it is often another one.
"""

Now = Callable[[], datetime]
"""The wall clock, in UTC."""
ElapsedS = Callable[[], float]
"""Seconds that nobody can set back, and that continue while the machine sleeps."""

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def timestamp(now: datetime) -> str:
    """Return a time as facts and files show it: UTC, ISO 8601, milliseconds, `Z`."""
    in_utc = now if now.tzinfo is UTC else now.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def minute(time: str | None) -> str:
    """Return a time of `timestamp` as people read it: to the minute, in UTC; empty for None."""
    return (time or "")[:16].replace("T", " ")


def local_minute(time: str | None) -> str:
    """Return a time of `timestamp` where this machine is: `2026-11-22 23:26 EAT`; empty for None."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M %Z}" if time else ""


def elapsed_s() -> float:
    """Return the seconds since some fixed moment, those that the machine slept included.

    `time.monotonic` stops while Linux sleeps: an intent that grew old meanwhile would look young. On macOS, which has
    no CLOCK_BOOTTIME, CLOCK_MONOTONIC goes on during sleep. If a system has neither, sleep is not seen.
    """
    return time.clock_gettime(_ELAPSED)


def utc_now() -> datetime:
    return datetime.now(UTC)
