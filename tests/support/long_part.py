"""The long part of the tests: what every check tries a share of. `tooling/check --long` tries the rest.

A case that is marked `long` is for the long part alone; of a test that is marked `share(n)`, every check tries the
first case and every n-th after it. A property (hypothesis) is in both: with a fifth of its
examples in every check, always the same ones, and with all of them, drawn by chance, in the long part and wherever
tests are chosen by another `-m`. `PAYGW_TEST_EXAMPLES=1000 pytest -m hypothesis` tries 1,000 of each. A run of limited
time sets `PAYGW_TESTS_UNTIL_S`.
"""

import os
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

SHARE = "not long"
"""What every check chooses; `tooling/check --long` chooses "long or hypothesis"."""
EXAMPLES = "PAYGW_TEST_EXAMPLES"
"""The variable that says how many examples each property is tried with, such as before a release."""
UNTIL = "PAYGW_TESTS_UNTIL_S"
"""The variable with the time (in seconds, as `date +%s` prints it) from which on no test begins."""
_EVERY = 5
_chosen = SHARE
_collected: Counter[str] = Counter()


def choose(expression: str) -> None:
    """Remember which tests a run of pytest has chosen by its option `-m`, before they are collected."""
    global _chosen  # noqa: PLW0603 (decorators ask for it when modules are imported)
    _chosen = expression


def share_of(examples: int) -> int:
    """Return how many examples a property is tried with."""
    if asked := os.environ.get(EXAMPLES):
        return int(asked)
    return -(-examples // _EVERY) if is_check() else examples


def is_check() -> bool:
    """Whether this run of pytest is what every check does."""
    return _chosen == SHARE


def share(values: Collection[Any], every: int) -> list[pytest.ParameterSet]:
    """Return each value as a case: the first and every n-th after it for every check, the others for the long one."""
    return [long(value) if n % every else pytest.param(value) for n, value in enumerate(values)]


def is_left_out(item: pytest.Item, every: int) -> bool:
    """Return whether the next case of a test marked `share(every)` is none of the first and every n-th after it."""
    name = item.nodeid.split("[")[0]
    _collected[name] += 1
    return (_collected[name] - 1) % every != 0


def long(*values: Any) -> pytest.ParameterSet:
    """Return a case for the long part alone."""
    return pytest.param(*values, marks=pytest.mark.long)


def skip_when_time_is_over() -> None:
    """Skip the test about to begin if the run's time is over."""
    if (until := os.environ.get(UNTIL)) and time.time() > int(until):
        pytest.skip("the time of this run is over")
