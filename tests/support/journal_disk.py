"""A disk that fails on request: a SQLite VFS that counts every write and sync."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import apsw
from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult


class Disk:
    """Counts operations that change files. Fails at `fail_at` (0: never), and at all later ones if it `stays`."""

    def __init__(self) -> None:
        self.operations = 0
        self.fail_at = 0
        self.stays = False
        self.failure: type[apsw.Error] = apsw.FullError

    def touch(self) -> None:
        self.operations += 1
        if self.operations == self.fail_at or (self.stays and 0 < self.fail_at < self.operations):
            raise self.failure("the disk was told to fail")


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._disk.touch()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._disk.touch()
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        self._disk.touch()
        super().xTruncate(newsize)


class _FailingVfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's
        return _File(self._disk, name, flags)


@contextmanager
def failing_disk() -> Iterator[Disk]:
    """Open every database inside the block on a disk that can be made to fail."""
    disk = Disk()
    vfs = _FailingVfs(disk)
    try:
        yield disk
    finally:
        apsw.set_default_vfs("unix")
        vfs.unregister()


def failing_stage(most: int) -> Callable[..., Callable[[], Sequence[MoveResult]]]:
    """Return `SqliteJournal.stage`, which fails after this number of facts."""
    stage, facts = SqliteJournal.stage, 0

    def fail_later(journal: SqliteJournal, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        nonlocal facts
        facts += len(entries)
        if facts > most:
            raise JournalUnwritable
        return stage(journal, entries)

    return fail_later
