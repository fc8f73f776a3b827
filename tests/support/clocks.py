"""The wall clock as a test sets it."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import paygw_batch

SetClock = Callable[[timedelta], None]


def clock_of(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Return what sets the program's clock ahead (or, below zero, behind) of the machine's, wherever it is read."""

    def set_ahead(by: timedelta) -> None:
        def now() -> datetime:
            return datetime.now(UTC) + by

        # What is loaded only later would keep this clock when the test is over.
        for found in pkgutil.walk_packages(paygw_batch.__path__, "paygw_batch."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
        for name, module in list(sys.modules.items()):
            if name.startswith("paygw_batch") and hasattr(module, "utc_now"):
                monkeypatch.setattr(module, "utc_now", now)

    return set_ahead
