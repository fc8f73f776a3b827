"""Scripts of tooling/: the core pays without its extras, and `tests-of` lists the tests of a line."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("more", [(), pytest.param(("--tests",), marks=pytest.mark.long)])
def test_core_pays_without_extras(more: tuple[str, ...]) -> None:
    completed = subprocess.run([ROOT / "tooling/core-alone", *more], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "200 paid." in completed.stdout


ROOT = Path(__file__).resolve().parents[1]


def test_tool_lists_tests_for_line() -> None:
    source = (ROOT / "paygw_batch/core/money.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, start=1) if text.startswith("def from_minor"))
    command = [str(ROOT / "tooling/tests-of"), f"paygw_batch/core/money.py:{line + 2}", "tests/core/test_core_money.py"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "tests/core/test_core_money.py::" in completed.stdout
