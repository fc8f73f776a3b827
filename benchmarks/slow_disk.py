"""A disk that takes its time to flush, as those of most clouds do: SQLite's own file system with a wait in it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

_NAME = "slow-flushes"


class _SlowFile(apsw.VFSFile):
    """A file each flush of which takes so much longer."""

    def __init__(self, base: str, name: apsw.URIFilename | str | None, flags: list[int], flush_s: float) -> None:
        super().__init__(base, name, flags)
        self._flush_s = flush_s

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's name)
        """Wait, and flush."""
        time.sleep(self._flush_s)
        super().xSync(flags)


class _SlowDisk(apsw.VFS):
    """The system's files, with slow flushes."""

    def __init__(self, flush_s: float) -> None:
        self._base = apsw.vfs_names()[0]
        self._flush_s = flush_s
        super().__init__(_NAME, self._base, makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (as `xSync`)
        """Open a file whose flushes are slow."""
        return _SlowFile(self._base, name, flags, self._flush_s)


@contextmanager
def slow_flushes(flush_s: float) -> Iterator[None]:
    """Let every flush of a database that is opened in this block take `flush_s` longer; none where that is 0."""
    if not flush_s:
        yield
        return
    disk = _SlowDisk(flush_s)
    try:
        yield
    finally:
        disk.unregister()
