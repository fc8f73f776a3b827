"""The program as a whole, as a person or a cron job starts it: each command in a process of its own."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.null_gateway import NullGateway
from paygw_batch.countries.load import config_dir

ROOT = Path(__file__).resolve().parents[1]
JOURNAL = "journal.sqlite3"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: wall and processor seconds, and the most memory it held at once."""

    seconds: float
    cpu_s: float
    peak_mib: float

    def sample(self) -> Sample:
        """Return it as a measurement of seconds."""
        return Sample(self.seconds, 1e6 * self.cpu_s)


@dataclass(frozen=True, slots=True)
class Office:
    """A finance officer's directory: a key, a state directory of its own, sheets and a journal; and the gateway."""

    directory: Path
    key: Path
    gateway: NullGateway
    connections: str = "reuse"
    concurrency: int = 64

    @property
    def journal(self) -> Path:
        """Where its journal stands."""
        return self.directory / JOURNAL

    def make_sheet(self, rows: int) -> Path:
        """Write a sheet of `rows` rows, and return its path."""
        sheet = self.directory / f"payroll-{rows}.csv"
        maker = ROOT / "samples" / "make_sheet.py"
        subprocess.run([sys.executable, str(maker), "--rows", str(rows), "--out", str(sheet)], check=True)
        return sheet

    def call(self, *words: str) -> Ended:
        """Run one command of the program. Raises `RuntimeError`, with its last words, unless it ends with 0."""
        before = ["--config", str(config_dir() / "sandbox.toml"), "--journal", str(self.journal), "--quiet"]
        return timed([sys.executable, "-m", "paygw_batch", *before, *words], self.environment())

    def journal_bytes(self) -> int:
        """Return how much room the journal takes, its log included."""
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
        }


@contextmanager
def office(parent: Path, key: Path, gateway: NullGateway) -> Iterator[Office]:
    """Yield an office, its journal made, that is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        found = Office(Path(name), key, gateway)
        found.call("journal", "new")
        yield found


def timed(command: Sequence[str], environment: dict[str, str] | None = None) -> Ended:
    """Run a command from the checkout's top and return how it ended. Raises `RuntimeError` unless that was well."""
    with tempfile.TemporaryFile() as said:
        started_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        elapsed_s = time.perf_counter() - started_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            raise RuntimeError(f"{command[-3:]} ended with {process.returncode}: {said.read()[-2000:].decode()}")
    return Ended(elapsed_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
