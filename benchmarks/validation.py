"""Measure validation against a scan that only touches every field: `python -m benchmarks.validation`.

Validation is all that stands between a file and its instructions: reading it with every guard, the rules of each
country, order ids that stand twice, what goes onto the wire, and the batch's id. The scan is polars' own, streaming,
and adds up the length of every field: the least that reading every value can cost.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import polars as pl

from benchmarks.figures import Figure, Ratio, Sample, apart, readable, side_by_side, table
from benchmarks.plain_rows import validate_plainly
from paygw_batch.cli.main import POLARS_ALLOCATOR
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sheet.check.validate import validate_opened
from paygw_batch.sheet.pieces import each
from paygw_batch.sheet.read.sheet_file import ReadOptions, open_sheet

ROOT = Path(__file__).resolve().parents[1]
XOF_ZONE = ("BF", "CI", "SN", "GN", "BN")
PLAIN_ROWS = 1_000_000
OPTIONS = ReadOptions(max_rows=100_000_000, max_sheet_bytes=1 << 40)


def terms() -> dict[str, OperatorTerms]:
    """Return invented terms for every country that needs some."""
    own = {code: OperatorTerms(purpose=f"CODE-{code}") for code in ("KE", "TZ", "UG", "GH", "NG", "ZM", "RW", "EG")}
    return own | {code: OperatorTerms(purpose="CODE-XOF", form="account") for code in XOF_ZONE}


def timed(work: Callable[[], object]) -> Sample:
    """Return wall seconds, and processor seconds as microseconds."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - wall_s, 1e6 * (time.process_time() - cpu_s))


def scan(sheet: Path) -> Sample:
    """Touch every field of a CSV file."""
    touched = pl.scan_csv(sheet, infer_schema=False).select(pl.all().str.len_bytes().sum())
    return timed(lambda: touched.collect(engine="streaming"))


def read(sheet: Path) -> Sample:
    """Read a sheet piece by piece, with every guard."""
    return timed(lambda: all(rows for rows in each(open_sheet(sheet, OPTIONS), lambda piece: piece.frame.height)))


def validation(sheet: Path) -> Sample:
    """Read and validate a sheet."""
    rules: Rules = load_rules("payout", terms())
    return timed(lambda: validate_opened(open_sheet(sheet, OPTIONS), rules))


def plain(sheet: Path) -> Sample:
    """Hold the first rows of a sheet against the rules in a plain Python loop."""
    rules: Rules = load_rules("payout", terms())
    return timed(lambda: validate_plainly(sheet, rules, most=PLAIN_ROWS))


def peak_mib(sheet: Path) -> float:
    """Return the most memory that reading and validating a sheet held at once, the interpreter included."""
    validation(sheet)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sheet_of(directory: Path, rows: int, bad_share: float) -> Path:
    """Write a sheet of `rows` rows over all countries, unless it is there already, and return its path."""
    path = directory / f"{rows}-{bad_share}.csv"
    if path.exists():
        return path
    maker = [sys.executable, str(ROOT / "samples" / "make_sheet.py")]
    subprocess.run([*maker, "--rows", str(rows), "--bad-share", str(bad_share), "--out", str(path)], check=True)
    return path


def tell(line: str) -> None:
    """Say how far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


def speed(directory: Path, rows: int, repetitions: int) -> str:
    """Measure scan, reading and validation of the same sheets side by side, each in a process of its own."""
    good, some, half = (sheet_of(directory, rows, share) for share in (0, 0.01, 0.5))
    found = side_by_side(
        {
            "scan, 1 % bad": partial(apart, scan, some),
            "read, 1 % bad": partial(apart, read, some),
            "validation, 1 % bad": partial(apart, validation, some),
            "validation, none bad": partial(apart, validation, good),
            "validation, half bad": partial(apart, validation, half),
            f"plain Python loop, {min(rows, PLAIN_ROWS):,} rows": partial(apart, plain, some),
        },
        repetitions,
        "s",
        tell,
    )
    scanned, was_read, validated, all_good, half_bad, looped = found.values()
    more_rows = rows / min(rows, PLAIN_ROWS)
    ratios = [
        Ratio.of("read : scan", was_read, scanned, 2.0, at_most=True),
        Ratio.of("validation : scan", validated, scanned, 3.5, at_most=True),
        Ratio("the same in processor time", _cpu_ratio(validated, scanned), 3.5, at_most=True),
        Ratio.of("validation, half bad : none bad", half_bad, all_good, 1.3, at_most=True),
    ]
    faster = tuple(more_rows * loop / ours for loop, ours in zip(looped.samples, validated.samples, strict=True))
    ratios.append(Ratio("plain Python loop : validation, row for row", faster, 1.0))
    return table(f"Validation of {rows:,} rows", list(found.values()), ratios, "CSV, all countries.")


def _cpu_ratio(one: Figure, other: Figure) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(one.cpu_us, other.cpu_us, strict=True))


def memory(directory: Path, rows: int) -> str:
    """Measure what validation holds at once, and what twice the rows add."""
    peaks = [apart(peak_mib, sheet_of(directory, count, 0.01)) for count in (rows, 2 * rows)]
    more = (peaks[1] - peaks[0]) * 1e6 / rows
    lines = [f"| {count:,} | {readable(peak)} MiB |" for count, peak in zip((rows, 2 * rows), peaks, strict=True)]
    head = ["### Memory of validation", "", "| rows | peak |", "| ---: | ---: |"]
    return "\n".join([*head, *lines, "", f"A further million rows: {readable(more)} MiB.", ""])


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description="Measure validation.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sheets", type=Path, help="An existing directory to keep the sheets in, for the next time.")
    parser.add_argument("--only", choices=("speed", "memory"))
    told = parser.parse_args()
    os.environ.setdefault(
        "_RJEM_MALLOC_CONF", POLARS_ALLOCATOR
    )  # as the program does; every sample has its own process
    with ExitStack() as stack:
        directory = told.sheets or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if told.only != "memory":
            print(speed(directory, told.rows, told.repetitions))
        if told.only != "speed":
            print(memory(directory, told.rows))


if __name__ == "__main__":
    main()
