"""The core works without its extras."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("more", [(), pytest.param(("--tests",), marks=pytest.mark.long)])
def test_core_pays_without_extras(more: tuple[str, ...]) -> None:
    completed = subprocess.run([ROOT / "tooling/core-alone", *more], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "200 paid." in completed.stdout
