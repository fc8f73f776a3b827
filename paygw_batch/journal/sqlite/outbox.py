"""Keeps the outbox of a journal file in a separate database beside it, like the inbox.

A run holds the journal for hours. Meanwhile people prepare plans and mail servers hang; neither may delay a commit
that a payout waits for. Several processes may use the outbox at once.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.errors import HolderKind, OutboxBroken
from paygw_batch.journal.guards.location import check_file, outbox_path
from paygw_batch.journal.guards.lock import journal_holder
from paygw_batch.journal.outbox import OUTBOX_PARTS, Outbox
from paygw_batch.journal.sqlite.connect import SideDatabase, configure, fetch
from paygw_batch.journal.tables import ON_SQLITE, named_sql
from paygw_batch.journal.values import NewNotice
from paygw_batch.language import mark

_TABLES = """
CREATE TABLE notice (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    occasion   TEXT NOT NULL,
    subject    TEXT NOT NULL,
    batch      TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    written_at TEXT NOT NULL,
    content    TEXT,
    is_open    INTEGER NOT NULL,
    tries      INTEGER NOT NULL DEFAULT 0,
    tried_at   TEXT,
    next_at    TEXT,
    sent_at    TEXT,
    problem    TEXT NOT NULL DEFAULT '',
    UNIQUE (occasion, batch, subject, recipient)
) STRICT;

CREATE TRIGGER notice_is_never_removed BEFORE DELETE ON notice
    BEGIN SELECT RAISE(ABORT, 'notices are never removed'); END;
"""
"""Each line is one message to one recipient. `is_open`: its run may still be going. `next_at`: null after giving up."""
_PAYO = 0x7061796F
_OUTBOX = SideDatabase(mark("outbox"), _PAYO, _TABLES, OutboxBroken, OutboxBroken)
_QUERIES = named_sql(__package__, ("outbox.sql",), OUTBOX_PARTS, ON_SQLITE)
_A_RUN = 1


class FileOutbox(Outbox):
    """The outbox beside the journal at `journal`. Opened to read, a missing one counts as empty.

    Raises `OutboxBroken` if it cannot be read or written, and `JournalError` if the file is not private.
    """

    def __init__(self, journal: Path, *, write: bool) -> None:
        self._path = outbox_path(journal)
        self._is_over: Callable[[], bool] = lambda: _is_free(journal)
        if write:
            _OUTBOX.make(self._path)
        if write or check_file(self._path):
            self._connection = _OUTBOX.open(self._path, write=write)
        else:
            self._connection = apsw.Connection(":memory:")
            configure(self._connection)
            self._connection.execute(_TABLES)

    def add_for_run(self, notices: Iterable[NewNotice], at: str) -> None:
        """Record the notices of a run that holds the journal and is about to begin; every earlier run is over."""
        with self._writing():
            self._close_open()
            self._add(notices, at, run=_A_RUN)

    def close_over(self) -> None:
        """Make the notices of finished runs due: those read before nobody held the journal."""
        ((newest,),) = self._run("newest_open")
        if newest is not None and self._is_over():
            with self._writing():
                self._run("close_open", number=newest)

    def close(self) -> None:
        """Close the outbox."""
        self._connection.close()

    def _close_open(self) -> None:
        ((newest,),) = self._run("newest_open")
        self._run("close_open", number=newest or 0)

    def _run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        with _OUTBOX.reading(self._path):
            return fetch(self._connection, _QUERIES[name], values)

    def _writing(self) -> AbstractContextManager[None]:
        return _OUTBOX.writing(self._connection, self._path)


def add_for_run(journal: Path, notices: Iterable[NewNotice], at: str) -> None:
    """Record the notices of a run that holds the journal and is about to begin."""
    with closing(FileOutbox(journal, write=True)) as outbox:
        outbox.add_for_run(notices, at)


def _is_free(journal: Path) -> bool:
    """Whether no run holds the journal. A listener does not count: it sends nothing."""
    holder = journal_holder(journal)
    return holder is None or holder.kind is HolderKind.LISTENER
