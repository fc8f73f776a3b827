"""Decides which files may be written, and writes them whole or not at all, for their owner alone.

Every file that a command writes for a person goes through `check_outputs` before anything is sent or read at length,
and through `appearing` when it is written.
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
    """A file that is about to be written. `named`: how a person named it. `is_ours` knows an older one by its content.

    Without `is_ours`, no older file is replaced. What is not `needed` may turn out not to be writable.
    """

    named: str
    path: Path
    is_ours: Callable[[Path], bool] | None = None
    needed: bool = True


@dataclass(frozen=True, slots=True)
class ProtectedFile:
    """A file that no output may overwrite, with its name in words (`the sheet`).

    `has_neighbours`: neither may a file beside it whose name goes on from its own (`-wal`, `.lock`). `is_directory`:
    neither may any file in it, except those in `but_for`.
    """

    what: str
    path: Path
    has_neighbours: bool = False
    is_directory: bool = False
    but_for: Sequence[Path] = ()

    def is_hit_by(self, path: Path) -> bool:
        """Return whether writing `path` would write this file, under any name, link or spelling."""
        if self.is_directory:
            place = _resolved(path)  # a link with an excepted name leads to a file that is not excepted
            is_excepted = any(place == _resolved(file.parent) / file.name for file in self.but_for)
            return not is_excepted and any(_is_same(parent, self.path) for parent in place.parents)
        if _is_same(path, self.path):
            return True
        mine, its = _resolved(self.path), _resolved(path)
        if not _is_same(mine.parent, its.parent):
            return False
        # A file that is not there yet, or beside one that is: on some disks case makes no difference.
        own, other = mine.name.casefold(), its.name.casefold()
        if other == own:
            return not mine.exists() and not its.exists()
        goes_on = other.startswith((f"{own}-", f"{own}.", f".{own}."))
        return self.has_neighbours and goes_on


def check_outputs(outputs: Sequence[Output], kept: Sequence[ProtectedFile], *, force: bool = False) -> None:
    """Raise `OutputError` unless every one of `outputs` can be written and overwrites no other file.

    An existing file is replaced if it is empty, if it is one of ours, or with `force`; those `kept` never are.
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
    """Raise `OutputError` when a file could not be written at `path`: to be found out before anything is sent."""
    try:
        _refuse_special(path)
        with tempfile.TemporaryFile(dir=path.parent, prefix=".paygw-"):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the first bytes of a regular file. Raises `OSError`, including for anything else with that name."""
    with open(path, "rb", opener=open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return file.read(most_bytes)


def head_of(path: Path, most_bytes: int) -> bytes:
    """Return the beginning of a file, empty if it cannot be read."""
    try:
        return read_regular(path, most_bytes)
    except OSError:
        return b""


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` to `path`: whole, with `mode`, or not at all. Raises `OutputError`."""
    with appearing(path) as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file (mode 0600) that becomes `path` at the end, or disappears when anything goes wrong.

    It is on stable storage on return; an older file of that name stays until then. Raises `OutputError`.
    """
    try:
        _refuse_special(path)
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def replacing(path: Path, *, only_new: bool = False) -> Iterator[IO[bytes]]:
    """Like `appearing`, for a file that no person named; with `only_new` an older file stays. Raises `OSError`."""
    descriptor, temporary = _begin(path)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor, whose mode is 0600)
            yield file
            file.flush()
            os.fsync(file.fileno())
        # Durable before it gets the name: after a crash, the name leads to the old file or to the whole new one.
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
    """Make an empty file (mode 0600) beside `path`, to be given its name when it is whole. Raises `OSError`."""
    descriptor, temporary = _begin(path)
    os.close(descriptor)
    return temporary


def _begin(path: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".paygw-", suffix=".part")  # mode 0600
    return descriptor, Path(name)


def create_once(path: Path, content: bytes) -> None:
    """Make the file at `path` (mode 0600, its directory 0700 if missing), or leave the one that is there.

    Of two processes that do so at the same moment, the second keeps the file of the first. Raises `OSError`.
    """
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, only_new=True) as file:
        file.write(content)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file (mode 0600), created if missing, never through a link. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: Exception) -> OutputError:
    reason = say(error.strerror) if isinstance(error, OSError) and error.strerror else type(error).__name__
    return OutputError(say("{path} cannot be written: {reason}.", path=path, reason=reason))


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=...)`: a pipe without a writer would block the program forever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _may_be_replaced(output: Output) -> bool:
    try:
        status = output.path.stat()
    except OSError:  # it is not there, or cannot be written either
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
    """Return a path without links and `..`, as far as it is there."""
    return Path(os.path.realpath(path))
