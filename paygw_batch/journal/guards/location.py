"""Checks where a journal may be, and opens its files: private, plain, on a disk of this machine.

All checks are by name, before SQLite opens the database. This module never opens the database file: closing any
descriptor of it would drop SQLite's locks on it.
"""

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError
from paygw_batch.files import sync_directory
from paygw_batch.language import say

_NETWORK = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs"),
    }
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
_OTHERS_READ = 0o077
_OTHERS_WRITE = 0o022


def canonical_path(path: Path) -> Path:
    """Return the absolute path of `path`, without `..` and links, and with its last part as given.

    Raises `JournalError` if the name is not text: SQLite could not open it.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow a link in the last part
    one_name = Path(os.path.realpath(absolute.parent)) / absolute.name
    try:
        str(one_name).encode()
    except UnicodeEncodeError:
        raise JournalError(
            say("{one_name!a} is not written in UTF-8.", one_name=str(one_name)), hint=say("Choose another name.")
        ) from None
    return one_name


def make_directory(directory: Path) -> None:
    """Make `directory` and its missing parents, private to their owner; their names are durable on return."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for part in reversed(missing):
        try:
            part.mkdir(mode=0o700)
            sync_directory(part.parent)
        except FileExistsError:
            continue  # another run made it just now
        except OSError as error:
            raise JournalError(
                say("The directory {part} cannot be created: {reason}.", part=part, reason=say(str(error.strerror)))
            ) from None


def check_directory(directory: Path) -> None:
    """Raise `JournalError` unless `directory` is on this machine and only its owner can write to it."""
    try:
        found = directory.stat()
    except OSError as error:
        raise JournalError(
            say(
                "The directory {directory} cannot be used: {reason}.",
                directory=directory,
                reason=say(str(error.strerror)),
            )
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise JournalError(say("{directory} is not a directory.", directory=directory))
    if found.st_mode & _OTHERS_WRITE:
        raise JournalError(
            say(
                "The directory {directory} can be written by others, who could replace the journal.",
                directory=directory,
            ),
            hint=say("chmod go-w {directory}", directory=shlex.quote(str(directory))),
        )
    kind = _file_system(directory)
    if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise JournalError(
            say(
                "{directory} is on a file system ({kind}) whose locks and writes cannot be relied on.",
                directory=directory,
                kind=kind,
            ),
            hint=say("Put the journal on a disk of this machine: [journal] path, or --journal."),
        )


def copied_path(journal: Path) -> Path:
    """Return the path of the file beside a journal that has the time of its last backup."""
    return journal.with_name(f"{journal.name}.copied")


def check_file(path: Path) -> bool:
    """Return whether `path` exists. Raises `JournalError` unless it is a plain, private file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalError(
            say("{path} cannot be used: {reason}.", path=path, reason=say(str(error.strerror)))
        ) from None
    if stat.S_ISLNK(found.st_mode):
        raise JournalError(say("{path} is a symbolic link.", path=path), hint=say("Name the file itself."))
    if not stat.S_ISREG(found.st_mode):
        raise JournalError(say("{path} is not a file.", path=path))
    if found.st_nlink > 1:
        raise JournalError(
            say("{path} has a second name (a hard link).", path=path), hint=say("Remove the other name.")
        )
    if found.st_uid not in {os.geteuid(), 0} and os.geteuid() != 0:
        raise JournalError(say("{path} belongs to another user.", path=path))
    if found.st_mode & _OTHERS_READ:
        raise JournalError(
            say("{path} can be read or written by others.", path=path), hint=f"chmod 600 {shlex.quote(str(path))}"
        )
    return True


def open_private(path: Path) -> int:
    """Open a private file for reading and writing, never through a link; create it if it is missing.

    Returns a descriptor that child programs do not inherit.
    """
    check_file(path)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise JournalError(
            say("{path} cannot be opened: {reason}.", path=path, reason=say(str(error.strerror)))
        ) from None


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory`, empty if the kernel does not say (no /proc)."""
    best, kind = "", ""
    for line in _mount_table().splitlines():
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split(" ")[4])
        # A later line with the same mount point covers the earlier one.
        if len(point) >= len(best) and directory.is_relative_to(point):
            best, kind = point, after.split(" ")[0]
    return kind


def _mount_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _unescaped(point: str) -> str:
    """Return a mount point decoded: the kernel writes blanks and the like as three octal digits."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        point = point.replace(code, chr(int(code[1:], 8)))
    return point


def check_endpoint(names: Sequence[EndpointIdentity], endpoint: EndpointIdentity, place: str) -> None:
    """Raise `JournalError` unless a journal at `place` knows its merchant, with `names`, at this gateway's host."""
    if not endpoint.is_of_merchant(names):
        raise JournalError(
            say("The journal {place} belongs to another merchant, or to another gateway.", place=place),
            hint=say(
                "Name a separate journal for each merchant at a gateway: [journal] path or url, or --journal. A "
                "merchant is known again by two of host, endpoint id and consumer key."
            ),
        )
    if not any(name.host == endpoint.host for name in names):
        raise JournalError(
            say(
                "The journal {place} belongs to the same merchant at another host: it has {known}, but the "
                "configuration has {configured}.",
                place=place,
                known=names[0].host,
                configured=endpoint.host,
            ),
            hint=say(
                "If both names belong to one gateway, confirm it with `paygw-batch journal adopt`; a journal in "
                "PostgreSQL keeps the host it was made with. If not, correct gateway.base_url, or name a separate "
                "journal: [journal] path or url, or --journal."
            ),
        )
