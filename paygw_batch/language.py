"""Translates sentences into the reader's language.

The code contains the English sentences, which are the message ids in the catalogues `languages/*.po` (gettext). `say`
and `say_count` translate a sentence at once. `mark` marks a constant that is translated later, when it is shown.
docs/translating.md says how to add a sentence or a language.
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
    """The language of this process, for every context that has not chosen another."""

    name = ENGLISH


@cache
def languages() -> tuple[str, ...]:
    """Return the codes of all languages, English first."""
    return (ENGLISH, *sorted(file.stem for file in _FOLDER.glob("*.mo")))


def language() -> str:
    """Return the code of the current language."""
    return _context_language.get(_ProcessLanguage.name)


def set_language(name: str) -> None:
    """Set the language of this process and all its threads, as a command does. `name` is one of `languages`."""
    _catalogue(name)
    _ProcessLanguage.name = name


@contextmanager
def language_context(name: str) -> Iterator[None]:
    """Set the language of this context only, such as one request in a program that serves several people.

    Numbers are then formatted for that language, even after `thousands_separator`, because a plan is compared by its
    text.
    """
    _catalogue(name)
    token, sign = _context_language.set(name), _context_separator.set("")
    try:
        yield
    finally:
        _context_separator.reset(sign)
        _context_language.reset(token)


@contextmanager
def thousands_separator(separator: str) -> Iterator[None]:
    """Use this thousands separator in this context instead of the language's."""
    token = _context_separator.set(separator)
    try:
        yield
    finally:
        _context_separator.reset(token)


def say(template: str, /, **values: object) -> str:
    """Translate a sentence into the current language. `values` replace the placeholders `{name}`, as in `str.format`.

    The template must be a literal, or come from `mark`, because the catalogue is extracted from the source.
    """
    text = gettext(template)
    return _fill_template(text, values) if values else text


def say_count(count: int, singular: str, plural: str | None = None, /, **values: object) -> str:
    """Translate the sentence for `count` things. `{count}` is their number. `values` replace the other placeholders.

    Without `many`, English uses the same sentence for singular and plural. Other languages may have two.
    """
    return _fill_template(ngettext(singular, plural or singular, count), {"count": count, **values})


def say_all(*templates: str) -> tuple[str, ...]:
    """Translate several words, such as the headings of a table, into the current language."""
    return tuple(say(template) for template in templates)


def mark(template: str) -> str:
    """Return a template unchanged, marked for the catalogue. `say` translates it when it is shown."""
    return template


def mark_count(singular: str, plural: str | None = None) -> str:  # noqa: ARG001 (the catalogue takes it from the source)
    """Return a template for `say_count` unchanged, marked for the catalogue."""
    return singular


def mark_all(*templates: str) -> tuple[str, ...]:
    """Return several templates unchanged, marked for the catalogue."""
    return templates


_ENGLISH_GROUPS = ","
_TWO_NUMBERS = mark("1.5,2.5")
"""Two adjacent numbers in a spreadsheet's CSV file in this language. In French they are `1,5;2,5`."""
THOUSANDS = mark(",")
"""The thousands separator. In French it is a narrow no-break space."""


def format_number(count: int) -> str:
    """Format a whole number in the current language."""
    return localise_number(f"{count:,}")


def spreadsheet_separators() -> tuple[str, str]:
    """Return the decimal separator and the CSV delimiter that spreadsheets use in the current language."""
    two_numbers = gettext(_TWO_NUMBERS)
    return two_numbers[1], two_numbers[3]


def localise_number(text: str) -> str:
    """Replace the separators of a number such as `1,234.50` with those of the language.

    A thousands separator set for this context takes precedence.
    """
    thousands, decimals = _context_separator.get() or gettext(THOUSANDS), spreadsheet_separators()[0]
    return text.translate({ord(_ENGLISH_GROUPS): thousands, ord("."): decimals})


def _fill_template(text: str, values: Mapping[str, object]) -> str:
    return _LocalisedFormatter().vformat(text, (), values) if ":," in text else text.format(**values)


class _LocalisedFormatter(Formatter):
    """Formats like `str.format`, but groups numbers as the language does."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        formatted = super().format_field(value, format_spec)
        return localise_number(formatted) if _ENGLISH_GROUPS in format_spec else formatted


def gettext(message: str) -> str:
    """Return the translation of a message, with its placeholders, for Jinja's i18n extension."""
    return _catalogue(language()).gettext(message) if message else message


def ngettext(singular: str, plural: str, count: int) -> str:
    """Return the translation for `count` things, with its placeholders, for Jinja's i18n extension."""
    return _catalogue(language()).ngettext(singular, plural, count)


@cache
def _catalogue(name: str) -> NullTranslations:
    if name == ENGLISH:
        return NullTranslations()
    with (_FOLDER / f"{name}.mo").open("rb") as file:
        return GNUTranslations(file)
