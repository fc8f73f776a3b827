"""The page about the API is correct: its programs run and are typed, and its table matches the API."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paygw_batch import api
from paygw_batch.api import Conclusion
from tests.support.checkout import ROOT, copy_versioned

PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.share(2)
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_example_programs_on_api_page_run(number: int, tmp_path: Path) -> None:
    copy_versioned(tmp_path, "config", "samples")
    (tmp_path / "program.py").write_text(PROGRAMS[number])
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    displayed = ("batch 9031919f17b351a1: {'EGP'", "PAY-0000001 paid")[number]
    assert displayed in completed.stdout


def test_api_page_contains_two_example_programs() -> None:
    assert len(PROGRAMS) == 2


@pytest.mark.long
def test_example_programs_on_api_page_are_typed(tmp_path: Path) -> None:
    for number, text in enumerate(PROGRAMS):
        (tmp_path / f"program_{number}.py").write_text(text)
    config = ROOT / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    completed = subprocess.run(
        [*command, *tmp_path.glob("*.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout


def test_api_page_lists_every_conclusion_in_order() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, flags=re.MULTILINE) == [item.name for item in Conclusion]


def test_every_exported_name_exists() -> None:
    assert all(hasattr(api, name) for name in api.__all__)
