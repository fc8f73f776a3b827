"""Compares validation with a scan that only reads every field, for each kind of sheet.

Validation is everything between a file and its batch: reading it safely, the rules of each country, repeated order ids
and payees, totals, and the batch's id. The scan is polars' own, streaming, and adds up the length of every field, which
is the minimum cost of reading every value. Ratios are of processor time, because other work on the machine affects it
least.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl

from benchmarks.commands import own_peak_mib
from benchmarks.figures import Figure, Sample, run_isolated
from benchmarks.plain_rows import validate_in_loop
from benchmarks.sheets import KINDS, sheet_of_kind
from paygw_batch.cli.main import POLARS_ALLOCATOR
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet

XOF_ZONE = ("BF", "CI", "SN", "GN", "BN")
PLAIN_ROWS = 1_000_000
OPTIONS = ReadOptions(max_rows=100_000_000, max_sheet_bytes=1 << 40)


def invented_terms() -> dict[str, OperatorTerms]:
    """Return invented terms for every country that needs some."""
    own = {code: OperatorTerms(purpose=f"CODE-{code}") for code in ("KE", "TZ", "UG", "GH", "NG", "ZM", "RW", "EG")}
    return own | {code: OperatorTerms(purpose="CODE-XOF", form="account") for code in XOF_ZONE}


def run_timed(work: Callable[[], object]) -> Sample:
    """Return the wall time in seconds, and the processor time in microseconds."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - wall_s, 1e6 * (time.process_time() - cpu_s))


def scan_file(sheet: Path) -> Sample:
    """Read every field of a file."""
    source = pl.scan_parquet(sheet) if sheet.suffix == ".parquet" else pl.scan_csv(sheet, infer_schema=False)
    touched = source.select(pl.all().str.len_bytes().sum())
    return run_timed(lambda: touched.collect(engine="streaming"))


def validation(sheet: Path) -> Sample:
    """Read and validate a sheet."""
    rules: Rules = load_rules("payout", invented_terms())
    return run_timed(lambda: validate(read_sheet(sheet, OPTIONS), rules))


def validate_in_plain_loop(sheet: Path) -> Sample:
    """Check the first rows of a sheet against the rules in a plain Python loop."""
    rules: Rules = load_rules("payout", invented_terms())
    return run_timed(lambda: validate_in_loop(sheet, rules, most=PLAIN_ROWS))


def peak_mib(sheet: Path) -> float:
    """Return the peak memory of reading and validating a sheet, including the interpreter."""
    validation(sheet)
    return own_peak_mib()


def contenders(directory: Path, rows: int) -> dict[str, Callable[[], Sample]]:
    """Return the scans and validations of a sheet of each kind, each in a separate process, and a plain loop."""
    os.environ.setdefault("_RJEM_MALLOC_CONF", POLARS_ALLOCATOR)  # as the program does, for the child processes
    result: dict[str, Callable[[], Sample]] = {}
    for kind in KINDS:
        sheet = sheet_of_kind(directory, kind, rows)
        result[f"scan: {kind}"] = partial(run_isolated, scan_file, sheet)
        result[f"validation: {kind}"] = partial(run_isolated, validation, sheet)
    loop = sheet_of_kind(directory, KINDS[0], rows)
    result[f"plain Python loop, {min(rows, PLAIN_ROWS):,} rows: {KINDS[0]}"] = partial(
        run_isolated, validate_in_plain_loop, loop
    )
    return result


def cpu_ratio(one: Figure, other: Figure) -> tuple[float, ...]:
    """Return the ratio of processor times, by repetition."""
    return tuple(a / b for a, b in zip(one.cpu_us, other.cpu_us, strict=True))
