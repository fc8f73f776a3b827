"""Finds the spellings that a number which a person types can have in a journal."""

import re
from collections.abc import Iterable

from paygw_batch.countries.rules import MobileNumbers

_NUMBER = re.compile(r"\+?[\d\s().\-/]+", re.ASCII)
_SHORTEST_NUMBER = 4
_ABROAD = "00"


def is_number(typed: str) -> bool:
    """Return whether a text is a number, and not a word: digits, with separators between them."""
    return _NUMBER.fullmatch(typed) is not None and len(_digits(typed)) >= _SHORTEST_NUMBER


def spellings_of_number(typed: str, numbers: Iterable[MobileNumbers]) -> list[str]:
    """Return the digits by which a number that a person typed can be in a journal: whole, and without the rest.

    A journal has numbers abroad-style without the plus, or inside the country with a leading zero. The person may have
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
