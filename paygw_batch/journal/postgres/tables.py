"""Gives the parts of the journal that every store shares the tables of PostgreSQL."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from psycopg import Connection
from psycopg.pq import TransactionStatus

from paygw_batch.core.text import spelled_alike
from paygw_batch.journal.evidence_log import PARTS, EvidenceLog
from paygw_batch.journal.postgres.lines import arrays, pieces
from paygw_batch.journal.postgres.session import Row, fetch, streamed
from paygw_batch.journal.tables import FILES, ON_POSTGRES, named_sql
from paygw_batch.journal.values import Identity

QUERIES = named_sql(__package__, FILES, PARTS, ON_POSTGRES, is_psycopg=True)
_ROWS_AT_ONCE = 10_000


class PostgresTables:
    """The tables of a journal, on the connection that is open when they are asked."""

    def __init__(self, connection: Callable[[], Connection[Row]], identity: Identity) -> None:
        self._connection, self.identity = connection, identity

    def run(self, name: str, **values: Any) -> list[Row]:
        """Run a statement, and return all it finds."""
        return fetch(self._connection(), QUERIES[name], values)

    def stream(self, name: str, **values: Any) -> Iterator[Row]:
        """Run a statement inside the open transaction, or one of its own, and yield its rows."""
        connection = self._connection()
        is_alone = connection.info.transaction_status == TransactionStatus.IDLE
        with connection.transaction() if is_alone else nullcontext():
            yield from streamed(connection, QUERIES[name], values)

    def each(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any) -> Iterator[Row]:
        """Run a statement for many rows at once."""
        for group in pieces(rows, _ROWS_AT_ONCE):
            yield from self.run(name, **dict(zip(columns, arrays(group, len(columns)), strict=True)), **values)

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Write an order id, and its spelling."""
        line = {"operation": operation, "order_id": order_id, "instruction": instruction}
        self.run("add_order_id", **line, spelling=spelled_alike(order_id))

    def lock_rows(self, numbers: Sequence[int]) -> bool:
        """Let no worker move these instructions until the open transaction ends: one may just have done so."""
        self.run("lock_rows", numbers=list(numbers))
        return True

    def withdraw_in_turn(self) -> None:
        """Let no other transaction withdraw a document, or use one, until the open one ends."""
        self.run("withdraw_in_turn")


def tables_on(connection: Connection[Row], identity: Identity) -> PostgresTables:
    """Return the tables of a journal on one connection."""
    return PostgresTables(lambda: connection, identity)


def evidence_in(connection: Connection[Row], identity: Identity) -> EvidenceLog:
    """Return the evidence of a journal."""
    return EvidenceLog(tables_on(connection, identity))
