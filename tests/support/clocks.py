"""A wall clock that a test can set."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import paygw_batch

SetClock = Callable[[timedelta], None]


def shifted_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Yield a function that sets the program's clock ahead of the machine's, or behind for a negative value."""

    def set_ahead(by: timedelta) -> None:
        def now() -> datetime:
            return datetime.now(UTC) + by

        # A module loaded during the test would keep this clock afterwards.
        for result in pkgutil.walk_packages(paygw_batch.__path__, "paygw_batch."):
            if not result.name.endswith("__main__"):
                importlib.import_module(result.name)
        for name, module in list(sys.modules.items()):
            if name.startswith("paygw_batch") and hasattr(module, "utc_now"):
                monkeypatch.setattr(module, "utc_now", now)

    return set_ahead


class ManualClock:
    """A count of seconds that a test sets."""

    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s
