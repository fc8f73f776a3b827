"""Checks a journal's location, opens its files, and lets one run at a time write to it.

The operating system releases the lock when its holder ends. The lock is a `flock`. A POSIX record lock would not work:
a process loses it by closing any descriptor of the file, and can open the file twice despite it. A separate file next
to the journal is locked, because closing any descriptor of the database file would drop SQLite's own locks. For the
same reason, all checks use paths and run before SQLite opens the database.
"""

import fcntl
import json
import os
import shlex
import socket
import stat
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import HolderKind, JournalError, JournalHeld
from paygw_batch.files import sync_directory
from paygw_batch.language import mark, say

_NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs"),
    }
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
_OTHERS_READ = 0o077
_OTHERS_WRITE = 0o022


@contextmanager
def translating_os_errors(message: str, *, hint: str | None = None, **values: object) -> Iterator[None]:
    """Convert an `OSError` in the block to a `JournalError`. `message` is marked for translation."""
    try:
        yield
    except OSError as error:
        raise JournalError(say(message, **values, reason=say(str(error.strerror))), hint=hint) from None


def canonical_path(path: Path) -> Path:
    """Make `path` absolute and resolve links except in its last component. Raises `JournalError` if it is not UTF-8."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow a link in the last component
    canonical = Path(os.path.realpath(absolute.parent)) / absolute.name
    try:
        str(canonical).encode()
    except UnicodeEncodeError:
        raise JournalError(
            say("The name {one_name!a} is not valid UTF-8.", one_name=str(canonical)), hint=say("Choose another name.")
        ) from None
    return canonical


def make_directory(directory: Path) -> None:
    """Create `directory` and any missing parents durably, with access for their owner only."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        message = mark("The directory {part} cannot be created: {reason}.")
        with translating_os_errors(message, part=path), suppress(FileExistsError):  # another run has just created it
            path.mkdir(mode=0o700)
            sync_directory(path.parent)


def check_directory(directory: Path) -> None:
    """Raise `JournalError` unless `directory` is on a local disk and writable only by its owner."""
    with translating_os_errors(mark("The directory {directory} cannot be used: {reason}."), directory=directory):
        status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise JournalError(say("{directory} is not a directory.", directory=directory))
    if status.st_mode & _OTHERS_WRITE:
        raise JournalError(
            say(
                "Other users can write to the directory {directory}, so they could replace the journal.",
                directory=directory,
            ),
            hint=say("chmod go-w {directory}", directory=shlex.quote(str(directory))),
        )
    kind = _file_system_type(directory)
    if kind in _NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise JournalError(
            say(
                "{directory} is on a file system ({kind}) whose locks and writes are not reliable.",
                directory=directory,
                kind=kind,
            ),
            hint=say("Put the journal on a local disk, with [journal] path or --journal."),
        )


def backup_time_path(journal: Path) -> Path:
    """Return the path of the file that records the time of a journal's last backup."""
    return journal.with_name(f"{journal.name}.copied")


def check_file(path: Path) -> bool:
    """Return whether `path` exists. Raises `JournalError` if it exists but is not a private regular file."""
    with translating_os_errors(mark("{path} cannot be used: {reason}."), path=path):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
    if stat.S_ISLNK(status.st_mode):
        raise JournalError(
            say("{path} is a symbolic link.", path=path), hint=say("Specify the path of the file itself.")
        )
    if not stat.S_ISREG(status.st_mode):
        raise JournalError(say("{path} is not a file.", path=path))
    if status.st_nlink > 1:
        raise JournalError(
            say("{path} has a second name (a hard link).", path=path), hint=say("Remove the other name.")
        )
    if status.st_uid not in {os.geteuid(), 0} and os.geteuid() != 0:
        raise JournalError(say("{path} belongs to another user.", path=path))
    if status.st_mode & _OTHERS_READ:
        raise JournalError(
            say("Other users can read or change {path}.", path=path), hint=f"chmod 600 {shlex.quote(str(path))}"
        )
    return True


def open_private(path: Path) -> int:
    """Open or create a private file for reading and writing. Child processes do not inherit its descriptor."""
    check_file(path)
    with translating_os_errors(mark("{path} cannot be opened: {reason}."), path=path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _file_system_type(directory: Path) -> str:
    """Return the type of the file system that contains `directory`, or empty if unknown (as without /proc)."""
    deepest_point, kind = "", ""
    for line in _mount_table().splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        point = _unescape(mount_fields.split(" ")[4])
        # A later line with the same mount point overrides the earlier one.
        if len(point) >= len(deepest_point) and directory.is_relative_to(point):
            deepest_point, kind = point, type_fields.split(" ")[0]
    return kind


def _mount_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _unescape(point: str) -> str:
    """Decode a mount point's octal escapes for spaces, tabs, line breaks and backslashes."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        point = point.replace(code, chr(int(code[1:], 8)))
    return point


def check_endpoint(known_endpoints: Sequence[EndpointIdentity], endpoint: EndpointIdentity, location: str) -> None:
    """Raise `JournalError` unless the journal at `location` belongs to the endpoint's merchant and gateway host."""
    if not endpoint.matches_merchant(known_endpoints):
        raise JournalError(
            say("The journal {place} belongs to another merchant, or to another gateway.", place=location),
            hint=say(
                "Use a separate journal for each merchant at a gateway, with [journal] path or url, or --journal. A "
                "merchant is recognised by any two of these: host, endpoint id and consumer key."
            ),
        )
    if not any(known.host == endpoint.host for known in known_endpoints):
        raise JournalError(
            say(
                "The journal {place} belongs to the same merchant at another gateway host. It was created for "
                "{known}, but the configuration has {configured}.",
                place=location,
                known=known_endpoints[0].host,
                configured=endpoint.host,
            ),
            hint=say(
                "If both names belong to the same gateway, confirm it with `paygw-batch journal adopt` (a journal in "
                "PostgreSQL keeps the host it was created with). If not, correct gateway.base_url, or use a separate "
                "journal with [journal] path or url, or --journal."
            ),
        )


_HOLDER_BYTES = 4096
_open_locks: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class LockWait:
    """How long to wait for a lock whose holder has ended, or (with `wait_for_live_holder`) for any lock.

    If a run is killed while it starts a child process, the child can briefly keep the lock, because it inherits the
    run's open files until it executes its own program.
    """

    limit_s: float = 5.0
    interval_s: float = 0.05
    wait_for_live_holder: bool = False
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class RunLock:
    """The exclusive right to write to a journal, held until `close` or the end of the process.

    `kind` describes the holder to programs, and `command` to people. If another process has the lock, raises an
    `error_type` that names its holder.
    """

    def __init__(
        self,
        path: Path,
        *,
        now: str,
        command: str,
        kind: HolderKind = HolderKind.RUN,
        error_type: type[JournalHeld] = JournalHeld,
        wait: LockWait | None = None,
    ) -> None:
        self._fd: int | None = None
        fd = _acquire(path, error_type, wait or LockWait())
        host = socket.gethostname()
        holder = {"pid": os.getpid(), "host": host, "since": now, "command": command, "kind": kind.value}
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(holder).encode(), 0)
        except OSError as error:
            os.close(fd)
            raise JournalError(
                say(
                    "The journal's lock {path} cannot be written: {reason}.", path=path, reason=say(str(error.strerror))
                ),
                hint=say("Free some disk space, then try again."),
            ) from None
        self._fd = fd
        _open_locks.add(self)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _acquire(path: Path, error_type: type[JournalHeld], wait: LockWait) -> int:
    """Lock the file at `path` and return its descriptor. Raises an `error_type` if another process keeps the lock."""
    deadline_s = wait.monotonic_s() + wait.limit_s
    while True:
        fd = open_private(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(fd)
            os.close(fd)
            if not (holder.has_ended() or wait.wait_for_live_holder) or wait.monotonic_s() >= deadline_s:
                raise _held_error(holder, error_type) from None
            wait.sleep(wait.interval_s)
            continue
        if _is_same_file(fd, path):
            return fd
        os.close(fd)  # the file was deleted before it was locked, so the lock excludes nobody


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock. `pid` is 0 before the process has written its details to the lock file."""

    pid: int = 0
    host: str = ""
    since: str = ""
    command: str = ""
    kind: HolderKind = HolderKind.STARTING

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended. A child process may still hold the lock."""
        return self.pid > 0 and self.host == socket.gethostname() and has_ended(self.pid)


def has_ended(pid: int) -> bool:
    """Return whether a process on this machine has ended. A zombie counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process is alive and belongs to another user
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])


def _read_holder(fd: int) -> LockHolder:
    try:
        fields = json.loads(os.pread(fd, _HOLDER_BYTES, 0))
        # A later version may write another kind, which counts as a run.
        kind = HolderKind.LISTENER if fields.get("kind") == HolderKind.LISTENER.value else HolderKind.RUN
        return LockHolder(int(fields["pid"]), str(fields["host"]), str(fields["since"]), str(fields["command"]), kind)
    except (ValueError, TypeError, KeyError, AttributeError):  # the holder has not written its details yet
        return LockHolder()


def lock_path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.lock")


def journal_holder(journal: Path) -> LockHolder | None:
    """Return the process that holds a journal's lock, or None. Never takes the lock, as that could make a run fail.

    Linux lists the locks of visible processes. On other systems, the process named in the lock file counts as the
    holder if it is alive.
    """
    try:
        with lock_path(journal).open("rb") as file:
            holder, inode = _read_holder(file.fileno()), os.fstat(file.fileno()).st_ino
    except OSError:
        return None
    if not _is_locked(inode, holder.pid) or (holder.pid and holder.has_ended()):
        return None
    return holder


def _is_locked(inode: int, pid: int) -> bool:
    """Return whether process `pid` (any if 0) has locked this inode. Ignores its device, which can be ambiguous."""
    try:
        entries = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return True
    locks = [line.split() for line in entries if " FLOCK " in line and "->" not in line]
    return any(fields[-3].endswith(f":{inode}") and (not pid or fields[-4] == str(pid)) for fields in locks)


def _held_error(holder: LockHolder, error_type: type[JournalHeld]) -> JournalHeld:
    if not holder.pid:
        holder_text = say("it has just started")
    else:
        holder_text = say(
            "process {pid} on {host}, since {since}: {command}",
            pid=holder.pid,
            host=holder.host,
            since=holder.since,
            command=holder.command,
        )
    message = f"{error_type().message.removesuffix('.')}: {holder_text}."
    if holder.has_ended():
        message += " " + say("That process has ended, but a process that it started still holds the lock.")
    error = error_type(message)
    error.holder = holder.kind
    return error


def _release_in_child() -> None:
    """Close the locks' descriptors in a forked child, which would otherwise keep the locks after its parent ended."""
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_release_in_child)
