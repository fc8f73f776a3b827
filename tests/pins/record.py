"""Record a journal with the program of this checkout: `python -m tests.pins.record NAME`.

Made against the built-in gateway: a batch with rows in every state, people's decisions about them, a corrected sheet, a
collection, a run that was killed while rows were in flight, and notifications that wait. Written to `journals/`.
"""

import csv
import gzip
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from contextlib import closing
from pathlib import Path

from tests.pins.machine import JOURNALS
from tests.support.patience import wait_until
from tests.support.ports import free_port, wait_for_server
from tests.support.program import HEADING, KENYAN, ROOT, sandbox_toml

AMOUNTS = (
    ["1500.50"] * 8 + ["9001.00"] * 3 + ["9002.10"] * 3 + ["9006"] * 3 + ["9007.25"] * 2 + ["9010"] * 2 + ["700"] * 9
)
"""One row each: config/sandbox-behaviour.toml declines 9001, accepts 9002, and leaves 9006, 9007 and 9010 in doubt."""
TOKEN = "t" * 16 + "0123456789abcdefABCDEF_-"
NOTIFICATIONS = """
[notifications]
port = {port}
token_file = "token.txt"
"""
SLOW = '[default]\nstatus = "approved"\n[[rule]]\namount_whole = 8001\ndelay_s = 60\n'


class Recording:
    """A home in which the program runs, one hour later with each command."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.journal = home / "journal.sqlite3"
        self._now_s = 1_767_600_000  # the start of the recorded week: 2026-01-05, 08:00 UTC
        (home / "token.txt").write_text(TOKEN + "\n")
        (home / "token.txt").chmod(0o600)
        self.configure()

    def configure(self, more: str = "") -> None:
        text = sandbox_toml(concurrency="1").replace("/paygw/callback", "/paygw/{token}")
        text = text.replace("[submission]", "[submission]\nquarantine_h = 0\nstop_after_in_doubt = 0")
        (self.home / "paygw.toml").write_text(text + more + NOTIFICATIONS.format(port=self.port))

    def start(self, *words: str | Path) -> "subprocess.Popen[bytes]":
        self._now_s += 3600
        clock: list[str | Path] = [sys.executable, Path(__file__).with_name("fixed_clock.py"), str(self._now_s)]
        environ = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), "NO_COLOR": "1"}
        command = [*clock, "--config", self.home / "paygw.toml", *words]
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | environ, stdout=subprocess.DEVNULL)

    def do(self, *words: str | Path, expect: int = 5) -> None:
        if (code := self.start(*words).wait()) != expect:
            raise SystemExit(f"{words}: {code}, not {expect}")

    def sheet(self, name: str, rows: list[str]) -> Path:
        (self.home / name).write_text("\n".join([HEADING, *rows]) + "\n")
        return self.home / name


def sheet_rows(amounts: list[str], prefix: str) -> list[str]:
    return [KENYAN.format(id=f"{prefix}-{n}", amount=amount, n=n) for n, amount in enumerate(amounts, 1)]


def record(recording: Recording) -> None:
    rows, home = sheet_rows(AMOUNTS, "PAY"), recording.home
    defective = "KE,PAY-91,0,KES,,254712345091,+254712345091"
    recording.do("submit", recording.sheet("payroll.csv", [*rows, defective]), "--skip-invalid")
    with closing(sqlite3.connect(recording.journal)) as connection:
        ((batch,),) = connection.execute("SELECT batch FROM batch")
    doubts = [str(2 + place) for place, amount in enumerate(AMOUNTS) if amount.startswith(("9006", "9007", "9010"))]
    for row, answer in zip(doubts, ("paid", "rejected", "not-received", "paid"), strict=False):
        words = (row, "--as", answer, "--evidence", f"their mail of Monday, row {row}", "--by", "Amina")
        recording.do("resolve", "row", batch, *words)
    with (home / "answers.csv").open("w", newline="") as stream:
        line = [f"PAY-{int(doubts[4]) - 1}", "9007.25", "KES", "approved"]
        csv.writer(stream).writerows([["order_id", "amount", "currency", "status"], line])
    recording.do("resolve", "statement", batch, home / "answers.csv", "--yes")
    recording.do("retry", batch, "--row", "10")
    corrected = [row.replace("9001.00", "1200") if "PAY-11," in row else row for row in rows]
    sheet = recording.sheet("payroll-corrected.csv", [*corrected, *sheet_rows(["321.09"] * 2, "NEW")])
    recording.do("submit", sheet, "--amend")
    recording.do("collect", shutil.copy(ROOT / "samples/collections/KE.csv", home / "customers.csv"), expect=0)
    record_kill(recording)


def record_kill(recording: Recording) -> None:
    """Start a run and a listener that cannot record its notifications, and kill both."""
    (recording.home / "slow.toml").write_text(SLOW)
    recording.configure('\n[sandbox]\nbehaviour = "slow.toml"\n')
    sheet = recording.sheet("killed.csv", sheet_rows(["650", "651", "8001", "8001"], "CUT"))
    with recording.start("submit", sheet) as run:
        wait_until(lambda: is_in_flight(recording.journal))
        with recording.start("listen") as listener:
            wait_for_server(recording.port, listener)
            for order, status, amount in (
                ("PAY-12", "approved", "9002.10"),
                ("PAY-13", "declined", "9002.10"),
                ("PAY-1", "declined", "1500.50"),
                ("NOBODY", "approved", "1"),
                ("PAY-14", "limbo", "9002.10"),
            ):
                form = f"status={status}&client_orderid={order}&amount={amount}&currency=KES"
                urllib.request.urlopen(f"http://127.0.0.1:{recording.port}/paygw/{TOKEN}", form.encode()).close()
            listener.send_signal(signal.SIGKILL)
        run.send_signal(signal.SIGKILL)
    with closing(sqlite3.connect(recording.journal)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def is_in_flight(journal: Path) -> bool:
    """Return whether one row waits for its reply while others of its batch have theirs."""
    query = """SELECT 1 FROM state s JOIN instruction i ON i.number = s.instruction
        WHERE s.state = 'in_flight' AND i.amount = '8001'"""
    with closing(sqlite3.connect(journal)) as connection:
        return connection.execute(query).fetchone() is not None


def pack_recording(home: Path, target: Path) -> None:
    """Pack the journal, its registry entry, the waiting notifications and the sheets."""
    content = io.BytesIO()
    (home / "home.txt").write_text(f"{home}\n")
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in sorted(home.rglob("*")):
            name = str(path.relative_to(home))
            is_kept = name.startswith(("journal", "known", "home", "payroll", "customers", "killed"))
            if path.is_file() and is_kept and not name.endswith((".lock", "-shm", "-wal", ".reconciliation.csv")):
                info = tarfile.TarInfo(name)
                info.size, info.mode = path.stat().st_size, 0o600
                tar.addfile(info, io.BytesIO(path.read_bytes()))
    target.write_bytes(gzip.compress(content.getvalue(), mtime=0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="paygw-recorded-") as directory:
        made = Recording(Path(directory).resolve())
        record(made)
        pack_recording(made.home, JOURNALS / f"{sys.argv[1]}.tar.gz")
