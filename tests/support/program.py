"""The program as a user runs it: with arguments, in its own home directory, and with JSON output."""

import csv
import json
import os
import signal
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from paygw_batch.cli.main import cli
from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"

HEADING = "country,client_orderid,amount,currency,account_name,account_number,phone"
KENYAN = "KE,{id},{amount},KES,Jane Wanjiku,254712345{n:03},+254712345{n:03}"


def kenyan_rows(count: int, *, amount: str = "1500.50", prefix: str = "PAY") -> list[str]:
    return [KENYAN.format(id=f"{prefix}-{n}", amount=amount, n=n) for n in range(1, count + 1)]


def sandbox_toml(journal: str = "journal.sqlite3", **changes: str) -> str:
    """Return the shipped sandbox configuration with another journal, and with whole lines changed by key."""
    lines = []
    for line in (ROOT / "config" / "sandbox.toml").read_text().splitlines():
        key = line.partition("=")[0].strip()
        lines.append(f"{key} = {changes.pop(key)}" if key in changes else line)
    text = "\n".join(lines).replace('"../sandbox-state/journal.sqlite3"', f'"{journal}"')
    assert not changes, f"the sandbox configuration has no {changes}"
    tomllib.loads(text)
    return text


@dataclass
class Program:
    """One user's machine: a directory, a configuration, and ways to run the program."""

    home: Path
    config: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), "NO_COLOR": "1"}

    @property
    def journal(self) -> Path:
        return self.home / "journal.sqlite3"

    def sheet(self, rows: list[str], name: str = "payroll.csv", heading: str = HEADING) -> Path:
        path = self.home / name
        path.write_text("\n".join([heading, *rows]) + "\n")
        return path

    def run(self, *arguments: str | Path, config: bool = True, **environ: str) -> Result:
        """Run in this process, and return the exit code, standard output and standard error."""
        given = [str(argument) for argument in arguments]
        if config:
            given = ["--config", str(self.config), *given]
        return CliRunner().invoke(cli, given, env={**self.environ, **environ}, prog_name="paygw-batch")

    def json(self, *arguments: str | Path, **environ: str) -> dict[str, Any]:
        """Run with --json, and return the object on standard output."""
        result = self.run("--json", *arguments, config=True, **environ)
        summary: dict[str, Any] = json.loads(result.stdout)
        assert summary["exit_code"] == result.exit_code, result.stderr
        return summary

    def states(self) -> dict[str, int]:
        """Return the number of rows of `payroll.csv` in each state."""
        found: dict[str, int] = self.json("status", self.home / "payroll.csv")["states"]
        return found

    def make_journal(self, **environ: str) -> None:
        """Create the journal of a real endpoint, as its user does once. The sandbox creates its own."""
        created = self.run("journal", "new", config=True, **environ)
        assert created.exit_code == 0, created.stderr

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        words = ["--config", self.config, *arguments]
        return forked.start(words, {**os.environ, **self.environ}, self.home, subprocess.PIPE, subprocess.PIPE)

    def record(self) -> list[dict[str, str]]:
        """Return the orders that the sandbox accepted, which tests compare with the journal."""
        path = self.home / "sandbox-record.csv"
        return read_csv(path) if path.exists() else []


def read_csv(path: Path | str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
