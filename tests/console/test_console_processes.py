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

import httpx
import pytest

from tests.console.preparing import sheet
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.people import APPROVER, MAKER, create_sandbox
from tests.support.ports import free_port, wait_for_server
from tests.support.program import Program

SLOW_ROW = "7777.00"
BEHAVIOUR = """
[[rule]]
amount_whole = 7777
delay_s = 500
"""
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


class Tab:
    """A browser tab on pages that are served by another process."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.origin, timeout=PATIENCE_S, headers={"connection": "close"})

    def get(self, path: str) -> str:
        answer = self.client.get(path, follow_redirects=True)
        assert answer.status_code == 200, (path, answer.status_code)
        return answer.text

    def post(self, path: str, *, file: tuple[str, bytes] | None = None, **form: str) -> str:
        """Send a form with the session's token, and return the redirect."""
        token = re.search(r'name="csrf" value="([^"]+)"', self.client.get("/").text)
        data = form | ({} if token is None else {"csrf": token.group(1)})
        files = None if file is None else {"sheet": file}
        answer = self.client.post(path, data=data, files=files, headers={"origin": self.origin})
        assert answer.status_code == 303, (path, answer.status_code)
        return str(answer.headers["location"])

    def hidden(self, path: str, name: str) -> str:
        return str(re.findall(rf'name="{name}" value="([^"]*)"', self.get(path))[0])


def start_payout(maker: Tab, approver: Tab, content: bytes) -> str:
    place = maker.post("/new", file=("payroll.csv", content))
    maker.post(f"{place}/sign", digest=maker.hidden(f"{place}/plan", "digest"))
    shown = approver.hidden(f"{place}/plan", "digest")
    approver.post(f"{place}/approve", digest=shown)
    approver.post(f"{place}/start", digest=shown)
    location = ""

    def has_payout() -> bool:
        nonlocal location
        answer = approver.client.get(f"{place}/plan")
        location = answer.headers.get("location", "")
        return answer.status_code == 303

    wait_until(has_payout, "the payout never began")
    return location


def state_counts(page: str) -> Counter[str]:
    found = re.findall(r"<strong>([\d\u202f]+)</strong> ([^<]+)", page)
    return Counter({word.strip(): int(count.replace("\u202f", "")) for count, word in found})


def runner_pid(program: Program) -> int:
    (kept,) = (program.home / "console" / "runs").glob("*.json")
    return int(json.loads(kept.read_text())["pid"])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed_console_and_run_send_nothing_twice(tmp_path: Path) -> None:
    """Story 8."""
    program, port = create_sandbox(tmp_path, behaviour=BEHAVIOUR), free_port()
    program.config.write_text(program.config.read_text().replace("[gateway]\n", PATIENT))
    content = sheet(6).replace(b"103.00", SLOW_ROW.encode())
    with serve_console_process(program, port):
        maker, approver = Tab(port), Tab(port)
        for tab, name in ((maker, MAKER), (approver, APPROVER)):
            tab.post("/sign-in", name=name)
        place = start_payout(maker, approver, content)
        wait_until(lambda: state_counts(approver.get(place))["Paid"] == 5, "the other rows are never paid")
        approver.client.close()  # The browser is closed.
        # Leaving the block kills the console.
    runner = runner_pid(program)
    assert is_alive(runner)
    assert len(program.record()) in {5, 6}
    with serve_console_process(program, port):
        assert MAKER in maker.get("/")  # Nobody was signed out.
        page = maker.get(place)
        assert state_counts(page) == Counter({"Paid": 5, "Being sent": 1})
        assert "You can close this page" in page
        os.kill(runner, signal.SIGKILL)
        wait_until(lambda: state_counts(maker.get(place))["In doubt"] == 1, "the page still says that it is being sent")
        page = maker.get(place)
        assert state_counts(page) == Counter({"Paid": 5, "In doubt": 1})
        assert "pay them another way" in page
    orders = Counter(line["client_orderid"] for line in program.record())
    assert set(orders.values()) == {1}
    # Restarting anything now pays nobody twice.
    again = program.run("resume")
    assert again.exit_code in {0, 4, 5}, again.output
    assert Counter(line["client_orderid"] for line in program.record()) == orders
    assert program.json("verify")["exit_code"] in {0, 5}


@pytest.mark.long
def test_killed_run_can_be_continued_from_page(tmp_path: Path) -> None:
    """A click on Continue sends the unsent rows of a killed run, but not the one in flight."""
    program, port = create_sandbox(tmp_path, behaviour=BEHAVIOUR), free_port()
    text = program.config.read_text().replace("[gateway]\n", PATIENT)
    program.config.write_text(re.sub(r"(?m)^concurrency = .*$", "concurrency = 1", text))
    content = sheet(4).replace(b"102.00", SLOW_ROW.encode())
    with serve_console_process(program, port):
        maker, approver = Tab(port), Tab(port)
        for tab, name in ((maker, MAKER), (approver, APPROVER)):
            tab.post("/sign-in", name=name)
        place = start_payout(maker, approver, content)
        sent = Counter({"Paid": 1, "Being sent": 1, "Not sent yet": 2})
        wait_until(lambda: state_counts(maker.get(place)) == sent, "the slow row is not being sent")
        os.kill(runner_pid(program), signal.SIGKILL)
    before = Counter(line["client_orderid"] for line in program.record())
    with serve_console_process(program, port):
        wait_until(lambda: state_counts(maker.get(place))["Being sent"] == 0, "a dead run is said to send")
        first = state_counts(maker.get(place))
        assert first == Counter({"Paid": 1, "In doubt": 1, "Not sent yet": 2})
        maker.post(f"{place}/continue", run=maker.hidden(place, "run"))
        wait_until(lambda: state_counts(maker.get(place))["Not sent yet"] == 0, "the rest is never sent")
        wait_until(lambda: not is_alive(runner_pid(program)), "the second run never ends")
        last = state_counts(maker.get(place))
    assert last == Counter({"Paid": 3, "In doubt": 1})
    orders = Counter(line["client_orderid"] for line in program.record())
    assert set(orders.values()) == {1}
    assert before <= orders
