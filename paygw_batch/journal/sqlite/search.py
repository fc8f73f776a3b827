"""Finds payments by the payee's name and numbers, with SQLite's full-text index, which is written with each batch.

The index holds only words. It is derived from the instructions, and `check` compares the two: a payment missing from
the index would look as if it had never been made.
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
    """Raise `JournalCorrupt` unless the index matches the instructions."""
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
    """Return a search as a full-text expression, with every word quoted so that none acts as an operator."""
    groups = (" OR ".join(_quoted(word) for word in alternatives) for alternatives in search.words)
    return " AND ".join(f"({group})" for group in groups)


def _quoted(word: str) -> str:
    text = word.removesuffix("*").replace('"', '""')
    return f'"{text}"{"*" if word.endswith("*") else ""}'
