"""Payments by the payee's name and numbers: SQLite's own full-text index, written with each batch.

The index holds words alone. It is derived from the instructions, and `check` holds it to them: a payment that it
misses would look as if it had never been made.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import zip_longest

import apsw

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.payment_port import FoundPayment, PaymentSearch
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.rows import ADD_WORDS, STATES
from paygw_batch.journal.sqlite.spellings import instructions_spelled

TABLES_OF_SQLITE = frozenset({"payment_words_data", "payment_words_idx", "payment_words_config"})
"""The tables in which SQLite keeps the index: how they look is its own business."""

_INDEX = "payment_words"
_FITTING = "SELECT rowid FROM payment_words WHERE payment_words MATCH ? ORDER BY rowid DESC LIMIT ?"
_PAYMENTS = """SELECT b.batch, b.sheet_name, b.operation, b.opened_at, p.row, p.client_orderid, p.country, p.currency,
        p.amount, p.form, p.fields, p.payee, p.state, p.attempt - p.inherited_attempts, p.sent_orderid,
        p.gateway_status, p.gateway_reference, p.error_code, p.message, p.possible_duplicate_of,
        coalesce(p.first_sent_at, iif(p.state = 'in_flight', p.intended_at, NULL)), p.updated_at
    FROM carray(?) wanted CROSS JOIN progress p ON p.number = wanted.value JOIN batch b ON b.number = p.batch
    ORDER BY p.number DESC"""


def fill(connection: apsw.Connection) -> None:
    """Write the index of a journal of an earlier version, inside the open transaction."""
    connection.execute(
        "INSERT INTO payment_words (rowid, words) SELECT number, words FROM payment_text ORDER BY number"
    )


def payments_in(connection: apsw.Connection, search: PaymentSearch, limit: int) -> list[FoundPayment]:
    """Return the newest payments that a search fits (see the port)."""
    numbers = set(instructions_spelled(connection, search.order_id))
    if search.words:
        numbers.update(number for (number,) in fetch(connection, _FITTING, (_expression(search), limit)))
    newest = sorted(numbers, reverse=True)[:limit]
    if not newest:
        return []
    return [_payment(line) for line in fetch(connection, _PAYMENTS, (apsw.carray(array("q", newest)),))]


def payments_of(connection: apsw.Connection, found: Iterable[tuple[int, int]]) -> dict[int, FoundPayment]:
    """Return the payments of instructions that were found, as row and number, by row."""
    rows = dict(found)
    if not rows:
        return {}
    numbers = sorted(set(rows.values()), reverse=True)
    lines = fetch(connection, _PAYMENTS, (apsw.carray(array("q", numbers)),))
    payments = {number: _payment(line) for number, line in zip(numbers, lines, strict=True)}
    return {row: payments[number] for row, number in rows.items()}


def check(connection: apsw.Connection) -> None:
    """Raise `JournalCorrupt` unless the index is that of the instructions."""
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
                raise JournalCorrupt("The index of payees is not that of the instructions.")


def _expression(search: PaymentSearch) -> str:
    """Return a search as SQLite's full-text index is asked: every word quoted, so that none is an operator."""
    groups = (" OR ".join(_quoted(word) for word in alternatives) for alternatives in search.words)
    return " AND ".join(f"({group})" for group in groups)


def _quoted(word: str) -> str:
    text = word.removesuffix("*").replace('"', '""')
    return f'"{text}"{"*" if word.endswith("*") else ""}'


def _payment(line: Sequence[object]) -> FoundPayment:
    columns = list(line)
    columns[10] = json.loads(str(columns[10]))
    columns[12] = STATES[str(columns[12])]
    return FoundPayment(*columns)  # type: ignore[arg-type]  # as the tables have them
