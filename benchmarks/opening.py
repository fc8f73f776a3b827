"""Measures opening a batch: the cost of each step between Enter and the first byte sent.

`python -m benchmarks.opening --rows 1000000` runs the real `submit` in separate processes. Each ends when its first
payout would be sent. No server listens, and nothing is sent.
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
from benchmarks.figures import format_figure
from benchmarks.merchant import Merchant
from benchmarks.null_gateway import NullGateway
from paygw_batch.countries.data import config_dir

NOBODY = NullGateway("nobody", "http://127.0.0.1:9", "http://localhost:9", "https://127.0.0.1:9", Path(os.devnull))
STEPS = (
    ("start", "paygw_batch.opening.given_sheet.SheetSource.validated", "before"),
    ("read and validate", "paygw_batch.opening.given_sheet.SheetSource.validated", "after"),
    ("plan", "paygw_batch.submit.submit_sheet.plan_sheet", "after"),
    ("read and judge again, insert", "paygw_batch.journal.sqlite.sqlite_journal.store_batch", "after"),
    ("spellings", "paygw_batch.journal.sqlite.sqlite_tables._add_spellings", "after"),
    ("opening fact", "paygw_batch.journal.sqlite.sqlite_journal.SqliteJournal._record", "after"),
    ("commit", "paygw_batch.journal.sqlite.sqlite_journal.SqliteJournal.open_batch", "after"),
    ("first request", "paygw_batch.gateway.http.transport.PayoutTransport.deliver", "before"),
)
"""The steps in order. Each ends when a function is entered or left, and includes work of other threads."""
BESIDE = {
    "contract": "paygw_batch.sheet.check.contract.ContractGate.require_valid",
    "pages": "paygw_batch.sheet.instructions.Pager.add_rows",
    "digest": "paygw_batch.journal.new_batch.OpeningDigests.add_instructions",
}
"""Parts of steps: the processor time of their own threads, without that of polars' threads."""


@dataclass(frozen=True, slots=True)
class OpeningCost:
    """The cost of opening: wall time, processor time of each step, and peak memory."""

    seconds: float
    cpu_s: dict[str, float]
    peaks_mib: dict[str, float]


def measure_opening(machine: Office, sheet: Path) -> OpeningCost:
    """Run `submit` until its first payout would be sent."""
    words = ["--journal", str(machine.journal), "--quiet", "submit", str(sheet)]
    started_s = time.time()
    command = [sys.executable, "-m", "benchmarks.opening", "--until-first-request", *words]
    ended = subprocess.run(command, cwd=ROOT, env=machine.environment(), capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"submit ended with {ended.returncode}: {ended.stderr[-2000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return OpeningCost(found["at_s"] - started_s, found["cpu_s"], found["peaks_mib"])


class _Steps:
    """Records the processor time at the end of each step, and ends the process at the first request."""

    def __init__(self) -> None:
        self._ends_s: dict[str, float] = {}
        self._beside_s: dict[str, float] = {}
        self._peaks_mib: dict[str, float] = {}

    def end_step(self, step: str, when: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that the step ends `before` or `after` its first call."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if when == "before":
                self._record_step(step)
            result = function(*args, **named)
            if when == "after":
                self._record_step(step)
            return result

        return call

    def sum_thread_time(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that the processor time of its thread is summed over its calls."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            started_s = time.thread_time()
            try:
                return function(*args, **named)
            finally:
                self._beside_s[name] = self._beside_s.get(name, 0.0) + time.thread_time() - started_s

        return call

    def _record_step(self, step: str) -> None:
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


def _run_until_first_request(words: Sequence[str]) -> None:
    """Run the program in this process, print the cost of each step at the first request, and exit."""
    steps = _Steps()
    for step, path, when in STEPS:
        _replace_function(path, partial(steps.end_step, step, when))
    for name, path in BESIDE.items():
        _replace_function(path, partial(steps.sum_thread_time, name))
    sys.argv = ["paygw-batch", *words]
    importlib.import_module("paygw_batch.cli.start").main()


def _replace_function(path: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function or method at a dotted path with `change(function)`."""
    owner, name = path.rsplit(".", 1)
    try:
        found = importlib.import_module(owner)
    except ModuleNotFoundError:
        module, kind = owner.rsplit(".", 1)
        found = getattr(importlib.import_module(module), kind)
    setattr(found, name, change(getattr(found, name)))


def main() -> None:
    """Print the cost of opening a batch as Markdown."""
    if sys.argv[1:2] == ["--until-first-request"]:
        _run_until_first_request(["--config", str(config_dir() / "sandbox.toml"), *sys.argv[2:]])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opening", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, default=WORKPLACE, help="on the disk to measure (default: %(default)s)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        merchant = Merchant.load_or_create(Path(name))
        sheet = Office(Path(name), merchant.key, NOBODY).make_sheet(arguments.rows)
        found = []
        for _ in range(arguments.repetitions):
            with office(Path(name), merchant.key, NOBODY) as machine:  # with an empty journal
                found.append(measure_opening(machine, sheet))
    print(format_openings(found, arguments.rows))


def format_openings(found: Sequence[OpeningCost], rows: int) -> str:
    """Return the medians of several openings in Markdown."""
    lines = [
        f"### From Enter to the first byte: {rows:,} rows",
        "",
        "| step | processor time | a row | spread | held at most so far |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    steps = {step: [item.cpu_s.get(step, 0.0) for item in found] for step in found[0].cpu_s}
    whole = [sum(cpu for step, cpu in item.cpu_s.items() if not step.startswith("of it")) for item in found]
    for step, cpu_s in {**steps, "**together**": whole}.items():
        middle = statistics.median(cpu_s)
        spread = f"{format_figure(min(cpu_s))} to {format_figure(max(cpu_s))} s"
        peaks = [item.peaks_mib[step] for item in found if step in item.peaks_mib]
        held = f"{format_figure(statistics.median(peaks))} MiB" if peaks else ""
        lines.append(
            f"| {step} | {format_figure(middle)} s | {format_figure(1e6 * middle / rows)} us | {spread} | {held} |"
        )
    seconds = [item.seconds for item in found]
    wall = f"{format_figure(min(seconds))} to {format_figure(max(seconds))} s"
    lines += ["", f"By the clock {format_figure(statistics.median(seconds))} s ({wall})."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
