"""Defines the kinds of fields: how values of each kind are cleaned and checked, how they are explained, and an example.

A field of a form is data, and its kind decides the rest: no other module asks for a field by its name. A function that
the entry names checks values that need the country's own data (numbers, amounts, the currency).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from paygw_batch.countries.rules import FieldKind
from paygw_batch.language import mark


class Cleaning(Enum):
    """How the values of a column are cleaned before they are checked."""

    TRIMMED = auto()
    """Blanks and invisible characters at either end are removed."""
    TEXT = auto()
    """The value is trimmed, in Unicode's form NFC, with plain blanks."""
    NUMBER = auto()
    """The value is trimmed and without the wrappings `'` and `="..."`; a second column has it without separators."""
    CODE = auto()
    """The value is trimmed, and two or three letters become capitals."""
    AMOUNT = auto()
    """The value is trimmed and without the wrappings `'` and `="..."`."""


class Checking(Enum):
    """The function that checks the values of a field."""

    TEXT = auto()
    PATTERN = auto()
    """The whole value matches `KindEntry.pattern`."""
    NUMBER = auto()
    """The value is a phone or an account as the country writes it."""
    OF_THE_ROW = auto()
    """Every row has the field, in each form, so the checks of the row decide."""
    NEVER_IN_A_SHEET = auto()
    """Only the configuration knows the value."""


@dataclass(frozen=True, slots=True)
class KindEntry:
    """Describes a kind of field. `words` and `example` are for a person who fills in a sheet.

    - `pattern` is a regular expression for a whole value. `what` ends the sentence about a value that does not match
      it.
    - `is_filled`: the rules or the configuration have the value if the sheet has none.
    - `is_instructed`: an instruction has the value outside its fields, or only the configuration has it.
    - `column` is the name of the field, if every row has exactly one field of this kind.
    - `width` is the width of the column in a template, in characters.
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
"""The limit of a text if its country has none."""

_EMAIL = r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,}$"
"""The pattern of an address as browsers accept it (WHATWG HTML, "valid e-mail address"), with a dot in its domain."""
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
"""All kinds of fields. A test adds a field of each kind by data alone, and pays with it."""

NUMBER_KINDS = frozenset(kind for kind, entry in KINDS.items() if entry.checking is Checking.NUMBER)
"""The kinds of phones and accounts, which are checked by the country's numbers."""
