"""Reads the journal in a file, or in memory."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import HolderKind, JournalCorrupt, JournalError, OutputError
from paygw_batch.files import sync_directory, unfinished
from paygw_batch.journal.guards.lock import LockHolder, journal_holder
from paygw_batch.journal.journal import JournalReader
from paygw_batch.journal.port import RowBeingSent, VerifyProgress
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.sqlite.lookups import search_expression
from paygw_batch.journal.sqlite.schema import end_of
from paygw_batch.journal.sqlite.tables import SqliteTables
from paygw_batch.journal.sqlite.verify import verify
from paygw_batch.journal.values import PaymentSearch
from paygw_batch.language import say


class SqliteReader(JournalReader):
    """A journal on disk, opened for reading."""

    def __init__(self, connection: apsw.Connection, path: Path, notes: tuple[str, ...] = ()) -> None:
        super().__init__(SqliteTables(connection), notes)
        self.path = path
        self._connection = connection

    def being_sent(self, batch: int) -> Sequence[RowBeingSent]:
        """Return the rows of a batch in flight while the run that holds the journal is alive.

        Rows that an earlier run left in flight were put in doubt when this run opened the journal. The holder is
        checked before and after reading, because the rows of a run killed meanwhile are in doubt.
        """
        before = self._run_now()
        if before is None:
            return ()
        found = [
            RowBeingSent(row.instruction, row.row, row.country, row.currency, row.minor)
            for row in self.rows(batch, states={State.IN_FLIGHT})
        ]
        return found if self._run_now() == before else ()

    def _run_now(self) -> LockHolder | None:
        holder = journal_holder(self.path)
        return holder if holder is not None and holder.kind is HolderKind.RUN else None

    def backup(self, path: Path) -> None:
        """Write a copy of the journal as it is now to `path`, for its owner alone, whole or not at all.

        Safe during a run. The copy is for safekeeping and for `verify`: a run refuses it while the original is still
        there, or if the original has moved on. SQLite's own backup is used: copying the file of a database in use would
        miss the rows in its log. Raises `OutputError` if the copy cannot be written or `path` exists.
        """
        if os.path.lexists(path):
            raise OutputError(
                say("{path} already exists.", path=path), hint=say("Name a file that does not exist yet.")
            )
        try:
            temporary = unfinished(path)
            try:
                _copy(self._connection, temporary)
                os.link(temporary, path)  # unlike a rename, this never replaces a file
                sync_directory(path.parent)
            finally:
                temporary.unlink(missing_ok=True)
        except (OSError, apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError) as error:
            raise OutputError(
                say("The copy {journal} cannot be written: {error}.", journal=path, error=error)
            ) from None

    def close(self) -> None:
        """Close the journal. It can be reopened."""
        # Every commit is already durable. If the log cannot be emptied now, the next run does it.
        with suppress(apsw.Error):
            self._connection.close()

    def _chain_end(self) -> tuple[int, str]:
        end = end_of(self._connection)
        return end.seq, end.hash.hex()

    def _search_expression(self, search: PaymentSearch) -> str:
        return search_expression(search)

    def _verify(self, progress: VerifyProgress) -> Mapping[str, int]:
        return verify(self._connection, self.path, in_parallel=True, progress=progress)

    def _fetch(self, query: str, bindings: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translating_errors():
            return fetch(self._connection, query, bindings)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let many statements see one state of the journal, which is also cheaper than a snapshot for each."""
        with self._translating_errors():
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("COMMIT")

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise JournalCorrupt(say("The journal {path} is damaged: {error}.", path=self.path, error=error)) from None
        except apsw.Error as error:
            raise JournalError(
                say("The journal {path} cannot be read: {error}.", path=self.path, error=error)
            ) from None


def _copy(source: apsw.Connection, path: Path) -> None:
    target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
    try:
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step()
    finally:
        target.close()
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
