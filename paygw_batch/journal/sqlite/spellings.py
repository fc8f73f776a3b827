"""Stores order ids and references in one spelling with their batches, and looks them up.

An ASCII order id is found through an index on SQLite's own `lower`, which for ASCII does all that `spelled_alike` does.
The few others are in a separate table.
"""

from collections.abc import Iterator

import apsw

from paygw_batch.core.batch import reference_of
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.tables import QUERIES
from paygw_batch.language import say

_NOT_ASCII = "*[^\x01-\x7f]*"
"""A GLOB pattern for anything that is not ASCII. No order id holds NUL."""
_NOTED = """SELECT r.batch, r.reference FROM batch_reference r
    JOIN instruction i ON i.batch = r.batch AND i.row = (SELECT min(row) FROM instruction WHERE batch = r.batch)
    WHERE i.forgotten IS NULL ORDER BY r.batch"""
"""References that can be derived again. If the first row was forgotten, the fact that forgot it vouches for its own."""


def add_batch(connection: apsw.Connection, operation: str, batch: int, first: int, are_ascii: bool) -> None:
    """Record the spellings and the reference of a batch whose instructions, from `first`, were just written.

    With `are_ascii`, none of their order ids needs a spelling.
    """
    query = "SELECT client_orderid FROM instruction WHERE number >= ? AND replaces IS NULL AND client_orderid GLOB ?"
    for (order_id,) in [] if are_ascii else fetch(connection, query, (first, _NOT_ASCII)):
        _add_spelling(connection, operation, order_id)
    for _, reference in _references(connection, batch):
        connection.execute("INSERT INTO batch_reference VALUES (?, ?)", (batch, reference))


def _add_spelling(connection: apsw.Connection, operation: str, order_id: str) -> None:
    """Record the spelling of an order id that was just written."""
    if not order_id.isascii():
        line = (operation, spelled_alike(order_id), order_id)
        connection.execute("INSERT INTO order_id_spelling VALUES (?, ?, ?)", line)


def check(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless spellings and references match the order ids and batches."""
    found = fetch(connection, "SELECT operation, order_id FROM order_id WHERE order_id GLOB ?", (_NOT_ASCII,))
    wanted = {(operation, spelled_alike(order_id), order_id) for operation, order_id in found}
    if set(fetch(connection, "SELECT operation, spelling, order_id FROM order_id_spelling")) != wanted:
        raise JournalCorrupt(say("The spellings of order ids do not match the order ids."))
    noted = fetch(connection, _NOTED)
    if noted != list(_references(connection)):
        raise JournalCorrupt(say("The references of batches do not match their order ids."))


def _references(connection: apsw.Connection, batch: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield number and reference of every batch, or of one, whose first new row has a derived order id.

    Either all ids of a sheet are derived, or none is. A batch without a new row repeats ids of an earlier one.
    """
    for number, order_id, content in fetch(connection, QUERIES["first_rows"], {"batch": batch}):
        if (reference := reference_of(order_id, content)) is not None:
            yield number, reference
