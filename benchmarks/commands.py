"""Runs the whole program as a person or a cron job does, with each command in its own process."""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.null_gateway import NullGateway
from paygw_batch.countries.data import config_dir

ROOT = Path(__file__).resolve().parents[1]
WORKPLACE = ROOT / "sandbox-state"
"""The default working folder of a benchmark. git ignores it, with the leftovers of killed runs."""
JOURNAL = "journal.sqlite3"
WATCHED_EVERY_S = 0.05
_MEMORY = ("VmRSS", "VmHWM")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: wall time, processor time, and peak memory.

    `held` is its memory over time: seconds since its start, and MiB. It is empty if the system does not report memory.
    """

    seconds: float
    cpu_s: float
    peak_mib: float
    held: tuple[tuple[float, float], ...] = ()

    def sample(self) -> Sample:
        """Return the result as a measurement in seconds."""
        return Sample(self.seconds, 1e6 * self.cpu_s)


@dataclass(frozen=True, slots=True)
class Office:
    """A finance officer's directory: a key, a state directory, sheets, a journal, and the gateway."""

    directory: Path
    key: Path
    gateway: NullGateway
    connections: str = "reuse"
    concurrency: int = 64

    @property
    def journal(self) -> Path:
        """The path of the journal."""
        return self.directory / JOURNAL

    def make_sheet(self, rows: int, *, prefix: str = "", bad_share: float = 0.0) -> Path:
        """Write a sheet of `rows` rows whose order ids begin with `prefix`, and return its path."""
        sheet = self.directory / f"payroll-{prefix}{rows}.csv"
        command = [sys.executable, str(ROOT / "samples" / "make_sheet.py"), "--rows", str(rows), "--out", str(sheet)]
        subprocess.run([*command, "--prefix", prefix, "--bad-share", str(bad_share)], check=True)
        return sheet

    def call(self, *words: str) -> CommandResult:
        """Run one command of the program. Raises `RuntimeError` with the end of its output unless it exits with 0."""
        before = ["--config", str(config_dir() / "sandbox.toml"), "--journal", str(self.journal), "--quiet"]
        return run_timed([sys.executable, "-m", "paygw_batch", *before, *words], self.environment())

    def journal_bytes(self) -> int:
        """Return the size of the journal, including its log."""
        return sum(file.stat().st_size for file in self.directory.glob(f"{JOURNAL}*"))

    def environment(self) -> dict[str, str]:
        """Return the environment of its commands."""
        return {
            "PATH": os.environ["PATH"],
            "XDG_STATE_HOME": str(self.directory / "state"),
            "PAYGW_BASE_URL": self.gateway.base_url,
            "PAYGW_PRIVATE_KEY": str(self.key),
            "PAYGW_CONCURRENCY": str(self.concurrency),
            "PAYGW_CONNECTIONS": self.connections,
            "PAYGW_MAX_ROWS": "10000000",
            "PAYGW_MAX_SHEET_MIB": "4096",
        }


@contextmanager
def office(parent: Path, key: Path, gateway: NullGateway) -> Iterator[Office]:
    """Yield an office with a new journal, and remove it afterwards."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        result = Office(Path(name), key, gateway)
        result.call("journal", "new")
        yield result


def run_timed(command: Sequence[str], environment: dict[str, str] | None = None) -> CommandResult:
    """Run a command from the root of the checkout, and return its result. Raises `RuntimeError` if it fails."""
    with tempfile.TemporaryFile() as output:
        started_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        with record_memory([process.pid]) as held:
            _, status, usage = os.wait4(process.pid, 0)
        elapsed_s = time.perf_counter() - started_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            raise RuntimeError(f"{command[-3:]} ended with {process.returncode}: {output.read()[-2000:].decode()}")
    cpu_s = usage.ru_utime + usage.ru_stime
    peak_mib = max((peak for _, _, peak in held), default=usage.ru_maxrss / 1024)
    return CommandResult(elapsed_s, cpu_s, peak_mib, tuple((at_s, now) for at_s, now, _ in held))


def memory_mib(process: int) -> tuple[float, float] | None:
    """Return a process's current and peak memory, or None if the system does not report it.

    `ru_maxrss` is not used, because a child's value starts with the memory of its parent.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if name in _MEMORY}
    return (kib["VmRSS"] / 1024, kib["VmHWM"] / 1024) if len(kib) == len(_MEMORY) else None


def own_peak_mib() -> float:
    """Return the peak memory of this process."""
    memory = memory_mib(os.getpid())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 if memory is None else memory[1]


@contextmanager
def record_memory(processes: Sequence[int]) -> Iterator[list[tuple[float, float, float]]]:
    """Record the memory of the largest of some processes, and of any process, until the block ends.

    Each record begins with the seconds since the start.
    """
    noted: list[tuple[float, float, float]] = []
    ended = threading.Event()
    started_s = time.perf_counter()

    def watch() -> None:
        while not ended.wait(WATCHED_EVERY_S):
            result = [memory for process in processes if (memory := memory_mib(process)) is not None]
            if result:
                now, most = zip(*result, strict=True)
                noted.append((time.perf_counter() - started_s, max(now), max(most)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield noted
    finally:
        ended.set()
        thread.join()
