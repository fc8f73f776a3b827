"""The kinds of fields: one entry a kind says how its values are cleaned, checked, explained and exampled.

A field of a form is data, and its kind decides the rest: no other module asks for a field by its name. What needs the
country's own data (numbers, amounts, the currency) is checked by a function that the entry names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from paygw_batch.countries.rules import FieldKind
from paygw_batch.language import mark


class Cleaning(Enum):
    """Names how a column's values are cleaned before they are checked."""

    TRIMMED = auto()
    """Blanks and invisible characters at either end are removed."""
    TEXT = auto()
    """Trimmed, in Unicode's form NFC, and with plain blanks."""
    NUMBER = auto()
    """Trimmed, unwrapped of `'` and `="..."`, and kept a second time without separators."""
    CODE = auto()
    """Trimmed; two or three letters are written in capitals."""
    AMOUNT = auto()
    """Trimmed and unwrapped of `'` and `="..."`."""


class Checking(Enum):
    """The function that checks a field."""

    TEXT = auto()
    PATTERN = auto()
    """The whole value matches `KindEntry.pattern`."""
    NUMBER = auto()
    """A phone or an account as the country writes it."""
    OF_THE_ROW = auto()
    """Every row has it, in each form: the row's own checks decide."""
    NEVER_IN_A_SHEET = auto()
    """Only the configuration knows it."""


@dataclass(frozen=True, slots=True)
class KindEntry:
    """Describes a kind of field. `words` and `example` are for a person who fills a sheet in.

    `pattern` is a regular expression over a whole value, `what` ends the sentence that says a value does not match it.
    `is_filled`: the rules or the configuration know the value where the sheet says nothing.
    `is_instructed`: an instruction holds it beside its fields, or only the configuration knows it.
    `column` is the one name that a field of this kind has, if every row has exactly one.
    `width` is how wide the column of a template is, in characters.
    """

    cleaning: Cleaning
    checking: Checking
    words: str = ""
    example: str = ""
    pattern: str = ""
    what: str = ""
    is_filled: bool = False
    is_instructed: bool = False
    column: str | None = None
    width: int = 18


ORDER_ID_CHARACTERS = 128
TEXT_CHARACTERS = 256
"""The limit of a text for which its country has none."""

_EMAIL = r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,}$"
"""An address as browsers accept it (WHATWG HTML, "valid e-mail address"), with a dot in its domain."""
_POSTAL_CODE = "^[A-Za-z0-9](?:[A-Za-z0-9 -]{0,30}[A-Za-z0-9])?$"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"^{_OCTET}(?:\.{_OCTET}){{3}}$"

_PHONE = KindEntry(Cleaning.NUMBER, Checking.NUMBER)
_NOT_OF_A_SHEET = KindEntry(Cleaning.TRIMMED, Checking.NEVER_IN_A_SHEET, is_instructed=True)

KINDS: Mapping[FieldKind, KindEntry] = MappingProxyType(
    {
        FieldKind.TEXT: KindEntry(
            Cleaning.TEXT,
            Checking.TEXT,
            words=mark("At most {text_characters} characters, on one line."),
            example="Example Person",
            width=28,
        ),
        FieldKind.ORDER_ID: KindEntry(
            Cleaning.TRIMMED,
            Checking.OF_THE_ROW,
            words=mark(
                "Your own id of this payment, never used before: at most {order_id_characters} printable characters."
            ),
            example="EXAMPLE-1",
            is_instructed=True,
            column="client_orderid",
            width=22,
        ),
        FieldKind.AMOUNT: KindEntry(Cleaning.AMOUNT, Checking.OF_THE_ROW, is_instructed=True, column="amount"),
        FieldKind.CURRENCY: KindEntry(
            Cleaning.CODE, Checking.OF_THE_ROW, is_filled=True, is_instructed=True, column="currency", width=9
        ),
        FieldKind.PURPOSE: KindEntry(
            Cleaning.TRIMMED, Checking.OF_THE_ROW, is_filled=True, is_instructed=True, column="purpose"
        ),
        FieldKind.INTERNATIONAL_PHONE: _PHONE,
        FieldKind.MASKED_PHONE: _PHONE,
        FieldKind.LOCAL_PHONE: _PHONE,
        FieldKind.WALLET: _PHONE,
        FieldKind.COUNTRY: KindEntry(Cleaning.CODE, Checking.OF_THE_ROW, is_filled=True, width=9),
        FieldKind.EMAIL: KindEntry(
            Cleaning.TRIMMED,
            Checking.PATTERN,
            words=mark("An e-mail address."),
            example="example.person@example.com",
            pattern=_EMAIL,
            what=mark("an e-mail address, such as name@example.com"),
            width=30,
        ),
        FieldKind.IPV4: KindEntry(
            Cleaning.TRIMMED,
            Checking.PATTERN,
            words=mark("An IPv4 address."),
            example="192.0.2.1",
            pattern=_IPV4,
            what=mark("an IPv4 address, such as 192.0.2.1"),
        ),
        FieldKind.POSTAL_CODE: KindEntry(
            Cleaning.TRIMMED,
            Checking.PATTERN,
            words=mark("Letters, digits, spaces and hyphens."),
            example="00100",
            pattern=_POSTAL_CODE,
            what=mark("a postal code of letters, digits, spaces and hyphens, such as 00100"),
        ),
        FieldKind.OPERATOR_URL: _NOT_OF_A_SHEET,
        FieldKind.CONTROL: _NOT_OF_A_SHEET,
    }
)
"""Every kind of field. A test makes a field of each by data alone, and pays with it."""

NUMBER_KINDS = frozenset(kind for kind, entry in KINDS.items() if entry.checking is Checking.NUMBER)
"""Phones and accounts: a country's numbers decide about them."""
