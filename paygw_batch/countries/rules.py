"""Defines the types of rules for countries, forms and operations, as read from config/."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum


class FieldKind(StrEnum):
    """The kind of a form field, which determines how values are checked and formatted."""

    TEXT = "text"
    ORDER_ID = "order_id"
    AMOUNT = "amount"
    CURRENCY = "currency"
    PURPOSE = "purpose"
    INTERNATIONAL_PHONE = "international_phone"
    """A phone number that begins with `+` and the dialling code."""
    MASKED_PHONE = "masked_phone"
    """Like `INTERNATIONAL_PHONE`, but some later digits may be masked as `*`."""
    LOCAL_PHONE = "local_phone"
    """A phone number as dialled within the country."""
    WALLET = "wallet"
    """Digits that begin with the dialling code without `+`, or a bank account if the operator's pattern allows it."""
    COUNTRY = "country"
    EMAIL = "email"
    IPV4 = "ipv4"
    POSTAL_CODE = "postal_code"
    """Letters, digits, spaces and hyphens."""
    OPERATOR_URL = "operator_url"
    """The operator's URL, configured under the field's name and the same for every row."""
    CONTROL = "control"
    """The control hash of a collection."""

    __hash__ = str.__hash__  # members must hash like their text, which they equal; Enum's own hash is also slow


class AmountForm(StrEnum):
    """The format of `amount` in a request body."""

    NUMBER = "number"
    """A JSON number with the sheet's own digits."""
    TWO_DECIMALS = "two-decimals"
    """A string with two decimals in every currency."""


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a request body. `name` is also its column in a sheet, if any."""

    name: str
    kind: FieldKind
    from_sheet: bool
    """Whether a sheet can supply the field. Others, such as `server_callback_url`, come only from the configuration."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a request body (sections 2.1 and 2.2 of the gateway's interface).

    `fields` are in the body's order. `shown` pairs the reconciliation's columns with the fields that they show.
    """

    name: str
    fields: tuple[FormField, ...]
    shown: tuple[tuple[str, tuple[str, ...]], ...] = ()


class AmountUnit(StrEnum):
    """The unit of the amount in a reply."""

    MAJOR = "major"
    MINOR = "minor"
    """The currency's smallest unit, in which 1500.50 is 150050."""
    UNCHECKED = "unchecked"
    """The reply may state a different amount, such as one without the fee, so amounts are not compared."""


@dataclass(frozen=True, slots=True)
class ReplyNames:
    """The names of fields in a reply, as dotted paths. The first name that is present applies.

    `minor_units` maps each currency to its number of decimals, and is needed if `amount_unit` is `minor`.
    """

    order_id: tuple[str, ...]
    amount: tuple[str, ...]
    currency: tuple[str, ...]
    reference: tuple[str, ...]
    error_code: tuple[str, ...]
    message: tuple[str, ...]
    customer_url: tuple[str, ...] = ()
    """The fields with the URL of the page for the customer."""
    amount_unit: AmountUnit = AmountUnit.MAJOR
    minor_units: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the gateway.

    `path` follows the base URL, and contains `{endpoint_id}` (section 4 of the gateway's interface). `reply` names the
    fields of a reply, of which the interface documents only `status`. `command` is the command for sheets of this
    operation. `verb` says in messages what the operation does with a row. `columns` are a sheet's columns, in the order
    in which defects are reported. `amount_forms` are the documented formats. If there are several, the operator
    configures one.
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
    """The latest change to a country's numbering plan, for converting numbers to the plan in use.

    Each of `conversions` pairs a pattern for whole national numbers in the other plan with the prefix to add before the
    pattern's group. With `to_former`, the gateway still requires the former plan.
    """

    changed: date
    conversions: tuple[tuple[str, str], ...]
    to_former: bool = False


@dataclass(frozen=True, slots=True)
class MobileNumbers:
    """The format of a country's mobile numbers.

    `pattern` is a regular expression for the national significant number (without trunk zero, only `[0-9]`, grouped,
    not anchored), valid in Python and polars. `trunk_prefix`, if any, is dialled before the number inside the country.
    With `keeps_zero`, a leading 0 is part of the number and follows the dialling code, as in all numbers of Cote
    d'Ivoire and Benin, and some of Burkina Faso.
    """

    dialling_code: str
    trunk_prefix: str
    keeps_zero: bool
    pattern: str
    national_lengths: tuple[int, ...]
    example: str
    """A valid national significant number."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """Maps prefixes of national significant numbers to mobile operators. The longest matching prefix applies."""
    renumbering: Renumbering | None = None


@dataclass(frozen=True, slots=True)
class PurposeTerms:
    """A purpose that a row may choose, and the mobile operator of its wallets, if configured.

    `word` is the configured word for the purpose in sheets. If it is empty, rows choose the purpose by code.
    """

    purpose: str
    operator: str | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """The operator's terms for a country, such as `[countries.KE.payout]`. All are optional."""

    purpose: str | None = None
    min_amount: Decimal | None = None
    max_amount: Decimal | None = None
    form: str | None = None
    """Enables an operation that the interface does not document for this country."""
    operator: str | None = None
    """The mobile operator whose wallets `purpose` pays to, as named in config/mobile-operators.toml."""
    purposes: Mapping[str, PurposeTerms] = field(default_factory=dict)
    """Maps the senders' words in the column `purpose` (M-Pesa) to purposes."""
    phone_is_account: bool | None = None
    """Whether the phone serves as the account in sheets without accounts. By default, only if no banks are paid."""
    bank_account_pattern: str | None = None
    """A regular expression for the whole `account_number`, if banks are paid too."""
    decimals: int | None = None
    """The maximum number of decimals, if the operator accepts fewer than the currency has."""
    also_numbers: tuple[str, ...] = ()
    """Prefixes of valid mobile numbers (after the dialling code) that this version does not know."""
    former_numbers: bool = False
    """Whether the gateway requires numbers of the former numbering plan."""
    ipaddress: str | None = None
    order_desc: str | None = None
    address1: str | None = None
    city: str | None = None
    zip_code: str | None = None
    merchant_data: str | None = None
    optional: tuple[str, ...] = ()
    """Fields in the interface's examples that this operator does not require."""
    also: tuple[str, ...] = ()
    """Additional fields to send, which the interface's examples do not have."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The default values of fields."""


@dataclass(frozen=True, slots=True)
class CountryRule:
    """The rules for a country and operation, including the operator's terms.

    - `form` is None if the operation cannot be used. Then `unusable` is the message that says why.
    - `required` are the fields that must be present, and `omitted` the fields that are never sent.
    - `missing_terms` are the missing configuration keys, such as `purpose`, without which nothing can be sent.
    - `defaults` maps fields that a sheet may leave out (`ipaddress`, `order_desc`) to their values.
    - `max_characters` maps fields to maximum lengths below the usual one.
    - `operator` is the mobile operator of the wallets that `purpose` pays to, if configured.
    - `purposes` maps normalised words (`fold_word`) to the purposes that rows may choose.
    - `phone_as_account` is the column that can serve as the account, if any. `account_from` is the same column if the
      sheet has no accounts, otherwise empty.
    - `headings` maps the sheet's columns (`for_sheet`) to the sender's headings.
    - `bank_account_pattern` is the operator's pattern, grouped, which must match the whole account number.
    - `notes` are messages for a person ("Egypt is paid out in cash only").
    - `confused_codes` maps codes that are often confused with this country's to a message.
    """

    operation: str
    code: str
    name: str
    demonym: str
    """The country's adjective, as in "a Kenyan number"."""
    currency: str
    minor_units: int
    decimals: int
    """The maximum number of decimals. The operator's terms may allow fewer than the currency has."""
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
        """Return the rule for a sheet whose columns have the headings `headers`."""
        has_accounts = not self.accounts.isdisjoint(headers)
        account_from = "" if has_accounts or self.phone_as_account not in headers else self.phone_as_account
        return replace(self, account_from=account_from, headings=headers)


WORD_SEPARATORS = r"[\s_-]+"
"""Matches the characters that are ignored in a sender's word for a purpose."""


def fold_word(word: str) -> str:
    """Normalise a sender's word for a purpose: ignore case, spaces, hyphens and underscores."""
    return re.sub(WORD_SEPARATORS, "", word).lower()


Rules = Mapping[str, CountryRule]
"""Maps country codes to the rules for one operation."""
