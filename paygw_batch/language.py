"""Says sentences in the language of the person who reads them.

The code contains the English sentences, which are the keys of the catalogues `languages/*.po` (gettext). `say` and
`say_count` translate a sentence when it is made. `mark` notes a constant that is translated later, when it is shown.
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
    """The language of this process. It applies to every context that has not chosen another language."""

    name = ENGLISH


@cache
def languages() -> tuple[str, ...]:
    """Return the codes of all languages, English first."""
    return (ENGLISH, *sorted(file.stem for file in _FOLDER.glob("*.mo")))


def language() -> str:
    """Return the code of the current language."""
    return _context_language.get(_ProcessLanguage.name)


def set_language(name: str) -> None:
    """Choose the language of this process and all its threads, as a command does. `name` is one of `languages`."""
    _catalogue(name)
    _ProcessLanguage.name = name


@contextmanager
def language_context(name: str) -> Iterator[None]:
    """Choose the language of this context alone: one call or one request of a program that serves several people.

    Numbers are then written as that language writes them, even after `thousands_separator`, because a plan is compared
    by its text.
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
    """Use this thousands separator in this context instead of the language's, so that a page has only one."""
    token = _context_separator.set(separator)
    try:
        yield
    finally:
        _context_separator.reset(token)


def say(template: str, /, **values: object) -> str:
    """Return a sentence in the chosen language. `values` replace the placeholders `{name}`, as in `str.format`.

    The template must be a literal, or have gone through `mark`, because the catalogue is made from the source.
    """
    text = gettext(template)
    return _fill_template(text, values) if values else text


def say_count(count: int, singular: str, plural: str | None = None, /, **values: object) -> str:
    """Return the sentence for `count` things. `{count}` is their number, and `values` replace the other placeholders.

    Without `many`, English uses the same sentence for one thing and for many. Another language may have two.
    """
    return _fill_template(ngettext(singular, plural or singular, count), {"count": count, **values})


def say_all(*templates: str) -> tuple[str, ...]:
    """Return several words, such as the headings of a table, in the chosen language."""
    return tuple(say(template) for template in templates)


def mark(template: str) -> str:
    """Return a template unchanged, and mark it for the catalogue. `say` translates it when it is shown."""
    return template


def mark_count(singular: str, plural: str | None = None) -> str:  # noqa: ARG001 (the catalogue takes it from the source)
    """Return a template of `say_count` unchanged, and note it for the catalogue (as `mark` does)."""
    return singular


def mark_all(*templates: str) -> tuple[str, ...]:
    """Return several templates unchanged, and note them for the catalogue (as `mark` does)."""
    return templates


_ENGLISH_GROUPS = ","
_TWO_NUMBERS = mark("1.5,2.5")
"""Two adjacent numbers in a spreadsheet's CSV file in this language. In French they are `1,5;2,5`."""
THOUSANDS = mark(",")
"""The thousands separator. In French it is a narrow no-break space."""


def format_number(count: int) -> str:
    """Format a whole number in the chosen language."""
    return localise_number(f"{count:,}")


def spreadsheet_separators() -> tuple[str, str]:
    """Return the decimal separator and the delimiter of a CSV file for a spreadsheet in the chosen language."""
    two_numbers = gettext(_TWO_NUMBERS)
    return two_numbers[1], two_numbers[3]


def localise_number(text: str) -> str:
    """Return a number written as `1,234.50` with the separators of the language.

    A thousands separator of this context replaces that of the language.
    """
    thousands, decimals = _context_separator.get() or gettext(THOUSANDS), spreadsheet_separators()[0]
    return text.translate({ord(_ENGLISH_GROUPS): thousands, ord("."): decimals})


def _fill_template(text: str, values: Mapping[str, object]) -> str:
    return _LocalisedFormatter().vformat(text, (), values) if ":," in text else text.format(**values)


class _LocalisedFormatter(Formatter):
    """Fills a sentence as `str.format` does, with numbers as the language groups them."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        formatted = super().format_field(value, format_spec)
        return localise_number(formatted) if _ENGLISH_GROUPS in format_spec else formatted


def gettext(message: str) -> str:
    """Return the translation of a message, with its placeholders. Jinja's i18n extension calls this function."""
    return _catalogue(language()).gettext(message) if message else message


def ngettext(singular: str, plural: str, count: int) -> str:
    """Return the translation for `count` things, with its placeholders. Jinja's i18n extension calls this function."""
    return _catalogue(language()).ngettext(singular, plural, count)


@cache
def _catalogue(name: str) -> NullTranslations:
    if name == ENGLISH:
        return NullTranslations()
    with (_FOLDER / f"{name}.mo").open("rb") as file:
        return GNUTranslations(file)
