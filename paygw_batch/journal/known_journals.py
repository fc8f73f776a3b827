"""The journals known to this user: the merchant, location and sent log of each.

Each journal has a folder named after its id, with its sent log and `journal.json`, which is written atomically. The
folder is created before the journal, so a journal that can be opened is always known. To write `journal.json`, a
process locks all folders before it reads them, and until it has written the file.
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
from paygw_batch.journal.values import Identity
from paygw_batch.language import mark, say, say_count

_ID = re.compile(r"[0-9a-f]{32}")
_ENTRY_FILE = "journal.json"
_LOCK = "journals.lock"
_WAIT = LockWait(limit_s=30.0, wait_for_live_holder=True)
"""Waits even for a live holder of the lock, because the folders are locked only briefly."""


@dataclass(frozen=True, slots=True)
class KnownJournal:
    """A journal listed in this user's state directory. `names` contains the known endpoints of its merchant.

    If `is_intended`, its creation has begun but may not have finished. If `is_lost`, a person has created another
    journal in its place, and must adopt this one before it can be used again.
    """

    journal_id: str
    names: tuple[EndpointIdentity, ...]
    path: str
    created_at: str
    is_intended: bool = False
    is_lost: bool = False

    def belongs_to(self, endpoints: Sequence[EndpointIdentity]) -> bool:
        """Return whether any of these endpoints belongs to the journal's merchant."""
        return any(endpoint.matches_merchant(self.names) for endpoint in endpoints)


class KnownJournals:
    """The known journals, each in a folder of `directory`. The first write creates `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def hold_lock(self, now: str) -> Iterator[None]:
        """Lock all folders for the block. Raises `JournalHeld` if another process holds the lock for too long."""
        make_directory(self._directory)
        check_directory(self._directory)
        lock = RunLock(self._directory / _LOCK, now=now, command="the known journals", wait=_WAIT)
        try:
            yield
        finally:
            lock.close()

    def folder(self, journal_id: str) -> Path:
        return self._directory / journal_id

    def newest_log_lines(self, journal_id: str) -> Sequence[SentLogLine]:
        """Return each writer's newest line in a journal's sent log, or none if the journal is unknown."""
        return newest_lines(self.folder(journal_id))

    def entries(self) -> Sequence[KnownJournal]:
        """Return every known journal, oldest first. Raises `JournalError` for a damaged entry."""
        with translating_os_errors(mark("{directory} cannot be read: {reason}."), directory=self._directory):
            try:
                paths = [path / _ENTRY_FILE for path in self._directory.iterdir() if _ID.fullmatch(path.name)]
            except FileNotFoundError:
                return []
            paths = [path for path in paths if check_file(path)]
        return sorted((_read_entry(path) for path in paths), key=lambda entry: (entry.created_at, entry.journal_id))

    def entry(self, journal_id: str) -> KnownJournal | None:
        path = self.folder(journal_id) / _ENTRY_FILE
        return _read_entry(path) if check_file(path) else None

    def merchant_journals(self, endpoints: Sequence[EndpointIdentity], *, except_id: str = "") -> list[KnownJournal]:
        """Return the merchant's journals except `except_id`, oldest first. Includes unlisted ones at default paths."""
        by_id = {entry.journal_id: entry for entry in (*self._journals_at_default_paths(), *self.entries())}
        journals = [entry for entry in by_id.values() if entry.journal_id != except_id and entry.belongs_to(endpoints)]
        return sorted(journals, key=lambda entry: (entry.created_at, entry.journal_id))

    def write(self, entry: KnownJournal) -> None:
        """Durably write or replace an entry. The caller must hold the lock."""
        path = self.folder(entry.journal_id) / _ENTRY_FILE
        make_directory(path.parent)
        hint, message = say("Free some disk space, then try again."), mark("{path} cannot be written: {reason}.")
        with translating_os_errors(message, hint=hint, path=path), replacement_file(path) as file:
            file.write((json.dumps(asdict(entry), indent=1) + "\n").encode())

    def updated_entry(self, identity: Identity, endpoints: Sequence[EndpointIdentity], path: Path) -> KnownJournal:
        """Return a journal's entry with this path, and with these endpoints added to those of its current entry."""
        previous = self.entry(identity.journal_id)
        # Endpoints missing from the journal are kept, because it may be an older copy that a person adopted.
        names = tuple(dict.fromkeys((*endpoints, *(() if previous is None else previous.names))))
        return KnownJournal(identity.journal_id, names, str(path), identity.created_at)

    def write_if_changed(self, entry: KnownJournal, now: str) -> None:
        """Take the lock and write an entry, unless it is identical to the stored one."""
        if self.entry(entry.journal_id) != entry:
            with self.hold_lock(now):
                self.write(entry)

    def register(self, entry: KnownJournal) -> None:
        """Write the entry of a new or adopted journal, and mark other journals at its path as lost."""
        for other in self.entries():
            if other.path == entry.path and other.journal_id != entry.journal_id:
                self.write(replace(other, is_lost=True))
        self.write(entry)

    def remove(self, entry: KnownJournal) -> None:
        """Remove the folder of a journal that was not completely created. The caller must hold the lock."""
        shutil.rmtree(self.folder(entry.journal_id), ignore_errors=True)
        sync_directory(self._directory)

    def _journals_at_default_paths(self) -> Iterator[KnownJournal]:
        """Yield the readable journals at default paths, which are in the folders next to `directory`."""
        for path in sorted(self._directory.parent.glob("*/journal.sqlite3")):
            with suppress(PaygwError, apsw.Error, OSError), closing(connect(path, write=False)) as connection:
                identity = load_identity(connection)
                endpoints = evidence_log(connection).endpoints(identity)
                yield KnownJournal(identity.journal_id, endpoints, str(path), identity.created_at)


def _read_entry(path: Path) -> KnownJournal:
    check_file(path)
    with translating_os_errors(mark("{path} cannot be read: {reason}."), path=path):
        text = path.read_bytes()
    try:
        fields = json.loads(text)
        endpoints = tuple(EndpointIdentity(**endpoint) for endpoint in fields.pop("names"))
        return KnownJournal(names=endpoints, **fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JournalError(
            say("{path} is damaged. It records which merchant each journal belongs to.", path=path),
            hint=say(
                "Restore the file from a backup. If there is none, move the file to another folder. The next command "
                "that uses the journal creates it again."
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
    """Raise `JournalError` unless `accepted_id` is the id of the newest of `journals`, or None if there are none."""
    if not journals and accepted_id is None:
        return
    if not journals:
        raise JournalError(
            say("This user's state directory does not list a journal {beside} of this merchant.", beside=accepted_id),
            hint=say("Leave out --beside, or run the command as the user whose state directory lists that journal."),
        )
    newest = journals[-1].journal_id
    if accepted_id != newest:
        raise JournalError(
            say("This merchant already has a journal.{others}", others=journal_list_sentence(journals)),
            hint=say(
                "Use that journal, with --journal or [journal] path. A journal contains only what was sent from it, so "
                "with a second one, the same sheet could be paid again. Run `paygw-batch {command} --beside {newest}` "
                "only if that journal is permanently lost, or if you will never submit the same sheet to both.",
                command=command,
                newest=newest,
            ),
        )
