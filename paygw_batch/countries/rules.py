"""Defines the types of the rules for a country, a form and an operation, as read from config/."""

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
    """A phone that begins with `+` and the dialling code."""
    MASKED_PHONE = "masked_phone"
    """A phone that begins with `+` and the dialling code. Some digits after that may be hidden, each by a `*`."""
    LOCAL_PHONE = "local_phone"
    """A phone as it is dialled inside the country."""
    WALLET = "wallet"
    """Digits that begin with the dialling code, without `+`; or a bank account, if the operator's pattern allows it."""
    COUNTRY = "country"
    EMAIL = "email"
    IPV4 = "ipv4"
    POSTAL_CODE = "postal_code"
    """Letters, digits, spaces and hyphens."""
    OPERATOR_URL = "operator_url"
    """An address of the operator's, the same for every row. The configuration has it under the field's name."""
    CONTROL = "control"
    """The hash over order id, amount and currency that a collection carries."""

    __hash__ = str.__hash__  # equal values need equal hashes; Enum's own differ, and are slow


class AmountForm(StrEnum):
    """How `amount` is written in a request body."""

    NUMBER = "number"
    """A JSON number with the sheet's own digits."""
    TWO_DECIMALS = "two-decimals"
    """A text of digits, with two decimals in every currency."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a request body. `name` is its name in the body and, if the sheet has it, its column."""

    name: str
    kind: FieldKind
    from_sheet: bool
    """False for a field that only the configuration supplies (`server_callback_url`)."""


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of an operation's request body. Source: sections 2.1 and 2.2 of the interface.

    `fields` are in the order of the body. `shown` has the columns of the reconciliation without a field of that name,
    each with the fields that fill it.
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
    """The gateway repeats another amount (without its fee), which is not compared."""


@dataclass(frozen=True, slots=True)
class ReplyNames:
    """The names of the fields of a reply. Each name is a path with dots, and the first one that is present counts.

    `minor_units` has the number of decimals of each currency, and is needed if `amount_unit` is `minor`.
    """

    order_id: tuple[str, ...]
    amount: tuple[str, ...]
    currency: tuple[str, ...]
    reference: tuple[str, ...]
    error_code: tuple[str, ...]
    message: tuple[str, ...]
    customer_url: tuple[str, ...] = ()
    """The names of fields that may have the address of the page for the customer."""
    amount_unit: AmountUnit = AmountUnit.MAJOR
    minor_units: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the gateway: its path, and the names of its reply's fields.

    `path` follows the base address and contains `{endpoint_id}` (section 4 of the gateway's interface). The interface
    shows no field of a reply except `status`; `reply` has the names of others. `command` is the command that runs a
    sheet of this operation. `verb` names in sentences what happens to a row. `columns` are those that such a sheet may
    have, in the order of a row's defects. `amount_forms` are those that the interface shows; if there are several, the
    operator's configuration names one.
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
    """The last change of a country's numbering plan: how a number of the other plan is written in the plan in use.

    Each of `ways` has a pattern for a whole national number of the other plan, with one group, and the digits that are
    put in front of the group's match. `to_former`: the plan in use is the former one, because the gateway still
    requires it.
    """

    changed: date
    ways: tuple[tuple[str, str], ...]
    to_former: bool = False


@dataclass(frozen=True, slots=True)
class MobileNumbers:
    """How a country's mobile numbers are written.

    `pattern` is a regular expression for the national significant number (without trunk zero, only `[0-9]`, grouped,
    not anchored) that Python and polars read alike. `trunk_prefix` is dialled before the number inside the country, or
    is empty. `keeps_zero` says that a leading 0 belongs to the number, is never a trunk zero, and stays after the
    dialling code. This is so for every number of Cote d'Ivoire and Benin, and for some of Burkina Faso.
    """

    dialling_code: str
    trunk_prefix: str
    keeps_zero: bool
    pattern: str
    national_lengths: tuple[int, ...]
    example: str
    """A valid national significant number."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """The beginning of national significant numbers -> the operator that first got them. The longest one counts."""
    renumbering: Renumbering | None = None


@dataclass(frozen=True, slots=True)
class PurposeTerms:
    """A purpose that a row of a sheet may choose, and the mobile operator whose wallets it is for, if configured.

    `word` is the sender's configured word for the purpose. If it is empty, the purpose is chosen by its code.
    """

    purpose: str
    operator: str | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """The operator's additions to the rules of a country: `[countries.KE.payout]`. All may be absent."""

    purpose: str | None = None
    min_amount: Decimal | None = None
    max_amount: Decimal | None = None
    form: str | None = None
    """Enables an operation that the interface does not document for this country."""
    operator: str | None = None
    """The mobile operator whose wallets `purpose` is for, as config/mobile-operators.toml calls it."""
    purposes: Mapping[str, PurposeTerms] = field(default_factory=dict)
    """The senders' words in the column `purpose` (M-Pesa) -> the purpose that each means."""
    phone_is_account: bool | None = None
    """Whether the phone is the account in a sheet without accounts. None: it is, if each account is a wallet."""
    bank_account_pattern: str | None = None
    """A regular expression for the whole of `account_number`, if banks are paid as well."""
    decimals: int | None = None
    """The decimals of amounts, if the operator accepts fewer than the currency has."""
    also_numbers: tuple[str, ...] = ()
    """The beginnings of further mobile numbers, after the dialling code: ranges allotted since this version."""
    former_numbers: bool = False
    """Whether the gateway requires the numbers from before the last change of the country's numbering plan."""
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
    """The values of fields if the sheet has none."""


@dataclass(frozen=True, slots=True)
class CountryRule:
    """The rules of one country for one operation (its name), including the operator's terms.

    - `form` is None while the operation cannot be used; `unusable` then says why, in a sentence for a person.
    - `required` has the names of fields that must be present, and `omitted` those that are never sent for this country.
    - `missing_terms` names the configuration keys without which nothing can be sent here (`purpose`).
    - `defaults` has values for fields that a sheet may leave out (`ipaddress`, `order_desc`).
    - `max_characters` has limits of texts that are lower than the usual one.
    - `operator` is the mobile operator whose wallets `purpose` is for, if configured.
    - `purposes` are those that a row may choose, by their folded words (`fold_word`).
    - `phone_as_account` is the column that can also be the account. `account_from` is that column if the sheet of this
      rule has no column of accounts. Either is empty if there is none.
    - `headings`: the columns of the sheet of this rule (`for_sheet`) -> the sender's own headings.
    - `bank_account_pattern` is the operator's pattern, grouped, which must match the whole of an account number.
    - `notes` are sentences about the country that a person should know ("Egypt is paid out in cash only").
    - `confused_codes`: a code that is often written for this country by mistake -> the sentence that says so.
    """

    operation: str
    code: str
    name: str
    demonym: str
    """The adjective for the country, as in "a Kenyan number"."""
    currency: str
    minor_units: int
    decimals: int
    """The decimals that an amount may have: those of the currency, or fewer if the operator's terms say so."""
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
        """The fields that contain an account."""
        return frozenset(f.name for f in (self.form.fields if self.form else ()) if f.kind is FieldKind.WALLET)

    def for_sheet(self, headers: Mapping[str, str]) -> "CountryRule":
        """Return the rule for a sheet with these columns (column -> heading)."""
        has_accounts = not self.accounts.isdisjoint(headers)
        account_from = "" if has_accounts or self.phone_as_account not in headers else self.phone_as_account
        return replace(self, account_from=account_from, headings=headers)


WORD_SEPARATORS = r"[\s_-]+"
"""The characters that do not count in a sender's word for a purpose. Case does not count either."""


def fold_word(word: str) -> str:
    """Return a sender's word for a purpose without case, blanks, hyphens and underscores."""
    return re.sub(WORD_SEPARATORS, "", word).lower()


Rules = Mapping[str, CountryRule]
"""Maps each country code to the country's rule, for one operation."""
