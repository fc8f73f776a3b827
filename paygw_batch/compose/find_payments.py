"""Turns the text that a person types (a name, a number, an order id) into a search for payments."""

from collections.abc import Iterable, Iterator, Sequence

from paygw_batch.countries.number_spellings import is_number, spellings_of_number
from paygw_batch.countries.rules import MobileNumbers
from paygw_batch.journal import PaymentSearch

MOST_FOUND = 500
"""How many payments are shown: a search that fits more is too wide to answer a question about one person."""
_SHORTEST_BEGINNING = 3


def payment_search(text: str, numbers: Iterable[MobileNumbers]) -> PaymentSearch:
    """Return the search for a typed text: one number in any spelling, or words of a name, or an order id.

    `numbers` says how each country's mobile numbers are written.
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
