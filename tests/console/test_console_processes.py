"""Tests the console as a process: killed and restarted during runs."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from httpx import AsyncClient, Limits

from tests.console.preparing import sheet
from tests.support.keyed_people import PasskeyPerson, hidden_value
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.people import APPROVER, MAKER, create_sandbox
from tests.support.ports import free_port, wait_for_server
from tests.support.program import Program

SLOW_ROW = b"7777.00"
BEHAVIOUR = "[[rule]]\namount_whole = 7777\ndelay_s = 500\n"
PATIENT = "[gateway]\nread_timeout_s = 600\ntotal_timeout_s = 600\n"
"""However slow the machine is, the slow row waits for its answer until its run is killed."""


@contextmanager
def serve_console_process(program: Program, port: int) -> "Iterator[subprocess.Popen[str]]":
    """Serve the pages as a process during the block, or until it is killed."""
    running = program.start("console", "--port", str(port))
    try:
        wait_for_server(port, running)
        yield running
    finally:
        running.kill()
        running.communicate()


class Tab(PasskeyPerson):
    """A person of the sandbox at pages that are served by another process. Each request has its own connection."""

    def __init__(self, port: int, name: str) -> None:
        origin, limits = f"http://127.0.0.1:{port}", Limits(max_keepalive_connections=0)
        super().__init__(AsyncClient(base_url=origin, timeout=PATIENCE_S, limits=limits), name, origin=origin)
        assert self.post("/sign-in", name=name).status_code == 303

    def counts(self, path: str) -> Counter[str]:
        """Return the number of rows in each state on a payout's page."""
        result = re.findall(r"<strong>([\d\u202f]+)</strong> ([^<]+)", self.get(path).text)
        return Counter({word.strip(): int(count.replace("\u202f", "")) for count, word in result})


def start_payout(maker: Tab, approver: Tab, content: bytes) -> str:
    draft = maker.upload("/new", "payroll.csv", content).headers["location"]
    maker.post(f"{draft}/sign", digest=hidden_value(maker.get(f"{draft}/plan").text, "digest"))
    shown = hidden_value(approver.get(f"{draft}/plan").text, "digest")
    for act in ("approve", "start"):
        assert approver.post(f"{draft}/{act}", digest=shown, run="").status_code == 303
    wait_until(lambda: approver.get(f"{draft}/plan").status_code == 303, "the payout never began")
    return approver.get(f"{draft}/plan").headers["location"]


def runner_pid(program: Program) -> int:
    (kept,) = (program.home / "console" / "runs").glob("*.json")
    return int(json.loads(kept.read_text())["pid"])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed_console_and_run_send_nothing_twice(tmp_path: Path) -> None:
    """A click on Continue sends the unsent rows of a killed run, but not the one in flight."""
    program, port = create_sandbox(tmp_path, behaviour=BEHAVIOUR), free_port()
    text = program.config.read_text().replace("[gateway]\n", PATIENT)
    program.config.write_text(re.sub(r"(?m)^concurrency = .*$", "concurrency = 1", text))
    with serve_console_process(program, port):
        maker, approver = Tab(port, MAKER), Tab(port, APPROVER)
        draft = start_payout(maker, approver, sheet(6).replace(b"104.00", SLOW_ROW))
        sent = {"Paid": 3, "Being sent": 1, "Not sent yet": 2}
        wait_until(lambda: approver.counts(draft) == sent, "the slow row is not being sent")
        # Leaving the block kills the console.
    runner = runner_pid(program)
    assert is_alive(runner)
    assert len(program.record()) in {3, 4}
    with serve_console_process(program, port):
        assert MAKER in maker.get("/").text  # Nobody was signed out.
        assert maker.counts(draft) == sent
        assert "You can close this page" in maker.get(draft).text
        os.kill(runner, signal.SIGKILL)
        wait_until(lambda: maker.counts(draft)["In doubt"] == 1, "the page still says that it is being sent")
        assert maker.counts(draft) == {"Paid": 3, "In doubt": 1, "Not sent yet": 2}
        run = hidden_value(maker.get(draft).text, "run")
        assert maker.post(f"{draft}/continue", run=run).status_code == 303
        wait_until(lambda: maker.counts(draft)["Not sent yet"] == 0, "the rest is never sent")
        wait_until(lambda: not is_alive(runner_pid(program)), "the second run never ends")
        assert maker.counts(draft) == {"Paid": 5, "In doubt": 1}
        assert "pay them in any other way" in maker.get(draft).text
    orders = Counter(line["client_orderid"] for line in program.record())
    assert set(orders.values()) == {1}
    # Restarting anything now pays nobody twice.
    again = program.run("resume")
    assert again.exit_code in {0, 4, 5}, again.output
    assert Counter(line["client_orderid"] for line in program.record()) == orders
    assert program.json("verify")["exit_code"] in {0, 5}
