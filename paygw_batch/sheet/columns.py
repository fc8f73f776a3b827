"""Names the columns that a sheet may have (section 3 of the interface), and the columns that only our files have."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.countries.form_columns import COUNTRY_COLUMN, sheet_columns
from paygw_batch.language import mark, say


def known_columns() -> tuple[str, ...]:
    """Return every known column, in the order in which a row's defects are listed."""
    return tuple(sheet_columns().cleanings)


def columns_of_operation(operation: str) -> tuple[str, ...]:
    """Return the columns that sheets of `operation` may have. The columns of another operation are unknown in them."""
    return sheet_columns().of_operation[operation]


def reconciled_columns(operation: str) -> tuple[str, ...]:
    """Return the fields of the forms that the reconciliation shows under their own names, after its own columns."""
    return tuple(name for name in sheet_columns().reconciled[operation] if name not in RECONCILED_OF[operation])


PAYMENT_COLUMNS = (
    *("client_orderid", "country", "currency", "amount"),
    *("account_name", "account_number", "phone", "purpose"),
)
"""The columns in which the reconciliation shows the payment of a row."""
RECONCILIATION_COLUMNS = (
    "row",
    *PAYMENT_COLUMNS,
    "state",
    "attempts",
    "sent_orderid",
    "gateway_status",
    "gateway_reference",
    "http_status",
    "error_code",
    "message",
    "first_sent_at",
    "updated_at",
)
"""The columns with which every reconciliation file starts. The sheet's unknown columns follow."""

ALWAYS_NEEDED = ("country", "amount")
"""The columns without which no row of any country can be understood."""

QUESTION_COLUMNS = ("order_id", "amount", "currency", "country", "sent_at", "http_status", "what_we_saw", "answer")
"""The columns of the file of questions to the gateway's support."""

REJECTS_COLUMNS = ("row", "problems")
"""The two columns that a rejects file has beside the sender's own. A sheet that has both is a mended rejects file."""

HELP_TITLE = mark("How to fill in this sheet")
PROBLEMS_TITLE = mark("Problems in this workbook")
"""The first cell of each worksheet of problems that we write, in the language of the person for whom we write it."""

CUSTOMER_URL = "customer_url"
"""The address at which the customer of a collection pays: a column of the collection's reconciliation."""
RECONCILED_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"payout": RECONCILIATION_COLUMNS, "payin": (*RECONCILIATION_COLUMNS, CUSTOMER_URL)}
)
"""Operation -> the columns that its reconciliation files start with."""


CONTROL = r"[\x00-\x08\x0a-\x1f\x7f-\x{9f}\x{2028}\x{2029}]"
"""Control characters and line breaks of every kind except the tab. None of them belongs inside a field."""


def label_of(column: str) -> str:
    """Return the name of a column in words, in the chosen language."""
    if column == COUNTRY_COLUMN:
        return say("Country")
    label = sheet_columns().labels.get(column)
    return column.replace("_", " ").capitalize() if label is None else say(label)
