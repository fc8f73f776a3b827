"""Checks which files may be written, and writes them atomically, readable only by their owner.

`check_outputs` checks all files before a command sends anything or reads a long sheet. `atomic_file` writes a file.
"""

import errno
import os
import re
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
    """A file to be written.

    `label` is its name in messages. `is_ours` recognises files that this program wrote, which may be replaced. If it is
    None, no existing file is replaced. Whether a `needed` file can be written is checked in advance.
    """

    label: str
    path: Path
    is_ours: Callable[[Path], bool] | None = None
    needed: bool = True


@dataclass(frozen=True, slots=True)
class ProtectedFile:
    """A file that no output may overwrite, and its description (such as "the sheet").

    With `has_neighbours`, files in the same directory whose names extend its name (`-wal`, `.lock`) are protected too.
    With `is_directory`, every file in the directory is protected, except `exceptions`.
    """

    what: str
    path: Path
    has_neighbours: bool = False
    is_directory: bool = False
    exceptions: Sequence[Path] = ()

    def is_overwritten_by(self, path: Path) -> bool:
        """Return whether writing to `path`, or to its target if it is a link, would overwrite this file."""
        if self.is_directory:
            resolved = _resolve_path(path)  # an exception may be a link to a protected file
            is_exception = any(resolved == _resolve_path(file.parent) / file.name for file in self.exceptions)
            return not is_exception and any(_is_same_file(parent, self.path) for parent in resolved.parents)
        if _is_same_file(path, self.path):
            return True
        own_path, other_path = _resolve_path(self.path), _resolve_path(path)
        if not _is_same_file(own_path.parent, other_path.parent):
            return False
        # Compare names, because the files may not exist yet. Ignore case, as some file systems do.
        own_name, other_name = own_path.name.casefold(), other_path.name.casefold()
        if other_name == own_name:
            return not own_path.exists() and not other_path.exists()
        return self.has_neighbours and other_name.startswith((f"{own_name}-", f"{own_name}.", f".{own_name}."))


def check_outputs(outputs: Sequence[Output], protected_files: Sequence[ProtectedFile], *, force: bool = False) -> None:
    """Raise `OutputError` unless all `outputs` can be written without overwriting a protected file.

    Other existing files are replaced only if they are empty, if this program wrote them, or with `force`.
    """
    for index, output in enumerate(outputs):
        values = {"named": output.label, "path": output.path}
        for protected_file in protected_files:
            if protected_file.is_overwritten_by(output.path):
                raise OutputError(
                    say("{named} {path} would overwrite {what}.", **values, what=say(protected_file.what)),
                    hint=say("Nothing was read or sent. Choose another file."),
                )
        for other in outputs[:index]:
            if ProtectedFile("", other.path).is_overwritten_by(output.path):
                raise OutputError(
                    say("{named} and {other} are the same file, {path}.", **values, other=other.label),
                    hint=say("Choose two different files."),
                )
        if output.needed:
            check_writable(output.path)
        if (not force or output.is_ours is None) and not _can_replace(output):
            if output.is_ours is None:
                raise OutputError(
                    say("{path} already exists.", path=output.path), hint=say("Choose a file that does not exist yet.")
                )
            raise OutputError(
                say("{named} {path} already exists, and this program did not write it.", **values),
                hint=say(
                    "Nothing was read or sent. Choose another file, or overwrite it with --force if the command "
                    "has that option."
                ),
            )


def check_writable(path: Path) -> None:
    """Raise `OutputError` if a file at `path` cannot be written. Call this before anything is sent."""
    try:
        _require_regular_file(path)
        with tempfile.TemporaryFile(dir=path.parent, prefix=".paygw-"):
            pass
    except OSError as error:
        raise build_output_error(path, error) from error


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the first `max_bytes` of a file. Raises `OSError` if it cannot be read or is not a regular file."""
    with open(path, "rb", opener=open_nonblocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return file.read(max_bytes)


def read_head(path: Path, max_bytes: int) -> bytes:
    """Return the first `max_bytes` of a file, or nothing if it cannot be read."""
    try:
        return read_regular(path, max_bytes)
    except OSError:
        return b""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` to `path` atomically, with this mode. Raises `OutputError`."""
    with atomic_file(path) as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file (mode 0600) that durably replaces `path` unless the block fails. Raises `OutputError`."""
    try:
        _require_regular_file(path)
        with replacement_file(path) as file:
            yield file
    except OSError as error:
        raise build_output_error(path, error) from error


@contextmanager
def replacement_file(path: Path, *, only_new: bool = False) -> Iterator[IO[bytes]]:
    """Like `atomic_file`, but raises `OSError`. With `only_new`, an existing file is never replaced."""
    descriptor, temporary_path = _create_part_file(path)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor, whose mode is 0600)
            yield file
            file.flush()
            os.fsync(file.fileno())
        # The content is durable before the rename. So after a crash, `path` is the old file or the complete new one.
        if only_new:  # unlike a rename, a link never replaces an existing file
            with suppress(FileExistsError):
                os.link(temporary_path, path)
            temporary_path.unlink()
        else:
            temporary_path.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary_path.unlink()
        raise
    sync_directory(path.parent)


def create_temporary_file(path: Path) -> Path:
    """Create an empty file (mode 0600) next to `path`, for the caller to write and rename. Raises `OSError`."""
    descriptor, temporary = _create_part_file(path)
    os.close(descriptor)
    return temporary


def _create_part_file(path: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".paygw-", suffix=".part")  # mode 0600
    return descriptor, Path(name)


def create_if_missing(path: Path, content: bytes) -> None:
    """Write `content` to a new file (mode 0600), or keep an existing one. Raises `OSError`.

    A missing directory is created with mode 0700. If two processes create the file at the same time, the first wins.
    """
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacement_file(path, only_new=True) as file:
        file.write(content)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file (created with mode 0600), never through a link. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names in `directory` durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def build_output_error(path: Path, error: Exception) -> OutputError:
    reason = error.strerror if isinstance(error, OSError) else None
    if reason is None and (code := re.search(r"\(os error (\d+)\)", str(error))):  # polars' errors have only a text
        reason = os.strerror(int(code[1]))
    reason = say(reason) if reason else type(error).__name__
    return OutputError(say("{path} cannot be written: {reason}.", path=path, reason=reason))


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file without blocking, even if it is a pipe without a writer. For use as the `opener` of `open`."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _can_replace(output: Output) -> bool:
    try:
        status = output.path.stat()
    except OSError:  # it does not exist or cannot be inspected, so writing it will report the error
        return True
    return output.is_ours is not None and (status.st_size == 0 or output.is_ours(output.path))


def _require_regular_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(say("{path} is not a regular file.", path=path), hint=say("Choose a regular file."))


def _is_same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _resolve_path(path: Path) -> Path:
    """Resolve links and `..` in a path, as far as it exists."""
    return Path(os.path.realpath(path))
