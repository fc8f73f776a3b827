"""The shipped systemd units: they may write what the documents configure, and little else is open to them."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.checkout import versioned_files
from tests.support.systemd_units import DOCS, UNITS, keys

SERVICES = versioned_files("docs/systemd", "*.service")
MAX_EXPOSURE = 3.0
NEEDED = {
    *("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "PrivateUsers", "ProtectClock", "ProtectControlGroups"),
    *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictNamespaces"),
    *("RestrictRealtime", "RestrictSUIDSGID", "LockPersonality"),
}


def writable(unit: Path) -> list[Path]:
    found = keys(unit)
    paths = [Path(path.removeprefix("-")) for line in found.get("ReadWritePaths", []) for path in line.split()]
    paths += [Path("/var/log") / name for name in found.get("LogsDirectory", [])]
    return [*paths, *(Path("/var/lib") / name for name in found["StateDirectory"])]


def configured() -> list[Path]:
    """Return the files that the documents have a run write: log and metrics."""
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "cron.md").read_text(), re.DOTALL)
    (reporting,) = (tomllib.loads(block)["reporting"] for block in blocks if "[reporting]" in block)
    return [Path(reporting["log"]), Path(reporting["metrics"])]


def test_batch_service_may_write_configured_paths() -> None:
    allowed = writable(UNITS / "paygw-batch.service")
    for path in configured():
        assert any(path.is_relative_to(place) for place in allowed), f"{path} is read-only for the service"


def test_batch_service_may_write_drop_folder() -> None:
    (command,) = keys(UNITS / "paygw-batch.service")["ExecStart"]
    assert Path(command.split()[-1]) in writable(UNITS / "paygw-batch.service")


def test_console_unit_stop_leaves_runs_alive() -> None:
    """Only the process of the pages gets the signal, and nothing that is left in the unit is killed after it."""
    found = keys(UNITS / "paygw-console.service")
    assert found["KillMode"] == ["process"]


def test_console_and_batch_units_share_state() -> None:
    pages, runs = (keys(UNITS / f"paygw-{name}.service") for name in ("console", "batch"))
    for name in ("User", "StateDirectory", "LogsDirectory", "LoadCredential", "Environment"):
        assert pages[name] == runs[name]


def test_console_unit_can_read_proc_locks() -> None:
    """It is read in /proc/locks, which is not there where the unit sees processes alone."""
    assert "ProcSubset" not in keys(UNITS / "paygw-console.service")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_systemd_units_forbid_everything_else(unit: Path) -> None:
    found = keys(unit)
    assert all(found.get(name) == ["yes"] for name in NEEDED), NEEDED - {n for n in NEEDED if found.get(n) == ["yes"]}
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged"]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_units_permit_code_made_by_libraries(unit: Path) -> None:
    """Polars examines the processor by code that it writes: with this key it could not even be imported."""
    assert "MemoryDenyWriteExecute" not in keys(unit)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_systemd_units_have_low_exposure(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout)
    assert found is not None, said.stdout + said.stderr
    assert float(found[1]) < MAX_EXPOSURE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", versioned_files("docs/systemd"), ids=lambda path: path.name)
def test_systemd_reads_every_line_of_a_unit(unit: Path) -> None:
    """It checks names and values of the settings. That the program is not installed there is no fault of the unit."""
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    found = [line for line in said.stderr.splitlines() if unit.name in line and "is not executable" not in line]
    assert found == []
