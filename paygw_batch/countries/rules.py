"""What a country, a form and an operation ask of a row: the types that the data files under config/ become."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class FieldKind(StrEnum):
    """What a field of a form holds, and with that how it is checked and written."""

    TEXT = "text"
    ORDER_ID = "order_id"
    AMOUNT = "amount"
    CURRENCY = "currency"
    PURPOSE = "purpose"
    INTERNATIONAL_PHONE = "international_phone"
    """`+` and the dialling code first."""
    LOCAL_PHONE = "local_phone"
    """As dialled inside the country."""
    WALLET = "wallet"
    """Digits, dialling code first, no `+`; or a bank account where the operator's pattern allows it."""
    COUNTRY = "country"
    EMAIL = "email"
    IPV4 = "ipv4"
    CALLBACK_URL = "callback_url"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a request body. `name` is its name on the wire and, where the sheet gives it, its column."""

    name: str
    kind: FieldKind
    from_sheet: bool
    """False for what only the configuration supplies (`server_callback_url`)."""


@dataclass(frozen=True, slots=True)
class Form:
    """The body shape of an operation; `fields` in wire order. Source: sections 2.1 and 2.2 of the interface."""

    name: str
    fields: tuple[FormField, ...]


@dataclass(frozen=True, slots=True)
class MobileNumbers:
    """How a country's mobile numbers are written.

    `pattern` is a regular expression over the national significant number (no trunk zero, `[0-9]` only);
    `keeps_zero` says that the national number itself starts with 0 and keeps it after the dialling code.
    """

    dialling_code: str
    trunk_prefix: str
    keeps_zero: bool
    pattern: str
    national_lengths: tuple[int, ...]
    example: str
    """A valid national significant number."""


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """What the operator's configuration adds to a country: `[countries.KE.payout]`. Everything may be absent."""

    purpose: str | None = None
    min_amount: Decimal | None = None
    max_amount: Decimal | None = None
    form: str | None = None
    """Enables an operation that the interface does not document for this country."""
    bank_account_pattern: str | None = None
    """A regular expression over the whole of `account_number`, where money also goes to banks."""
    ipaddress: str | None = None
    order_desc: str | None = None


@dataclass(frozen=True, slots=True)
class CountryRule:
    """All that one country asks of one operation, the operator's terms included.

    `form` is None while the operation cannot be used, and `unusable` then says why, in a sentence for a person.
    `required` holds the wire names that must be present; `omitted` those that are never sent for this country.
    `missing_terms` names the configuration keys without which nothing can be sent here (`purpose`).
    `defaults` fills what a sheet may leave out (`ipaddress`, `order_desc`).
    """

    code: str
    name: str
    demonym: str
    """As in "a Kenyan number"."""
    currency: str
    minor_units: int
    numbers: MobileNumbers
    form: Form | None
    unusable: str
    required: frozenset[str]
    omitted: frozenset[str]
    purpose: str | None
    missing_terms: tuple[str, ...]
    defaults: Mapping[str, str]
    min_amount: Decimal | None
    max_amount: Decimal | None
    bank_account_pattern: str | None


Rules = Mapping[str, CountryRule]
"""Country code -> rule, for one operation."""
