"""Turns what a person types (a name, a number, an order id) into a search, and says who a found payment is to."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paygw_batch.core.shown_states import shown_state
from paygw_batch.countries.rules import MobileNumbers
from paygw_batch.countries.shown_fields import shown_fields
from paygw_batch.journal import FoundPayment, PaymentSearch

MOST_FOUND = 500
"""How many payments are shown: a search that fits more is too wide to answer a question about one person."""
_NUMBER = re.compile(r"\+?[\d\s().\-/]+", re.ASCII)
_SHORTEST_NUMBER = 4
_SHORTEST_BEGINNING = 3
_ABROAD = "00"


@dataclass(frozen=True, slots=True)
class Payee:
    """Whom a payment is to: name and account or phone number, as the reconciliation shows them."""

    name: str
    number: str

    @property
    def person(self) -> tuple[str, str]:
        """What two payments to one person have in common: the number, and the name without regard to case."""
        return self.number, " ".join(self.name.casefold().split())


def payment_search(text: str, numbers: Iterable[MobileNumbers]) -> PaymentSearch:
    """Return the search for what a person typed: one number in any spelling, or words of a name, or an order id.

    `numbers` says how each country's mobile numbers are written.
    """
    countries = list(numbers)
    typed = text.strip()
    digits = re.sub(r"\D", "", typed, flags=re.ASCII)
    if _NUMBER.fullmatch(typed) and len(digits) >= _SHORTEST_NUMBER:
        return PaymentSearch((tuple(spellings_of_number(typed, countries)),), typed)
    words = [word for word in typed.split() if any(letter.isalnum() for letter in word)]
    return PaymentSearch(tuple(tuple(_alternatives(word, countries)) for word in words), typed)


def spellings_of_number(typed: str, numbers: Iterable[MobileNumbers]) -> list[str]:
    """Return the digits by which a number that a person typed can be in a journal: whole, and without the rest.

    A journal has numbers abroad-style without the plus, or inside the country with a leading zero. The person may have
    typed either, in any country.
    """
    digits = re.sub(r"\D", "", typed, flags=re.ASCII)
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


def payee_of(payment: FoundPayment) -> Payee:
    """Return whom a payment is to."""
    name, account, phone = (
        " ".join(payment.fields[name] for name in shown_fields(payment.form, column) if payment.fields.get(name))
        for column in ("account_name", "account_number", "phone")
    )
    return Payee(name, account or phone or payment.payee)


def state_of(payment: FoundPayment) -> str:
    """Return the state that a person is shown."""
    return str(shown_state(payment.state))


def _alternatives(word: str, numbers: list[MobileNumbers]) -> Iterator[str]:
    if _NUMBER.fullmatch(word) and len(re.sub(r"\D", "", word, flags=re.ASCII)) >= _SHORTEST_NUMBER:
        yield from spellings_of_number(word, numbers)
    else:
        yield f"{word}*" if len(word) >= _SHORTEST_BEGINNING else word
