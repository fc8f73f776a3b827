"""A disk with slow flushes, as in most clouds: a SQLite VFS with a delay."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

_NAME = "slow-flushes"


class _SlowFile(apsw.VFSFile):
    """A file with slow flushes."""

    def __init__(self, base: str, name: apsw.URIFilename | str | None, flags: list[int], flush_s: float) -> None:
        super().__init__(base, name, flags)
        self._flush_s = flush_s

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's name)
        """Wait, then flush."""
        time.sleep(self._flush_s)
        super().xSync(flags)


class _SlowDisk(apsw.VFS):
    """The system's files with slow flushes."""

    def __init__(self, flush_s: float) -> None:
        self._base = apsw.vfs_names()[0]
        self._flush_s = flush_s
        super().__init__(_NAME, self._base, makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (as `xSync`)
        """Open a file whose flushes are slow."""
        return _SlowFile(self._base, name, flags, self._flush_s)


@contextmanager
def slow_flushes(flush_s: float) -> Iterator[None]:
    """Delay every flush of a database that is opened in this block by `flush_s`, unless that is 0."""
    if not flush_s:
        yield
        return
    disk = _SlowDisk(flush_s)
    try:
        yield
    finally:
        disk.unregister()
