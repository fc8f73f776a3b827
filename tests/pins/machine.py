"""A machine for pins: a home, a configuration and the command line, with varying output masked."""

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
from tests.support.program import ROOT, sandbox_toml

JOURNALS = Path(__file__).parent / "journals"

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC)?")
_CHANGING = ("gateway_reference", "customer_url", "first_sent_at", "updated_at")
"""The columns of a reconciliation that vary with time or chance."""


class Machine:
    """A separate home. Times from `now` on are masked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M")
        self.former = ""

    def configure(self, **changes: str) -> None:
        """Write the sandbox's configuration, with whole lines replaced by key."""
        key = self.home / "key.pem"
        key.write_bytes((ROOT / "tests/gateway/keys/throw-away.pem").read_bytes())
        key.chmod(0o600)
        changes = {"concurrency": "1\nstop_after_in_doubt = 0\nquarantine_h = 0", **changes}
        (self.home / "paygw.toml").write_text(f"{sandbox_toml(**changes)}\n", encoding="utf-8")

    def run(self, *words: str | Path, config: bool = True) -> str:
        config_options = ["--config", str(self.home / "paygw.toml")] if config else []
        environ = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state")}
        environ |= {"NO_COLOR": "1", "COLUMNS": "120"}
        result = CliRunner().invoke(cli, [*config_options, *map(str, words)], env=environ, prog_name="paygw-batch")
        typed = " ".join(self.masked(str(word)) for word in words)
        return self.masked(
            f"$ paygw-batch {typed}\n[exit {result.exit_code}]\n{_format_json(result.stdout)}[stderr]\n{result.stderr}"
        )

    def masked(self, text: str) -> str:
        """Mask the parts of a text that vary: this home, today's times, and durations."""
        text = text.replace(str(self.home), "HOME").replace(str(ROOT), "ROOT")
        if self.former:
            text = text.replace(self.former, "FORMER")
        text = _TIME.sub(lambda found: found[0] if found[0].replace(" ", "T") < self.now else "NOW", text)
        return re.sub(r'"(seconds|age_s)": [0-9.e-]+', r'"\1": 0', text)

    def table(self, path: Path) -> str:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = list(csv.DictReader(stream))
        kept = [{name: text for name, text in line.items() if name not in _CHANGING} for line in lines]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)

    def unpack(self, name: str) -> Sequence[str]:
        """Restore a recorded journal with its related files. Return the ids of its batches."""
        with tarfile.open(JOURNALS / f"{name}.tar.gz") as tar:
            for member in tar:
                _extract_file(tar, member, self.home)
        for path in self.home.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self.former = (self.home / "home.txt").read_text().strip()
        return query_rows(self.home / "journal.sqlite3", "SELECT batch FROM batch ORDER BY number")


def _extract_file(tar: tarfile.TarFile, member: tarfile.TarInfo, home: Path) -> None:
    """Write a recorded regular file, and refuse others. The filters of `extractall` exist only since 3.11.4."""
    path = (home / member.name).resolve()
    content = tar.extractfile(member) if member.isreg() else None
    if content is None or not path.is_relative_to(home):
        raise AssertionError(f"{member.name} is no file of a recording")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())


def query_rows(journal: Path, query: str) -> Sequence[str]:
    """Return the rows of a query as text, read with another SQLite library than the program's."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
        return ["|".join("" if cell is None else str(cell) for cell in line) for line in connection.execute(query)]


@contextmanager
def machine(**changes: str) -> Iterator[Machine]:
    with TemporaryDirectory(prefix="paygw-pins-") as directory:
        home = Path(directory).resolve()
        new_machine = Machine(home)
        new_machine.configure(**changes)
        yield new_machine


def workbook_parts(path: Path) -> str:
    """Return the parts of a workbook without the times of writing."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as workbook:
        names = [name for name in sorted(workbook.namelist()) if name != "docProps/core.xml"]
        return "".join(f"== {name}\n{workbook.read(name).decode('utf-8', 'replace')}\n" for name in names)


def _format_json(stdout: str) -> str:
    """Return a JSON object with one key per line, and other text unchanged."""
    try:
        found: Any = json.loads(stdout)
    except ValueError:
        return stdout
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
