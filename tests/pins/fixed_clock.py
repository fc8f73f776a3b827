"""Run the program of this checkout with a clock of its own: `python fixed_clock.py START ARGUMENTS...`.

The clock starts at START (seconds since 1970) and goes on as the real one does.
"""

import datetime as dt
import runpy
import sys
import time
from typing import Self

start_s, *arguments = sys.argv[1:]
_real_time = time.time
_offset_s = float(start_s) - time.time()


def _time() -> float:
    return _real_time() + _offset_s


class Clock(dt.datetime):
    """A `datetime` whose `now` starts at a chosen time."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(_time(), tz)


dt.datetime = Clock  # type: ignore[misc]
time.time = _time
sys.argv = ["paygw-batch", *arguments]
sys.path.insert(0, "")
runpy.run_module("paygw_batch", run_name="__main__", alter_sys=True)
