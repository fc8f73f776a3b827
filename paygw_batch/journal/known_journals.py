"""The journals that this user's state directory knows: for each the merchant, the place, and lines about its commits.

Each journal has a folder with its id: `journal.json`, written whole or not at all, and the lines of `left.py`. The
folder is made before its journal exists, as an intention, so a journal that can be opened is always known. A writer of
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
from paygw_batch.files import replacing, sync_directory
from paygw_batch.journal.left import LeftLine, newest_lines
from paygw_batch.journal.lock import LockWait, RunLock, check_directory, check_file, make_directory, refusing
from paygw_batch.journal.sqlite.connect import connect, identity_of
from paygw_batch.journal.sqlite.sqlite_tables import evidence_in
from paygw_batch.language import mark, say, say_count

_ID = re.compile(r"[0-9a-f]{32}")
_ABOUT = "journal.json"
_LOCK = "journals.lock"
_WAIT = LockWait(limit_s=30.0, is_any_holder=True)
"""The folders are only held for moments, so a second command waits for the first."""


@dataclass(frozen=True, slots=True)
class KnownJournal:
    """A journal that this user's state directory knows: all names of its merchant's endpoints, and its place.

    `is_intended`: its creation began and is not known to have finished. `is_lost`: a person made another journal in its
    place; if the lost journal turns up again, a person has to adopt it.
    """

    journal_id: str
    names: tuple[EndpointIdentity, ...]
    path: str
    created_at: str
    is_intended: bool = False
    is_lost: bool = False

    def pays(self, names: Sequence[EndpointIdentity]) -> bool:
        """Whether the journal pays for the merchant that is known by any of `names`."""
        return any(name.is_of_merchant(self.names) for name in names)


class KnownJournals:
    """The known journals, with their folders in `directory`, which is created with the first write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def held(self, now: str) -> Iterator[None]:
        """Hold the lock against every other writer. Raises `JournalHeld` if another process holds it for too long."""
        make_directory(self._directory)
        check_directory(self._directory)
        lock = RunLock(self._directory / _LOCK, now=now, command="the known journals", wait=_WAIT)
        try:
            yield
        finally:
            lock.close()

    def folder(self, journal_id: str) -> Path:
        """Return the folder of a journal, whether the journal is known or not."""
        return self._directory / journal_id

    def left(self, journal_id: str) -> Sequence[LeftLine]:
        """Return the newest lines that this user has of a journal (see `left.py`); none if the journal is not known."""
        return newest_lines(self.folder(journal_id))

    def entries(self) -> Sequence[KnownJournal]:
        """Return every known journal, oldest first. Raises `JournalError` for a damaged entry."""
        with refusing(mark("{directory} cannot be read: {reason}."), directory=self._directory):
            try:
                files = [path / _ABOUT for path in self._directory.iterdir() if _ID.fullmatch(path.name)]
            except FileNotFoundError:
                return []
            files = [path for path in files if check_file(path)]
        return sorted((_read(path) for path in files), key=lambda entry: (entry.created_at, entry.journal_id))

    def entry(self, journal_id: str) -> KnownJournal | None:
        """Return the entry of a journal; None if the journal is not known."""
        path = self._path(journal_id)
        return _read(path) if check_file(path) else None

    def paying(self, names: Sequence[EndpointIdentity], *, but: str = "") -> Sequence[KnownJournal]:
        """Return the journals of a merchant without `but`, oldest first, including unknown ones at default places."""
        entries = {entry.journal_id: entry for entry in (*self._at_default_places(), *self.entries())}
        of_merchant = [entry for entry in entries.values() if entry.journal_id != but and entry.pays(names)]
        return sorted(of_merchant, key=lambda entry: (entry.created_at, entry.journal_id))

    def write(self, entry: KnownJournal) -> None:
        """Write an entry durably, in place of any earlier one. The caller holds the lock."""
        path = self._path(entry.journal_id)
        make_directory(path.parent)
        hint = say("Free some disk space, then run again.")
        with refusing(mark("{path} cannot be written: {reason}."), hint=hint, path=path), replacing(path) as file:
            file.write((json.dumps(asdict(entry), indent=1) + "\n").encode())

    def remember(self, entry: KnownJournal, now: str) -> None:
        """Write an entry unless the stored one is equal."""
        if self.entry(entry.journal_id) != entry:
            with self.held(now):
                self.write(entry)

    def take(self, entry: KnownJournal) -> None:
        """Write the entry of a journal that a person made or adopted. Mark another journal at the same path as lost."""
        for other in self.entries():
            if other.path == entry.path and other.journal_id != entry.journal_id:
                self.write(replace(other, is_lost=True))
        self.write(entry)

    def forget(self, entry: KnownJournal) -> None:
        """Remove the folder of a journal that was never created. The caller holds the lock."""
        shutil.rmtree(self.folder(entry.journal_id), ignore_errors=True)
        sync_directory(self._directory)

    def _path(self, journal_id: str) -> Path:
        return self.folder(journal_id) / _ABOUT

    def _at_default_places(self) -> Iterator[KnownJournal]:
        """Yield the readable journals at default places, which are beside the folders."""
        for path in sorted(self._directory.parent.glob("*/journal.sqlite3")):
            with suppress(PaygwError, apsw.Error, OSError), closing(connect(path, write=False)) as connection:
                identity = identity_of(connection)
                names = evidence_in(connection).names(identity)
                yield KnownJournal(identity.journal_id, names, str(path), identity.created_at)


def _read(path: Path) -> KnownJournal:
    check_file(path)
    with refusing(mark("{path} cannot be read: {reason}."), path=path):
        text = path.read_bytes()
    try:
        fields = json.loads(text)
        names = tuple(EndpointIdentity(**name) for name in fields.pop("names"))
        return KnownJournal(names=names, **fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JournalError(
            say("{path} is damaged. It records for whom each journal pays.", path=path),
            hint=say(
                "Put the file back from a backup. If there is none, move it away and run the "
                "next command with that journal: it is then written again."
            ),
        ) from None


def journal_list_sentence(entries: Sequence[KnownJournal]) -> str:
    """Return a sentence that lists journals by id and path, with a leading blank; empty if there are none."""
    if not entries:
        return ""
    listed = ", ".join(say("{journal_id} at {path}", journal_id=entry.journal_id, path=entry.path) for entry in entries)
    return " " + say_count(
        len(entries),
        "This user's state directory remembers another journal of the same merchant: {journals}.",
        "This user's state directory remembers other journals of the same merchant: {journals}.",
        journals=listed,
    )


def check_beside(others: Sequence[KnownJournal], beside: str | None, *, command: str) -> None:
    """Raise `JournalError` unless `beside` is the id of the newest of `others`, or None if there are none."""
    if not others and beside is None:
        return
    if not others:
        raise JournalError(
            say("This user's state directory remembers no journal {beside} of this merchant.", beside=beside),
            hint=say("Leave --beside out, or run the command as the user whose state directory knows it."),
        )
    newest = others[-1].journal_id
    if beside != newest:
        raise JournalError(
            say("This merchant already has a journal.{others}", others=journal_list_sentence(others)),
            hint=say(
                "Use that one: --journal, or [journal] path. A journal knows only what was sent from it, so a "
                "second one would pay the same sheet again. Only if that one is lost for good, or you will "
                "never submit a sheet to both, run `paygw-batch {command} --beside {newest}`.",
                command=command,
                newest=newest,
            ),
        )
