"""Draws bar charts as SVG text: a report must need no script and no other file."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 220
_LEFT, _TOP, _BOTTOM = 56, 12, 34
_GAP = 0.15
"""How much of a bar's place is left empty."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: `label` below it (empty: none), and `parts` stacked from the bottom, each (name, count, colour)."""

    label: str
    parts: Sequence[tuple[str, int, str]]

    @property
    def count(self) -> int:
        """How high the bar is."""
        return sum(count for _, count, _ in self.parts)


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return a bar chart. Every part shows its name and count under the pointer; the title is read aloud."""
    highest = max((bar.count for bar in bars), default=0) or 1
    place = (WIDTH - _LEFT) / max(len(bars), 1)
    drawn = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_scale(highest),
        *(element for number, bar in enumerate(bars) for element in _bar(bar, _LEFT + number * place, place, highest)),
        "</svg>",
    ]
    return "\n".join(drawn)


def _scale(highest: int) -> list[str]:
    lines = []
    for count in sorted({0, highest // 2, highest}):
        y = _y(count, highest)
        lines.append(f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="scale"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    return lines


def _bar(bar: Bar, left: float, place: float, highest: int) -> list[str]:
    x, width = left + place * _GAP / 2, place * (1 - _GAP)
    drawn = []
    below = 0
    for name, count, colour in bar.parts:
        if not count:
            continue
        top, bottom = _y(below + count, highest), _y(below, highest)
        below += count
        drawn.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" fill="{colour}">'
            f"<title>{escape(name)}: {count:,}</title></rect>"
        )
    if bar.label:
        middle = left + place / 2
        drawn.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(bar.label)}</text>')
    return drawn


def _y(count: int, highest: int) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * count / highest
