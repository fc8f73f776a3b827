"""`tooling/tests-of` lists the tests that run a line."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_tests_of_tool_lists_tests_running_line() -> None:
    source = (ROOT / "paygw_batch/core/money.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, start=1) if text.startswith("def from_minor"))
    command = [str(ROOT / "tooling/tests-of"), f"paygw_batch/core/money.py:{line + 2}", "tests/core/test_core_money.py"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "tests/core/test_core_money.py::" in completed.stdout
