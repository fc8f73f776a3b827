"""Measures contenders side by side: each once per repetition, so that all see the same machine load.

Rates on a shared machine vary by up to a factor of two. The ratio of two rates of one repetition varies much less. So a
ratio is the median of the repetitions' ratios, never the ratio of two medians.
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


def run_isolated(measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `measure` in a new process, so that earlier work leaves nothing in memory."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(measure, *args, **kwargs).result()


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one measurement, and its processor time per unit of work (0: not measured).

    `steady` is the same value without warm-up and end (0: not measured).
    """

    value: float
    cpu_us: float = 0.0
    steady: float = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """The results of one contender, by repetition."""

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
        """Return the figure as a row of a table: median, minimum and maximum, processor time."""
        middle, low, high = (format_figure(pick(self.samples)) for pick in (statistics.median, min, max))
        cpu = f"{format_figure(statistics.median(self.cpu_us))} us" if any(self.cpu_us) else ""
        return f"| {self.name} | {middle} {self.unit} | {low} to {high} | {cpu} |"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two figures, by repetition, and the goal that it should reach, or stay below."""

    name: str
    samples: tuple[float, ...]
    goal: float
    at_most: bool = False

    @classmethod
    def between(cls, name: str, figure: Figure, to: Figure, goal: float, *, at_most: bool = False) -> "Ratio":
        """Return the ratio of two figures that were measured side by side."""
        pairs = zip(figure.samples, to.samples, strict=True)
        return cls(name, tuple(item / other for item, other in pairs), goal, at_most)

    def line(self) -> str:
        """Return the ratio as a row of a table: median, minimum and maximum, goal, and verdict."""
        median = statistics.median(self.samples)
        reached = median <= self.goal if self.at_most else median >= self.goal
        verdict = "yes" if reached else f"no, by {abs(median - self.goal) / self.goal:.0%}"
        goal = f"{'at most' if self.at_most else 'at least'} {self.goal:g}"
        spread = f"{min(self.samples):.2f} to {max(self.samples):.2f}"
        return f"| {self.name} | {median:.2f} | {spread} | {goal} | {verdict} |"


@dataclass(frozen=True, slots=True)
class Goal:
    """A measure with two goals: `reach` is required, and `goal` is desired if the code stays simple."""

    measure: str
    unit: str
    samples: tuple[float, ...]
    reach: float
    goal: float
    at_most: bool = False

    @classmethod
    def ratio(cls, measure: str, figure: Figure, to: Figure, reach: float, goal: float) -> "Goal":
        """Return the goal of a ratio of two figures that were measured side by side."""
        return cls(measure, "", Ratio.between(measure, figure, to, goal).samples, reach, goal)

    def line(self, times_slower: float) -> str:
        """Return the goal as a row of a table: median, spread, both goals, and a verdict.

        A time is also converted to the reference machine, without a verdict.
        """
        median = statistics.median(self.samples)
        unit = f" {self.unit}" if self.unit else ""
        spread = f"{format_figure(min(self.samples))} to {format_figure(max(self.samples))}"
        if self._holds(median, self.goal):
            verdict = "goal"
        elif self._holds(median, self.reach):
            verdict = "reach"
        else:
            verdict = f"no, by {abs(median - self.reach) / self.reach:.0%}"
        marks = f"{format_figure(self.reach)} | {format_figure(self.goal)}"
        there = f"{format_figure(median / times_slower)}{unit}" if self.unit in _TIMES else ""
        return f"| {self.measure} | {format_figure(median)}{unit} | {spread} | {marks} | {verdict} | {there} |"

    def _holds(self, median: float, mark: float) -> bool:
        return median <= mark if self.at_most else median >= mark


def format_goals(goals: Sequence[Goal], times_slower: float) -> str:
    """Return a Markdown table of all goals, for a machine that is slower by this factor."""
    note = (
        f"The machine on which the goals were set runs a plain Python loop {format_figure(times_slower)} times as fast."
        " The last column divides a time by that. What is reached is decided by the time as measured."
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
                f"{repetition}/{repetitions}  {name}: {format_figure(sample.value)} {unit}  "
                f"(load {os.getloadavg()[0]:.1f})"
            )
    return {
        name: Figure(
            name,
            unit,
            tuple(element.value for element in results),
            tuple(element.cpu_us for element in results),
            tuple(element.steady for element in results),
        )
        for name, results in samples.items()
    }


def format_figure(value: float) -> str:
    """Return a number with three significant digits, or as a whole number."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(
    title: str, figures: Sequence[Figure], ratios: Sequence[Ratio], note: str = "", picture: Sequence[str] = ()
) -> str:
    """Return a Markdown section: figures and their picture, then their ratios."""
    parts = [f"### {title}", ""]
    if note:
        parts += [note, ""]
    if figures:
        parts += ["| measured | median | spread | processor time each |", "| --- | ---: | ---: | ---: |"]
        parts += [*(element.line() for element in figures), "", *picture]
    if ratios:
        parts += ["| ratio | median | spread | goal | reached |", "| --- | ---: | ---: | --- | --- |"]
        parts += [*(element.line() for element in ratios), ""]
    return "\n".join(parts)
