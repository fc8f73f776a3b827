"""Payments by the payee's name and numbers: SQLite's own full-text index, written with each batch.

The index holds words alone. It is derived from the instructions, and `check` holds it to them: a payment that it
misses would look as if it had never been made.
"""

from contextlib import closing
from itertools import zip_longest

import apsw

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.rows import ADD_WORDS
from paygw_batch.journal.values import PaymentSearch
from paygw_batch.language import say

_INDEX = "payment_words"


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
                raise JournalCorrupt(say("The index of payees does not match the instructions."))


def expression(search: PaymentSearch) -> str:
    """Return a search as SQLite's full-text index is asked: every word quoted, so that none is an operator."""
    groups = (" OR ".join(_quoted(word) for word in alternatives) for alternatives in search.words)
    return " AND ".join(f"({group})" for group in groups)


def _quoted(word: str) -> str:
    text = word.removesuffix("*").replace('"', '""')
    return f'"{text}"{"*" if word.endswith("*") else ""}'
