"""Opening a batch: what passes between Enter and the first byte sent, and what each step of it costs.

`python -m benchmarks.opening --rows 1000000` runs the shipping `submit` in processes of their own, each of which ends
where its first payout would leave: nothing listens, and nothing is sent.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, WORKPLACE, Office, office, own_peak_mib
from benchmarks.figures import readable
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import NullGateway
from paygw_batch.countries.data import config_dir

NOBODY = NullGateway("nobody", "http://127.0.0.1:9", "http://localhost:9", "https://127.0.0.1:9", Path(os.devnull))
STEPS = (
    ("start", "paygw_batch.opening.given_sheet.GivenSheet.validated", "before"),
    ("read and validate", "paygw_batch.opening.given_sheet.GivenSheet.validated", "after"),
    ("plan", "paygw_batch.submit.submit_sheet.plan_sheet", "after"),
    ("read and judge again, insert", "paygw_batch.journal.sqlite.sqlite_journal.store_batch", "after"),
    ("spellings", "paygw_batch.journal.sqlite.sqlite_journal.add_spellings", "after"),
    ("opening fact", "paygw_batch.journal.sqlite.sqlite_journal.SqliteJournal._record", "after"),
    ("commit", "paygw_batch.journal.sqlite.sqlite_journal.SqliteJournal.open_batch", "after"),
    ("first request", "paygw_batch.gateway.http.transport.PayoutTransport.deliver", "before"),
)
"""The steps in their order: each ends where a function is entered or left. Work beside it is counted in it."""
BESIDE = {
    "contract": "paygw_batch.sheet.check.contract.ContractGate.hold",
    "pages": "paygw_batch.sheet.instructions.Pager.take",
    "digest": "paygw_batch.journal.new_batch.OpeningDigests.instructions",
}
"""Parts of steps: the processor time of the threads that do them, without that of polars beside them."""


@dataclass(frozen=True, slots=True)
class Opened:
    """How long opening took: wall seconds, processor seconds of each step, and the most memory held by its end."""

    seconds: float
    cpu_s: dict[str, float]
    peaks_mib: dict[str, float]


def opened(place: Office, sheet: Path) -> Opened:
    """Run `submit` until its first payout would leave."""
    words = ["--journal", str(place.journal), "--quiet", "submit", str(sheet)]
    started_s = time.time()
    command = [sys.executable, "-m", "benchmarks.opening", "--until-first-request", *words]
    ended = subprocess.run(command, cwd=ROOT, env=place.environment(), capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"submit ended with {ended.returncode}: {ended.stderr[-2000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return Opened(found["at_s"] - started_s, found["cpu_s"], found["peaks_mib"])


class _Steps:
    """Notes the processor time at which each step ends, and ends the process at the first request."""

    def __init__(self) -> None:
        self._ends_s: dict[str, float] = {}
        self._beside_s: dict[str, float] = {}
        self._peaks_mib: dict[str, float] = {}

    def ending(self, step: str, when: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function; the step ends `before` or `after` its first call."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if when == "before":
                self._end(step)
            result = function(*args, **named)
            if when == "after":
                self._end(step)
            return result

        return call

    def beside(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function; the processor time of its thread is added up over its calls."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            started_s = time.thread_time()
            try:
                return function(*args, **named)
            finally:
                self._beside_s[name] = self._beside_s.get(name, 0.0) + time.thread_time() - started_s

        return call

    def _end(self, step: str) -> None:
        self._ends_s.setdefault(step, time.process_time())
        self._peaks_mib.setdefault(step, own_peak_mib())
        if step == STEPS[-1][0]:
            steps_s, before_s = {}, 0.0
            for name, at_s in self._ends_s.items():
                steps_s[name], before_s = at_s - before_s, at_s
            beside_s = {f"of it in its thread: {name}": took_s for name, took_s in self._beside_s.items()}
            found = {"at_s": time.time(), "cpu_s": {**steps_s, **beside_s}, "peaks_mib": self._peaks_mib}
            os.write(1, json.dumps(found).encode() + b"\n")
            os._exit(0)


def _until_first_request(words: Sequence[str]) -> None:
    """Run the program in this process, print what each step took at the first request, and end at once."""
    steps = _Steps()
    for step, path, when in STEPS:
        _replace(path, partial(steps.ending, step, when))
    for name, path in BESIDE.items():
        _replace(path, partial(steps.beside, name))
    sys.argv = ["paygw-batch", *words]
    importlib.import_module("paygw_batch.cli.start").main()


def _replace(path: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `change(function)` in the place of the function, or method, at a dotted path."""
    owner, name = path.rsplit(".", 1)
    try:
        found = importlib.import_module(owner)
    except ModuleNotFoundError:
        module, kind = owner.rsplit(".", 1)
        found = getattr(importlib.import_module(module), kind)
    setattr(found, name, change(getattr(found, name)))


def main() -> None:
    """Print what opening a batch takes, as Markdown."""
    if sys.argv[1:2] == ["--until-first-request"]:
        _until_first_request(["--config", str(config_dir() / "sandbox.toml"), *sys.argv[2:]])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opening", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, default=WORKPLACE, help="on the disk to measure (default: %(default)s)"
    )
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=told.directory) as name:
        merchant = Merchant.settled_in(Path(name))
        sheet = Office(Path(name), merchant.key, NOBODY).make_sheet(told.rows)
        found = []
        for _ in range(told.repetitions):
            with office(Path(name), merchant.key, NOBODY) as place:  # its journal begins empty
                found.append(opened(place, sheet))
    print(table_of(found, told.rows))


def table_of(found: Sequence[Opened], rows: int) -> str:
    """Return the medians of some openings in Markdown."""
    lines = [
        f"### From Enter to the first byte: {rows:,} rows",
        "",
        "| step | processor time | a row | spread | held at most so far |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    steps = {step: [one.cpu_s.get(step, 0.0) for one in found] for step in found[0].cpu_s}
    whole = [sum(cpu for step, cpu in one.cpu_s.items() if not step.startswith("of it")) for one in found]
    for step, cpu_s in {**steps, "**together**": whole}.items():
        middle = statistics.median(cpu_s)
        spread = f"{readable(min(cpu_s))} to {readable(max(cpu_s))} s"
        peaks = [one.peaks_mib[step] for one in found if step in one.peaks_mib]
        held = f"{readable(statistics.median(peaks))} MiB" if peaks else ""
        lines.append(f"| {step} | {readable(middle)} s | {readable(1e6 * middle / rows)} us | {spread} | {held} |")
    seconds = [one.seconds for one in found]
    wall = f"{readable(min(seconds))} to {readable(max(seconds))} s"
    lines += ["", f"By the clock {readable(statistics.median(seconds))} s ({wall})."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
