"""The attempts that may have left from this host: a line for each commit, in the state directory, not in the journal.

A journal that was restored from a backup, copied or replaced is consistent, and would pay rows again. These lines
reveal that: they have facts that the journal lacks, and the attempts that may have left since. A line is written after
its commit is durable. The line is durable itself before the committing call returns, and so before the first byte
leaves.

Each writer has two files. When one is full, the other is emptied and used, so at least the newest 32 MiB of lines are
kept. Space is allocated ahead, so that only the bytes of a line have to reach the disk. If a machine stops, only the
last line can be torn, and nothing has left on the strength of that line.
"""

import fcntl
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from paygw_batch.core.lifecycle import Concluded, Intended
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalWentBack, LeftDamaged
from paygw_batch.files import replacing, sync_directory
from paygw_batch.journal.lock import check_file, open_private
from paygw_batch.journal.values import Entry, Link, Remark
from paygw_batch.language import say

MAX_BYTES = 32 << 20
"""The size of a file: 200,000 attempts, at 150 bytes each if alone, to 1.2 million, at 26 in groups of 64."""
_STEP = 256 << 10
_ALONE_WITHIN_S = 30.0
_CHECKSUM = re.compile(b" [0-9a-f]{8}")
RUN, BESIDE = "left-1", "beside"
"""The names of the writers: a run (further processes of a host have further numbers), and the notes beside it."""


class Noted(NamedTuple):
    """An attempt that may leave now, with its order id. Without an order id: an attempt of which nothing left."""

    instruction: int
    attempt: int
    order_id: str | None


@dataclass(frozen=True, slots=True)
class LeftLine:
    """A line about a commit: the hash (hex) and number of its newest fact, its time, and its attempts.

    `count` numbers the lines of a writer. `number` is 0 for a new journal without facts.
    """

    count: int
    number: int
    hash: str
    at: str
    noted: tuple[Noted, ...] = ()


class LeftWriter(Protocol):
    """The interface of a writer of lines."""

    def note(self, number: int, digest: str, at: str, noted: Sequence[Noted] = ()) -> None:
        """Write a line about a commit durably. Raises `OSError`."""
        ...

    def close(self) -> None:
        """Close the writer."""
        ...


class NothingLeft:
    """Writes no lines. It serves a journal in memory, and a command that sends nothing."""

    def note(self, number: int, digest: str, at: str, noted: Sequence[Noted] = ()) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Do nothing."""


class Left:
    """Writes the lines of the writer `name` in `folder`. `end` is the number, hash and time of the newest fact."""

    def __init__(self, folder: Path, name: str, end: tuple[int, str, str]) -> None:
        if newest(folder, name) is None:
            with replacing(_files(folder, name)[0]) as file:
                file.write(_written(LeftLine(1, *end)))
        last = max(_ends(folder, name), key=attrgetter("line.count"))
        self.newest = last.line
        self._path, self._fd, self._at, self._size = last.path, open_private(last.path), last.after, last.size
        if last.is_torn:
            os.ftruncate(self._fd, last.size)
        if (self.newest.number, self.newest.hash) != end[:2]:
            self.note(*end)

    def note(self, number: int, digest: str, at: str, noted: Sequence[Noted] = ()) -> None:
        """Add a line durably. Raises `OSError`; in that case nothing of the commit may leave."""
        line = LeftLine(self.newest.count + 1, number, digest, at, tuple(noted))
        content = _written(line)
        if self._at + len(content) > MAX_BYTES and self._at:
            self._turn()
        while self._at + len(content) > self._size:
            _put(self._fd, bytes(_STEP), self._size)
            self._size += _STEP
        _put(self._fd, content, self._at)
        # Only after this flush may the commit's attempts leave: if an older copy of the journal is restored, this line
        # alone says which rows may have been sent.
        _sync_data(self._fd)
        self._at += len(content)
        self.newest = line

    def close(self) -> None:
        """Close the file. A second call does nothing, because another file may have the descriptor's number by then."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def _turn(self) -> None:
        """Empty the other file and continue there."""
        # The full file stays until the other is full too, because a restored journal is compared with its lines.
        first, second = _files(self._path.parent, self._path.stem)
        self.close()
        self._path = second if self._path == first else first
        self._fd, self._at, self._size = open_private(self._path), 0, 0
        os.ftruncate(self._fd, 0)
        sync_directory(self._path.parent)


def noted_of(entries: Sequence[Entry | Remark]) -> list[Noted]:
    """Return the attempts that may leave once these facts are committed, and those of which nothing left."""
    noted = []
    for entry in entries:
        if isinstance(entry, Remark):
            continue
        if isinstance(entry.fact, Intended):
            noted.append(Noted(entry.instruction, entry.attempt, entry.fact.order_id))
        elif isinstance(entry.fact, Concluded) and entry.fact.outcome.kind is OutcomeKind.NOT_SENT:
            noted.append(Noted(entry.instruction, entry.attempt, None))
    return noted


def note_beside(folder: Path, number: int, digest: str, at: str) -> None:
    """Write a line for a fact recorded while a run held the journal, unless a newer one is noted. Raises `OSError`."""
    with alone_in(folder):
        known = newest(folder, BESIDE)
        if known is None or known.number < number:
            with closing(Left(folder, BESIDE, (number, digest, at))):
                pass


def note_accepted(folder: Path, names: Collection[str], end: Callable[[], tuple[int, str, str]]) -> None:
    """Add a line with the end of the journal for each of these writers, after a person accepted a loss.

    Damaged files are renamed first. `end` is called under the lock of `alone_in`. Raises `OSError`.
    """
    with alone_in(folder):
        for name in names:
            try:
                Left(folder, name, end()).close()
            except LeftDamaged:
                for path in filter(Path.exists, _files(folder, name)):
                    path.rename(path.with_name(f"damaged-{secrets.token_hex(4)}-{path.name}"))
                Left(folder, name, end()).close()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock against other callers of this function. Raises `OSError`, also after waiting 30 seconds."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        give_up_s = time.monotonic() + _ALONE_WITHIN_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise
            time.sleep(0.01)
        yield
    finally:
        os.close(held)


def writers(folder: Path) -> list[str]:
    """Return the names of the writers that have a file in the folder."""
    return sorted({path.stem for pattern in ("left-*.[12]", f"{BESIDE}.[12]") for path in folder.glob(pattern)})


def newest(folder: Path, name: str) -> LeftLine | None:
    """Return the newest line of a writer; None if the writer has no file. Raises `LeftDamaged`."""
    ends = _ends(folder, name)
    return max(ends, key=attrgetter("line.count")).line if ends else None


def newest_lines(folder: Path) -> list[LeftLine]:
    """Return the newest line of each writer. Raises `LeftDamaged`."""
    return [line for name in writers(folder) if (line := newest(folder, name)) is not None]


def lines(folder: Path, name: str) -> Iterator[LeftLine]:
    """Yield the lines of a writer, newest first. Raises `LeftDamaged` where a line is missing or damaged."""
    expected = 0
    for end in sorted(_ends(folder, name), key=attrgetter("line.count"), reverse=True):
        for text in reversed(end.path.read_bytes()[: end.after].split(b"\n")[:-1]):
            line = _read(text)
            if line is None or line.count != (expected or line.count):
                raise _damaged(end.path)
            yield line
            expected = line.count - 1
    if expected:
        raise _damaged(folder / name)


def require_not_older(seen: Sequence[LeftLine], end: Link, hash_at: Callable[[int], bytes], mend: str) -> None:
    """Raise `JournalWentBack`, with the hint `mend`, unless a journal with this end includes all `seen` lines.

    `hash_at` returns the hash of a fact. A journal may be ahead of these lines, because a run can end between the two
    writes.
    """
    for line in seen:
        if end.seq < line.number:
            raise JournalWentBack(
                say(
                    "The journal ends at fact {seq}, but fact {written} was already written: this is an older copy.",
                    seq=end.seq,
                    written=line.number,
                ),
                hint=mend,
            )
        if hash_at(line.number).hex() != line.hash:
            raise JournalWentBack(
                say(
                    "Fact {seq} of the journal is not the one that was written first: this copy has diverged.",
                    seq=line.number,
                ),
                hint=mend,
            )


def unwritable(path: Path | str, reason: str) -> str:
    return say(
        "The journal {path} can no longer be written ({reason}); nothing more was sent.", path=path, reason=reason
    )


def noting_failed(error: OSError) -> str:
    """Return a reason, for a person, why a line could not be written."""
    return say("this computer's record of the payments it sent: {reason}", reason=say(str(error.strerror)))


class _End(NamedTuple):
    """The newest line in a file, the position after it, and the size of the file without a torn line."""

    path: Path
    line: LeftLine
    after: int
    size: int
    is_torn: bool


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.1", folder / f"{name}.2"


def _ends(folder: Path, name: str) -> list[_End]:
    """Return the ends of a writer's files that contain a line; none if the writer has no file."""
    pairs = [(path, _end_of(path)) for path in _files(folder, name) if check_file(path)]
    ends = [end for _, end in pairs if end is not None]
    if pairs and not ends:
        raise _damaged(pairs[0][0])
    return ends


def _end_of(path: Path) -> _End | None:
    """Return the end of a file; None if it contains only a torn line."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = size
        while start:
            start = max(0, start - 2 * _STEP)
            content = os.pread(file.fileno(), size - start, start)
            last = content.rfind(b"\n")
            # One line can be torn: the text after the last line break, or the line that the break ends.
            places = [last] if content[last + 1 :].strip(b"\0") else [last, content.rfind(b"\n", 0, max(last, 0))]
            for stop in places:
                begin = content.rfind(b"\n", 0, max(stop, 0)) + 1
                if stop < 0 or (not begin and start):
                    break  # an earlier part is needed
                text = content[begin:stop]
                if (line := _read(text)) is not None:
                    after, is_torn = start + stop + 1, bool(content[stop + 1 :].strip(b"\0"))
                    return _End(path, line, after, after if is_torn else size, is_torn)
                # A torn line never contains a whole one, so the break between two durable lines is damaged.
                if any(_read(text[: checksum.end()]) for checksum in _CHECKSUM.finditer(text)):
                    raise _damaged(path)
            else:
                raise _damaged(path)
    return None


def _damaged(path: Path) -> LeftDamaged:
    return LeftDamaged(say("This computer's record of the payments it sent is damaged: {path}.", path=path))


def _written(line: LeftLine) -> bytes:
    content = json.dumps([line.count, line.number, line.hash, line.at, line.noted], separators=(",", ":")).encode()
    return b"%s %08x\n" % (content, zlib.crc32(content))


def _read(text: bytes) -> LeftLine | None:
    """Return the line that a text holds; None if it is torn or damaged."""
    content, _, checksum = text.rpartition(b" ")
    if b"%08x" % zlib.crc32(content) != checksum:
        return None
    count, number, digest, at, noted = json.loads(content)
    return LeftLine(count, number, digest, at, tuple(Noted(*attempt) for attempt in noted))


def _put(fd: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(fd, content, offset)
        content, offset = content[written:], offset + written


def _sync_data(fd: int) -> None:
    """Flush the data of a file, and its size if that changed. On macOS only a flush of the whole file is possible."""
    getattr(os, "fdatasync", os.fsync)(fd)
