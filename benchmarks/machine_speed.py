"""How fast this machine is, beside the one on which the goals were set.

Microseconds and seconds of two machines do not compare. Two things were measured on both that have nothing to do with
this program: bare signatures, and a plain Python loop over the rows of a sheet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, Sample, apart, readable
from benchmarks.sheets import KINDS, sheet_of_kind
from benchmarks.signatures import signatures_per_s
from benchmarks.validation import plain

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
"""The machine on which the goals were set: two cores, Python 3.11."""
_SIGNATURES, _ROWS = "bare signatures, two threads", "plain Python loop, rows"


def contenders(directory: Path, key: Path, scale: float) -> Mapping[str, Callable[[], Sample]]:
    """Return what measures this machine, each in a process of its own."""
    rows = max(100, round(LOOP_ROWS * scale))
    sheet = sheet_of_kind(directory, KINDS[0], rows)
    return {
        _SIGNATURES: partial(apart, signatures_per_s, key, max(100, round(SIGNATURES * scale))),
        _ROWS: partial(apart, _rows_per_s, sheet, rows),
    }


def _rows_per_s(sheet: Path, rows: int) -> Sample:
    found = plain(sheet)
    return Sample(rows / found.value, found.cpu_us / rows)


def times_slower(found: Mapping[str, Figure]) -> float:
    """Return how much longer the interpreter takes here: times of this program are divided by it."""
    return GOALS_SET_ON.loop_rows_per_s / found[_ROWS].median


def section(found: Mapping[str, Figure]) -> str:
    """Return the comparison of both machines, in Markdown."""
    lines = [
        "### This machine beside the one on which the goals were set",
        "",
        "| measured | that machine | this one | spread | that one is faster |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, there in ((_SIGNATURES, GOALS_SET_ON.signatures_per_s), (_ROWS, GOALS_SET_ON.loop_rows_per_s)):
        here = found[name]
        spread = f"{readable(min(here.samples))} to {readable(max(here.samples))}"
        times = readable(there / here.median)
        lines.append(f"| {name} | {readable(there)} /s | {readable(here.median)} /s | {spread} | {times} times |")
    return "\n".join([*lines, ""])
