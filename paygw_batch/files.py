"""Decides which files may be written, and writes each file whole or not at all, for its owner alone.

Every file that a command writes for a person is checked by `check_outputs`, before anything is sent and before a long
sheet is read. It is then written through `appearing`.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paygw_batch.errors import OutputError
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class Output:
    """A file that is about to be written.

    `named` is how a person named the file. `is_ours` recognises an older file of this program by its content; without
    `is_ours`, no older file is replaced. A file that is not `needed` is not checked for being writable in advance.
    """

    named: str
    path: Path
    is_ours: Callable[[Path], bool] | None = None
    needed: bool = True


@dataclass(frozen=True, slots=True)
class ProtectedFile:
    """A file that no output may overwrite, with its name in words (`the sheet`).

    With `has_neighbours`, files beside it are protected too if their names begin with its name (`-wal`, `.lock`). With
    `is_directory`, every file in the directory is protected, except the files in `but_for`.
    """

    what: str
    path: Path
    has_neighbours: bool = False
    is_directory: bool = False
    but_for: Sequence[Path] = ()

    def is_hit_by(self, path: Path) -> bool:
        """Return whether writing to `path` would overwrite this file, under any name, link or spelling."""
        if self.is_directory:
            place = _resolved(path)  # a link may have the name of an excepted file, and lead to a protected one
            is_excepted = any(place == _resolved(file.parent) / file.name for file in self.but_for)
            return not is_excepted and any(_is_same(parent, self.path) for parent in place.parents)
        if _is_same(path, self.path):
            return True
        mine, its = _resolved(self.path), _resolved(path)
        if not _is_same(mine.parent, its.parent):
            return False
        # Neither file can be compared by its inode here: one of them does not exist yet, or the names only begin alike.
        # The names are compared without case, because on some disks case makes no difference.
        own, other = mine.name.casefold(), its.name.casefold()
        if other == own:
            return not mine.exists() and not its.exists()
        goes_on = other.startswith((f"{own}-", f"{own}.", f".{own}."))
        return self.has_neighbours and goes_on


def check_outputs(outputs: Sequence[Output], kept: Sequence[ProtectedFile], *, force: bool = False) -> None:
    """Raise `OutputError` unless each of `outputs` can be written, and overwrites no file that must remain.

    An existing file is replaced if it is empty, if this program wrote it, or with `force`. The files in `kept` are
    never replaced.
    """
    for at, output in enumerate(outputs):
        about = {"named": output.named, "path": output.path}
        for protected in kept:
            if protected.is_hit_by(output.path):
                raise OutputError(
                    say("{named} {path} would overwrite {what}.", **about, what=say(protected.what)),
                    hint=say("Nothing was read or sent. Name another file."),
                )
        for other in outputs[:at]:
            if ProtectedFile("", other.path).is_hit_by(output.path):
                raise OutputError(
                    say("{named} and {other} both name {path}.", **about, other=other.named),
                    hint=say("Name two different files."),
                )
        if output.needed:
            check_writable(output.path)
        if (not force or output.is_ours is None) and not _may_be_replaced(output):
            if output.is_ours is None:
                raise OutputError(
                    say("{path} already exists.", path=output.path), hint=say("Name a file that does not exist yet.")
                )
            raise OutputError(
                say("{named} {path} already exists, and this program did not write it.", **about),
                hint=say(
                    "Nothing was read or sent. Name another file, or overwrite it with --force if the command "
                    "has that option."
                ),
            )


def check_writable(path: Path) -> None:
    """Raise `OutputError` if a file at `path` could not be written. Called before anything is sent."""
    try:
        _refuse_special(path)
        with tempfile.TemporaryFile(dir=path.parent, prefix=".paygw-"):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return up to `most_bytes` from the start of a file. Raises `OSError`, also if `path` is no regular file."""
    with open(path, "rb", opener=open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return file.read(most_bytes)


def head_of(path: Path, most_bytes: int) -> bytes:
    """Return the beginning of a file. Return an empty text if the file cannot be read."""
    try:
        return read_regular(path, most_bytes)
    except OSError:
        return b""


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` to `path` with `mode`, whole or not at all. Raises `OutputError`."""
    with appearing(path) as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file (mode 0600) that gets the name `path` at the end, or is removed if anything goes wrong.

    An older file of that name remains until then. On return the new file is on stable storage. Raises `OutputError`.
    """
    try:
        _refuse_special(path)
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def replacing(path: Path, *, only_new: bool = False) -> Iterator[IO[bytes]]:
    """Like `appearing`, for a file that no person named. With `only_new`, an older file remains. Raises `OSError`."""
    descriptor, temporary = _begin(path)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor, whose mode is 0600)
            yield file
            file.flush()
            os.fsync(file.fileno())
        # The content is durable before the file gets its name. After a crash, the name leads to the old file or to the
        # whole new one.
        if only_new:  # unlike a rename, a link never replaces an existing file
            with suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
        else:
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def unfinished(path: Path) -> Path:
    """Make an empty file (mode 0600) beside `path`, which the caller renames once it is complete. Raises `OSError`."""
    descriptor, temporary = _begin(path)
    os.close(descriptor)
    return temporary


def _begin(path: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".paygw-", suffix=".part")  # mode 0600
    return descriptor, Path(name)


def create_once(path: Path, content: bytes) -> None:
    """Write `content` to a new file at `path` (mode 0600), or leave an existing file unchanged.

    A missing directory is made with mode 0700. If two processes do this at the same moment, the second one keeps the
    file of the first. Raises `OSError`.
    """
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, only_new=True) as file:
        file.write(content)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, never through a link. A missing file is made with mode 0600. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make the names of the files in `directory` durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: Exception) -> OutputError:
    reason = say(error.strerror) if isinstance(error, OSError) and error.strerror else type(error).__name__
    return OutputError(say("{path} cannot be written: {reason}.", path=path, reason=reason))


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=...)`. Otherwise a pipe without a writer would block the program forever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _may_be_replaced(output: Output) -> bool:
    try:
        status = output.path.stat()
    except OSError:  # the file does not exist, or it cannot be written either
        return True
    return output.is_ours is not None and (status.st_size == 0 or output.is_ours(output.path))


def _refuse_special(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(say("{path} is not a regular file.", path=path), hint=say("Name an ordinary file."))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _resolved(path: Path) -> Path:
    """Return a path without links and `..`, as far as its directories exist."""
    return Path(os.path.realpath(path))
