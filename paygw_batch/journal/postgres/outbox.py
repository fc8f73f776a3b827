"""Keeps the outbox of a journal in PostgreSQL, in a separate table."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from psycopg import Connection

from paygw_batch.journal.outbox import OUTBOX_PARTS, Outbox
from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.tables import ON_POSTGRES, named_sql
from paygw_batch.journal.values import NewNotice

_QUERIES = named_sql(__package__, ("outbox.sql",), OUTBOX_PARTS, ON_POSTGRES, is_psycopg=True)


class PostgresOutbox(Outbox):
    """The outbox on one connection, which its place closes. Statements can be part of the transaction that is open."""

    def __init__(self, connection: Connection[Row]) -> None:
        self._connection = connection

    def add_for_run(self, notices: Iterable[NewNotice], at: str, process: int) -> None:
        """Make the notices of a run durable that begins: they are due when `process` and the run have ended."""
        with self._writing():
            self._add(notices, at, process)

    @property
    def may_send(self) -> bool:
        """Whether the login is that of people: a worker may not mark a notice as sent."""
        return self._run("may_decide") == [(True,)]

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return fetch(self._connection, _QUERIES[name], values)

    def _writing(self) -> AbstractContextManager[object]:
        return self._connection.transaction()
