"""Renders the templates: every value is escaped, every sentence goes through one function."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from paygw_batch.console import state_words
from paygw_batch.core.money import with_separators
from paygw_batch.core.recorded_words import recorded
from paygw_batch.language import gettext, language, mark_all, ngettext, say
from paygw_batch.run.people import plain_name

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_SHOWN_DIGITS = 3
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


def page_templates() -> Environment:
    """Return the environment of all templates."""
    found = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    install: Callable[..., None] = found.install_gettext_callables  # type: ignore[attr-defined]  # the extension's
    install(gettext, ngettext, newstyle=True)
    found.globals.update(language=language)
    found.filters.update(
        money=with_separators, number=_number, when=when, share=_share, code=_grouped, first_name=_first_name
    )
    found.filters["recorded"] = lambda sentence: recorded(sentence) if sentence else sentence
    found.tests["same_person"] = lambda one, other: plain_name(one) == plain_name(other)
    found.globals.update(state_sign=state_words.sign, state_word=state_words.word, state_meaning=state_words.meaning)
    return found


def when(at: str | None) -> str:
    """Return a time as people read it: `22 Nov 2026, 23:26 UTC`; text that is none is returned as it is."""
    if not at:
        return ""
    try:
        moment = datetime.fromisoformat(at).astimezone(UTC)
    except ValueError:
        return at
    return f"{say(_DAYS[moment.month - 1], day=moment.day, year=moment.year)}, {moment:%H:%M} UTC"


def masked(number: str) -> str:
    """Return an account as an auditor sees it: enough digits to compare, too few to pay to."""
    return f"...{number[-_SHOWN_DIGITS:]}" if number else ""


def _number(value: int) -> str:
    return f"{value:,}"


def _share(part: int, whole: int) -> int:
    """Return a part in per cent, rounded down: 100 means all of it."""
    return part * 100 // whole if whole else 0


def _grouped(digits: str) -> str:
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _first_name(name: str) -> str:
    return name.split(maxsplit=1)[0] if name.split() else name
