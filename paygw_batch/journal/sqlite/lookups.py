"""Stores the keys by which payments are found: the payee's words, and order ids and references in one spelling.

They are written with each batch. The words are in SQLite's full-text index. An ASCII order id is found through an index
on SQLite's own `lower`, which for ASCII does all that `spelled_alike` does; the few others are in a separate table. All
of it is derived, and checked: a payment missing from an index would look as if it had never been made.
"""

from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest

import apsw

from paygw_batch.core.batch import reference_of
from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.rows import ADD_WORDS
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import PaymentSearch
from paygw_batch.language import say

_NOT_ASCII = "*[^\x01-\x7f]*"
"""A GLOB pattern for anything that is not ASCII. No order id holds NUL."""
_INDEX = "payment_words"


def add_spellings(tables: Tables, operation: str, batch: int, first: int, are_ascii: bool) -> None:
    """Record the spellings and the reference of a batch whose instructions, from `first`, were just written.

    With `are_ascii`, none of their order ids needs a spelling.
    """
    found = [] if are_ascii else tables.run("odd_ids_from", first=first, odd=_NOT_ASCII)
    for (order_id,) in found:
        if not order_id.isascii():
            tables.run("add_spelling", operation=operation, spelling=spelled_alike(order_id), order_id=order_id)
    for _, reference in _references(tables, batch):
        tables.run("add_reference", batch=batch, reference=reference)


def check_spellings(tables: Tables) -> None:
    """Raise `JournalCorrupt` unless spellings and references match the order ids and batches."""
    found = tables.run("odd_ids", odd=_NOT_ASCII)
    wanted = {(operation, spelled_alike(order_id), order_id) for operation, order_id in found}
    if set(tables.run("spellings")) != wanted:
        raise JournalCorrupt(say("The spellings of order ids do not match the order ids."))
    if tables.run("references") != list(_references(tables)):
        raise JournalCorrupt(say("The references of batches do not match their order ids."))


def _references(tables: Tables, batch: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield number and reference of every batch, or of one, whose first new row has a derived order id.

    Either all ids of a sheet are derived, or none is. A batch without a new row repeats ids of an earlier one.
    """
    for number, order_id in tables.run("first_rows", batch=batch):
        if (reference := reference_of(order_id)) is not None:
            yield number, reference


def check_words(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless the payee index matches the instructions."""
    words = "SELECT term, group_concat(doc || ' ' || offset) FROM payment_word GROUP BY term"
    with closing(apsw.Connection(":memory:")) as again:
        for (statement,) in fetch(
            connection, "SELECT sql FROM sqlite_schema WHERE name IN (?, ?) ORDER BY rowid", (_INDEX, "payment_word")
        ):
            again.execute(statement)
        with again:
            again.executemany(ADD_WORDS, connection.execute("SELECT number, words FROM payment_text ORDER BY number"))
        for found, wanted in zip_longest(connection.execute(words), again.execute(words)):
            if found != wanted:
                raise JournalCorrupt(say("The index of payees does not match the instructions."))


def search_expression(search: PaymentSearch) -> str:
    """Return a search as a full-text expression, with every word quoted so that none acts as an operator."""
    groups = (" OR ".join(_quoted(word) for word in alternatives) for alternatives in search.words)
    return " AND ".join(f"({group})" for group in groups)


def _quoted(word: str) -> str:
    text = word.removesuffix("*").replace('"', '""')
    return f'"{text}"{"*" if word.endswith("*") else ""}'
