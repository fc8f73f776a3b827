"""The long part of the tests: what every check tries a share of. `tooling/check --long` tries the rest.

A case that is marked `long` is for the long part alone; of a test that is marked `share(n)`, every check tries the
first case and every n-th after it. A property (hypothesis) is in both: with a fifth of its
examples in every check, and with all of them in the long part and wherever tests are chosen by another `-m`.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

SHARE = "not long"
"""What every check chooses; `tooling/check --long` chooses "long or hypothesis"."""
_EVERY = 5
_chosen = SHARE
_collected: Counter[str] = Counter()


def choose(expression: str) -> None:
    """Remember which tests a run of pytest has chosen by its option `-m`, before they are collected."""
    global _chosen  # noqa: PLW0603 (decorators ask for it when modules are imported)
    _chosen = expression


def share_of(examples: int) -> int:
    """Return how many examples a property is tried with."""
    return -(-examples // _EVERY) if _chosen == SHARE else examples


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
