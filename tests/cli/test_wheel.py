"""From `pip install` of the wheel to a paid sheet."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT, copy_versioned, versioned_files
from tests.support.program import read_csv
from tests.support.wheels import build_wheel, install_program, run_pip

COMMANDS = re.compile(r"pip install --require-hashes -r (\S+) && pip install --no-deps (--[\w-]+) \.`")
"""The README's installation commands: first the lock, then the checkout."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    return install_program(build_wheel(folder), folder / "venv")


def run_installed(programs: Path, home: Path, *words: str) -> dict[str, Any]:
    """Run the installed program in a new user's empty directory, and return its JSON."""
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [str(programs / "paygw-batch"), "--json", *words]
    result = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
    summary: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == summary["exit_code"], result.stderr
    return summary


def test_wheel_installs_package_and_man_pages(programs: Path, tmp_path: Path) -> None:
    command = [str(programs / "python"), "-c", "import paygw_batch; print(paygw_batch.__file__)"]
    folder = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert (str(programs.parent) in folder, str(ROOT) in folder) == (True, False)
    installed = {path.name for path in (programs.parent / "share" / "man" / "man1").iterdir()}
    assert installed == {path.name for path in versioned_files("docs/man")}


def test_readme_command_installs_checkout_offline(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ((lock, without_isolation),) = COMMANDS.findall(" ".join(readme.split()))
    assert (ROOT / lock).exists()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"./paygw_batch-{version}-py3-none-any.whl" in readme
    checkout = copy_versioned(tmp_path / "checkout", "")
    bin_folder = install_program(checkout, tmp_path / "venv", without_isolation)
    assert run_installed(bin_folder, tmp_path, "init", "--sandbox")["exit_code"] == 0


def test_fresh_environment_pays_sandbox_sheet_after_init(programs: Path, tmp_path: Path) -> None:
    summary = run_installed(programs, tmp_path, "init", "--sandbox")
    assert summary["exit_code"] == 0
    paid = run_installed(programs, tmp_path, *summary["message"].partition("paygw-batch ")[2].split())
    assert (paid["exit_code"], paid["states"]) == (0, {"paid": 14})
    assert len(read_csv(Path(summary["journal"]["path"]).parent / "sandbox-record.csv")) == 14


def test_first_payout_script_succeeds_with_wheel(programs: Path) -> None:
    command = [ROOT / "tooling/first-payout", programs / "paygw-batch"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The journal is sound" in result.stdout


@pytest.mark.long
def test_upgrade_and_uninstall_of_wheel_keep_journal(tmp_path: Path) -> None:
    programs = install_program(build_wheel(tmp_path / "first"), tmp_path / "venv")
    home = tmp_path / "home"
    home.mkdir()
    journal = Path(run_installed(programs, home, "init", "--sandbox")["journal"]["path"])
    assert run_installed(programs, home, "submit", "sandbox-payroll.csv")["states"] == {"paid": 14}
    run_pip(programs, "install", "--no-index", "--no-deps", str(build_wheel(tmp_path / "second", "99.0.0")))
    result = subprocess.run([programs / "paygw-batch", "--version"], capture_output=True, text=True, check=True)
    assert "99.0.0" in result.stdout
    again = run_installed(programs, home, "submit", "sandbox-payroll.csv")
    assert (again["sent_this_run"], again["states"]) == (0, {"paid": 14})
    assert run_installed(programs, home, "verify")["exit_code"] == 0
    run_pip(programs, "uninstall", "--yes", "paygw-batch")
    assert not (programs / "paygw-batch").exists()
    assert journal.exists()


@pytest.mark.long
def test_program_never_modifies_installed_package(programs: Path, tmp_path: Path) -> None:
    def files() -> set[Path]:
        return {path for path in programs.parent.rglob("*") if path.suffix not in {".pyc", ""}}

    before = files()
    run_installed(programs, tmp_path, "init", "--sandbox")
    run_installed(programs, tmp_path, "submit", "sandbox-payroll.csv")
    assert files() == before
