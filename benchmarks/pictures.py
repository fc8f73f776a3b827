"""Draws small SVG charts with matplotlib, if the group `bench` is installed."""

import importlib.util
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, format_figure

_WIDTH_IN = 8.0
_BAR_IN = 0.32
_FRAME_IN = 1.1
_COLOURS = ("#1f6f8b", "#d1603d", "#6a994e", "#7d5ba6", "#b08900")
_STYLE = {
    "svg.fonttype": "none",  # keeps text as text, which is smaller and machine-readable
    "svg.hashsalt": "paygw-batch",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_NUMBER = "{x:,.10g}"
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Gallery:
    """The folder of the pictures, and its path relative to the document."""

    folder: Path
    name: str

    def bars(self, title: str, figures: Sequence[Figure]) -> list[str]:
        """Draw medians as bars with their spread, and return the Markdown lines that show the picture."""
        if not can_draw() or not figures:
            return []
        medians = [statistics.median(figure.samples) for figure in figures]
        spread = (
            [middle - min(figure.samples) for middle, figure in zip(medians, figures, strict=True)],
            [max(figure.samples) - middle for middle, figure in zip(medians, figures, strict=True)],
        )
        chart, axes = _create_chart(_FRAME_IN + _BAR_IN * len(figures), title)
        places = range(len(figures))
        axes.barh(places, medians, height=0.66, color=_COLOURS[0], xerr=spread, ecolor="#444444", capsize=2)
        axes.set_yticks(places, [figure.name for figure in figures])
        axes.invert_yaxis()
        axes.set_xlabel("a second" if figures[0].unit == "/s" else figures[0].unit)
        axes.xaxis.set_major_formatter(_NUMBER)
        for place, (middle, figure) in enumerate(zip(medians, figures, strict=True)):
            axes.annotate(
                format_figure(middle), (max(figure.samples), place), (5, 0), textcoords="offset points", va="center"
            )
        axes.margins(x=0.12)
        return self._save(chart, title)

    def curves(
        self, title: str, across: str, up: str, curves: Mapping[str, Curve], *, is_log: bool = False
    ) -> list[str]:
        """Draw curves through points, and return the Markdown lines that show the picture."""
        if not can_draw() or not any(curves.values()):
            return []
        chart, axes = _create_chart(3.6, title)
        for place, (name, points) in enumerate(curves.items()):
            marker = "o" if is_log else None
            colour = _COLOURS[place % len(_COLOURS)]
            dashes = "-" if place < len(_COLOURS) else "--"
            axes.plot(*zip(*points, strict=True), dashes, label=name, marker=marker, markersize=3, color=colour)
        if is_log:
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter(_NUMBER)
            axes.yaxis.set_major_formatter(_NUMBER)
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.legend(frameon=False)
        return self._save(chart, title)

    def _save(self, chart: Any, title: str) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = "".join(letter if letter.isalnum() else "-" for letter in title.lower()).strip("-")
        while "--" in file:
            file = file.replace("--", "-")
        chart.savefig(self.folder / f"{file}.svg", format="svg", metadata={"Date": None}, facecolor="white")
        return [f"![{title}]({self.name}/{file}.svg)", ""]


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def thin_curve(curve: Curve, most: int = 200) -> Curve:
    """Return about `most` points of a curve: the highest of each interval."""
    step = math.ceil(len(curve) / most) or 1
    return [max(curve[at : at + step], key=lambda point: point[1]) for at in range(0, len(curve), step)]


def _create_chart(height_in: float, title: str) -> tuple[Any, Any]:
    from matplotlib import rcParams  # noqa: PLC0415 (of the group `bench`)
    from matplotlib.figure import Figure as Chart  # noqa: PLC0415 (as above)

    rcParams.update(_STYLE)
    chart = Chart(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axes = chart.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    return chart, axes
