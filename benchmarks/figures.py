"""Side by side: every contender is measured once in each repetition, so that what is compared saw the same machine.

Rates of a shared machine move by up to two times; the ratio of two rates of one repetition moves much less. So a ratio
is the median of the repetitions' ratios, never the ratio of two medians.
"""

import multiprocessing
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_TIMES = frozenset({"us", "ms", "s"})


def apart(measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `measure` comes to in a fresh process: nothing that ran before it is left in memory."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(measure, *args, **kwargs).result()


@dataclass(frozen=True, slots=True)
class Sample:
    """What one measurement came to, and the processor time of its process for each thing done (0: not measured).

    `steady` is the same value without the slow start and the end (0: not measured).
    """

    value: float
    cpu_us: float = 0.0
    steady: float = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """What one thing came to, in each repetition."""

    name: str
    unit: str
    samples: tuple[float, ...]
    cpu_us: tuple[float, ...] = ()
    steady: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The median of the repetitions."""
        return statistics.median(self.samples)

    def line(self) -> str:
        """Return the figure as a line of a table: median, smallest and largest, processor time."""
        middle, low, high = (readable(pick(self.samples)) for pick in (statistics.median, min, max))
        cpu = f"{readable(statistics.median(self.cpu_us))} us" if any(self.cpu_us) else ""
        return f"| {self.name} | {middle} {self.unit} | {low} to {high} | {cpu} |"


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one figure stands to another, repetition by repetition, and what it should reach (or stay below)."""

    name: str
    samples: tuple[float, ...]
    goal: float
    at_most: bool = False

    @classmethod
    def of(cls, name: str, figure: Figure, to: Figure, goal: float, *, at_most: bool = False) -> "Ratio":
        """Return the ratio of two figures that were measured side by side."""
        pairs = zip(figure.samples, to.samples, strict=True)
        return cls(name, tuple(one / other for one, other in pairs), goal, at_most)

    def line(self) -> str:
        """Return the ratio as a line of a table: median, smallest and largest, goal, and whether it is reached."""
        median = statistics.median(self.samples)
        reached = median <= self.goal if self.at_most else median >= self.goal
        verdict = "yes" if reached else f"no, by {abs(median - self.goal) / self.goal:.0%}"
        goal = f"{'at most' if self.at_most else 'at least'} {self.goal:g}"
        spread = f"{min(self.samples):.2f} to {max(self.samples):.2f}"
        return f"| {self.name} | {median:.2f} | {spread} | {goal} | {verdict} |"


@dataclass(frozen=True, slots=True)
class Goal:
    """A measure that should reach something: `reach` is asked for, `goal` where the code stays simple."""

    measure: str
    unit: str
    samples: tuple[float, ...]
    reach: float
    goal: float
    at_most: bool = False

    @classmethod
    def ratio(cls, measure: str, figure: Figure, to: Figure, reach: float, goal: float) -> "Goal":
        """Return the goal of a ratio of two figures that were measured side by side."""
        return cls(measure, "", Ratio.of(measure, figure, to, goal).samples, reach, goal)

    def line(self, times_slower: float) -> str:
        """Return the goal as a line of a table: median, spread, both marks, and which of them is reached.

        A time is said once more as it would be on the machine on which the goals were set. No verdict follows it.
        """
        median = statistics.median(self.samples)
        unit = f" {self.unit}" if self.unit else ""
        spread = f"{readable(min(self.samples))} to {readable(max(self.samples))}"
        if self._holds(median, self.goal):
            verdict = "goal"
        elif self._holds(median, self.reach):
            verdict = "reach"
        else:
            verdict = f"no, by {abs(median - self.reach) / self.reach:.0%}"
        marks = f"{readable(self.reach)} | {readable(self.goal)}"
        there = f"{readable(median / times_slower)}{unit}" if self.unit in _TIMES else ""
        return f"| {self.measure} | {readable(median)}{unit} | {spread} | {marks} | {verdict} | {there} |"

    def _holds(self, median: float, mark: float) -> bool:
        return median <= mark if self.at_most else median >= mark


def goals_table(goals: Sequence[Goal], times_slower: float) -> str:
    """Return all goals that were measured on a machine that takes so many times as long, in Markdown."""
    note = (
        f"The machine on which the goals were set runs a plain Python loop {readable(times_slower)} times as fast. The "
        "last column divides a time by that. What is reached is decided by the time as measured."
    )
    head = [
        "### What was to be reached",
        "",
        note,
        "",
        "| measure | median | spread | reach | goal | reached | median at that machine's speed |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    return "\n".join([*head, *(goal.line(times_slower) for goal in goals), ""])


def side_by_side(
    contenders: Mapping[str, Callable[[], Sample]], repetitions: int, unit: str, tell: Callable[[str], None]
) -> dict[str, Figure]:
    """Measure every contender once per repetition, and return their figures by name."""
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    for repetition in range(1, repetitions + 1):
        for name, measure in contenders.items():
            sample = measure()
            samples[name].append(sample)
            tell(
                f"{repetition}/{repetitions}  {name}: {readable(sample.value)} {unit}  (load {os.getloadavg()[0]:.1f})"
            )
    return {
        name: Figure(
            name,
            unit,
            tuple(each.value for each in found),
            tuple(each.cpu_us for each in found),
            tuple(each.steady for each in found),
        )
        for name, found in samples.items()
    }


def readable(value: float) -> str:
    """Return a number with three significant digits, or whole."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(
    title: str, figures: Sequence[Figure], ratios: Sequence[Ratio], note: str = "", picture: Sequence[str] = ()
) -> str:
    """Return a section in Markdown: figures and their picture first, then what they stand to each other."""
    parts = [f"### {title}", ""]
    if note:
        parts += [note, ""]
    if figures:
        parts += ["| measured | median | spread | processor time each |", "| --- | ---: | ---: | ---: |"]
        parts += [*(each.line() for each in figures), "", *picture]
    if ratios:
        parts += ["| ratio | median | spread | goal | reached |", "| --- | ---: | ---: | --- | --- |"]
        parts += [*(each.line() for each in ratios), ""]
    return "\n".join(parts)
