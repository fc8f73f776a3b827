"""A machine for a pin: a home, a configuration, the command line. What differs each time is masked in what it said."""

import csv
import io
import json
import re
import sqlite3
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from click.testing import CliRunner

from tests.pins.entry import cli

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"
JOURNALS = Path(__file__).parent / "journals"

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC)?")
_CHANGING = ("gateway_reference", "customer_url", "first_sent_at", "updated_at")
"""Columns of a reconciliation that say when and by whose chance."""


class Machine:
    """A home of its own. `now`: times from then on are masked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M")
        self.former = ""

    def configure(self, *, extra: str = "", **changes: str) -> None:
        """Write the sandbox's configuration, a row at a time, with whole lines changed by key."""
        key = self.home / "key.pem"
        key.write_bytes((ROOT / "tests/gateway/keys/throw-away.pem").read_bytes())
        key.chmod(0o600)
        changes = {"concurrency": "1\nstop_after_in_doubt = 0\nquarantine_h = 0", **changes}
        lines = []
        for line in (ROOT / "config/sandbox.toml").read_text(encoding="utf-8").splitlines():
            name = line.partition("=")[0].strip()
            lines.append(f"{name} = {changes.pop(name)}" if name in changes else line)
        text = "\n".join(lines).replace('"../sandbox-state/journal.sqlite3"', '"journal.sqlite3"')
        (self.home / "paygw.toml").write_text(f"{text}\n{extra}", encoding="utf-8")

    def run(self, *words: str | Path, config: bool = True) -> str:
        """Run a command; return its exit code and all that it said."""
        given = ["--config", str(self.home / "paygw.toml")] if config else []
        environ = {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }
        result = CliRunner().invoke(cli, [*given, *map(str, words)], env=environ, prog_name="paygw-batch")
        shown = " ".join(self.masked(str(word)) for word in words)
        return self.masked(
            f"$ paygw-batch {shown}\n[exit {result.exit_code}]\n{_readable(result.stdout)}[stderr]\n{result.stderr}"
        )

    def masked(self, text: str) -> str:
        """Return a text without what differs each time: this home, times of today, and how long it took."""
        text = text.replace(str(self.home), "HOME").replace(str(ROOT), "ROOT")
        if self.former:
            text = text.replace(self.former, "FORMER")
        text = _TIME.sub(lambda found: found[0] if found[0].replace(" ", "T") < self.now else "NOW", text)
        return re.sub(r'"(seconds|age_s)": [0-9.e-]+', r'"\1": 0', text)

    def table(self, path: Path) -> str:
        """Return a reconciliation file without the columns that differ each time."""
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = list(csv.DictReader(stream))
        return "".join(
            json.dumps({k: v for k, v in line.items() if k not in _CHANGING}, ensure_ascii=False) + "\n"
            for line in lines
        )

    def unpack(self, name: str) -> Sequence[str]:
        """Put a recorded journal here, with what stood beside it; return the ids of its batches."""
        with tarfile.open(JOURNALS / f"{name}.tar.gz") as tar:
            for member in tar:
                _unpack(tar, member, self.home)
        for path in self.home.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self.former = (self.home / "home.txt").read_text().strip()
        return rows_of(self.home / "journal.sqlite3", "SELECT batch FROM batch ORDER BY number")


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, home: Path) -> None:
    """Write a recorded file; refuse all else. The filters of `extractall` came with 3.11.4."""
    path = (home / member.name).resolve()
    content = tar.extractfile(member) if member.isreg() else None
    if content is None or not path.is_relative_to(home):
        raise AssertionError(f"{member.name} is no file of a recording")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())


def rows_of(journal: Path, query: str) -> Sequence[str]:
    """Return the lines of a query, each as one text, read by another library than the program's own."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
        return ["|".join("" if cell is None else str(cell) for cell in line) for line in connection.execute(query)]


@contextmanager
def machine(**changes: str) -> Iterator[Machine]:
    """Yield a machine that is gone afterwards."""
    with TemporaryDirectory(prefix="paygw-pins-") as directory:
        home = Path(directory).resolve()
        made = Machine(home)
        made.configure(**changes)
        yield made


def members_of(path: Path) -> str:
    """Return what a workbook says, part by part, without the times at which it was written."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as workbook:
        names = [name for name in sorted(workbook.namelist()) if name != "docProps/core.xml"]
        return "".join(f"== {name}\n{workbook.read(name).decode('utf-8', 'replace')}\n" for name in names)


def _readable(stdout: str) -> str:
    """Return a JSON object a line a key; any other text as it is."""
    try:
        found: Any = json.loads(stdout)
    except ValueError:
        return stdout
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
