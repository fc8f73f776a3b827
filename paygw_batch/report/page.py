"""Builds the common parts of our HTML pages for people. They have no script and no other file, and fetch nothing."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from paygw_batch.core import shown_states
from paygw_batch.language import language
from paygw_batch.report.colours import DARK_STATE_COLOURS, STATE_COLOURS


class HtmlText(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


def _of_states(colours: Mapping[str, tuple[str, str]]) -> str:
    return "\n".join(
        f".{state} {{ background: {fill}; color: {ink}; }} rect.{state} {{ fill: {fill}; stroke: {ink}; }}"
        for state, (fill, ink) in colours.items()
    )


_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #222; --soft: #595959; --paper: #fff; --line: #e0e0e0; --rule: #8c8c8c;
  --code: #f2f3f5; --link: #0b57a4; }}
{_of_states(STATE_COLOURS)}
@media screen and (prefers-color-scheme: dark) {{
:root {{ --ink: #e8e8e8; --soft: #b4b4b4; --paper: #17191c; --line: #34373b; --rule: #7d8288; --code: #24272b;
  --link: #8ec5ff; }}
{_of_states(DARK_STATE_COLOURS)}
}}
html {{ background: var(--paper); color: var(--ink); }}
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere; }} h2 {{ font-size: 1.2rem; margin: 2rem 0 .5rem; }}
h3 {{ font-size: 1.05rem; margin: 1.6rem 0 .4rem; }} p {{ margin: .4rem 0; max-width: 52rem; }}
.soft {{ color: var(--soft); }}
.tiles {{ display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0; list-style: none; }}
.tiles li {{ border-radius: .4rem; padding: .5rem .9rem; min-width: 7rem; }}
.tiles b {{ display: block; font-size: 1.5rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
caption {{ text-align: left; color: var(--soft); padding: .2rem .6rem; }}
th, td {{ text-align: left; padding: .3rem .6rem; vertical-align: top; font-weight: inherit; }}
thead th {{ border-bottom: 2px solid var(--rule); font-weight: 600; }}
tbody th, td {{ border-bottom: 1px solid var(--line); overflow-wrap: break-word; }}
td.number, th.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
td.whole {{ white-space: nowrap; }}
.state {{ border-radius: .25rem; padding: .05rem .4rem; white-space: nowrap; }}
code {{ font: .93em ui-monospace, monospace; background: var(--code); border-radius: .2rem; padding: .05rem .3rem;
  overflow-wrap: anywhere; user-select: all; -webkit-user-select: all; }}
pre {{ margin: .3rem 0 .7rem; white-space: pre-wrap; }} pre code {{ display: inline-block; padding: .35rem .6rem; }}
td p:first-child {{ margin-top: 0; }} td details {{ margin: .2rem 0; }} td summary {{ font-weight: inherit; }}
details {{ margin: 1rem 0; }} summary {{ cursor: pointer; color: var(--link); font-weight: 600; }}
svg {{ width: 100%; max-width: 48rem; height: auto; display: block; }}
svg text {{ font-size: 11px; fill: var(--soft); }}
svg .scale {{ stroke: var(--line); }}
@media print {{ body {{ margin: 0; max-width: none; font-size: 12px; }} .tiles li, .state {{ print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }} tr {{ break-inside: avoid; }} }}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page with this title and these parts of HTML; empty parts are left out."""
    head = [
        "<!doctype html>",
        f'<html lang="{language()}"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
    ]
    return "\n".join([*head, *(part for part in parts if part), "</main></body></html>"]) + "\n"


def paragraph(text: str, kind: str = "") -> str:
    """Return a sentence as HTML; text in backticks is a command that one click selects."""
    pieces = escape(text).split("`")
    marked = "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))
    return f'<p class="{kind}">{marked}</p>' if kind else f"<p>{marked}</p>"


def commands(lines: Iterable[str]) -> str:
    """Return commands to copy, each in a separate box that one click selects."""
    return "".join(f"<pre><code>{escape(line)}</code></pre>" for line in lines)


def details(summary: str, content: str) -> str:
    """Return a summary with content that is hidden until a person opens it."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def state_mark(state: str, words: str = "") -> HtmlText:
    """Return a state in its colours, under its own name or in other words."""
    return HtmlText(f'<span class="state {state}">{escape(words) or state_words(state)}</span>')


def state_words(state: str) -> str:
    """Return a state as people say it."""
    return escape(shown_states.state_words(state))


def html_table(
    headings: Sequence[str],
    lines: Iterable[Sequence[object]],
    *,
    right: Iterable[int] = (),
    whole: Iterable[int] = (),
    caption: str = "",
    widths: Sequence[int] = (),
) -> str:
    """Return a table whose first column heads its lines; every text is escaped.

    `right` are the columns of numbers, aligned to the right, and `whole` those that are never broken. `widths` are
    those of the first columns, in rem: tables below each other then have their columns below each other.
    """
    kinds = {**dict.fromkeys(whole, ' class="whole"'), **dict.fromkeys(right, ' class="number"')}

    def cell(place: int, content: object) -> str:
        kept = content if isinstance(content, HtmlText) else escape("" if content is None else str(content))
        tag, scope = ("td", "") if place else ("th", ' scope="row"')
        return f"<{tag}{scope}{kinds.get(place, '')}>{kept}</{tag}>"

    head = "".join(
        f'<th scope="col"{kinds.get(place, "")}>{escape(heading)}</th>' for place, heading in enumerate(headings)
    )
    body = "\n".join(
        f"<tr>{''.join(cell(place, content) for place, content in enumerate(line))}</tr>" for line in lines
    )
    columns = "".join(f'<col style="width:{width}rem">' for width in widths)
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{above}{columns}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
