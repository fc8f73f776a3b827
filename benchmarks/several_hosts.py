"""Compares a sheet paid by workers with a journal in PostgreSQL with one paid from a journal in a file.

The server is that of the tests (`tests/support/postgres_server.py`), with its data on the measured disk. Workers,
gateway and server share the same cores.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.commands import ROOT, CommandResult, Office, record_memory, run_timed
from benchmarks.figures import Sample
from paygw_batch.countries.data import config_dir
from tests.support.postgres_server import PostgresServer, make_server

_PATIENCE_S = 60.0
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Shared:
    """The cost of a sheet that workers paid together. `paid_per_s` has the processor time of all clients per row."""

    paid_per_s: Sample
    server_us: float
    bytes_a_row: float
    submit_mib: float
    """The most that `submit` held at once."""
    workers_mib: tuple[tuple[float, float], ...]
    """The most that any worker held, over the seconds of the run."""

    def held(self) -> str:
        """Describe a worker's memory after a tenth of the run and at its end. Empty without workers."""
        if not self.workers_mib:
            return ""
        early = self.workers_mib[len(self.workers_mib) // 10][1]
        return f"a worker held {early:,.0f} MiB after a tenth of the run, and {self.workers_mib[-1][1]:,.0f} at its end"


@dataclass(frozen=True, slots=True)
class Branch:
    """An office with a journal in PostgreSQL, and its workers, each with its own state directory."""

    place: Office
    command: Sequence[str]
    workers: Sequence["subprocess.Popen[bytes]"]

    def call(self, *words: str) -> CommandResult:
        """Run one command of the program in the office. Raises `RuntimeError` unless it exits with 0."""
        return run_timed([*self.command, *words], _host_environment(self.place, "desk"))


@contextmanager
def server_on_disk() -> Iterator[PostgresServer]:
    """Start a separate PostgreSQL server whose data is on disk instead of in memory."""
    home = Path(tempfile.mkdtemp(prefix="paygw-pg-"))
    try:
        server = make_server(home)
        try:
            yield server
        finally:
            server.stop("fast")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def paid_from_a_file(machine: Office, rows: int) -> Sample:
    """Pay a sheet from a journal in a file, and return the rows per second."""
    ended = machine.call("submit", str(machine.make_sheet(rows)))
    return Sample(rows / ended.seconds, 1e6 * ended.cpu_s / rows)


@contextmanager
def branch(machine: Office, url: str, workers: int) -> Iterator[Branch]:
    """Yield a branch with a new journal and live workers, and stop them afterwards."""
    config = machine.directory / "several.toml"
    text = (config_dir() / "sandbox.toml").read_text(encoding="utf-8")
    journal = f'[journal]\nurl = "{url}"\nreplication = "none"\n\n'
    config.write_text(re.sub(r"\[journal\]\n.*?\n(?=\[)", lambda _: journal, text, flags=re.DOTALL), encoding="utf-8")
    command = [sys.executable, "-m", "paygw_batch", "--config", str(config), "--quiet"]
    run_timed([*command, "journal", "new"], _host_environment(machine, "desk"))
    with ExitStack() as stack:
        started = [stack.enter_context(_start_worker(machine, command, number)) for number in range(workers)]
        _wait_for_workers([*command, "--json", "workers"], machine, workers)
        yield Branch(machine, command, started)


def pay_by_workers(machine: Office, server: PostgresServer, workers: int, rows: int) -> Shared:
    """Pay a sheet by `workers` workers and the `submit` that starts them; with 0, `submit` sends by itself."""
    database = server.new_database()
    sheet = machine.make_sheet(rows)
    with branch(machine, server.url(database), workers) as paying:
        before = [_cpu_s(process.pid) for process in paying.workers]
        server_s, bytes_before = _cpu_s(_postmaster(server)), _database_size(server, database)
        with record_memory([process.pid for process in paying.workers]) as held:
            ended = paying.call("submit", str(sheet))
        worked_s = sum(_cpu_s(process.pid) for process in paying.workers) - sum(before)
        server_us = 1e6 * (_cpu_s(_postmaster(server)) - server_s) / rows
        bytes_a_row = (_database_size(server, database) - bytes_before) / rows
    server.drop_database(database)
    sample = Sample(rows / ended.seconds, 1e6 * (ended.cpu_s + worked_s) / rows)
    return Shared(sample, server_us, bytes_a_row, ended.peak_mib, tuple((at_s, now) for at_s, now, _ in held))


@contextmanager
def _start_worker(machine: Office, command: Sequence[str], number: int) -> Iterator["subprocess.Popen[bytes]"]:
    environment = _host_environment(machine, f"host-{number}")
    with subprocess.Popen(
        [*command, "work"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _wait_for_workers(command: Sequence[str], machine: Office, workers: int) -> None:
    """Wait until this number of workers is alive. Raises `RuntimeError` if they do not start."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while True:
        completed = subprocess.run(
            command, cwd=ROOT, env=_host_environment(machine, "desk"), capture_output=True, text=True, check=False
        )
        if completed.stdout.count('"is_alive": true') >= workers:
            return
        if time.monotonic() > give_up_s:
            raise RuntimeError("the workers did not start")
        time.sleep(0.2)


def _host_environment(machine: Office, name: str) -> dict[str, str]:
    """Return the environment of a host with its own state directory."""
    return {**machine.environment(), "XDG_STATE_HOME": str(machine.directory / name)}


def _cpu_s(session: int) -> float:
    """Return the processor time of all processes of a session, and of their children that have ended."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session:
            total += sum(int(ticks) for ticks in fields[11:15])
    return total / _TICKS_S


def _postmaster(server: PostgresServer) -> int:
    """Return the server's first process, which has its own session."""
    return int((server.home / "data/postmaster.pid").read_text(encoding="ascii").split("\n")[0])


def _database_size(server: PostgresServer, database: str) -> int:
    with closing(psycopg.connect(server.url(database), autocommit=True)) as connection:
        result = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return int(result[0]) if result is not None else 0
