"""The shipped systemd units may write the documented paths, and little else is permitted."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.checkout import versioned_files
from tests.support.systemd_units import DOCS, UNITS, unit_keys

SERVICES = versioned_files("docs/systemd", "*.service")
MAX_EXPOSURE = 3.0
NEEDED = {
    *("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "PrivateUsers", "ProtectClock", "ProtectControlGroups"),
    *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictNamespaces"),
    *("RestrictRealtime", "RestrictSUIDSGID", "LockPersonality"),
}


def writable_paths(unit: Path) -> list[Path]:
    result = unit_keys(unit)
    paths = [Path(path.removeprefix("-")) for line in result.get("ReadWritePaths", []) for path in line.split()]
    paths += [Path("/var/log") / name for name in result.get("LogsDirectory", [])]
    return [*paths, *(Path("/var/lib") / name for name in result["StateDirectory"])]


def configured_outputs() -> list[Path]:
    """Return the files that the documents have a run write: log and metrics."""
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "cron.md").read_text(), re.DOTALL)
    (reporting,) = (tomllib.loads(block)["reporting"] for block in blocks if "[reporting]" in block)
    return [Path(reporting["log"]), Path(reporting["metrics"])]


def test_batch_service_may_write_configured_paths() -> None:
    allowed = writable_paths(UNITS / "paygw-batch.service")
    for path in configured_outputs():
        assert any(path.is_relative_to(place) for place in allowed), f"{path} is read-only for the service"


def test_batch_service_may_write_drop_folder() -> None:
    (command,) = unit_keys(UNITS / "paygw-batch.service")["ExecStart"]
    assert Path(command.split()[-1]) in writable_paths(UNITS / "paygw-batch.service")


def test_console_unit_stop_leaves_runs_alive() -> None:
    """Only the console's main process gets the signal, and other processes of the unit are not killed."""
    result = unit_keys(UNITS / "paygw-console.service")
    assert result["KillMode"] == ["process"]


def test_console_and_batch_units_share_state() -> None:
    pages, runs = (unit_keys(UNITS / f"paygw-{name}.service") for name in ("console", "batch"))
    for name in ("User", "StateDirectory", "LogsDirectory", "LoadCredential", "Environment"):
        assert pages[name] == runs[name]


def test_console_unit_can_read_proc_locks() -> None:
    """The journal's holder is read from /proc/locks, which is missing if the unit can see only processes."""
    assert "ProcSubset" not in unit_keys(UNITS / "paygw-console.service")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_systemd_units_forbid_everything_else(unit: Path) -> None:
    result = unit_keys(unit)
    assert all(result.get(name) == ["yes"] for name in NEEDED), NEEDED - {n for n in NEEDED if result.get(n) == ["yes"]}
    assert result["ProtectSystem"] == ["strict"]
    assert result["CapabilityBoundingSet"] == [""]
    assert result["SystemCallFilter"] == ["@system-service", "~@privileged"]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_units_permit_code_made_by_libraries(unit: Path) -> None:
    """Polars generates code to detect the processor, so with this key it could not be imported."""
    assert "MemoryDenyWriteExecute" not in unit_keys(unit)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_systemd_units_have_low_exposure(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    result = re.search(r"Overall exposure level for \S+: ([0-9.]+)", output.stdout)
    assert result is not None, output.stdout + output.stderr
    assert float(result[1]) < MAX_EXPOSURE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", versioned_files("docs/systemd"), ids=lambda path: path.name)
def test_systemd_reads_every_unit_line(unit: Path) -> None:
    """systemd-analyze checks names and values of the settings. A missing program is ignored."""
    output = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    result = [line for line in output.stderr.splitlines() if unit.name in line and "is not executable" not in line]
    assert result == []
