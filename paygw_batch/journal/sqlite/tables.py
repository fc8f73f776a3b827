"""Gives the parts of the journal that every store shares the tables of SQLite."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import apsw

from paygw_batch.core.text import spelled_alike
from paygw_batch.journal.evidence_log import EVIDENCE_PARTS, EvidenceLog
from paygw_batch.journal.sqlite.rows import CONTENT
from paygw_batch.journal.sqlite.schema import identity_of
from paygw_batch.journal.tables import VALUE, named_sql
from paygw_batch.journal.values import Identity

_PARTS = {**EVIDENCE_PARTS, "content": CONTENT}
QUERIES = {
    name: text
    for file in ("evidence.sql", "journal.sql", "replay.sql", "forget.sql")
    for name, text in named_sql(__package__, file, _PARTS).items()
}


class SqliteTables:
    """The tables of a journal on one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    @cached_property
    def identity(self) -> Identity:
        """Which journal it is."""
        return identity_of(self._connection)

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return all it finds."""
        return self._connection.execute(QUERIES[name], _bound(values)).fetchall()

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement, and yield its rows."""
        return self._connection.execute(QUERIES[name], _bound(values))

    def each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Run a statement for each of many rows."""
        query = _in_places(name, (*columns, *values))
        cursor, further = self._connection.cursor(), tuple(values.values())
        try:
            yield from cursor.executemany(query, ((*row, *further) for row in rows))
        finally:
            cursor.close(force=True)

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Write an order id, and its spelling if that differs from `lower` of it."""
        self.run("add_order_id", operation=operation, order_id=order_id, instruction=instruction)
        if not order_id.isascii():
            self.run("add_spelling", operation=operation, spelling=spelled_alike(order_id), order_id=order_id)

    def storable(self, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return values as they are: a text can hold anything."""
        return columns

    def lock_rows(self, _numbers: Sequence[int]) -> bool:
        """Do nothing: one process writes a journal in a file."""
        return False

    def write_evidence_in_turn(self) -> None:
        """Do nothing: a transaction that writes has the whole file."""


def evidence_in(connection: apsw.Connection) -> EvidenceLog:
    """Return the evidence of a journal."""
    return EvidenceLog(SqliteTables(connection))


@cache
def _in_places(name: str, columns: tuple[str, ...]) -> str:
    """Return a statement that takes its values in the order of `columns`: by name, each row would cost more."""
    return VALUE.sub(lambda value: f"?{columns.index(value[1]) + 1}", QUERIES[name])


def _bound(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as SQLite takes them: lists of numbers as `carray` has them."""
    return {name: apsw.carray(array("q", one)) if isinstance(one, list) else one for name, one in values.items()}
