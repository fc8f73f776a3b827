"""The spool: where notifications wait, durable, for the journal's one writer to take them in.

The journal has one writer, and a run holds it for as long as it lasts. Whoever receives notifications meanwhile appends
them here, to a file of its own beside the journal, and answers once they are on stable storage. The writer reads on
from where the journal says it stopped: that number is part of the transaction that takes evidence in, so that each
notification enters the journal once, wherever a crash falls.

    {"after":0,"hash":""}                             the number and hash that this file goes on from
    <hash> <first number> ["...", "..."]              one write: all that was waiting, and one fsync

A hash is SHA-256 over the hash before it and the rest of its line. Only the last line can be torn, and was then never
answered: it is cut off when the spool is opened for appending.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Self

from paygw_batch.errors import HolderKind, InboxDamaged, InboxUnwritable, ListenerHeld
from paygw_batch.journal.facts.codec import canonical
from paygw_batch.journal.guards.location import check_file, open_private, sync_directory
from paygw_batch.journal.guards.lock import RunLock

ROTATE_BYTES = 64 * 1024 * 1024
"""A spool of which everything was taken in is begun anew once it is longer."""
_HASH_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class InboxEnd:
    """A place in the spool: the number of the last notification up to there (0: none), and the hash of its line."""

    number: int = 0
    hash: str = ""


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One notification in the spool, as it was appended."""

    number: int
    hash: str
    content: str


def inbox_path(journal: Path) -> Path:
    """Return where the spool of a journal stands: beside it."""
    return journal.with_name(f"{journal.name}.notifications")


class Inbox:
    """The spool, open for appending by one process until `close`. Called from one thread at a time.

    `taken` is how far the journal has got: a long spool that was taken in whole is begun anew. Raises `ListenerHeld`
    when another process appends to it, `InboxDamaged`, and `JournalError` for a file that is not private.
    """

    def __init__(self, path: Path, *, taken: InboxEnd, now: str) -> None:
        self._path = path
        self._is_broken = False
        with ExitStack() as undo:
            self._lock = RunLock(
                path.with_name(f"{path.name}.lock"),
                now=now,
                command="listen",
                kind=HolderKind.LISTENER,
                held=ListenerHeld,
            )
            undo.callback(self._lock.close)
            if not check_file(path) or path.stat().st_size == 0:
                self._begin(taken)
            self._fd = open_private(path)
            undo.callback(lambda: os.close(self._fd))
            self.end, self._bytes = self._mended()
            if self._bytes > ROTATE_BYTES and self.end == taken:
                self._begin(taken)
                os.close(self._fd)
                self._fd = open_private(path)
                self.end, self._bytes = self._mended()
            undo.pop_all()

    def append(self, contents: Sequence[str]) -> int:
        """Make notifications durable in one write; return the number of the last.

        Raises `InboxUnwritable`: then none of them is kept, as far as anyone will read.
        """
        if self._is_broken:
            raise InboxUnwritable
        first = self.end.number + 1
        rest = f" {first} {canonical(list(contents))}"
        digest = _linked(self.end.hash, rest)
        line = f"{digest}{rest}\n".encode()
        try:
            _write_all(self._fd, line, self._bytes)
            os.fsync(self._fd)
        except OSError as error:
            self._undo()
            raise InboxUnwritable(f"The spool {self._path} cannot be written: {error.strerror}.") from None
        self._bytes += len(line)
        self.end = InboxEnd(self.end.number + len(contents), digest)
        return self.end.number

    def close(self) -> None:
        """Let another process append."""
        os.close(self._fd)
        self._lock.close()

    def _undo(self) -> None:
        """Cut off what a failed write left. Where that fails too, this process appends no more: a line may be torn."""
        try:
            os.ftruncate(self._fd, self._bytes)
            os.fsync(self._fd)
        except OSError:
            self._is_broken = True

    def _mended(self) -> tuple[InboxEnd, int]:
        """Return the end of the spool and its length, what a crash tore off its last line cut away."""
        with self._path.open("rb") as stream:
            lines = _Lines.from_header(stream.readline(), self._path)
            for line in stream:
                if not lines.follow(line):
                    _check_torn(line + stream.read(), self._path)
        if lines.position < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, lines.position)
            os.fsync(self._fd)
        return lines.end, lines.position

    def _begin(self, after: InboxEnd) -> None:
        """Put an empty spool that goes on from `after` at its place: whole or not at all."""
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        fd = open_private(fresh)
        try:
            _write_all(fd, f"{canonical({'after': after.number, 'hash': after.hash})}\n".encode(), 0)
            os.fsync(fd)
            fresh.rename(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise InboxUnwritable(f"The spool {self._path} cannot be made: {error.strerror}.") from None
        finally:
            os.close(fd)


class InboxReader:
    """Reads what the spool holds beyond what the journal has taken, also while another process appends to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._position = 0
        self._end = InboxEnd()

    def after(self, taken: InboxEnd, *, limit: int) -> Sequence[InboxEntry]:
        """Return up to `limit` notifications that follow `taken`; none where there is no spool.

        Raises `InboxDamaged` when the spool does not go on from `taken`, and `JournalError` when it is not private.
        """
        if not check_file(self._path):
            return []
        with self._path.open("rb") as stream:
            about = os.fstat(stream.fileno())
            if self._file != (about.st_dev, about.st_ino) or self._end.number > taken.number:
                self._file, self._position = (about.st_dev, about.st_ino), 0
            return self._read(stream, about.st_size, taken, limit)

    def _read(self, stream: BinaryIO, size: int, taken: InboxEnd, limit: int) -> Sequence[InboxEntry]:
        if self._position == 0:
            lines = _Lines.from_header(stream.readline(), self._path)
            if lines.end.number > taken.number:
                raise self._gap(taken)
        else:
            lines = _Lines(self._end, self._position)
            stream.seek(self._position)
        self._check_hash(lines.end, taken)
        found: list[InboxEntry] = []
        while len(found) < limit and lines.position < size:
            before = lines.end.number
            if not lines.follow(line := stream.readline()):
                _check_torn(line + stream.read(), self._path)
                break
            if before < taken.number:
                self._check_hash(InboxEnd(min(lines.end.number, taken.number), lines.end.hash), taken)
            if lines.end.number <= taken.number:
                self._end, self._position = lines.end, lines.position
            numbered = enumerate(lines.contents, start=before + 1)
            found += [InboxEntry(number, lines.end.hash, one) for number, one in numbered if number > taken.number]
        if lines.end.number < taken.number:
            raise self._gap(taken)
        return found[:limit]

    def _check_hash(self, end: InboxEnd, taken: InboxEnd) -> None:
        if end.number == taken.number and end.hash != taken.hash:
            raise self._gap(taken)

    def _gap(self, taken: InboxEnd) -> InboxDamaged:
        return InboxDamaged(
            f"The spool {self._path} does not go on from notification {taken.number}, the last that the journal took."
        )


@dataclass(slots=True)
class _Lines:
    """Follows a spool line by line: how far it has got, in notifications and in bytes, and what the last line held."""

    end: InboxEnd
    position: int
    contents: Sequence[str] = ()

    @classmethod
    def from_header(cls, header: bytes, path: Path) -> Self:
        """Start behind the first line of a file."""
        try:
            fields = json.loads(header)
            return cls(InboxEnd(int(fields["after"]), str(fields["hash"])), len(header))
        except (ValueError, KeyError, TypeError):
            raise InboxDamaged(f"{path} is not a spool of notifications, or its first line is damaged.") from None

    def follow(self, line: bytes) -> bool:
        """Take the next line; return whether it is whole and follows."""
        try:
            digest, rest = line[:_HASH_CHARACTERS].decode("ascii"), line[_HASH_CHARACTERS:-1].decode()
        except UnicodeDecodeError:
            return False
        if not line.endswith(b"\n") or _linked(self.end.hash, rest) != digest:
            return False
        first, _, contents = rest[1:].partition(" ")
        self.contents = json.loads(contents)
        self.end = InboxEnd(int(first) + len(self.contents) - 1, digest)
        self.position += len(line)
        return True


def _linked(before: str, rest: str) -> str:
    return hashlib.sha256(f"{before}{rest}".encode()).hexdigest()


def _check_torn(rest: bytes, path: Path) -> None:
    """Raise `InboxDamaged` when `rest`, which does not follow, holds a line that follows the one before it.

    What a crash tore is the end of one write, a single line: nothing can follow it.
    """
    lines = rest.split(b"\n")[:-1]
    for before, line in pairwise(lines):
        with suppress(UnicodeDecodeError):
            linked = _linked(before[:_HASH_CHARACTERS].decode("ascii"), line[_HASH_CHARACTERS:].decode())
            if linked.encode() == line[:_HASH_CHARACTERS]:
                raise InboxDamaged(f"The spool {path} is damaged in its middle.")


def _write_all(fd: int, data: bytes, position: int) -> None:
    """Write all of `data` at `position`, or raise `OSError`."""
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written
