"""Real processes that are killed: by the sandbox's record, no row is paid twice and none is lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paygw_batch.gateway.signing.signers import LONG_RUN_PAYOUTS, signer_count, usable_cores
from tests.cli.stopped import paid_orders, wait_for_record
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.program import Program, kenyan_rows, kill, read_csv

ROWS = 120
LONG = LONG_RUN_PAYOUTS + 100
"""The number of rows from which a run signs in separate processes."""


@pytest.fixture
def slow_sandbox(program: Program) -> Program:
    """Write a behaviour file for a slow sandbox, so that runs can be interrupted."""
    behaviour = program.home / "slow.toml"
    behaviour.write_text("[default]\ndelay_s = 0.02\n")
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "slow.toml"\n')
    return program


def test_repeatedly_killed_run_pays_each_row_once(slow_sandbox: Program) -> None:
    program = slow_sandbox
    sheet = program.sheet(kenyan_rows(ROWS))
    for lines in (0, 1, 2, 20, 40, 41, 75):
        process = program.start("submit", sheet)
        wait_for_record(program, lines, process)
        kill(process)
    summary = program.json("submit", sheet)
    reconciled = read_csv(summary["reconciliation"])
    assert [line["client_orderid"] for line in reconciled] == [f"PAY-{n}" for n in range(1, ROWS + 1)]
    assert {line["state"] for line in reconciled} <= {"paid", "in_doubt"}
    assert max(paid_orders(program).values()) == 1
    for line in reconciled:
        if line["state"] == "paid":
            assert paid_orders(program)[line["client_orderid"]] == 1
    assert summary["exit_code"] == (5 if summary["states"].get("in_doubt") else 0)
    assert program.json("verify")["exit_code"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_drains_run_and_exits_130(slow_sandbox: Program, number: signal.Signals) -> None:
    program = slow_sandbox
    sheet = program.sheet(kenyan_rows(ROWS))
    process = program.start("--json", "submit", sheet)
    wait_for_record(program, 5, process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    summary = json.loads(stdout)
    assert summary["exit_code"] == 130
    assert set(summary["states"]) == {"paid", "ready"}
    assert summary["states"]["paid"] == sum(paid_orders(program).values())
    assert len(read_csv(summary["reconciliation"])) == ROWS
    assert program.json("submit", sheet)["states"] == {"paid": ROWS}
    assert set(paid_orders(program).values()) == {1}


def test_second_signal_reports_rows_in_flight(slow_sandbox: Program) -> None:
    (slow_sandbox.home / "slow.toml").write_text("[default]\ndelay_s = 60\n")
    process = slow_sandbox.start("--json", "submit", slow_sandbox.sheet(kenyan_rows(3)))
    wait_for_record(slow_sandbox, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("Stopping" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    summary = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert (process.returncode, summary["exit_code"], summary["sent_this_run"]) == (130, 130, 1)
    assert summary["batch"] == slow_sandbox.json("status")["batches"][0]["batch"]


def signing_processes(process: "subprocess.Popen[str]") -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if b"signing.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
def long_sheet(program: Program) -> Path:
    phones = range(254_712_000_000, 254_712_000_000 + LONG)
    return program.sheet([f"KE,PAY-{phone},1500.50,KES,Jane Wanjiku,{phone},+{phone}" for phone in phones])


def test_killing_long_run_ends_its_signing_processes(program: Program, long_sheet: Path) -> None:
    process = program.start("submit", long_sheet)
    wait_for_record(program, 100, process)
    signing = signing_processes(process)
    assert len(signing) == signer_count(usable_cores())
    kill(process)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in signing))
    summary = program.json("submit", long_sheet)
    assert summary["rows"] == LONG
    assert set(summary["states"]) <= {"paid", "in_doubt"}
    assert set(paid_orders(program).values()) == {1}


@pytest.mark.long
def test_signal_to_all_processes_drains_long_run(program: Program, long_sheet: Path) -> None:
    """A service manager stops a unit by signalling all of its processes at once."""
    process = program.start("--json", "submit", long_sheet)
    wait_for_record(program, 100, process)
    for pid in [*signing_processes(process), process.pid]:
        os.kill(pid, signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert set(json.loads(stdout)["states"]) == {"paid", "ready"}
    assert program.json("submit", long_sheet)["states"] == {"paid": LONG}
    assert set(paid_orders(program).values()) == {1}


@pytest.mark.long
def test_dead_signing_processes_stop_long_run(program: Program, long_sheet: Path) -> None:
    process = program.start("submit", long_sheet)
    wait_for_record(program, 100, process)
    for pid in signing_processes(process):
        os.kill(pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 6, stderr
    assert "Traceback" not in stderr
    assert "The signing process has ended." in stderr
    assert set(program.json("status", long_sheet)["states"]) == {"paid", "ready"}
    assert program.json("submit", long_sheet)["states"] == {"paid": LONG}
    assert set(paid_orders(program).values()) == {1}


@pytest.mark.parametrize("words", [("status",), ("validate", "none.csv"), ("frobnicate",)])
def test_forked_command_behaves_like_new_process(program: Program, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "paygw_batch", "--config", str(program.config), *words]
    environ = {**os.environ, **program.environ}
    cold = subprocess.run(command, env=environ, cwd=program.home, capture_output=True, text=True, check=False)
    forked = program.start(*words)
    outputs = forked.communicate()
    assert (forked.returncode, *outputs) == (cold.returncode, cold.stdout, cold.stderr)
