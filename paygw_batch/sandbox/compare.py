"""Compares a reconciliation file with the orders in the sandbox's record.

`python -m paygw_batch.sandbox.compare RECORD RECONCILIATION.csv` lists differences, and exits with 1 if there are any.
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from paygw_batch.core.text import escape_for_terminal
from paygw_batch.errors import ConfigurationError, PaygwError
from paygw_batch.language import say
from paygw_batch.sandbox.record import RecordLine, read_record, strip_formula_guard

_NO_MONEY_MOVED = frozenset({"ready", "rejected", "invalid"})
_MONEY_MOVED = frozenset({"paid", "accepted", "returned"})
_COLUMNS = frozenset(
    {"client_orderid", "sent_orderid", "state", "country", "currency", "amount", "account_number", "phone"}
)
_RETRY_SUFFIX = re.compile(r"(?<=.)-r[0-9]+\Z", re.DOTALL)


def compare(record: Iterable[RecordLine], reconciliation: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the differences between the record and the reconciliation, in the reconciliation's order.

    Each difference starts with the row's order id, and contains no payee data. Order ids are compared without their
    retry suffix (`ID-r2`). Orders without a row are ignored, because the record covers many batches. For a row in
    doubt, only a double payment is a difference.
    """
    rows: dict[str, Mapping[str, str]] = {}
    for row in reconciliation:
        order_id = row["client_orderid"]  # at most one row with an order id is valid
        if order_id and (order_id not in rows or rows[order_id]["state"] == "invalid"):
            rows[order_id] = row
    order_id_by_sent_id = {row["sent_orderid"]: order_id for order_id, row in rows.items() if row["sent_orderid"]}
    lines_by_row: defaultdict[str, list[RecordLine]] = defaultdict(list)
    for line in record:
        sent_id = line.client_orderid
        candidates = (sent_id, order_id_by_sent_id.get(sent_id, ""), _RETRY_SUFFIX.sub("", sent_id))
        row_order_id = next((candidate for candidate in candidates if candidate in rows), None)
        if row_order_id is not None and line.committed == "yes":
            lines_by_row[row_order_id].append(line)
    return [
        f"{order_id}: {difference}"
        for order_id, row in rows.items()
        for difference in _describe_differences(row, lines_by_row.get(order_id, []))
    ]


def _describe_differences(row: Mapping[str, str], committed_lines: Sequence[RecordLine]) -> Iterable[str]:
    state = row["state"]
    if len(committed_lines) > 1:
        yield f"paid {len(committed_lines)} times at the gateway"
    if committed_lines and state in _NO_MONEY_MOVED:
        suffix = ", perhaps from an earlier sheet" if state == "invalid" else ""
        yield f"{state} here, but taken at the gateway{suffix}"
    if not committed_lines and state in _MONEY_MOVED:
        yield f"{state} here, but never taken at the gateway"
    if committed_lines and state != "invalid":
        field_names = sorted({name for line in committed_lines for name in _differing_fields(row, line)})
        if field_names:
            yield f"other {', '.join(field_names)} at the gateway"


def _differing_fields(row: Mapping[str, str], line: RecordLine) -> Iterable[str]:
    if row["country"] != line.country:
        yield "country"
    if row["currency"] != line.currency:
        yield "currency"
    if Decimal(row["amount"]) != Decimal(line.amount):
        yield "amount"
    if (row["account_number"] or row["phone"]) != line.account_number:
        yield "account"


def read_reconciliation(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV reconciliation. Raises `ConfigurationError` if the file is not a reconciliation."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, restval="", strict=True)
            if not _COLUMNS.issubset(rows.fieldnames or ()):
                raise ConfigurationError(say("{path} is not a reconciliation in CSV format.", path=path))
            return [{name: strip_formula_guard(text) for name, text in row.items() if name in _COLUMNS} for row in rows]
    except OSError as error:
        reason = say(str(error.strerror))
        raise ConfigurationError(say("{path} cannot be read: {reason}.", path=path, reason=reason)) from None
    except (csv.Error, UnicodeDecodeError):
        raise ConfigurationError(say("{path} is not a reconciliation in CSV format.", path=path)) from None


def main(arguments: Sequence[str]) -> int:
    """Print the differences. Return exit code 0 if there are none, 1 if there are any, or 2 if a file is unreadable."""
    if len(arguments) != 2:  # noqa: PLR2004 (the record and the reconciliation)
        sys.stderr.write("usage: python -m paygw_batch.sandbox.compare RECORD RECONCILIATION.csv\n")
        return 2
    record, reconciliation = map(Path, arguments)
    try:
        differences = compare(read_record(record), read_reconciliation(reconciliation))
    except PaygwError as error:
        sys.stderr.write(f"{escape_for_terminal(error.message)}\n")
        return error.exit_code
    for difference in differences:
        sys.stdout.write(escape_for_terminal(difference) + "\n")
    sys.stdout.write(f"Differences: {len(differences)}.\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
