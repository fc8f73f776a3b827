"""docs/several-hosts.md: its commands run, and compose.yaml uses existing commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paygw_batch.cli.main import COMMANDS
from paygw_batch.settings.configuration import load_settings
from tests.support.clusters import new_hosts
from tests.support.postgres_server import PostgresServer
from tests.support.program import ROOT, kenyan_rows


def test_documented_walk_through_pays_sheet_on_hosts(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/several-hosts.md").read_text(), flags=re.DOTALL)
    with new_hosts(tmp_path, postgres_server, behaviour="") as hosts:
        hosts.office.sheet(kenyan_rows(20))
        monkeypatch.chdir(hosts.office.home)
        lines = [shlex.split(line, comments=True) for line in block.splitlines()]
        assert len(lines) >= 5
        for program, *words in lines:
            assert program == "paygw-batch"
            result = hosts.office.run(*words)
            assert result.exit_code == 0, (words, result.output)
        assert hosts.record().total() == 20
        assert (hosts.office.home / "payroll.reconciliation.csv").exists()


def test_compose_example_uses_existing_commands(tmp_path: Path) -> None:
    composed = yaml.safe_load((ROOT / "docs/compose.yaml").read_text())
    services = composed["services"]
    commands = [service["command"][0] for service in services.values() if "command" in service]
    assert {*commands} == {"journal", "work"} <= set(COMMANDS)
    assert "sandbox" in services["gateway"]["entrypoint"]
    config = tmp_path / "paygw.toml"
    config.write_text(composed["configs"]["paygw"]["content"])
    environ = {key: str(value) for key, value in services["office"]["environment"].items()}
    assert load_settings(config, environ=environ, flags={}).journal.url == "postgresql://paygw@database/paygw"
    files = re.findall(r"submit /samples/(\S+)", (ROOT / "docs/compose.yaml").read_text())
    assert files
    assert all((ROOT / "samples" / file).exists() for file in files)


@pytest.mark.long  # .ci/run also runs it
def test_compose_demo_pays_sample_with_two_workers(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
    demo = [sys.executable, str(ROOT / "tooling/several_demo.py")]
    result = subprocess.run(demo, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "200 paid." in result.stdout
    assert "The gateway's own record: 210 orders, none paid more than 1 time." in result.stdout
    assert result.stdout.count("The worker has stopped") == 2
