"""Keeps waiting notifications durable, in a separate database beside the journal.

The journal has one writer, and a run holds it from start to finish. Meanwhile the listener appends to the inbox, and
replies once the notification is durable. The journal records how far it has read in the same transaction as the
evidence, so each notification enters the journal exactly once, even after a crash.

Entries never change. Recorded ones are removed when the journal forgets people. The journal's folder knows the last one
that was acknowledged: an older copy of the inbox would lose what nobody sends again.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.errors import HolderKind, InboxDamaged, InboxUnwritable, JournalWentBack, ListenerHeld
from paygw_batch.journal.facts.inbox_chain import InboxEntry, InboxGroup, entries_after, first_group, next_group
from paygw_batch.journal.guards.left import INBOX, Left, newest, noting_failed
from paygw_batch.journal.guards.location import check_file
from paygw_batch.journal.guards.lock import RunLock, lock_path
from paygw_batch.journal.salts import new_salt
from paygw_batch.journal.sqlite.connect import SideDatabase, fetch
from paygw_batch.journal.sqlite.forget import scrub
from paygw_batch.journal.values import InboxEnd
from paygw_batch.language import mark, say

_TABLES = """
CREATE TABLE arrival (
    last     INTEGER PRIMARY KEY,
    contents TEXT NOT NULL,
    hash     TEXT NOT NULL
) STRICT;

CREATE TRIGGER arrival_is_never_changed BEFORE UPDATE ON arrival
    BEGIN SELECT RAISE(ABORT, 'notifications are never changed'); END;
CREATE TRIGGER arrival_is_never_removed BEFORE DELETE ON arrival
    BEGIN SELECT RAISE(ABORT, 'notifications are never removed'); END;
"""
"""Each line of `arrival` is an `InboxGroup`."""
_PAYN = 0x7061796E
_INBOX = SideDatabase(mark("inbox"), _PAYN, _TABLES, InboxDamaged, InboxUnwritable)
_ADD = "INSERT INTO arrival VALUES (?, ?, ?)"
_END = "SELECT last, hash FROM arrival ORDER BY last DESC LIMIT 1"
_FROM = """SELECT last, contents, hash FROM arrival
    WHERE last >= coalesce((SELECT max(last) FROM arrival WHERE last < ?), 0) ORDER BY last LIMIT ?"""

_HOLDS = """SELECT 1 FROM arrival a WHERE contents <> '[]' AND last <= ?
    AND coalesce((SELECT max(b.last) FROM arrival b WHERE b.last < a.last), 0) < ? LIMIT 1"""


def inbox_path(journal: Path) -> Path:
    """Return the path of a journal's inbox, which is beside it."""
    return journal.with_name(f"{journal.name}.inbox")


def check_inbox(path: Path, folder: Path, taken: InboxEnd) -> None:
    """Raise `JournalWentBack` if the inbox lacks a notification that was acknowledged and not recorded since.

    `folder` is the one of its journal among the known ones.
    """
    seen = newest(folder, INBOX)
    if seen is None or seen.number <= taken.number:
        return
    found: list[tuple[Any, ...]] = []
    if check_file(path):
        with closing(_INBOX.open(path, write=False)) as connection, _INBOX.reading(path):
            found = fetch(connection, "SELECT hash FROM arrival WHERE last = ?", (seen.number,))
    if found != [(seen.hash,)]:
        raise JournalWentBack(
            say(
                "The inbox {path} does not have notification {number}, which was already stored: it is an older copy, "
                "or gone.",
                path=path,
                number=seen.number,
            ),
            hint=say(
                "Nothing was sent. Put the newest inbox file back. Only if it is lost for good, remove {files}, "
                "and ask the gateway about every row that could be in it, with `paygw-batch refresh` or a statement.",
                files=folder / f"{INBOX}.*",
            ),
        )


class Inbox:
    """The inbox, open for appending by one process until `close`. Call it from one thread at a time.

    `taken` is how far the journal has read; a new inbox continues from there. Its end is noted in the `folder`.
    Raises `ListenerHeld` if another process is appending, `InboxDamaged`, `JournalWentBack` for an older copy, and
    `JournalError` if the file is not private.
    """

    def __init__(self, path: Path, *, taken: InboxEnd, now: str, folder: Path | None = None) -> None:
        self._path = path
        with ExitStack() as undo:
            lock = RunLock(lock_path(path), now=now, command="listen", kind=HolderKind.LISTENER, held=ListenerHeld)
            undo.callback(lock.close)
            if folder is not None:
                check_inbox(path, folder, taken)
            _INBOX.make(path, lambda connection: connection.execute(_ADD, first_group(taken)))
            self._connection = undo.enter_context(closing(_INBOX.open(path, write=True)))
            self.end = _end_of(self._connection)
            self._left = None if folder is None else undo.enter_context(closing(Left(folder, INBOX, self._noted(now))))
            self._now = now
            self._undo = undo.pop_all()

    def append(self, contents: Sequence[str]) -> int:
        """Make notifications durable in one transaction; return the number of the last one.

        Raises `InboxUnwritable`: then none of them may be acknowledged.
        """
        with _INBOX.writing(self._connection, self._path):
            group = next_group(_end_of(self._connection), contents, new_salt().hex())
            fetch(self._connection, _ADD, group)
        self.end = group.end
        if self._left is not None:
            try:
                self._left.note(*self._noted(self._now))
            except OSError as error:
                raise InboxUnwritable(noting_failed(error)) from None
        return group.last

    def _noted(self, at: str) -> tuple[int, str, str]:
        return self.end.number, self.end.hash, at

    def close(self) -> None:
        """Close the inbox, so that another process may append."""
        self._undo.close()


def forget_taken(path: Path, taken: InboxEnd) -> bool:
    """Forget the notifications that the journal has recorded, up to `taken`; a later one continues from there.

    Safe while a listener appends. Return False if another program is reading the inbox, so that its log could not be
    emptied. Raises `InboxUnwritable`.
    """
    if not check_file(path):
        return True
    with closing(_INBOX.open(path, write=True)) as connection:
        with _INBOX.writing(connection, path):
            ((last,),) = fetch(connection, "SELECT max(last) FROM arrival WHERE last <= ?", (taken.number,))
            guards = fetch(connection, "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
            for name, _ in guards:
                connection.execute(f"DROP TRIGGER {name}")
            fetch(connection, "DELETE FROM arrival WHERE last < ?", (last,))
            fetch(connection, "UPDATE arrival SET contents = '[]' WHERE last = ?", (last,))
            for _, sql in guards:
                connection.execute(sql)
        return scrub(connection, path)


class InboxReader:
    """Reads notifications that the journal has not recorded yet, even while another process appends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._connection: apsw.Connection | None = None

    def after(self, taken: InboxEnd, *, limit: int) -> Sequence[InboxEntry]:
        """Return up to `limit` notifications after `taken`; none if there is no inbox.

        Raises `InboxDamaged` if the inbox is damaged or does not continue from `taken`, and `JournalError` if it is not
        private.
        """
        # Two extra groups: the one that `taken` is in, and the one before it.
        return list(islice(self._entries(taken.number, taken, limit + 2), limit))

    def verify(self, taken: InboxEnd) -> int:
        """Check the whole inbox; return the number of notifications after `taken`. Raises the errors of `after`."""
        return sum(1 for _ in self._entries(0, taken, -1))

    def holds_before(self, number: int, taken: InboxEnd) -> bool:
        """Whether it still holds a recorded notification (up to `taken`) numbered at most `number`."""
        if (connection := self.connection()) is None:
            return False
        with _INBOX.reading(self._path):
            return bool(fetch(connection, _HOLDS, (taken.number, number)))

    def forget_taken(self, taken: InboxEnd) -> bool:
        """Forget the notifications that the journal has recorded (see `forget_taken`)."""
        self.close()
        return forget_taken(self._path, taken)

    def connection(self) -> apsw.Connection | None:
        """Return a connection to the inbox file that exists now; None if there is none."""
        if not check_file(self._path):
            return None
        about = self._path.stat()
        if self._connection is None or self._file != (about.st_dev, about.st_ino):
            self.close()
            self._connection = _INBOX.open(self._path, write=False)
            self._file = about.st_dev, about.st_ino
        return self._connection

    def close(self) -> None:
        """Close the inbox. It is reopened when needed."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _entries(self, start: int, taken: InboxEnd, groups: int) -> Iterator[InboxEntry]:
        connection = self.connection()
        if connection is None:
            return
        with _INBOX.reading(self._path):
            found = connection.execute(_FROM, (start, groups))
            yield from entries_after((InboxGroup(*columns) for columns in found), taken, str(self._path))


def _end_of(connection: apsw.Connection) -> InboxEnd:
    return InboxEnd(*fetch(connection, _END)[0])
