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


def test_batch_service_may_write_documented_paths() -> None:
    allowed = writable_paths(UNITS / "paygw-batch.service")
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "cron.md").read_text(), re.DOTALL)
    (reporting,) = (tomllib.loads(block)["reporting"] for block in blocks if "[reporting]" in block)
    for path in (Path(reporting["log"]), Path(reporting["metrics"])):
        assert any(path.is_relative_to(place) for place in allowed), f"{path} is read-only for the service"
    (command,) = unit_keys(UNITS / "paygw-batch.service")["ExecStart"]
    assert Path(command.split()[-1]) in allowed  # the drop folder


def test_console_unit_shares_state_and_leaves_runs_alive() -> None:
    pages, runs = (unit_keys(UNITS / f"paygw-{name}.service") for name in ("console", "batch"))
    for name in ("User", "StateDirectory", "LogsDirectory", "LoadCredential", "Environment"):
        assert pages[name] == runs[name]
    assert pages["KillMode"] == ["process"]  # the signal reaches only the main process, and nothing else is killed
    assert "ProcSubset" not in pages  # the journal's holder is read from /proc/locks


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_systemd_units_grant_nothing_else(unit: Path) -> None:
    result = unit_keys(unit)
    assert all(result.get(name) == ["yes"] for name in NEEDED), NEEDED - {n for n in NEEDED if result.get(n) == ["yes"]}
    assert (result["ProtectSystem"], result["CapabilityBoundingSet"]) == (["strict"], [""])
    assert result["SystemCallFilter"] == ["@system-service", "~@privileged"]
    # Polars generates code to detect the processor, so with this key it could not be imported.
    assert "MemoryDenyWriteExecute" not in result


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
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()
    assert [line for line in lines if unit.name in line and "is not executable" not in line] == []
