"""Translates messages into the reader's language.

The code contains the English messages, which are the message ids in the catalogues `languages/*.po` (gettext). `say`
and `say_count` translate a message. `mark` marks a constant that is translated later, when it is shown.
docs/translating.md explains how to add a message or a language.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from pathlib import Path
from string import Formatter
from typing import Any

ENGLISH = "en"
_FOLDER = Path(__file__).parent / "languages"
_context_language: ContextVar[str] = ContextVar("language")
_context_separator: ContextVar[str] = ContextVar("thousands sign", default="")


class _ProcessLanguage:
    """The language of this process, which applies unless the context has another one."""

    name = ENGLISH


@cache
def languages() -> tuple[str, ...]:
    """Return the codes of all languages, English first."""
    return (ENGLISH, *sorted(file.stem for file in _FOLDER.glob("*.mo")))


def language() -> str:
    """Return the code of the current language."""
    return _context_language.get(_ProcessLanguage.name)


def set_language(name: str) -> None:
    """Set the language of this process and all its threads. `name` is one of `languages`."""
    _catalogue(name)
    _ProcessLanguage.name = name


@contextmanager
def language_context(name: str) -> Iterator[None]:
    """Set the language for the current context only, such as one request to a server.

    Numbers are formatted for that language, even inside `thousands_separator`, because plans are compared as text.
    """
    _catalogue(name)
    language_token, separator_token = _context_language.set(name), _context_separator.set("")
    try:
        yield
    finally:
        _context_separator.reset(separator_token)
        _context_language.reset(language_token)


@contextmanager
def thousands_separator(separator: str) -> Iterator[None]:
    """Use `separator` instead of the language's thousands separator in this context."""
    token = _context_separator.set(separator)
    try:
        yield
    finally:
        _context_separator.reset(token)


def say(template: str, /, **values: object) -> str:
    """Translate a message into the current language. `values` fill its placeholders, as in `str.format`.

    The template must be a literal or come from `mark`, because the catalogue is extracted from the source.
    """
    text = gettext(template)
    return _fill_template(text, values) if values else text


def say_count(count: int, singular: str, plural: str | None = None, /, **values: object) -> str:
    """Translate a message about `count` things. `count` fills `{count}`, and `values` fill the other placeholders.

    Without `plural`, English uses `singular` for every count. Other languages may still have several forms.
    """
    return _fill_template(ngettext(singular, plural or singular, count), {"count": count, **values})


def say_all(*templates: str) -> tuple[str, ...]:
    """Translate several messages, such as the headings of a table, into the current language."""
    return tuple(say(template) for template in templates)


def mark(template: str) -> str:
    """Return a template unchanged, marked for the catalogue, for `say` to translate later."""
    return template


def mark_count(singular: str, plural: str | None = None) -> str:  # noqa: ARG001 (extracted from the source)
    """Return a template for `say_count` unchanged, marked for the catalogue."""
    return singular


def mark_all(*templates: str) -> tuple[str, ...]:
    """Return several templates unchanged, marked for the catalogue."""
    return templates


_ENGLISH_SEPARATOR = ","
_CSV_SAMPLE = mark("1.5,2.5")
"""Two adjacent numbers in a CSV file from a spreadsheet in this language. In French they are `1,5;2,5`."""
THOUSANDS = mark(",")
"""The thousands separator. In French it is a narrow no-break space."""


def format_number(count: int) -> str:
    """Format a whole number in the current language."""
    return localise_number(f"{count:,}")


def spreadsheet_separators() -> tuple[str, str]:
    """Return the decimal separator and CSV delimiter of spreadsheets in the current language."""
    sample = gettext(_CSV_SAMPLE)
    return sample[1], sample[3]


def localise_number(text: str) -> str:
    """Replace the separators in a number such as `1,234.50` with those of the context and language."""
    thousands, decimals = _context_separator.get() or gettext(THOUSANDS), spreadsheet_separators()[0]
    return text.translate({ord(_ENGLISH_SEPARATOR): thousands, ord("."): decimals})


def _fill_template(text: str, values: Mapping[str, object]) -> str:
    return _LocalisedFormatter().vformat(text, (), values) if ":," in text else text.format(**values)


class _LocalisedFormatter(Formatter):
    """Formats like `str.format`, but with the language's separators in grouped numbers."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        formatted = super().format_field(value, format_spec)
        return localise_number(formatted) if _ENGLISH_SEPARATOR in format_spec else formatted


def gettext(message: str) -> str:
    """Translate a message without filling in its placeholders. Jinja's i18n extension also calls this."""
    return _catalogue(language()).gettext(message) if message else message


def ngettext(singular: str, plural: str, count: int) -> str:
    """Translate a message for `count` things without filling its placeholders, also for Jinja."""
    return _catalogue(language()).ngettext(singular, plural, count)


@cache
def _catalogue(name: str) -> NullTranslations:
    if name == ENGLISH:
        return NullTranslations()
    with (_FOLDER / f"{name}.mo").open("rb") as file:
        return GNUTranslations(file)
