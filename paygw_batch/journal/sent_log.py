"""The sent log, outside the journal: a line for each commit, with the attempts that this host may have sent after it.

A journal that was restored from a backup, copied or replaced is consistent, but would pay rows again. The sent log, in
the state directory, reveals this: it names facts missing from the journal, and attempts that may have been sent. A line
is written after its commit is durable, and is itself durable before the committing call returns. So it is durable
before any of its requests is sent.

Each writer has two files. When one is full, the other is emptied and used, so at least the newest 32 MiB of lines are
kept. Space is preallocated, so that only a line's bytes have to reach the disk. If the machine stops, only the last
line can be torn, and none of its requests was sent.
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
from paygw_batch.errors import JournalTooOld, SentLogDamaged
from paygw_batch.files import replacement_file, sync_directory
from paygw_batch.journal.lock import check_file, open_private
from paygw_batch.journal.values import Entry, Link, Remark
from paygw_batch.language import say

MAX_BYTES = 32 << 20
"""The maximum size of a file: enough for 200,000 attempts on separate lines or 1.2 million in groups of 64."""
_ALLOCATION_BYTES = 256 << 10
_FOLDER_LOCK_LIMIT_S = 30.0
_CHECKSUM = re.compile(b" [0-9a-f]{8}")
RUN, NOTES = "left-1", "beside"
"""The writers for a run (a host's other processes have higher numbers) and for notes recorded during a run."""


class LoggedAttempt(NamedTuple):
    """An attempt that may now be sent or, if `order_id` is None, was certainly not sent."""

    instruction: int
    attempt: int
    order_id: str | None


@dataclass(frozen=True, slots=True)
class SentLogLine:
    """The line for a commit: the number, hash (hex) and time of its newest fact, and its attempts.

    `count` is the number of the line among its writer's lines. `number` is 0 for a new journal without facts.
    """

    count: int
    number: int
    hash: str
    at: str
    attempts: tuple[LoggedAttempt, ...] = ()


class SentLogWriter(Protocol):
    """A sent log that is open for writing."""

    def log_commit(self, number: int, digest: str, at: str, attempts: Sequence[LoggedAttempt] = ()) -> None:
        """Durably add a line for a commit. Raises `OSError`."""

    def close(self) -> None:
        """Close the writer."""


class NoSentLog:
    """Discards all lines, for journals in memory and commands that send nothing."""

    def log_commit(self, number: int, digest: str, at: str, attempts: Sequence[LoggedAttempt] = ()) -> None:
        """Discard a line."""

    def close(self) -> None:
        """Do nothing."""


class SentLog:
    """A writer's sent log in `folder`. `end` contains the number, hash and time of the journal's last fact."""

    def __init__(self, folder: Path, name: str, end: tuple[int, str, str]) -> None:
        if newest_line(folder, name) is None:
            with replacement_file(_files(folder, name)[0]) as file:
                file.write(_encode_line(SentLogLine(1, *end)))
        last = max(_file_ends(folder, name), key=attrgetter("line.count"))
        self.newest_line = last.line
        self._path, self._fd, self._offset, self._size = last.path, open_private(last.path), last.offset, last.size
        if last.is_torn:
            os.ftruncate(self._fd, last.size)
        if (self.newest_line.number, self.newest_line.hash) != end[:2]:
            self.log_commit(*end)

    def log_commit(self, number: int, digest: str, at: str, attempts: Sequence[LoggedAttempt] = ()) -> None:
        """Durably add a line for a commit. If this raises `OSError`, none of the commit's attempts may be sent."""
        line = SentLogLine(self.newest_line.count + 1, number, digest, at, tuple(attempts))
        content = _encode_line(line)
        if self._offset + len(content) > MAX_BYTES and self._offset:
            self._switch_files()
        while self._offset + len(content) > self._size:
            _write_at(self._fd, bytes(_ALLOCATION_BYTES), self._size)
            self._size += _ALLOCATION_BYTES
        _write_at(self._fd, content, self._offset)
        # The commit's attempts may be sent only after this flush. If an older copy of the journal is restored, nothing
        # but this line shows which rows may have been sent.
        _sync_data(self._fd)
        self._offset += len(content)
        self.newest_line = line

    def close(self) -> None:
        """Close the file. A second call does nothing, because the descriptor may have been reused."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            os.close(fd)

    def _switch_files(self) -> None:
        # The full file is kept until the other one is full, because a restored journal is compared with its lines.
        first, second = _files(self._path.parent, self._path.stem)
        self.close()
        self._path = second if self._path == first else first
        self._fd, self._offset, self._size = open_private(self._path), 0, 0
        os.ftruncate(self._fd, 0)
        sync_directory(self._path.parent)


def attempts_to_log(entries: Sequence[Entry | Remark]) -> list[LoggedAttempt]:
    """Return attempts that may be sent after these facts are committed, and those that were certainly not sent."""
    attempts = []
    for entry in entries:
        if isinstance(entry, Remark):
            continue
        if isinstance(entry.fact, Intended):
            attempts.append(LoggedAttempt(entry.instruction, entry.attempt, entry.fact.order_id))
        elif isinstance(entry.fact, Concluded) and entry.fact.outcome.kind is OutcomeKind.NOT_SENT:
            attempts.append(LoggedAttempt(entry.instruction, entry.attempt, None))
    return attempts


def log_concurrent_fact(folder: Path, number: int, digest: str, at: str) -> None:
    """Log a fact recorded while a run holds the journal, unless a newer one is logged. Raises `OSError`."""
    with lock_folder(folder):
        previous = newest_line(folder, NOTES)
        if previous is None or previous.number < number:
            with closing(SentLog(folder, NOTES, (number, digest, at))):
                pass


def log_accepted_loss(folder: Path, names: Collection[str], read_end: Callable[[], tuple[int, str, str]]) -> None:
    """Log the end of the journal for each writer in `names` after a person has accepted a loss.

    Renames and replaces damaged files. Calls `read_end` while the folder is locked. Raises `OSError`.
    """
    with lock_folder(folder):
        for name in names:
            try:
                SentLog(folder, name, read_end()).close()
            except SentLogDamaged:
                for path in filter(Path.exists, _files(folder, name)):
                    path.rename(path.with_name(f"damaged-{secrets.token_hex(4)}-{path.name}"))
                SentLog(folder, name, read_end()).close()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for the block. Raises `OSError` if that fails or takes longer than 30 seconds."""
    lock_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline_s = time.monotonic() + _FOLDER_LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(0.01)
        yield
    finally:
        os.close(lock_fd)


def writer_names(folder: Path) -> list[str]:
    return sorted({path.stem for pattern in ("left-*.[12]", f"{NOTES}.[12]") for path in folder.glob(pattern)})


def newest_line(folder: Path, name: str) -> SentLogLine | None:
    """Return a writer's newest line, or None if it has no files. Raises `SentLogDamaged`."""
    ends = _file_ends(folder, name)
    return max(ends, key=attrgetter("line.count")).line if ends else None


def newest_lines(folder: Path) -> list[SentLogLine]:
    """Return each writer's newest line. Raises `SentLogDamaged`."""
    return [line for name in writer_names(folder) if (line := newest_line(folder, name)) is not None]


def read_lines(folder: Path, name: str) -> Iterator[SentLogLine]:
    """Yield a writer's lines, newest first. Raises `SentLogDamaged` at a missing or damaged line."""
    expected_count = 0
    for end in sorted(_file_ends(folder, name), key=attrgetter("line.count"), reverse=True):
        for text in reversed(end.path.read_bytes()[: end.offset].split(b"\n")[:-1]):
            line = _decode_line(text)
            if line is None or line.count != (expected_count or line.count):
                raise _damage_error(end.path)
            yield line
            expected_count = line.count - 1
    if expected_count:
        raise _damage_error(folder / name)


def require_not_older(lines: Sequence[SentLogLine], end: Link, fact_hash: Callable[[int], bytes], hint: str) -> None:
    """Raise `JournalTooOld` with this hint unless the journal contains the facts named in `lines`.

    `end` is the end of the journal, and `fact_hash` returns a fact's hash. The journal may have newer facts, because a
    run can end after a commit and before its line is written.
    """
    for line in lines:
        if end.seq < line.number:
            raise JournalTooOld(
                say(
                    "The journal ends at fact {seq}, but fact {written} had been written: this is an older copy.",
                    seq=end.seq,
                    written=line.number,
                ),
                hint=hint,
            )
        if fact_hash(line.number).hex() != line.hash:
            raise JournalTooOld(
                say(
                    "Fact {seq} of the journal differs from the one originally written: this copy has diverged.",
                    seq=line.number,
                ),
                hint=hint,
            )


def unwritable_message(path: Path | str, reason: str) -> str:
    return say(
        "The journal {path} can no longer be written ({reason}), so nothing more was sent.", path=path, reason=reason
    )


def log_failure_reason(error: OSError) -> str:
    return say("this computer's record of the payments it sent: {reason}", reason=say(str(error.strerror)))


class _FileEnd(NamedTuple):
    """A file's newest whole line, the offset after it, and the file's size without any torn line."""

    path: Path
    line: SentLogLine
    offset: int
    size: int
    is_torn: bool


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.1", folder / f"{name}.2"


def _file_ends(folder: Path, name: str) -> list[_FileEnd]:
    """Return the end of each of the writer's non-empty files."""
    paths = [path for path in _files(folder, name) if check_file(path)]
    ends = [end for path in paths if (end := _find_end(path)) is not None]
    if paths and not ends:
        raise _damage_error(paths[0])
    return ends


def _find_end(path: Path) -> _FileEnd | None:
    """Return the end of a file, or None if the file contains no whole line."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = size
        while start:
            start = max(0, start - 2 * _ALLOCATION_BYTES)
            content = os.pread(file.fileno(), size - start, start)
            last = content.rfind(b"\n")
            # At most one line is torn: the text after the last line break or, without such text, the line before it.
            candidates = [last] if _is_written(content[last + 1 :]) else [last, content.rfind(b"\n", 0, max(last, 0))]
            for line_end in candidates:
                line_start = content.rfind(b"\n", 0, max(line_end, 0)) + 1
                if line_end < 0 or (not line_start and start):
                    break  # an earlier part of the file is needed
                text = content[line_start:line_end]
                if (line := _decode_line(text)) is not None:
                    offset, is_torn = start + line_end + 1, _is_written(content[line_end + 1 :])
                    return _FileEnd(path, line, offset, offset if is_torn else size, is_torn)
                # A torn line contains no whole line. If this one does, a line break was damaged.
                if any(_decode_line(text[: checksum.end()]) for checksum in _CHECKSUM.finditer(text)):
                    raise _damage_error(path)
            else:
                raise _damage_error(path)
    return None


def _is_written(part: bytes) -> bool:
    """Return whether part of a file contains anything but preallocated zeros."""
    return part != bytes(len(part))  # a hundred times faster than `strip`


def _damage_error(path: Path) -> SentLogDamaged:
    return SentLogDamaged(say("This computer's record of the payments it sent is damaged: {path}.", path=path))


def _encode_line(line: SentLogLine) -> bytes:
    content = json.dumps([line.count, line.number, line.hash, line.at, line.attempts], separators=(",", ":")).encode()
    return b"%s %08x\n" % (content, zlib.crc32(content))


def _decode_line(text: bytes) -> SentLogLine | None:
    content, _, checksum = text.rpartition(b" ")
    if b"%08x" % zlib.crc32(content) != checksum:
        return None
    count, number, digest, at, attempts = json.loads(content)
    return SentLogLine(count, number, digest, at, tuple(LoggedAttempt(*attempt) for attempt in attempts))


def _write_at(fd: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(fd, content, offset)
        content, offset = content[written:], offset + written


def _sync_data(fd: int) -> None:
    """Flush a file's data and size to disk, if possible without its other metadata."""
    getattr(os, "fdatasync", os.fsync)(fd)
