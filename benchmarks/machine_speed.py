"""Compares the speed of this machine with the reference machine on which the goals were set.

Times on two machines cannot be compared directly. So two tasks that are independent of this program were measured on
both: bare signatures, and a plain Python loop over the rows of a sheet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, Sample, format_figure, run_isolated
from benchmarks.sheets import KINDS, sheet_of_kind
from benchmarks.signatures import signatures_per_s
from benchmarks.validation import validate_in_plain_loop

LOOP_ROWS = 200_000
SIGNATURES = 20_000


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a machine."""

    signatures_per_s: float
    """Bare RSA-2048 signatures, two threads."""
    loop_rows_per_s: float
    """Rows of a sheet in `benchmarks/plain_rows.py`, one thread."""


GOALS_SET_ON = Speed(signatures_per_s=9_300, loop_rows_per_s=1_000_000 / 4.1)
"""The reference machine on which the goals were set: two cores, Python 3.11."""
_SIGNATURES, _ROWS = "bare signatures, two threads", "plain Python loop, rows"


def contenders(directory: Path, key: Path, scale: float) -> Mapping[str, Callable[[], Sample]]:
    """Return the measurements of this machine, each in a separate process."""
    rows = max(100, round(LOOP_ROWS * scale))
    sheet = sheet_of_kind(directory, KINDS[0], rows)
    return {
        _SIGNATURES: partial(run_isolated, signatures_per_s, key, max(100, round(SIGNATURES * scale))),
        _ROWS: partial(run_isolated, _rows_per_s, sheet, rows),
    }


def _rows_per_s(sheet: Path, rows: int) -> Sample:
    found = validate_in_plain_loop(sheet)
    return Sample(rows / found.value, found.cpu_us / rows)


def slowdown_factor(found: Mapping[str, Figure]) -> float:
    """Return the factor by which the interpreter is slower here. Times of this program are divided by it."""
    return GOALS_SET_ON.loop_rows_per_s / found[_ROWS].median


def speed_section(found: Mapping[str, Figure]) -> str:
    """Return a Markdown comparison of both machines."""
    lines = [
        "### This machine beside the one on which the goals were set",
        "",
        "| measured | that machine | this one | spread | that one is faster |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, there in ((_SIGNATURES, GOALS_SET_ON.signatures_per_s), (_ROWS, GOALS_SET_ON.loop_rows_per_s)):
        here = found[name]
        spread = f"{format_figure(min(here.samples))} to {format_figure(max(here.samples))}"
        times = format_figure(there / here.median)
        lines.append(
            f"| {name} | {format_figure(there)} /s | {format_figure(here.median)} /s | {spread} | {times} times |"
        )
    return "\n".join([*lines, ""])
