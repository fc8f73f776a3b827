"""The types of rules for countries, forms and operations, as read from config/."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum


class FieldKind(StrEnum):
    """The kind of a form field, which determines how a value is checked and written."""

    TEXT = "text"
    ORDER_ID = "order_id"
    AMOUNT = "amount"
    CURRENCY = "currency"
    PURPOSE = "purpose"
    INTERNATIONAL_PHONE = "international_phone"
    """A phone that begins with `+` and the dialling code."""
    MASKED_PHONE = "masked_phone"
    """A phone that begins with `+` and the dialling code. Some later digits may be hidden as `*`."""
    LOCAL_PHONE = "local_phone"
    """A phone as dialled inside the country."""
    WALLET = "wallet"
    """Digits that begin with the dialling code, without `+`; or a bank account, if the operator's pattern allows it."""
    COUNTRY = "country"
    EMAIL = "email"
    IPV4 = "ipv4"
    POSTAL_CODE = "postal_code"
    """Letters, digits, spaces and hyphens."""
    OPERATOR_URL = "operator_url"
    """A URL of the operator, the same for every row, configured under the field's name."""
    CONTROL = "control"
    """The hash of order id, amount and currency in a collection."""

    __hash__ = str.__hash__  # equal values need equal hashes; Enum's own differ, and are slow


class AmountForm(StrEnum):
    """The format of `amount` in a request body."""

    NUMBER = "number"
    """A JSON number with the sheet's own digits."""
    TWO_DECIMALS = "two-decimals"
    """A string with two decimals in every currency."""


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a request body. `name` is also its column in the sheet, if there is one."""

    name: str
    kind: FieldKind
    from_sheet: bool
    """False for a field that only the configuration supplies (`server_callback_url`)."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an operation's request body (sections 2.1 and 2.2 of the gateway's interface).

    `fields` are in the order of the body. `shown` maps columns of the reconciliation to fields with other names.
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
    """The names of a reply's fields, as dotted paths. The first one that is present counts.

    `minor_units` has the number of decimals of each currency, and is needed if `amount_unit` is `minor`.
    """

    order_id: tuple[str, ...]
    amount: tuple[str, ...]
    currency: tuple[str, ...]
    reference: tuple[str, ...]
    error_code: tuple[str, ...]
    message: tuple[str, ...]
    customer_url: tuple[str, ...] = ()
    """Fields with the URL of the customer's page."""
    amount_unit: AmountUnit = AmountUnit.MAJOR
    minor_units: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the gateway, with its path and the names of its reply's fields.

    `path` follows the base address and contains `{endpoint_id}` (section 4 of the gateway's interface). `reply` has the
    names of a reply's fields, of which the interface documents only `status`. `command` is the command for sheets of
    this operation. `verb` is the action on a row, for messages. `columns` are those of such a sheet, in the order of a
    row's defects. `amount_forms` are the documented formats; if there are several, the operator's configuration names
    one.
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
    """A country's last change of its numbering plan, for converting numbers to the plan in use.

    Each of `ways` has a pattern with one group for a whole national number of the other plan, and the new prefix of
    that group. `to_former` is true if the gateway still requires the former plan.
    """

    changed: date
    ways: tuple[tuple[str, str], ...]
    to_former: bool = False


@dataclass(frozen=True, slots=True)
class MobileNumbers:
    """The format of a country's mobile numbers.

    `pattern` is a regular expression for the national significant number (without trunk zero, only `[0-9]`, grouped,
    not anchored), valid in Python and polars. `trunk_prefix` is dialled before the number inside the country, or is
    empty. `keeps_zero` is true if a leading 0 is part of the number and follows the dialling code. This applies to all
    numbers in Cote d'Ivoire and Benin, and to some in Burkina Faso.
    """

    dialling_code: str
    trunk_prefix: str
    keeps_zero: bool
    pattern: str
    national_lengths: tuple[int, ...]
    example: str
    """A valid national significant number."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """The prefix of national significant numbers -> their first operator. The longest prefix counts."""
    renumbering: Renumbering | None = None


@dataclass(frozen=True, slots=True)
class PurposeTerms:
    """A purpose that a row may choose, and the mobile operator of its wallets, if configured.

    `word` is the configured word for the purpose in sheets. If it is empty, the purpose is chosen by its code.
    """

    purpose: str
    operator: str | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """The operator's settings for a country: `[countries.KE.payout]`. All are optional."""

    purpose: str | None = None
    min_amount: Decimal | None = None
    max_amount: Decimal | None = None
    form: str | None = None
    """Enables an operation that the interface does not document for this country."""
    operator: str | None = None
    """The mobile operator whose wallets `purpose` pays to, as named in config/mobile-operators.toml."""
    purposes: Mapping[str, PurposeTerms] = field(default_factory=dict)
    """The senders' words in the column `purpose` (M-Pesa) -> the purpose that each means."""
    phone_is_account: bool | None = None
    """Whether the phone is the account in a sheet without accounts. If None, it is if each account is a wallet."""
    bank_account_pattern: str | None = None
    """A regular expression for the whole of `account_number`, if banks are paid as well."""
    decimals: int | None = None
    """The decimals of amounts, if the operator accepts fewer than the currency has."""
    also_numbers: tuple[str, ...] = ()
    """Prefixes of further mobile numbers, after the dialling code: ranges allotted since this version."""
    former_numbers: bool = False
    """Whether the gateway requires numbers of the former numbering plan."""
    ipaddress: str | None = None
    order_desc: str | None = None
    address1: str | None = None
    city: str | None = None
    zip_code: str | None = None
    merchant_data: str | None = None
    optional: tuple[str, ...] = ()
    """Fields that this operator does not require, although the interface's examples all have them."""
    also: tuple[str, ...] = ()
    """Fields that are sent although the interface's example does not have them."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The default values of fields."""


@dataclass(frozen=True, slots=True)
class CountryRule:
    """The rules of one country for one operation, including the operator's terms.

    - `form` is None if the operation cannot be used. Then `unusable` has the reason, as a message.
    - `required` has the fields that must be present, and `omitted` those that are never sent for this country.
    - `missing_terms` names the configuration keys without which nothing can be sent here (`purpose`).
    - `defaults` has values for fields that a sheet may leave out (`ipaddress`, `order_desc`).
    - `max_characters` has maximum lengths that are lower than the usual one.
    - `operator` is the mobile operator of the wallets that `purpose` is for, if configured.
    - `purposes` are those that a row may choose, by normalised word (`fold_word`).
    - `phone_as_account` is the column that can serve as the account. `account_from` is the same column if the sheet has
      no accounts. Both are empty if there is none.
    - `headings`: the columns of the sheet (`for_sheet`) -> the sender's own headings.
    - `bank_account_pattern` is the operator's pattern, grouped, which must match the whole of an account number.
    - `notes` are sentences for a person ("Egypt is paid out in cash only").
    - `confused_codes`: a code that is often confused with this country's -> a message.
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
"""Characters that are ignored in a sender's word for a purpose. Case is ignored too."""


def fold_word(word: str) -> str:
    """Normalise a sender's word for a purpose: ignore case, spaces, hyphens and underscores."""
    return re.sub(WORD_SEPARATORS, "", word).lower()


Rules = Mapping[str, CountryRule]
"""Maps each country code to the country's rule, for one operation."""
