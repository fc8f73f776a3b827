"""Renders the templates in the browser's language, with words and signs for states.

Every value is escaped, and every sentence is translated by one function. No state is shown by colour alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.requests import Request

from paygw_batch.approval.signed_document import in_groups
from paygw_batch.core.shown_states import INVALID, recorded, state_words
from paygw_batch.language import language, languages, mark, mark_all, say, say_count, speaking, thousands_apart_by
from paygw_batch.sheet.columns import label_of
from paygw_batch.show.page import page_environment

_SHOWN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "paid": ("✓", mark("the gateway confirmed the payment")),
        "accepted": ("…", mark("accepted; waiting for the final answer")),
        "rejected": ("✕", mark("finally rejected by the gateway; no payment was made")),
        "returned": ("↩", mark("paid, and the money came back")),
        "in_doubt": ("?", mark("may have been paid; never sent again without evidence")),
        "in_flight": ("→", mark("on the way to the gateway now")),
        "ready": ("○", mark("nothing was sent for these people yet")),
        INVALID: ("-", mark("not part of this payout")),
    }
)
"""The sign and the meaning of each state, in the order in which they are shown."""
STATES_SHOWN = tuple(_SHOWN)


def state_word(state: str) -> str:
    """Return the name of a state, with a capital letter."""
    words = state_words(state)
    return words[:1].upper() + words[1:]


_HERE = Path(__file__).parent
STATIC, TEMPLATES = _HERE / "static", _HERE / "templates"
_DAYS = mark_all(
    "{day} Jan {year}",
    "{day} Feb {year}",
    "{day} Mar {year}",
    "{day} Apr {year}",
    "{day} May {year}",
    "{day} Jun {year}",
    "{day} Jul {year}",
    "{day} Aug {year}",
    "{day} Sep {year}",
    "{day} Oct {year}",
    "{day} Nov {year}",
    "{day} Dec {year}",
)


def pages_after(after: int, next_after: int, anchor: str = "", /, **kept: str) -> Sequence[tuple[str, str]]:
    """Return the links of a list that shows the rows after `after`: to its first page and to its next page.

    `next_after` is the last row on this page; 0 if there is no next page.
    """
    labels = {say("First page"): 0 if after else None, say("Next page"): next_after or None}
    return page_links("after", labels, anchor, **kept)


def page_links(
    name: str, places: Mapping[str, int | None], anchor: str = "", /, **kept: str
) -> Sequence[tuple[str, str]]:
    """Return links to positions in a list, with labels. The query has the position as `name`, and `kept` besides."""
    return [
        (f"?{urlencode({key: value for key, value in {**kept, name: place}.items() if value})}#{anchor}", label)
        for label, place in places.items()
        if place is not None
    ]


def page_templates() -> Environment:
    environment = page_environment(TEMPLATES)
    environment.filters.update(when=when, ago=ago, day=day, share=_share, code=in_groups)
    environment.filters["added"] = lambda amounts: f"{sum(map(Decimal, amounts)):f}"
    environment.filters["recorded"] = lambda text: recorded(text, is_for_officers=True) if text else text
    environment.globals.update(column_label=label_of, shown_states=STATES_SHOWN)
    environment.globals.update(state_sign=lambda state: _SHOWN[state][0], state_word=state_word)
    environment.globals.update(state_meaning=lambda state: say(_SHOWN[state][1]))
    return environment


_zone: ContextVar[tzinfo] = ContextVar("zone", default=UTC)


@contextmanager
def shown_for(request: Request, zone: tzinfo) -> Iterator[None]:
    """Let the block use the browser's language, times in this zone, and a narrow space between thousands.

    The space is used in every language, because some readers take a comma for a decimal sign.
    """
    token = _zone.set(zone)
    try:
        with speaking(language_of(request)), thousands_apart_by(_NARROW_SPACE):
            yield
    finally:
        _zone.reset(token)


_NARROW_SPACE = "\u202f"


def when(at: str | None) -> str:
    """Return a time as `22 Nov 2026, 23:26 EAT`, in the zone of the pages. Other text is returned unchanged."""
    if not at:
        return ""
    try:
        moment = datetime.fromisoformat(at).astimezone(_zone.get())
    except ValueError:
        return at
    return f"{_day(moment)}, {moment:%H:%M %Z}"


def day(text: str) -> str:
    """Return a day as `22 Nov 2026`. Other text is returned unchanged."""
    try:
        return _day(date.fromisoformat(text))
    except ValueError:
        return text


def day_in_zone(at: str) -> str:
    """Return the day of a time as `22 Nov 2026`, in the zone of the pages."""
    return day(day_of(at))


def day_of(at: str) -> str:
    """Return the day of a time as a date field has it, `2026-11-22`, in the zone of the pages."""
    return datetime.fromisoformat(at).astimezone(_zone.get()).date().isoformat()


def _day(moment: date) -> str:
    return say(_DAYS[moment.month - 1], day=moment.day, year=moment.year)


def ago(at: str) -> str:
    """Return how long ago a time was, in the largest suitable unit. Other text is returned unchanged."""
    try:
        passed_s = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
    except ValueError:
        return at
    if passed_s >= _DAY_S:
        return say_count(int(passed_s // _DAY_S), "{count:,} day ago", "{count:,} days ago")
    if passed_s >= _HOUR_S:
        return say_count(int(passed_s // _HOUR_S), "{count:,} hour ago", "{count:,} hours ago")
    return say_count(max(int(passed_s // 60), 0), "{count:,} minute ago", "{count:,} minutes ago")


_HOUR_S, _DAY_S = 3_600, 86_400


def _share(part: int, whole: int) -> int:
    """Return a part in per cent. It is rounded down, so that only the whole is 100."""
    return part * 100 // whole if whole else 0


LANGUAGE_COOKIE = "language"
_OWN_NAME = mark("English")
"""The message that each catalogue translates with the name of its language."""


def language_of(request: Request) -> str:
    """Return the language for a request: the one chosen on the pages, if there is a catalogue for it.

    Otherwise it is the first language of `Accept-Language` with a catalogue, or else the language of this process.
    """
    accepted = re.findall(r"(?:^|,)\s*([a-z]+)", request.headers.get("accept-language", "").lower())
    wanted = (request.cookies.get(LANGUAGE_COOKIE, ""), *accepted)
    return next((code for code in wanted if code in languages()), language())


def own_names() -> Mapping[str, str]:
    """Return the name of each language in that language, by code."""
    names = {}
    for code in languages():
        with speaking(code):
            names[code] = say(_OWN_NAME)
    return names
