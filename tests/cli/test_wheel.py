"""From `pip install` of the wheel to a paid sheet."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT, copy_versioned, versioned_files
from tests.support.program import HEADING, kenyan_rows, read_csv
from tests.support.wheels import build_wheel, install, pip

COMMANDS = re.compile(r"pip install --require-hashes -r (\S+) && pip install --no-deps (--[\w-]+) \.`")
"""The README's installation: of the lock, and then of the checkout."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh virtual environment with the wheel in it."""
    place = tmp_path_factory.mktemp("installed")
    return install(build_wheel(place), place / "venv")


def run(programs: Path, home: Path, *words: str) -> dict[str, Any]:
    """Run the installed program in the empty directory of a new user, and return its JSON."""
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [str(programs / "paygw-batch"), "--json", *words]
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
    summary: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == summary["exit_code"], done.stderr
    return summary


def test_program_runs_from_installed_wheel(programs: Path, tmp_path: Path) -> None:
    where = "import paygw_batch, sys; print(paygw_batch.__file__)"
    done = subprocess.run([programs / "python", "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(programs.parent) in done.stdout
    assert str(ROOT) not in done.stdout


def test_readme_command_installs_checkout_offline(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ((lock, without_isolation),) = COMMANDS.findall(" ".join(readme.split()))
    assert (ROOT / lock).exists()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"./paygw_batch-{version}-py3-none-any.whl" in readme
    checkout = copy_versioned(tmp_path / "checkout", "")
    bin_folder = install(checkout, tmp_path / "venv", without_isolation)
    assert run(bin_folder, tmp_path, "init", "--sandbox")["exit_code"] == 0


def test_man_finds_a_page_for_each_command(programs: Path) -> None:
    installed = {path.name for path in (programs.parent / "share" / "man" / "man1").iterdir()}
    assert installed == {path.name for path in versioned_files("docs/man")}


def test_fresh_environment_pays_sandbox_sheet_after_init(programs: Path, tmp_path: Path) -> None:
    made = run(programs, tmp_path, "init", "--sandbox")
    assert made["exit_code"] == 0
    paid = run(programs, tmp_path, *made["message"].partition("paygw-batch ")[2].split())
    assert (paid["exit_code"], paid["states"]) == (0, {"paid": 14})
    record = read_csv(Path(made["journal"]["path"]).parent / "sandbox-record.csv")
    assert len(record) == 14


def test_first_payout_script_succeeds_with_wheel(programs: Path) -> None:
    command = [ROOT / "tooling/first-payout", programs / "paygw-batch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The journal is sound" in done.stdout


def test_upgrade_and_uninstall_of_wheel_keep_journal(tmp_path: Path) -> None:
    programs = install(build_wheel(tmp_path / "first"), tmp_path / "venv")
    home = tmp_path / "home"
    home.mkdir()
    journal = Path(run(programs, home, "init", "--sandbox")["journal"]["path"])
    assert run(programs, home, "submit", "sandbox-payroll.csv")["states"] == {"paid": 14}
    pip(programs, "install", "--no-index", "--no-deps", str(build_wheel(tmp_path / "second", "99.0.0")))
    shown = subprocess.run([programs / "paygw-batch", "--version"], capture_output=True, text=True, check=True)
    assert "99.0.0" in shown.stdout
    again = run(programs, home, "submit", "sandbox-payroll.csv")
    assert (again["sent_this_run"], again["states"]) == (0, {"paid": 14})
    assert run(programs, home, "verify")["exit_code"] == 0
    pip(programs, "uninstall", "--yes", "paygw-batch")
    assert not (programs / "paygw-batch").exists()
    assert journal.exists()


@pytest.mark.long
def test_own_sheet_is_paid_by_installed_wheel(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("\n".join([HEADING, *kenyan_rows(3)]) + "\n")
    run(programs, tmp_path, "init", "--sandbox")
    assert run(programs, tmp_path, "submit", "my.csv")["states"] == {"paid": 3}


@pytest.mark.long
def test_nothing_is_written_into_the_installed_package(programs: Path, tmp_path: Path) -> None:
    def files() -> set[Path]:
        return {path for path in programs.parent.rglob("*") if path.suffix not in {".pyc", ""}}

    before = files()
    run(programs, tmp_path, "init", "--sandbox")
    run(programs, tmp_path, "submit", "sandbox-payroll.csv")
    assert files() == before
