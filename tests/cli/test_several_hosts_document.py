"""docs/several-hosts.md walks through commands that run, and its compose.yaml speaks of commands that exist."""

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

PAGE = (ROOT / "docs/several-hosts.md").read_text()


def test_documented_walk_through_pays_sheet_on_hosts(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    with new_hosts(tmp_path, postgres_server, behaviour="") as hosts:
        hosts.office.sheet(kenyan_rows(20))
        monkeypatch.chdir(hosts.office.home)
        lines = [shlex.split(line, comments=True) for line in block.splitlines()]
        assert len(lines) >= 5
        for program, *words in lines:
            assert program == "paygw-batch"
            done = hosts.office.run(*words)
            assert done.exit_code == 0, (words, done.output)
        assert hosts.record().total() == 20
        assert (hosts.office.home / "payroll.reconciliation.csv").exists()


def test_compose_example_uses_existing_commands(tmp_path: Path) -> None:
    composed = yaml.safe_load((ROOT / "docs/compose.yaml").read_text())
    services = composed["services"]
    commands = [one["command"][0] for one in services.values() if "command" in one]
    assert {*commands} == {"journal", "work"} <= set(COMMANDS)
    assert "sandbox" in services["gateway"]["entrypoint"]
    config = tmp_path / "paygw.toml"
    config.write_text(composed["configs"]["paygw"]["content"])
    environ = {key: str(value) for key, value in services["office"]["environment"].items()}
    assert load_settings(config, environ=environ, flags={}).journal.url == "postgresql://paygw@database/paygw"
    files = re.findall(r"submit /samples/(\S+)", (ROOT / "docs/compose.yaml").read_text())
    assert files
    assert all((ROOT / "samples" / one).exists() for one in files)


@pytest.mark.long  # .ci/run plays it as well
def test_compose_demo_pays_sample_with_two_workers(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
    demo = [sys.executable, str(ROOT / "tooling/several_demo.py")]
    done = subprocess.run(demo, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 paid." in done.stdout
    assert "The gateway's own record: 210 orders, none paid more than 1 time." in done.stdout
    assert done.stdout.count("The worker has stopped") == 2
