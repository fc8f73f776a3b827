"""Defines the columns of sheets (section 3 of the interface) and of the files that we write."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.countries.form_columns import COUNTRY_COLUMN, sheet_columns
from paygw_batch.language import mark, say


def known_columns() -> tuple[str, ...]:
    """Return all known columns, in the order in which a row's defects are listed."""
    return tuple(sheet_columns().cleanings)


def operation_columns(operation: str) -> tuple[str, ...]:
    """Return the known columns of a sheet for `operation`. Other operations' columns are unknown in it."""
    return sheet_columns().by_operation[operation]


def reconciled_columns(operation: str) -> tuple[str, ...]:
    """Return the form fields that a reconciliation file shows after its own columns."""
    own_columns = RECONCILIATION_COLUMNS_OF[operation]
    return tuple(name for name in sheet_columns().reconciled[operation] if name not in own_columns)


PAYMENT_COLUMNS = (
    *("client_orderid", "country", "currency", "amount"),
    *("account_name", "account_number", "phone", "purpose"),
)
"""The columns of the reconciliation that show a row's payment."""
RECONCILIATION_COLUMNS = (
    *("row", *PAYMENT_COLUMNS, "state", "attempts", "sent_orderid", "gateway_status", "gateway_reference"),
    *("http_status", "error_code", "message", "first_sent_at", "updated_at"),
)
"""The first columns of every reconciliation file. The sheet's unknown columns follow."""
REQUIRED_COLUMNS = ("country", "amount")
QUESTION_COLUMNS = ("order_id", "amount", "currency", "country", "sent_at", "http_status", "what_we_saw", "answer")
"""The columns of the file of questions for the gateway's support."""
REJECTS_COLUMNS = ("row", "problems")
"""The columns that a rejects file adds to the sender's. A sheet with both is a corrected rejects file."""
HELP_TITLE = mark("How to fill in this sheet")
PROBLEMS_TITLE = mark("Problems in this workbook")
"""The first cell of a worksheet of problems, before translation."""
CUSTOMER_URL = "customer_url"
"""The column with the URL at which the customer pays, in the reconciliation of collections."""
RECONCILIATION_COLUMNS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"payout": RECONCILIATION_COLUMNS, "payin": (*RECONCILIATION_COLUMNS, CUSTOMER_URL)}
)
"""Operation -> the first columns of its reconciliation files."""
CONTROL = r"[\x00-\x08\x0a-\x1f\x7f-\x{9f}\x{2028}\x{2029}]"
"""Control characters and line breaks, except the tab. None of them belongs in a cell."""


def column_label(column: str) -> str:
    """Return a column's display name in the current language."""
    if column == COUNTRY_COLUMN:
        return say("Country")
    label = sheet_columns().labels.get(column)
    return column.replace("_", " ").capitalize() if label is None else say(label)
