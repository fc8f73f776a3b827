"""The long part of the tests: what every check tries a share of. `tooling/check --long` tries the rest.

A case that is marked `long` is for the long part alone. Of a test that is marked `sampled(n)`, the first case and every
n-th after it is in every check, the others are long. A property (hypothesis) is in both: with a fifth of its examples
in every check, and with all of them in the long part and wherever tests are chosen by another `-m`.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

SHARE = "not long"
"""What every check chooses; `tooling/check --long` chooses "long or hypothesis"."""
_EVERY = 5
_chosen = SHARE
_collected = Counter[str]()


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


def long(*values: Any) -> pytest.ParameterSet:
    """Return a case for the long part alone."""
    return pytest.param(*values, marks=pytest.mark.long)


def sample(item: pytest.Item) -> None:
    """Mark a case as long, as it is collected, unless it is of the share that every check tries."""
    if (mark := item.get_closest_marker("sampled")) is None:
        return
    test = item.nodeid.partition("[")[0]
    if _collected[test] % mark.args[0]:
        item.add_marker(pytest.mark.long)
    _collected[test] += 1
