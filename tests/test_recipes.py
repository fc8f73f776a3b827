"""The recipes for other engines: each calls a share as often as necessary, and leaves the rest to a person.

Airflow is too large to install for a test, so a module of its name replaces it. Temporal's own test environment runs
its activity.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

RECIPES = Path(__file__).parents[1] / "docs/recipes"


@pytest.fixture
def paygw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that makes `paygw-batch` exit with a code, and returns the arguments of its calls."""
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def exit_with(code: int) -> list[str]:
        program = tmp_path / "paygw-batch"
        program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexit {code}\n')
        program.chmod(0o700)
        return asked.read_text().splitlines() if asked.exists() else []

    return exit_with


class FailedForGood(Exception):
    """Airflow's error for a task that must not be retried."""


@dataclass
class Step:
    call: Callable[[], None]
    then: "Step | None" = None

    def __rshift__(self, other: "Step") -> "Step":
        self.then = other
        return other


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    created: list[Step] = []

    def task(call: Callable[[], None] | None = None, **_options: object) -> Any:
        def step() -> Step:
            assert call is not None
            created.append(Step(call))
            return created[-1]

        return task if call is None else step

    sdk, exceptions = ModuleType("airflow.sdk"), ModuleType("airflow.exceptions")
    sdk.task, sdk.dag = task, lambda **_options: lambda call: call  # type: ignore[attr-defined]
    exceptions.AirflowFailException = FailedForGood  # type: ignore[attr-defined]
    for module in (ModuleType("airflow"), sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    run_path(str(RECIPES / "airflow_salaries.py"))
    return created


def test_airflow_recipe_hands_over_and_sends_share(steps: list[Step], paygw: Callable[..., list[str]]) -> None:
    paygw(0)
    hand_over, share = steps
    assert hand_over.then is share
    for step in steps:
        step.call()
    sheet = "/srv/payroll/salaries.csv"
    assert paygw(0) == [f"submit {sheet} --detach", f"work --once {sheet} --for 3600"]


def test_airflow_recipe_retries_only_unsent_rows(steps: list[Step], paygw: Callable[..., list[str]]) -> None:
    for code in (6, 130, 5, 4, 7):
        paygw(code)
        with pytest.raises(RuntimeError if code in {6, 130} else FailedForGood):
            steps[1].call()


@pytest.mark.parametrize(("code", "is_final"), [(6, False), (130, False), (5, True), (4, True)])
def test_temporal_recipe_retries_only_unsent_rows(paygw: Callable[..., list[str]], code: int, is_final: bool) -> None:
    share = run_path(str(RECIPES / "temporal_share.py"))["share"]
    paygw(0)
    asyncio.run(ActivityEnvironment().run(share, "3f09c1d2"))
    assert paygw(code) == ["work --once 3f09c1d2 --for 300"]
    with pytest.raises(ApplicationError) as failed:
        asyncio.run(ActivityEnvironment().run(share, "3f09c1d2"))
    assert failed.value.non_retryable is is_final
