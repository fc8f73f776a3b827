"""Turns the text that a person types (a name, a number, an order id) into a search for payments."""

import re
from collections.abc import Iterable, Iterator, Sequence

from paygw_batch.countries.rules import MobileNumbers
from paygw_batch.journal import PaymentSearch

_NUMBER = re.compile(r"\+?[\d\s().\-/]+", re.ASCII)
_SHORTEST_NUMBER = 4
_ABROAD = "00"


def is_number(typed: str) -> bool:
    """Return whether a text is a number rather than a word: digits, perhaps with separators."""
    return _NUMBER.fullmatch(typed) is not None and len(_digits(typed)) >= _SHORTEST_NUMBER


def spellings_of_number(typed: str, numbers: Iterable[MobileNumbers]) -> list[str]:
    """Return the forms in which a journal may hold a typed number: whole, and its local part.

    A journal has international numbers without the plus, or national ones with a leading zero. The person may have
    typed either, in any country.
    """
    digits = _digits(typed)
    abroad = digits.removeprefix(_ABROAD)
    found = {digits: None, abroad: None}
    for country in numbers:
        if abroad.startswith(country.dialling_code):
            own = abroad.removeprefix(country.dialling_code)
            found |= dict.fromkeys((own, f"{country.trunk_prefix}{own}", own.removeprefix(country.trunk_prefix)))
            found[f"{country.dialling_code}{own.removeprefix(country.trunk_prefix)}"] = None
        national = digits if country.keeps_zero else digits.removeprefix(country.trunk_prefix)
        if len(national) in country.national_lengths:
            found |= dict.fromkeys(
                (f"{country.dialling_code}{national}", f"{country.trunk_prefix}{national}", national)
            )
    return [spelling for spelling in found if len(spelling) >= _SHORTEST_NUMBER]


def _digits(typed: str) -> str:
    return re.sub(r"\D", "", typed, flags=re.ASCII)


MAX_FOUND = 500
"""The maximum number of payments shown: a search with more matches is too broad for a question about one person."""
_SHORTEST_BEGINNING = 3


def payment_search(text: str, numbers: Iterable[MobileNumbers]) -> PaymentSearch:
    """Return the search for a typed text: a number in any spelling, words of a name, or an order id.

    `numbers` describes each country's mobile numbers.
    """
    countries = list(numbers)
    typed = text.strip()
    words = [typed] if is_number(typed) else [word for word in typed.split() if any(map(str.isalnum, word))]
    return PaymentSearch(tuple(tuple(_alternatives(word, countries)) for word in words), typed)


def _alternatives(word: str, numbers: Sequence[MobileNumbers]) -> Iterator[str]:
    if is_number(word):
        yield from spellings_of_number(word, numbers)
    else:
        yield f"{word}*" if len(word) >= _SHORTEST_BEGINNING else word
