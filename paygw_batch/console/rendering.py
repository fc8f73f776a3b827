"""Renders the templates in the browser's language, with a word and a symbol for each state.

Every value is escaped, and every sentence is translated. No state is shown by colour alone.
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
from zoneinfo import ZoneInfo

from jinja2 import Environment
from starlette.requests import Request

from paygw_batch.approval.signed_document import group_digits
from paygw_batch.core.shown_states import INVALID, render_record, state_label
from paygw_batch.language import (
    language,
    language_context,
    languages,
    mark,
    mark_all,
    say,
    say_count,
    thousands_separator,
)
from paygw_batch.sheet.columns import column_label
from paygw_batch.show.page import page_environment

_STATE_SYMBOLS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "paid": ("✓", mark("the gateway confirmed the payment")),
        "accepted": ("…", mark("accepted, waiting for the final answer")),
        "rejected": ("✕", mark("rejected by the gateway, no payment was made")),
        "returned": ("↩", mark("paid, but the money came back")),
        "in_doubt": ("?", mark("may have been paid: it is not sent again without evidence that it was not")),
        "in_flight": ("→", mark("being sent to the gateway now")),
        "ready": ("○", mark("not sent to the gateway yet")),
        INVALID: ("-", mark("not part of this payout")),
    }
)
"""The symbol and the meaning of each state, in display order."""
SHOWN_STATES = tuple(_STATE_SYMBOLS)


def state_title(state: str) -> str:
    """Return a state's name with an initial capital."""
    label = state_label(state)
    return label[:1].upper() + label[1:]


_NARROW_SPACE = "\u202f"
_HOUR_S, _DAY_S = 3_600, 86_400
_HERE = Path(__file__).parent
STATIC, TEMPLATES = _HERE / "static", _HERE / "templates"
_DATE_FORMATS = mark_all(
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


def next_page_links(after: int, next_after: int, anchor: str = "", /, **params: str) -> Sequence[tuple[str, str]]:
    """Return links to the first and next page. A page starts after row `after`, the next one after `next_after`."""
    labels = {say("First page"): 0 if after else None, say("Next page"): next_after or None}
    return page_links("after", labels, anchor, **params)


def page_links(
    name: str, positions: Mapping[str, int | None], anchor: str = "", /, **params: str
) -> Sequence[tuple[str, str]]:
    """Return (address, label) for each position that is not None. The query contains `params` and `name=position`."""
    return [
        (f"?{urlencode({key: value for key, value in {**params, name: position}.items() if value})}#{anchor}", label)
        for label, position in positions.items()
        if position is not None
    ]


def create_environment() -> Environment:
    environment = page_environment(TEMPLATES)
    environment.filters.update(when=format_time, ago=format_age, day=format_date, share=_percentage, code=group_digits)
    environment.filters["added"] = lambda amounts: f"{sum(map(Decimal, amounts)):f}"
    environment.filters["recorded"] = lambda text: render_record(text, is_for_officers=True) if text else text
    environment.globals.update(column_label=column_label, shown_states=SHOWN_STATES)
    environment.globals.update(state_symbol=lambda state: _STATE_SYMBOLS[state][0], state_title=state_title)
    environment.globals.update(state_meaning=lambda state: say(_STATE_SYMBOLS[state][1]))
    return environment


_zone: ContextVar[tzinfo | None] = ContextVar("zone", default=UTC)


@contextmanager
def request_locale(request: Request, zone: str | None) -> Iterator[None]:
    """Use the browser's language, the time zone `zone` and narrow spaces between thousands within the block.

    If `zone` is None, times are in the machine's zone. Spaces are used in every language, because some people read
    a comma as a decimal point.
    """
    token = _zone.set(None if zone is None else ZoneInfo(zone))  # cached by `zoneinfo`
    try:
        with language_context(request_language(request)), thousands_separator(_NARROW_SPACE):
            yield
    finally:
        _zone.reset(token)


def format_time(time: str | None) -> str:
    """Format a time as `22 Nov 2026, 23:26 EAT` in the console's time zone. Returns other text unchanged."""
    if not time:
        return ""
    try:
        moment = datetime.fromisoformat(time).astimezone(_zone.get())
    except ValueError:
        return time
    return f"{_format_date(moment)}, {moment:%H:%M %Z}"


def format_date(text: str) -> str:
    """Format a date as `22 Nov 2026`. Returns other text unchanged."""
    try:
        return _format_date(date.fromisoformat(text))
    except ValueError:
        return text


def format_date_in_zone(time: str) -> str:
    """Format the date of a time as `22 Nov 2026`, in the console's time zone."""
    return format_date(local_date(time))


def local_date(time: str) -> str:
    """Return the date of a time as `2026-11-22`, in the console's time zone."""
    return datetime.fromisoformat(time).astimezone(_zone.get()).date().isoformat()


def _format_date(day: date) -> str:
    return say(_DATE_FORMATS[day.month - 1], day=day.day, year=day.year)


def format_age(time: str) -> str:
    """Format the age of a time, such as `3 hours ago`. Returns other text unchanged."""
    try:
        age_s = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except ValueError:
        return time
    if age_s >= _DAY_S:
        return say_count(int(age_s // _DAY_S), "{count:,} day ago", "{count:,} days ago")
    if age_s >= _HOUR_S:
        return say_count(int(age_s // _HOUR_S), "{count:,} hour ago", "{count:,} hours ago")
    return say_count(max(int(age_s // 60), 0), "{count:,} minute ago", "{count:,} minutes ago")


def _percentage(part: int, total: int) -> int:
    """Return `part` as a percentage of `total`, rounded down so that only the whole is 100 %."""
    return part * 100 // total if total else 0


LANGUAGE_COOKIE = "language"
_LANGUAGE_NAME = mark("English")
"""The message whose translation is the name of the catalogue's language."""


def request_language(request: Request) -> str:
    """Return the language that the person chose or the browser accepts, otherwise this process's language."""
    accepted_codes = re.findall(r"(?:^|,)\s*([a-z]+)", request.headers.get("accept-language", "").lower())
    codes = (request.cookies.get(LANGUAGE_COOKIE, ""), *accepted_codes)
    return next((code for code in codes if code in languages()), language())


def language_names() -> Mapping[str, str]:
    names = {}
    for code in languages():
        with language_context(code):
            names[code] = say(_LANGUAGE_NAME)
    return names
