"""The journals in this user's state directory: each with its merchant, its location and its sent log.

Each journal has a folder named after its id, with its sent log and `journal.json`, which is written atomically. The
folder is created before the journal, as an intention, so a journal that can be opened is always known. A writer of
`journal.json` holds the lock of all folders from its first read to its last write.
"""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import JournalError, PaygwError
from paygw_batch.files import replacement_file, sync_directory
from paygw_batch.journal.lock import (
    LockWait,
    RunLock,
    check_directory,
    check_file,
    make_directory,
    translating_os_errors,
)
from paygw_batch.journal.sent_log import SentLogLine, newest_lines
from paygw_batch.journal.sqlite.connect import connect, load_identity
from paygw_batch.journal.sqlite.sqlite_tables import evidence_log
from paygw_batch.language import mark, say, say_count

_ID = re.compile(r"[0-9a-f]{32}")
_ENTRY_FILE = "journal.json"
_LOCK = "journals.lock"
_WAIT = LockWait(limit_s=30.0, is_any_holder=True)
"""A second command waits for the first, because the folders are locked only for moments."""


@dataclass(frozen=True, slots=True)
class KnownJournal:
    """A journal in this user's state directory: all names of its merchant's endpoints, and its location.

    If `is_intended`, its creation began but is not known to have finished. If `is_lost`, a person created another
    journal in its place, and would have to adopt this one if it turned up again.
    """

    journal_id: str
    names: tuple[EndpointIdentity, ...]
    path: str
    created_at: str
    is_intended: bool = False
    is_lost: bool = False

    def belongs_to(self, names: Sequence[EndpointIdentity]) -> bool:
        """Return whether the journal pays for the merchant known by any of `names`."""
        return any(name.matches_merchant(self.names) for name in names)


class KnownJournals:
    """The known journals, with folders in `directory`, which the first write creates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def hold_lock(self, now: str) -> Iterator[None]:
        """Hold the lock of all folders. Raises `JournalHeld` if another process holds it for too long."""
        make_directory(self._directory)
        check_directory(self._directory)
        lock = RunLock(self._directory / _LOCK, now=now, command="the known journals", wait=_WAIT)
        try:
            yield
        finally:
            lock.close()

    def folder(self, journal_id: str) -> Path:
        """Return the folder of a journal, known or not."""
        return self._directory / journal_id

    def newest_log_lines(self, journal_id: str) -> Sequence[SentLogLine]:
        """Return the newest lines of a journal's sent log, or none if the journal is not known."""
        return newest_lines(self.folder(journal_id))

    def entries(self) -> Sequence[KnownJournal]:
        """Return every known journal, oldest first. Raises `JournalError` for a damaged entry."""
        with translating_os_errors(mark("{directory} cannot be read: {reason}."), directory=self._directory):
            try:
                files = [path / _ENTRY_FILE for path in self._directory.iterdir() if _ID.fullmatch(path.name)]
            except FileNotFoundError:
                return []
            files = [path for path in files if check_file(path)]
        return sorted((_read_entry(path) for path in files), key=lambda entry: (entry.created_at, entry.journal_id))

    def entry(self, journal_id: str) -> KnownJournal | None:
        """Return the entry of a journal, or None if the journal is not known."""
        path = self._path(journal_id)
        return _read_entry(path) if check_file(path) else None

    def merchant_journals(self, names: Sequence[EndpointIdentity], *, except_id: str = "") -> Sequence[KnownJournal]:
        """Return a merchant's journals except `except_id`, oldest first, including unknown ones at default paths."""
        entries = {entry.journal_id: entry for entry in (*self._journals_at_default_paths(), *self.entries())}
        journals = [entry for entry in entries.values() if entry.journal_id != except_id and entry.belongs_to(names)]
        return sorted(journals, key=lambda entry: (entry.created_at, entry.journal_id))

    def write(self, entry: KnownJournal) -> None:
        """Write an entry durably, replacing any earlier one. The caller must hold the lock."""
        path = self._path(entry.journal_id)
        make_directory(path.parent)
        hint, message = say("Free some disk space, then run again."), mark("{path} cannot be written: {reason}.")
        with translating_os_errors(message, hint=hint, path=path), replacement_file(path) as file:
            file.write((json.dumps(asdict(entry), indent=1) + "\n").encode())

    def remember(self, entry: KnownJournal, now: str) -> None:
        """Write an entry if it differs from the stored one."""
        if self.entry(entry.journal_id) != entry:
            with self.hold_lock(now):
                self.write(entry)

    def register(self, entry: KnownJournal) -> None:
        """Write the entry of a created or adopted journal, and mark another journal at this path as lost."""
        for other in self.entries():
            if other.path == entry.path and other.journal_id != entry.journal_id:
                self.write(replace(other, is_lost=True))
        self.write(entry)

    def forget(self, entry: KnownJournal) -> None:
        """Remove the folder of a journal that was never created. The caller holds the lock."""
        shutil.rmtree(self.folder(entry.journal_id), ignore_errors=True)
        sync_directory(self._directory)

    def _path(self, journal_id: str) -> Path:
        return self.folder(journal_id) / _ENTRY_FILE

    def _journals_at_default_paths(self) -> Iterator[KnownJournal]:
        """Yield the readable journals at default paths, next to the folders."""
        for path in sorted(self._directory.parent.glob("*/journal.sqlite3")):
            with suppress(PaygwError, apsw.Error, OSError), closing(connect(path, write=False)) as connection:
                identity = load_identity(connection)
                names = evidence_log(connection).names(identity)
                yield KnownJournal(identity.journal_id, names, str(path), identity.created_at)


def _read_entry(path: Path) -> KnownJournal:
    check_file(path)
    with translating_os_errors(mark("{path} cannot be read: {reason}."), path=path):
        text = path.read_bytes()
    try:
        fields = json.loads(text)
        names = tuple(EndpointIdentity(**name) for name in fields.pop("names"))
        return KnownJournal(names=names, **fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JournalError(
            say("{path} is damaged. It records the merchant that each journal pays for.", path=path),
            hint=say(
                "Restore the file from a backup. If there is none, move it away. The next command with "
                "that journal writes it again."
            ),
        ) from None


def journal_list_sentence(entries: Sequence[KnownJournal]) -> str:
    """Return a sentence that lists journals by id and path, with a leading space, or empty if there are none."""
    if not entries:
        return ""
    text = ", ".join(say("{journal_id} at {path}", journal_id=entry.journal_id, path=entry.path) for entry in entries)
    return " " + say_count(
        len(entries),
        "This user's state directory lists another journal of the same merchant: {journals}.",
        "This user's state directory lists other journals of the same merchant: {journals}.",
        journals=text,
    )


def check_other_journals(journals: Sequence[KnownJournal], accepted_id: str | None, *, command: str) -> None:
    """Raise `JournalError` unless `accepted_id` names the newest of `journals` (None if there are none)."""
    if not journals and accepted_id is None:
        return
    if not journals:
        raise JournalError(
            say("This user's state directory lists no journal {beside} of this merchant.", beside=accepted_id),
            hint=say("Leave --beside out, or run the command as the user whose state directory knows it."),
        )
    newest = journals[-1].journal_id
    if accepted_id != newest:
        raise JournalError(
            say("This merchant already has a journal.{others}", others=journal_list_sentence(journals)),
            hint=say(
                "Use that one: --journal, or [journal] path. A journal knows only what was sent from it, so a "
                "second one would pay the same sheet again. Only if that one is lost for good, or you will "
                "never submit a sheet to both, run `paygw-batch {command} --beside {newest}`.",
                command=command,
                newest=newest,
            ),
        )
