"""Keeps the outbox of a journal file in a table of it. Several processes write it, also while a run holds the file."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.errors import HolderKind
from paygw_batch.journal.guards.lock import journal_holder
from paygw_batch.journal.outbox import OUTBOX_PARTS, Outbox
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.schema import written_beside
from paygw_batch.journal.tables import ON_SQLITE, named_sql
from paygw_batch.journal.values import KeptNotice, NewNotice

_QUERIES = named_sql(__package__, ("outbox.sql",), OUTBOX_PARTS, ON_SQLITE)
_A_RUN = 1
"""The `process` of a notice whose run may still hold the file."""


class FileOutbox(Outbox):
    """The outbox on one connection to the journal at `path`, which its place closes.

    `writing` is one transaction of the run that holds the file; None: of a process beside it.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        writing: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._connection, self._path = connection, path
        self._transaction = writing or partial(written_beside, connection, path)

    def add_for_run(self, notices: Iterable[NewNotice], at: str) -> None:
        """Record the notices of a run that holds the journal and is about to begin; every earlier run is over."""
        with self._writing():
            self._run("end_runs")
            self._add(notices, at, _A_RUN)

    def due(self, now: datetime, *, limit: int) -> list[KeptNotice]:
        """Return the notices that may be sent now; those of a run once nobody holds the journal."""
        ((newest,),) = self._run("newest_of_run")  # first: a run that begins now may write one
        return self._due(now, limit=limit, over=newest if newest is not None and _is_free(self._path) else 0)

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        return fetch(self._connection, _QUERIES[name], values)

    def _writing(self) -> AbstractContextManager[None]:
        return self._transaction()


def _is_free(journal: Path) -> bool:
    """Whether no run holds the journal. A listener does not count: it sends nothing."""
    holder = journal_holder(journal)
    return holder is None or holder.kind is HolderKind.LISTENER
