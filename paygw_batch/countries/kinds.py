"""Defines the kinds of fields: how their values are cleaned, checked and explained.

Form fields are data, and their kinds determine the rest, so no other module depends on field names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from paygw_batch.countries.rules import FieldKind
from paygw_batch.language import mark


class Cleaning(Enum):
    """How values in a column are cleaned before they are checked."""

    TRIMMED = auto()
    """Remove spaces and invisible characters at both ends."""
    TEXT = auto()
    """Trim, normalize to NFC, and replace unusual spaces with plain ones."""
    NUMBER = auto()
    """Trim, and remove `'` and `="..."`. Another column holds the value without separators."""
    CODE = auto()
    """Trim, and convert two or three letters to upper case."""
    AMOUNT = auto()
    """Trim, and remove `'` and `="..."`."""


class Checking(Enum):
    """How the values of a field are checked."""

    TEXT = auto()
    PATTERN = auto()
    """The whole value must match `KindEntry.pattern`."""
    NUMBER = auto()
    """The value must be a phone number or an account in the country's format."""
    BY_ROW = auto()
    """The checks of the whole row include the field, because every row has it."""
    NOT_IN_SHEET = auto()
    """The value is not checked, because it comes only from the configuration."""


@dataclass(frozen=True, slots=True)
class KindEntry:
    """A kind of field. `words` and `example` help people to fill in a sheet.

    - `pattern` is a regular expression for the whole value. `what` ends the message about a value that does not match.
    - `is_filled` says whether the rules or the configuration have a default.
    - `is_outside_fields` says whether an instruction stores the value outside `fields`.
    - `column` is the field's name if every row has exactly one field of this kind.
    - `width` is the column's width in a template, in characters.
    """

    cleaning: Cleaning
    checking: Checking
    words: str = ""
    example: str = ""
    pattern: str = ""
    what: str = ""
    is_filled: bool = False
    is_outside_fields: bool = False
    column: str | None = None
    width: int = 18


MAX_ORDER_ID_CHARACTERS = 128
MAX_TEXT_CHARACTERS = 256
"""The maximum length of a text field, unless the country's is lower."""

_EMAIL = r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,}$"
"""E-mail addresses as browsers accept them (WHATWG HTML, "valid e-mail address"), with a dot in the domain."""
_POSTAL_CODE = "^[A-Za-z0-9](?:[A-Za-z0-9 -]{0,30}[A-Za-z0-9])?$"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"^{_OCTET}(?:\.{_OCTET}){{3}}$"

_PHONE = KindEntry(Cleaning.NUMBER, Checking.NUMBER)
_CONFIGURED = KindEntry(Cleaning.TRIMMED, Checking.NOT_IN_SHEET, is_outside_fields=True)

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
            Checking.BY_ROW,
            words=mark(
                "Your own id for this payment, never used before: at most {order_id_characters} printable characters."
            ),
            example="EXAMPLE-1",
            is_outside_fields=True,
            column="client_orderid",
            width=22,
        ),
        FieldKind.AMOUNT: KindEntry(Cleaning.AMOUNT, Checking.BY_ROW, is_outside_fields=True, column="amount"),
        FieldKind.CURRENCY: KindEntry(
            Cleaning.CODE, Checking.BY_ROW, is_filled=True, is_outside_fields=True, column="currency", width=9
        ),
        FieldKind.PURPOSE: KindEntry(
            Cleaning.TRIMMED, Checking.BY_ROW, is_filled=True, is_outside_fields=True, column="purpose"
        ),
        FieldKind.INTERNATIONAL_PHONE: _PHONE,
        FieldKind.MASKED_PHONE: _PHONE,
        FieldKind.LOCAL_PHONE: _PHONE,
        FieldKind.WALLET: _PHONE,
        FieldKind.COUNTRY: KindEntry(Cleaning.CODE, Checking.BY_ROW, is_filled=True, width=9),
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
        FieldKind.OPERATOR_URL: _CONFIGURED,
        FieldKind.CONTROL: _CONFIGURED,
    }
)
"""All kinds of fields. A test adds a field of each kind to the data files and pays with it."""

NUMBER_KINDS = frozenset(kind for kind, entry in KINDS.items() if entry.checking is Checking.NUMBER)
"""The kinds of phone numbers and accounts."""
