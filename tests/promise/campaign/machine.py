"""A machine of one merchant, the program on it as processes, and a gateway as another process."""

import csv
import functools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from paygw_batch.sandbox.record import RecordLine, read_record, strip_formula_guard
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.ports import free_port, wait_for_server

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "0123456789abcdef" * 2
COMMANDS = {"payout": "submit", "payin": "collect"}
HEADINGS = {
    "payout": "country,client_orderid,amount,currency,account_name,account_number,phone",
    "payin": "country,client_orderid,amount,currency,first_name,last_name,phone,email,address1,city,zip_code,ipaddress,"
    "order_desc,merchant_data",
}
LINES = {
    "payout": "KE,{id},{amount},KES,Jane Wanjiku,254712345{n:03},+254712345{n:03}",
    "payin": "KE,{id},{amount},KES,Jane,Wanjiku,+254712345{n:03},jane@example.com,1 Moi Avenue,Nairobi,00100,192.0.2.1,"
    "Shoes,t",
}


class Spawner:
    """Starts the program by forks of a process that has imported it (see `spawner.py`)."""

    def __init__(self, *modules: str) -> None:
        """Import what every run needs, and `modules` too."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("spawner.py")), *modules],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # a signal to the campaign's group must leave it to end its processes in order
        )
        self._hear()

    def start(self, **start: Any) -> int:
        pid: int = self._ask({"start": start})["pid"]
        return pid

    def reap(self, pid: int) -> int:
        """Return the exit code of a finished process; a negative one is the signal that killed it."""
        status: int = self._ask({"reap": pid})["status"]
        return status

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@dataclass
class Run:
    spawner: Spawner
    pid: int
    exit_code: int | None = None
    _watch: int = field(init=False)

    def __post_init__(self) -> None:
        self._watch = os.pidfd_open(self.pid)

    def wait(self, seconds: float = PATIENCE_S) -> int | None:
        if self.exit_code is None:
            waiting = select.poll()
            waiting.register(self._watch, select.POLLIN)
            if not waiting.poll(seconds * 1000):
                return None
            self.exit_code = self.spawner.reap(self.pid)
            os.close(self._watch)
        return self.exit_code

    def done(self, seconds: float = PATIENCE_S) -> int:
        code = self.wait(seconds)
        if code is None:
            self.send(signal.SIGUSR1)  # it writes its stack to standard error (see `spawner.py`)
            self.wait(1.0)
            self.send(signal.SIGKILL)
            self.wait()
            raise AssertionError(f"the program hung for {seconds:.0f} s")
        return code

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def until_stopped(self) -> None:
        wait_until(lambda: _state_of(self.pid) in {"T", "t"}, "the program did not stop", look_every_s=0.002)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    """Return the living child processes of a process, started by any of its threads."""
    found: list[int] = []
    for path in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


@dataclass
class GatewayProcess:
    """The built-in gateway, started by its own command. Its record of an operation judges."""

    directory: Path
    url: str
    operation: str = "payout"
    _other_merchant_journals: "dict[str, GatewayProcess]" = field(default_factory=dict, repr=False)
    _orders: list[RecordLine] = field(default_factory=list, repr=False)
    _read_bytes: int = 0

    @property
    def key(self) -> Path:
        return self.directory / "sandbox-merchant.pem"

    @property
    def _record(self) -> Path:
        return self.directory / f"sandbox-record{'' if self.operation == 'payout' else '-' + self.operation}.csv"

    def of(self, operation: str) -> "GatewayProcess":
        if operation == self.operation:
            return self
        return self._other_merchant_journals.setdefault(operation, GatewayProcess(self.directory, self.url, operation))

    def record_bytes(self) -> int:
        return self._record.stat().st_size

    def record(self, since: int = 0) -> list[RecordLine]:
        if not self._read_bytes:
            self._read_bytes = self._record.read_bytes().index(b"\n") + 1
            read_record(self._record)  # a single id
        lines, length = whole_lines(self.newer(self._read_bytes))
        self._read_bytes += length
        self._orders += lines
        return self._orders[since:]

    def newer(self, position: int) -> bytes:
        with self._record.open("rb") as file:
            file.seek(position)
            return file.read()


def whole_lines(text: bytes) -> tuple[list[RecordLine], int]:
    """Return the complete lines of a part of a record, and their size in bytes."""
    text = text[: text.rfind(b"\n") + 1]
    lines = csv.reader(text.decode().splitlines(keepends=True), strict=True)
    return [RecordLine(*map(strip_formula_guard, line)) for line in lines], len(text)


@contextmanager
def gateway(directory: Path, behaviour: str, further: str = "") -> Iterator[GatewayProcess]:
    """Run the built-in gateway in a separate process, with the rules of a TOML text, and `further` configuration."""
    directory.mkdir(mode=0o700, exist_ok=True)
    config = directory / "gateway.toml"
    config.write_text(sandbox_toml() + further)
    rules = directory / "behaviour.toml"
    rules.write_text(behaviour)
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "paygw_batch", "--config", config, "sandbox", "--port", str(port), "--behaviour", rules],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(directory / "state")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as process:
        try:
            wait_for_server(port, process)
            yield GatewayProcess(directory, f"http://127.0.0.1:{port}")
        finally:
            process.kill()


def sandbox_toml(**gateway_keys: str) -> str:
    """Return the shipped sandbox configuration with a local journal; `gateway_keys` go under [gateway]."""
    text = (ROOT / "config" / "sandbox.toml").read_text().replace("../sandbox-state/journal.sqlite3", "journal.sqlite3")
    further = "".join(f'{key} = "{value}"\n' for key, value in gateway_keys.items())
    if "base_url" in gateway_keys:
        text = re.sub(r"(?m)^base_url = .*\n", "", text)
    return text.replace("[gateway]\n", f"[gateway]\n{further}")


@dataclass
class Machine:
    """A merchant's machine: configuration, journal, sheets. Every start of the program is a new process."""

    home: Path
    spawner: Spawner
    prefix: str  # the prefix of its order ids, which is unique at the gateway
    since: int = 0  # the number of the gateway's orders when the machine was created. None of them is its own.
    environ: dict[str, str] = field(default_factory=dict)  # its additional environment variables
    operation: str = "payout"
    started: list[Run] = field(default_factory=list, repr=False)  # every start of the program on it

    @classmethod
    def create(
        cls,
        home: Path,
        spawner: Spawner,
        at: GatewayProcess,
        *,
        prefix: str = "PAY",
        concurrency: int = 16,
        operation: str = "payout",
        has_journal: bool = True,
        since: int | None = None,
    ) -> Self:
        """Return a new machine. `since` skips a part of the record, if the machine's order ids are unique."""
        home.mkdir(mode=0o700, parents=True)
        config = sandbox_toml(base_url=at.url, private_key=str(at.key))
        (home / "paygw.toml").write_text(config.replace("concurrency = 16", f"concurrency = {concurrency}"))
        since = len(at.of(operation).record()) if since is None else since
        machine = cls(home, spawner, prefix, since, operation=operation)
        if has_journal and machine.run("journal", "new") != 0:
            raise AssertionError(f"no journal was created: {machine.said()}")
        return machine

    @property
    def command(self) -> str:
        return COMMANDS[self.operation]

    @property
    def journal(self) -> Path:
        return self.home / "journal.sqlite3"

    def sheet(self, rows: int, *, name: str = "payroll.csv", first: int = 0) -> Path:
        lines = [
            LINES[self.operation].format(id=f"{self.prefix}-{n}", amount=f"{100 + n}.25", n=n % 1000)
            for n in range(first, first + rows)
        ]
        path = self.home / name
        path.write_text("\n".join([HEADINGS[self.operation], *lines]) + "\n")
        return path

    def start(self, *arguments: str | Path, **start: Any) -> Run:
        environ = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), "NO_COLOR": "1"}
        environ |= {"PATH": os.environ["PATH"], **self.environ, **start.pop("environ", {})}
        files = {"out": str(self.home / "out.txt"), "err": str(self.home / "err.txt")}
        given = ["--config", str(self.home / "paygw.toml"), *map(str, arguments)]
        options = {"directory": str(self.home), "planted_from": str(Path(__file__).parent), **files, **start}
        pid = self.spawner.start(arguments=given, environ=environ, **options)
        self.started.append(Run(self.spawner, pid))
        return self.started[-1]

    def run(self, *arguments: str | Path, **start: Any) -> int:
        return self.start(*arguments, **start).done()

    def said(self) -> str:
        return (self.home / "err.txt").read_text()[-3000:]

    def reconciliation(self, name: str = "payroll.reconciliation.csv") -> list[dict[str, str]]:
        with (self.home / name).open(newline="") as stream:
            return list(csv.DictReader(stream))

    def state_files(self) -> list[Path]:
        return [*self.home.glob("journal.sqlite3*"), *(self.home / "known.journal.sqlite3").glob("*/*")]

    def enable_listener(self, notifications: str, port: int) -> None:
        """Let the program listen for notifications, by this section of its configuration."""
        config = self.home / "paygw.toml"
        url = f'server_callback_url = "http://127.0.0.1:{port}/paygw/{{token}}"'
        text = re.sub(r"(?m)^server_callback_url = .*$", url, config.read_text())
        config.write_text(f"{text}\n{notifications}port = {port}\n")
        self.environ["PAYGW_TOKEN"] = TOKEN


def run_under_strace(
    machine: Machine,
    log: Path,
    options: list[str],
    *arguments: str | Path,
    meanwhile: Callable[[Run], None] | None = None,
    **start: Any,
) -> int:
    """Run the program to its end under strace, and return its code. `meanwhile` must end a program that waits."""
    run = machine.start(*arguments, stopped=True, **start)
    run.until_stopped()
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-o", log, *options, "-p", str(run.pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as strace:
        give_up_at_s = time.monotonic() + PATIENCE_S
        while "TracerPid:\t0\n" in Path(f"/proc/{run.pid}/status").read_text():
            if strace.poll() is not None or time.monotonic() > give_up_at_s:
                run.send(signal.SIGKILL)
                run.done()
                raise AssertionError("strace did not attach")
            time.sleep(0.002)
        run.send(signal.SIGCONT)
        try:
            if meanwhile is not None:
                meanwhile(run)
        except BaseException:
            run.send(signal.SIGKILL)
            raise
        finally:
            code = run.done()
        strace.wait(PATIENCE_S)
    return code


@functools.cache
def why_not() -> str:
    """Return why nothing can be traced here, or an empty string."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "ptrace is forbidden here"


can_trace = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
