"""Gives the parts of the journal that all stores share access to SQLite's tables."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import apsw

from paygw_batch.core.text import spelled_alike
from paygw_batch.journal.evidence_log import PARTS, EvidenceLog
from paygw_batch.journal.facts.chain import text_in_sql
from paygw_batch.journal.sqlite.rows import CONTENT
from paygw_batch.journal.sqlite.schema import identity_of
from paygw_batch.journal.tables import FILES, ON_SQLITE, VALUE, named_sql
from paygw_batch.journal.values import Identity

QUERIES = named_sql(
    __package__, FILES, {**PARTS, "content": CONTENT, "chained": text_in_sql("f", "f.number", "char(10)")}, ON_SQLITE
)


class SqliteTables:
    """The tables of a journal on one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    @cached_property
    def identity(self) -> Identity:
        """The journal's identity."""
        return identity_of(self._connection)

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        return self._connection.execute(QUERIES[name], _bound(values)).fetchall()

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement and yield its rows."""
        return self._connection.execute(QUERIES[name], _bound(values))

    def each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Run a statement once for each of many rows."""
        query = _in_places(name, (*columns, *values))
        cursor, further = self._connection.cursor(), tuple(values.values())
        try:
            yield from cursor.executemany(query, ((*row, *further) for row in rows))
        finally:
            cursor.close(force=True)

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Write an order id, and its spelling if `lower` does not produce it."""
        self.run("add_order_id", operation=operation, order_id=order_id, instruction=instruction)
        if not order_id.isascii():
            self.run("add_spelling", operation=operation, spelling=spelled_alike(order_id), order_id=order_id)

    def lock_rows(self, _numbers: Sequence[int]) -> bool:
        """Do nothing: only one process writes a journal file."""
        return False

    def withdraw_in_turn(self) -> None:
        """Do nothing: a writing transaction has the whole file."""


def evidence_in(connection: apsw.Connection) -> EvidenceLog:
    """Return the evidence log of a journal."""
    return EvidenceLog(SqliteTables(connection))


@cache
def _in_places(name: str, columns: tuple[str, ...]) -> str:
    """Return a statement with positional parameters in the order of `columns`; named ones would cost more per row."""
    return VALUE.sub(lambda value: f"?{columns.index(value[1]) + 1}", QUERIES[name])


def _bound(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as SQLite takes them, with lists of numbers or of texts as `carray`."""
    return {name: apsw.carray(_array(one)) if isinstance(one, list) else one for name, one in values.items()}


def _array(values: list[Any]) -> Any:
    return tuple(values) if isinstance(values[0], str) else array("q", values)
