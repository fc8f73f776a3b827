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
_of_context: ContextVar[str] = ContextVar("language")
_thousands_sign: ContextVar[str] = ContextVar("thousands sign", default="")


class _OfProcess:
    """The language of this process. It applies to every context that has not chosen another language."""

    name = ENGLISH


@cache
def languages() -> tuple[str, ...]:
    """Return the codes of all languages, English first."""
    return (ENGLISH, *sorted(file.stem for file in _FOLDER.glob("*.mo")))


def language() -> str:
    """Return the code of the language in which sentences are said now."""
    return _of_context.get(_OfProcess.name)


def use(name: str) -> None:
    """Choose the language of this process and all its threads, as a command does. `name` is one of `languages`."""
    _catalogue(name)
    _OfProcess.name = name


@contextmanager
def speaking(name: str) -> Iterator[None]:
    """Choose the language of this context alone: one call or one request of a program that serves several people.

    Numbers are then written as that language writes them, even after `thousands_apart_by`, because a plan is compared
    by its text.
    """
    _catalogue(name)
    token, sign = _of_context.set(name), _thousands_sign.set("")
    try:
        yield
    finally:
        _thousands_sign.reset(sign)
        _of_context.reset(token)


@contextmanager
def thousands_apart_by(sign: str) -> Iterator[None]:
    """Separate thousands by this sign in this context, instead of the language's sign. A page then has one rule."""
    token = _thousands_sign.set(sign)
    try:
        yield
    finally:
        _thousands_sign.reset(token)


def say(template: str, /, **values: object) -> str:
    """Return a sentence in the chosen language. `values` replace the placeholders `{name}`, as in `str.format`.

    The template must be a literal, or have gone through `mark`, because the catalogue is made from the source.
    """
    text = gettext(template)
    return _filled(text, values) if values else text


def say_count(count: int, one: str, many: str | None = None, /, **values: object) -> str:
    """Return the sentence for `count` things. `{count}` is their number, and `values` replace the other placeholders.

    Without `many`, English uses the same sentence for one thing and for many. Another language may have two.
    """
    return _filled(ngettext(one, many or one, count), {"count": count, **values})


def say_all(*templates: str) -> tuple[str, ...]:
    """Return several words, such as the headings of a table, in the chosen language."""
    return tuple(say(template) for template in templates)


def mark(template: str) -> str:
    """Return a template unchanged. This notes a constant for the catalogue; `say` translates it when it is shown."""
    return template


def mark_count(one: str, many: str | None = None) -> str:  # noqa: ARG001 (the catalogue takes it from the source)
    """Return a template of `say_count` unchanged, and note it for the catalogue (as `mark` does)."""
    return one


def mark_all(*templates: str) -> tuple[str, ...]:
    """Return several templates unchanged, and note them for the catalogue (as `mark` does)."""
    return templates


_ENGLISH_GROUPS = ","
_TWO_NUMBERS = mark("1.5,2.5")
"""Two numbers beside each other in a spreadsheet's CSV file in this language. In French they are `1,5;2,5`."""
THOUSANDS = mark(",")
"""The sign between groups of three digits. In French it is a narrow no-break space."""


def number(count: int) -> str:
    """Return a whole number as people read it in the chosen language."""
    return grouped(f"{count:,}")


def spreadsheet_signs() -> tuple[str, str]:
    """Return the decimal sign and the delimiter of a CSV file that a spreadsheet in the chosen language opens."""
    two_numbers = gettext(_TWO_NUMBERS)
    return two_numbers[1], two_numbers[3]


def grouped(text: str) -> str:
    """Return a number written as `1,234.50` with the signs of the language.

    Thousands have the sign of this context, if there is one.
    """
    thousands, decimals = _thousands_sign.get() or gettext(THOUSANDS), spreadsheet_signs()[0]
    return text.translate({ord(_ENGLISH_GROUPS): thousands, ord("."): decimals})


def _filled(text: str, values: Mapping[str, object]) -> str:
    return _Filling().vformat(text, (), values) if ":," in text else text.format(**values)


class _Filling(Formatter):
    """Fills a sentence as `str.format` does, with numbers as the language groups them."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        shown = super().format_field(value, format_spec)
        return grouped(shown) if _ENGLISH_GROUPS in format_spec else shown


def gettext(message: str) -> str:
    """Return the translation of a message, with its placeholders. Jinja's i18n extension calls this function."""
    return _catalogue(language()).gettext(message) if message else message


def ngettext(one: str, many: str, count: int) -> str:
    """Return the translation for `count` things, with its placeholders. Jinja's i18n extension calls this function."""
    return _catalogue(language()).ngettext(one, many, count)


@cache
def _catalogue(name: str) -> NullTranslations:
    if name == ENGLISH:
        return NullTranslations()
    with (_FOLDER / f"{name}.mo").open("rb") as file:
        return GNUTranslations(file)
