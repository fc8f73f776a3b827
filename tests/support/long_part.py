"""The long part of the tests, of which every check runs a share. `tooling/check --long` runs the rest.

A case that is marked `long` runs only in the long part. Of a test that is marked `share(n)`, every check runs the first
case of its table and every n-th case after it. A property (hypothesis) is in both: every check runs a fifth of its
examples, always the same ones. All examples, chosen at random, run in the long part and in every run with another
`-m`. `PAYGW_TEST_EXAMPLES=1000 pytest -m hypothesis` runs 1,000 of each. `PAYGW_TESTS_UNTIL_S` limits the time of a
run.
"""

import os
import time
from collections.abc import Collection
from typing import Any

import pytest

SHARE = "not long"  # the marks of the regular check; `tooling/check --long` chooses "long or hypothesis"
EXAMPLES = "PAYGW_TEST_EXAMPLES"  # the variable with the number of examples for each property, such as before a release
UNTIL = "PAYGW_TESTS_UNTIL_S"
"""The variable with the time (in seconds, as `date +%s` prints it) after which no test begins."""
_EVERY = 5
_chosen = SHARE


def store_mark_expression(expression: str) -> None:
    """Store the marks that a run of pytest has chosen by its option `-m`, before tests are collected."""
    global _chosen  # noqa: PLW0603 (decorators ask for it when modules are imported)
    _chosen = expression


def example_count(examples: int) -> int:
    if asked := os.environ.get(EXAMPLES):
        return int(asked)
    return -(-examples // _EVERY) if is_check() else examples


def is_check() -> bool:
    return _chosen == SHARE


def share(values: Collection[Any], every: int) -> list[pytest.ParameterSet]:
    """Return each value as a case: every check runs the first and every n-th, the long part runs the others."""
    return [long(value) if n % every else pytest.param(value) for n, value in enumerate(values)]


def is_left_out(item: pytest.Function, every: int) -> bool:
    """Return whether the regular check skips a case of a test that is marked `share(every)`.

    The places of its values in their tables decide, so it does not matter which other cases are collected.
    """
    places = dict(item.callspec.indices) if hasattr(item, "callspec") else {}
    for mark in item.iter_markers("parametrize"):
        _, *others = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        for name in others:  # of the same table as the first
            places.pop(name.strip())
    return sum(places.values()) % every != 0


def long(*values: Any) -> pytest.ParameterSet:
    """Return a mark for cases that run only in the long part."""
    return pytest.param(*values, marks=pytest.mark.long)


def skip_when_time_is_over() -> None:
    """Skip the next test if the run's time is over."""
    if (until := os.environ.get(UNTIL)) and time.time() > int(until):
        pytest.skip("the time of this run is over")
