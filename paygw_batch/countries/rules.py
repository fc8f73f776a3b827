"""Types for the rules of a country, a form and an operation, as read from config/."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum


class FieldKind(StrEnum):
    """The kind of a field of a form. It decides how a value is checked and written."""

    TEXT = "text"
    ORDER_ID = "order_id"
    AMOUNT = "amount"
    CURRENCY = "currency"
    PURPOSE = "purpose"
    INTERNATIONAL_PHONE = "international_phone"
    """`+` and the dialling code first."""
    MASKED_PHONE = "masked_phone"
    """`+` and the dialling code first; of the digits after it some may be hidden, each by a `*`."""
    LOCAL_PHONE = "local_phone"
    """As dialled inside the country."""
    WALLET = "wallet"
    """Digits, dialling code first, no `+`; or a bank account where the operator's pattern allows it."""
    COUNTRY = "country"
    EMAIL = "email"
    IPV4 = "ipv4"
    POSTAL_CODE = "postal_code"
    "Letters, digits, spaces and hyphens."
    OPERATOR_URL = "operator_url"
    """An address of the operator's own, the same for every row: the configuration has it, under the field's name."""
    CONTROL = "control"
    """The hash over order id, amount and currency that a collection carries."""

    __hash__ = str.__hash__  # what is equal hashes the same; Enum's own would not, and is slow


class AmountForm(StrEnum):
    """How `amount` is written in a body."""

    NUMBER = "number"
    """A JSON number with the sheet's own digits."""
    TWO_DECIMALS = "two-decimals"
    """A text of digits, with two decimals in every currency."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a request body. `name` is its name on the wire and, where the sheet gives it, its column."""

    name: str
    kind: FieldKind
    from_sheet: bool
    """False for a field that only the configuration supplies (`server_callback_url`)."""


@dataclass(frozen=True, slots=True)
class Form:
    """The body shape of an operation; `fields` in wire order. Source: sections 2.1 and 2.2 of the interface.

    `shown` says from which fields the reconciliation fills those of its columns that the form has no field for.
    """

    name: str
    fields: tuple[FormField, ...]
    shown: tuple[tuple[str, tuple[str, ...]], ...] = ()


class AmountUnit(StrEnum):
    """The unit in which a reply repeats the amount."""

    MAJOR = "major"
    MINOR = "minor"
    """The currency's smallest unit: 1500.50 is repeated as 150050."""
    UNCHECKED = "unchecked"
    """The gateway repeats another amount (net of its fee): it is compared with nothing."""


@dataclass(frozen=True, slots=True)
class ReplyNames:
    """Names the fields of a reply. Each name is a path with dots; the first one present counts.

    `minor_units` has the number of decimals of each currency; it is needed if `amount_unit` is `minor`.
    """

    order_id: tuple[str, ...]
    amount: tuple[str, ...]
    currency: tuple[str, ...]
    reference: tuple[str, ...]
    error_code: tuple[str, ...]
    message: tuple[str, ...]
    customer_url: tuple[str, ...] = ()
    """The names under which a reply may give the page for the customer."""
    amount_unit: AmountUnit = AmountUnit.MAJOR
    minor_units: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """Describes one operation of the gateway: its path, and the names of its reply's fields.

    `path` follows the base address and has one place to fill, `{endpoint_id}` (section 4 of the gateway's interface).
    The interface shows no field of a reply but `status`: `reply` has the names that may occur beside it. `command` is
    the one that runs a sheet of it, `verb` what is done to a row of it, in sentences for a person, `columns` what such
    a sheet may have, in the order of a row's defects. `amount_forms` are those that the interface shows:
    if there are several, the operator's configuration names one.
    """

    name: str
    command: str
    verb: str
    path: str
    columns: tuple[str, ...]
    amount_forms: tuple[AmountForm, ...]
    reply: ReplyNames


@dataclass(frozen=True, slots=True)
class Renumbering:
    """The last change of a country's numbering plan: how a number of the other plan is written in the one in use.

    Each of `ways` is a pattern over a whole national number of the other plan, with one group, and the digits that are
    put in front of what the group holds. `to_former`: the operator's gateway still takes the numbers from before.
    """

    changed: date
    ways: tuple[tuple[str, str], ...]
    to_former: bool = False


@dataclass(frozen=True, slots=True)
class MobileNumbers:
    """How a country's mobile numbers are written.

    `pattern` is a regular expression over the national significant number (no trunk zero, `[0-9]` only, grouped, not
    anchored), good for Python and for polars alike. `trunk_prefix` is dialled before it inside the country, or
    empty. `keeps_zero` says that a leading 0 is part of the number itself, never a trunk zero, and stays after the
    dialling code: every number of Cote d'Ivoire and Benin, and some of Burkina Faso's.
    """

    dialling_code: str
    trunk_prefix: str
    keeps_zero: bool
    pattern: str
    national_lengths: tuple[int, ...]
    example: str
    """A valid national significant number."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """How a national significant number begins -> the operator it was first given to. The longest beginning counts."""
    renumbering: Renumbering | None = None


@dataclass(frozen=True, slots=True)
class PurposeTerms:
    """A purpose that a row of a sheet may choose, and the mobile operator whose wallets it names, if that is said.

    `word` is the sender's configured word for it; empty: the purpose is chosen by its code.
    """

    purpose: str
    operator: str | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """The operator's additions to a country: `[countries.KE.payout]`. All may be absent."""

    purpose: str | None = None
    min_amount: Decimal | None = None
    max_amount: Decimal | None = None
    form: str | None = None
    """Enables an operation that the interface does not document for this country."""
    operator: str | None = None
    """The mobile operator whose wallets `purpose` names, as config/mobile-operators.toml calls it."""
    purposes: Mapping[str, PurposeTerms] = field(default_factory=dict)
    """The words of senders in the column `purpose` (M-Pesa), and the purpose that each means."""
    phone_is_account: bool | None = None
    """Whether the phone is the account in a sheet without accounts. None if each account is a wallet."""
    bank_account_pattern: str | None = None
    """A regular expression over the whole of `account_number`, if money also goes to banks."""
    decimals: int | None = None
    """The decimals of amounts, if the operator takes fewer than the currency has."""
    also_numbers: tuple[str, ...] = ()
    """How further mobile numbers begin, after the dialling code: ranges allotted since this version."""
    former_numbers: bool = False
    """Whether the gateway still takes the numbers from before the country's last change of them, and no others."""
    ipaddress: str | None = None
    order_desc: str | None = None
    address1: str | None = None
    city: str | None = None
    zip_code: str | None = None
    merchant_data: str | None = None
    optional: tuple[str, ...] = ()
    """Fields that this operator does not require, although the interface's examples all have them."""
    also: tuple[str, ...] = ()
    """Fields that are sent although the interface's example lacks them."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The values of fields where the sheet says nothing."""


@dataclass(frozen=True, slots=True)
class CountryRule:
    """All that one country asks of one operation (its name), the operator's terms included.

    `form` is None while the operation cannot be used, and `unusable` then says why, in a sentence for a person.
    `required` holds the wire names that must be present; `omitted` those that are never sent for this country.
    `missing_terms` names the configuration keys without which nothing can be sent here (`purpose`).
    `defaults` fills what a sheet may leave out (`ipaddress`, `order_desc`). `max_characters` limits texts further.
    `operator` is the mobile operator whose wallets `purpose` names, if the configuration says so. `purposes` are
    those that a row may choose, by their words, folded (`fold_word`).
    `phone_as_account` is the column that can be the account too; `account_from` is that column if the one sheet that
    the rule is for has no column of accounts. Empty: none is.
    `headings` are those of the one sheet that the rule is for (`for_sheet`): column -> the sender's own heading.
    `bank_account_pattern` is the operator's, grouped: it must match the whole of an account number.
    `notes` are sentences about the country that a person should know ("Egypt is paid out in cash only").
    `confused_codes` maps a code that is often written for this country by mistake to the sentence that says so.
    """

    operation: str
    code: str
    name: str
    demonym: str
    """As in "a Kenyan number"."""
    currency: str
    minor_units: int
    decimals: int
    """The decimals that an amount may have: those of the currency, or fewer by the operator's terms."""
    numbers: MobileNumbers
    form: Form | None
    unusable: str
    required: frozenset[str]
    omitted: frozenset[str]
    purpose: str | None
    operator: str | None
    missing_terms: tuple[str, ...]
    defaults: Mapping[str, str]
    min_amount: Decimal | None
    max_amount: Decimal | None
    bank_account_pattern: str | None
    max_characters: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    confused_codes: Mapping[str, str] = field(default_factory=dict)
    purposes: Mapping[str, PurposeTerms] = field(default_factory=dict)
    phone_as_account: str = ""
    account_from: str = ""
    headings: Mapping[str, str] = field(default_factory=dict)

    @property
    def accounts(self) -> frozenset[str]:
        """The fields that name an account."""
        return frozenset(f.name for f in (self.form.fields if self.form else ()) if f.kind is FieldKind.WALLET)

    def for_sheet(self, headers: Mapping[str, str]) -> "CountryRule":
        """Return the rule for a sheet with these columns (column -> heading)."""
        has_accounts = not self.accounts.isdisjoint(headers)
        account_from = "" if has_accounts or self.phone_as_account not in headers else self.phone_as_account
        return replace(self, account_from=account_from, headings=headers)


WORD_SEPARATORS = r"[\s_-]+"
"""The characters that make no difference in a sender's word for a purpose; nor does case."""


def fold_word(word: str) -> str:
    """Return a sender's word for a purpose without case, blanks, hyphens and underscores."""
    return re.sub(WORD_SEPARATORS, "", word).lower()


Rules = Mapping[str, CountryRule]
"""Country code -> rule, for one operation."""
