"""Record a journal with the program of an older commit: `python -m tests.pins.record CHECKOUT NAME`.

CHECKOUT is a directory with that commit (`git worktree add`, or `git archive`), NAME what the recording is called. Made
against the built-in gateway: a batch with rows in every state, people's decisions about them, a corrected sheet, a
collection, a run that was killed while rows were in flight, and notifications that wait. Written to `journals/`.
"""

import csv
import gzip
import io
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from contextlib import closing
from pathlib import Path

from tests.support.patience import wait_until
from tests.support.ports import free_port, wait_for_server

JOURNALS = Path(__file__).parent / "journals"
CLOCK = Path(__file__).with_name("fixed_clock.py")

HEADING = "country,client_orderid,amount,currency,account_name,account_number,phone"
AMOUNTS = (
    ["1500.50"] * 8 + ["9001.00"] * 3 + ["9002.10"] * 3 + ["9006"] * 3 + ["9007.25"] * 2 + ["9010"] * 2 + ["700"] * 9
)
"""One row each. 9001 is declined, 9002 accepted, and 9006, 9007 and 9010 are in doubt.

Config/sandbox-behaviour.toml.
"""
TOKEN = "t" * 16 + "0123456789abcdefABCDEF_-"
NOTIFICATIONS = """
[notifications]
port = {port}
token_file = "token.txt"
"""
BEHAVIOUR = """
[default]
status = "approved"

[[rule]]
amount_whole = 8001
delay_s = 60
"""


class Recording:
    """A home in which the program of CHECKOUT runs, one hour later with each command."""

    def __init__(self, checkout: Path, home: Path) -> None:
        self.checkout = checkout
        self.home = home
        self.now_s = 1_767_600_000  # the start of the recorded week: 2026-01-05, 08:00 UTC

    def arguments(self, *words: str) -> list[str]:
        self.now_s += 3600
        return [sys.executable, str(CLOCK), str(self.now_s), "--config", str(self.home / "paygw.toml"), *words]

    def environ(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), "NO_COLOR": "1"}

    def do(self, *words: str, expect: int) -> None:
        result = subprocess.run(
            self.arguments(*words), cwd=self.checkout, env=self.environ(), capture_output=True, text=True, check=False
        )
        print(words[0], result.returncode)  # noqa: T201 (a script)
        if result.returncode != expect:
            raise SystemExit(f"{words}: {result.returncode}, not {expect}\n{result.stdout}{result.stderr}")

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command that this recording will kill."""
        return subprocess.Popen(
            self.arguments(*words), cwd=self.checkout, env=self.environ(), stderr=subprocess.DEVNULL
        )

    def has(self, command: str) -> bool:
        places = (self.checkout / "paygw_batch" / "cli", self.checkout / "paygw_batch" / "cli" / "commands")
        return any((place / f"{command}.py").exists() for place in places)

    def sheet(self, name: str, rows: list[str], heading: str = HEADING) -> str:
        path = self.home / name
        path.write_text("\n".join([heading, *rows]) + "\n")
        return str(path)

    def configure(self) -> int:
        """Write the configuration, and return the listener's port."""
        port = free_port()
        text = (self.checkout / "config/sandbox.toml").read_text()
        text = text.replace('"../sandbox-state/journal.sqlite3"', '"journal.sqlite3"')
        text = text.replace("[submission]", "[submission]\nquarantine_h = 0\nstop_after_in_doubt = 0")
        text = text.replace("concurrency = 16", "concurrency = 1")
        text += '\n[sandbox]\nbehaviour = "slow.toml"\n' if (self.home / "slow.toml").exists() else ""
        if self.has("listen"):
            (self.home / "token.txt").write_text(TOKEN + "\n")
            (self.home / "token.txt").chmod(0o600)
            text = text.replace("https://merchant.example/paygw/callback", "https://merchant.example/paygw/{token}")
            text += NOTIFICATIONS.format(port=port)
        (self.home / "paygw.toml").write_text(text)
        return port

    def batch_of(self, sheet: str) -> str:
        with closing(sqlite3.connect(self.home / "journal.sqlite3")) as connection:
            query = "SELECT batch FROM batch WHERE sheet_name = ? ORDER BY number DESC"
            (batch,) = connection.execute(query, (sheet,)).fetchone()
        return str(batch)


def sheet_rows(amounts: list[str], prefix: str) -> list[str]:
    return [
        f"KE,{prefix}-{n},{amount},KES,Jane Wanjiku,254712345{n:03},+254712345{n:03}"
        for n, amount in enumerate(amounts, 1)
    ]


def record(recording: Recording) -> None:
    recording.configure()
    rows = sheet_rows(AMOUNTS, "PAY")
    defective = ["KE,PAY-90,1,00.5,KES,Jane,12,+1", "KE,PAY-91,0,KES,,254712345091,+254712345091"]
    sheet = recording.sheet("payroll.csv", rows + defective[1:])
    recording.do("submit", sheet, "--skip-invalid", expect=5)
    batch = recording.batch_of("payroll.csv")
    doubts = [str(2 + place) for place, amount in enumerate(AMOUNTS) if amount.startswith(("9006", "9007", "9010"))]
    for row, answer in zip(doubts, ("paid", "rejected", "not-received", "paid"), strict=False):
        words = (row, "--as", answer, "--evidence", f"their mail of Monday, row {row}", "--by", "Amina")
        recording.do("resolve", "row", batch, *words, expect=5)
    with (recording.home / "answers.csv").open("w", newline="") as stream:
        line = [f"PAY-{int(doubts[4]) - 1}", "9007.25", "KES", "approved"]
        csv.writer(stream).writerows([["order_id", "amount", "currency", "status"], line])
    recording.do("resolve", "statement", batch, str(recording.home / "answers.csv"), "--yes", expect=5)
    recording.do("retry", batch, "--row", "10", expect=5)
    corrected = [row.replace("9001.00", "1200") if "PAY-11," in row else row for row in rows]
    sheet = recording.sheet("payroll-corrected.csv", [*corrected, *sheet_rows(["321.09"] * 2, "NEW")])
    recording.do("submit", sheet, "--amend", expect=5)
    if recording.has("collect"):
        (recording.home / "customers.csv").write_bytes((recording.checkout / "samples/collections/KE.csv").read_bytes())
        recording.do("collect", str(recording.home / "customers.csv"), expect=0)
    record_kill(recording)


def record_kill(recording: Recording) -> None:
    """Start a run and a listener that cannot record its notifications, and kill both."""
    (recording.home / "slow.toml").write_text(BEHAVIOUR)
    port = recording.configure()
    sheet = recording.sheet("killed.csv", sheet_rows(["650", "651", "8001", "8001"], "CUT"))
    with recording.start("submit", sheet) as run:
        wait_until(lambda: is_in_flight(recording.home / "journal.sqlite3"))
        if recording.has("listen"):
            with recording.start("listen") as listener:
                wait_for_server(port, listener)
                for order, status, amount in (
                    ("PAY-12", "approved", "9002.10"),
                    ("PAY-13", "declined", "9002.10"),
                    ("PAY-1", "declined", "1500.50"),
                    ("NOBODY", "approved", "1"),
                    ("PAY-14", "limbo", "9002.10"),
                ):
                    notify(port, f"status={status}&client_orderid={order}&amount={amount}&currency=KES")
                listener.send_signal(signal.SIGKILL)
        run.send_signal(signal.SIGKILL)
    with closing(sqlite3.connect(recording.home / "journal.sqlite3")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def is_in_flight(journal: Path) -> bool:
    """Return whether one row waits for its reply while others of its batch have theirs."""
    with closing(sqlite3.connect(journal)) as connection:
        query = """SELECT 1 FROM state s JOIN instruction i ON i.number = s.instruction
            WHERE s.state = 'in_flight' AND i.amount = '8001'"""
        return connection.execute(query).fetchone() is not None


def notify(port: int, form: str) -> None:
    url = f"http://127.0.0.1:{port}/paygw/{TOKEN}"
    with urllib.request.urlopen(urllib.request.Request(url, form.encode())) as reply:
        print("notified", reply.status)  # noqa: T201 (a script)


def pack_recording(home: Path, target: Path) -> None:
    """Pack the journal, its registry entry, the waiting notifications and the sheets."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        (home / "home.txt").write_text(f"{home}\n")
        for path in sorted(home.rglob("*")):
            name = str(path.relative_to(home))
            if path.is_file() and name.startswith(("journal", "known", "home", "payroll", "customers", "killed")):
                if name.endswith((".lock", "-shm", "-wal", ".reconciliation.csv")):
                    continue
                info = tarfile.TarInfo(name)
                info.size, info.mode = path.stat().st_size, 0o600
                tar.addfile(info, io.BytesIO(path.read_bytes()))
    target.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def main() -> None:
    checkout, name = Path(sys.argv[1]).absolute(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="paygw-recorded-") as directory:
        home = Path(directory).resolve()
        recording = Recording(checkout, home)
        record(recording)
        for path in sorted(home.rglob("*")):
            print(path.relative_to(home), path.stat().st_size)  # noqa: T201 (a script)
        JOURNALS.mkdir(exist_ok=True)
        pack_recording(home, JOURNALS / f"{name}.tar.gz")


if __name__ == "__main__":
    main()
