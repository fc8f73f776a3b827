"""The columns a sheet may have (section 3 of the interface), and the names that are ours and never a sender's."""

from paygw_batch.sheet.result import RECONCILIATION_COLUMNS

KNOWN_COLUMNS = (
    "country",
    "client_orderid",
    "amount",
    "currency",
    "account_name",
    "account_number",
    "phone",
    "purpose",
    "receiver_first_name",
    "receiver_last_name",
    "receiver_phone",
    "receiver_email",
    "receiver_country_code",
    "ipaddress",
    "order_desc",
)
"""Every column that means something to us, in the order in which a row's defects are told."""

ALWAYS_NEEDED = ("country", "amount")
"""The columns without which no row of any country can be understood."""

REJECTS_COLUMNS = ("row", "problems")
"""The two columns that a rejects file has beside the sender's own. A sheet that has both is a mended rejects file."""

HELP_TITLE = "How this sheet is filled in"
PROBLEMS_TITLE = "What is to be mended in this workbook"
OUR_WORKSHEETS = (HELP_TITLE, PROBLEMS_TITLE)
"""What the first cell of a worksheet says that is ours: it is never taken for a sheet of payees, whatever it quotes."""

RESERVED_NAMES = frozenset({*KNOWN_COLUMNS, *RECONCILIATION_COLUMNS, *REJECTS_COLUMNS, "valid"})
"""Names that an unknown column cannot have in our frames; it is then called `NAME (sheet)`."""

INVISIBLE = r"[\p{C}\p{Z}]"
"""Blanks of every kind, zero-width characters, direction marks and control characters (Unicode categories C and Z)."""

CONTROL = r"[\x00-\x08\x0a-\x1f\x7f-\x{9f}\x{2028}\x{2029}]"
"""Control characters and line breaks of every kind, but not the tab: nothing that belongs inside a field."""
