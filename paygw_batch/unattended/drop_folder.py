"""Claims the sheets in a drop folder one at a time, and archives each when it is finished.

    FOLDER/payroll.csv          dropped; claimed when it has not changed for a while
    FOLDER/payroll.csv.toml     its cover note, if any; claimed and moved with it
    FOLDER/working-1a2b3c4d/    claimed by a run with this journal; an interrupted run's sheets come first
    FOLDER/done/                submitted, with reconciliation and summary
    FOLDER/refused/             not sent at all, with the reasons

Every other file in the folder is handled too. A file that is not a sheet is refused after a while. A cover note
or plan without a sheet is mentioned in the summary (`dropped_files.py`).

A sheet is claimed by renaming it, so two processes cannot claim it. This happens under the journal's lock, so no other
running process has claimed sheets. The folder of claimed sheets is named after the journal, because work begun with one
journal must never continue with another.
"""

import hashlib
import importlib.util
import json
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

from paygw_batch.clock import Now
from paygw_batch.errors import OutputError, PaygwError, UsageError
from paygw_batch.files import create_if_missing, read_head, read_regular, write_atomically
from paygw_batch.language import say
from paygw_batch.settings.cover_note import MAX_NOTE_BYTES, CoverNote, parse_cover_note
from paygw_batch.show.outputs import OutputGuard
from paygw_batch.show.summary import Summary
from paygw_batch.trusted_files import check_directory
from paygw_batch.unattended.dropped_files import (
    NOTE_SUFFIX,
    PLAN_SUFFIX,
    FolderEntry,
    SortedFiles,
    companions_for,
    is_meant_for,
    is_sheet,
    sort_files,
)

MARKER = ".paygw-adopted"
"""The name of the file that marks a folder as adopted by a person."""
_MARKER_TEXT = b"A person said by `paygw-batch run-folder --adopt` that this is a drop folder.\n"
_OWN_FOLDERS = re.compile(r"done|refused|working-[0-9a-f]{8}")
_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*KEY-----")
_DATABASE = b"SQLite format 3\0"
_HEAD_BYTES = 64 * 1024
_UNREADABLE_NOTE = b"\0"
"""Used as the content of an unreadable cover note. It is not TOML, so the sheet is refused."""


@dataclass(frozen=True, slots=True)
class ClaimedSheet:
    """A claimed sheet at `path`. `stored_name` is its name in the subfolders, which starts with the time.

    A file with a `fault` is refused without being read, and stays in place when it is claimed.
    """

    folder: Path
    path: Path
    name: str
    stored_name: str
    fault: PaygwError | None = None

    @property
    def _stem(self) -> str:
        return Path(self.stored_name).stem

    @property
    def path_when_done(self) -> Path:
        return self.folder / "done" / self.stored_name

    @property
    def reconciliation_path(self) -> Path:
        return self.folder / "done" / f"{self._stem}.reconciliation.csv"

    @property
    def report_path(self) -> Path:
        return self.folder / "done" / f"{self._stem}.report.html"

    @property
    def rejects_path(self) -> Path:
        """The path of the rejects: a workbook if the sheet is one and openpyxl is installed."""
        is_workbook = self.path.suffix.lower() == ".xlsx" and importlib.util.find_spec("openpyxl") is not None
        return self.folder / "refused" / f"{self._stem}.rejects{'.xlsx' if is_workbook else '.csv'}"

    @property
    def reply_path(self) -> Path:
        """The path of the reply to the sender of a refused sheet: the rejects if they exist, otherwise a text file."""
        text_path = self.folder / "refused" / f"{self._stem}.refused.txt"
        return self.rejects_path if self.rejects_path.exists() else text_path

    @property
    def plan_path(self) -> Path:
        """The path of the sheet's plan, which may not exist."""
        return self.path.with_name(f"{self.path.stem}{PLAN_SUFFIX}")

    @property
    def note(self) -> CoverNote:
        """The sheet's cover note, empty if there is none. Raises `SheetError` if it is invalid."""
        path = _note_path(self.path)
        if not os.path.lexists(path):
            return CoverNote()
        return parse_cover_note(_read_note(path), f"{self.name}{NOTE_SUFFIX}")

    def finish(self, summary: Summary, *, is_refused: bool) -> None:
        """Write the summary, and move the sheet with its plan and cover note to done/ or refused/."""
        destination = self.folder / ("refused" if is_refused else "done")
        if is_refused and self.reply_path != self.rejects_path:
            write_atomically(self.reply_path, _encode(self._refusal_text(summary)))
        text = json.dumps(summary.as_json(), ensure_ascii=False, indent=1) + "\n"
        write_atomically(destination / f"{self._stem}.summary.json", _encode(text))
        names = companions_for(self.stored_name)
        # The sheet is moved last, because the next run can finish it while it is in the folder of claimed sheets.
        for old, new in zip((*companions_for(self.path.name), self.path.name), (*names, self.stored_name), strict=True):
            with suppress(FileNotFoundError):  # there is no such file, or another host has finished the sheet
                self.path.with_name(old).rename(destination / new)

    def _refusal_text(self, summary: Summary) -> str:
        options = say(
            "Put such options in a file named {file!r} next to the sheet, as `reference`, `worksheet` or `new_payees`: "
            "see docs/cron.md.",
            file=f"{self.name}{NOTE_SUFFIX}",
        )
        parts = [
            say("{name!r} was refused. None of its rows were sent in this run.", name=self.name),
            summary.message,
            *([options] if summary.option else []),
            say("Correct the sheet, then drop it again under any name. Rows that were paid will not be paid again."),
        ]
        return "\n\n".join(parts) + "\n"


class DropFolder:
    """A drop folder. `claim_key` returns the key of the journal and operation for which sheets are claimed.

    `guard` recognises the program's own files, which are never touched. Raises `UsageError` if the folder contains
    misplaced files and has not been adopted, or `ConfigurationError` if a subfolder is a link or writable by others.
    """

    def __init__(
        self, folder: Path, claim_key: Callable[[], str], guard: OutputGuard, *, settle_s: float, now: Now
    ) -> None:
        self._folder = _resolve_drop_folder(folder)
        if not _is_adopted(self._folder):
            _require_no_misplaced_files(self._folder, guard)
        key_digest = hashlib.sha256(claim_key().encode()).hexdigest()[:8]
        self._working = self._folder / f"working-{key_digest}"
        self._subfolders = (self._working, self._folder / "done", self._folder / "refused")
        self._settle = timedelta(seconds=settle_s)
        self._now = now
        self._is_own_file, self._misplaced_file_kind = cache(guard.is_own_file), cache(_misplaced_file_kind)
        for subfolder in self._subfolders:
            if os.path.lexists(subfolder):
                check_directory(subfolder)

    def claim_sheets(self, reacquire: Callable[[], None] = lambda: None) -> Iterator[ClaimedSheet]:
        """Yield sheets claimed by an earlier run, and then files that have not changed for a while, oldest first.

        `reacquire` is called before each file, to reacquire the journal if it was released.
        """
        try:
            self._create_subfolders()
            for path in sorted(path for path in self._working.iterdir() if is_sheet(path.name)):
                name = path.name.partition("-")[2]
                reacquire()
                self._remove_copied_note(_note_path(self._folder / name), _note_path(path))
                yield ClaimedSheet(self._folder, path, name, path.name)
            for name in self._names_by_age(self.list_files()):
                reacquire()
                files = self.list_files()  # a note or plan may have been dropped in the meantime
                self._create_subfolders()
                if name in files.refused:
                    original, stored_name = self._folder / name, f"{self._stamp()}-{name}"
                    yield ClaimedSheet(self._folder, original, name, stored_name, files.refused[name].error)
                    self._archive_strays(files.refused[name].strays)
                elif name in files.ready and (claimed := self._claim(self._folder / name)) is not None:
                    yield claimed
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            message = say("The folder {folder} cannot be used: {reason}.", folder=self._folder, reason=reason)
            raise OutputError(message) from None

    def list_files(self) -> SortedFiles:
        entries, misplaced = {}, {}
        with os.scandir(self._folder) as listing:
            names = [entry.name for entry in listing]
        for name in names:
            path = self._folder / name
            if _OWN_FOLDERS.fullmatch(name) or name == MARKER or self._is_own_file(path):
                continue
            try:
                status = path.lstat()
                kind = self._misplaced_file_kind(path)
            except FileNotFoundError:  # it was renamed after the listing
                continue
            if kind is not None:
                misplaced[name] = say("{name} is {kind}, so it was not touched.", name=name, kind=kind)
                continue
            is_file, is_folder = stat.S_ISREG(status.st_mode), stat.S_ISDIR(status.st_mode)
            entries[name] = FolderEntry(is_file, is_folder, self._is_settled(status))
        result = sort_files(entries)
        result.untouched |= misplaced
        return result

    def file_counts(self) -> Mapping[str, int]:
        """Count the waiting, unfinished and refused files."""
        files, folder = self.list_files(), self._folder / "refused"
        reports = [path for path in folder.iterdir() if path.name.endswith(".summary.json")] if folder.is_dir() else []
        names = [*files.ready, *files.refused, *files.waiting, *files.untouched]
        return {"waiting": len(names), "unfinished": len(files.unfinished), "refused": len(reports)}

    def _create_subfolders(self) -> None:
        for subfolder in self._subfolders:
            subfolder.mkdir(mode=0o700, exist_ok=True)
            check_directory(subfolder)

    def _is_settled(self, status: os.stat_result) -> bool:
        """Return whether a file has not changed for a while."""
        now = self._now()
        # A modification time in the future comes from another clock.
        written_at = status.st_mtime if status.st_mtime <= now.timestamp() else status.st_ctime
        return written_at <= (now - self._settle).timestamp()

    def _names_by_age(self, files: SortedFiles) -> Sequence[str]:
        entries = []
        for name in (*files.ready, *files.refused):
            try:
                entries.append(((self._folder / name).lstat().st_mtime, name))
            except FileNotFoundError:
                continue
        return [name for _, name in sorted(entries)]

    def _stamp(self) -> str:
        return self._now().strftime("%Y%m%dT%H%M%S%fZ")

    def _archive_strays(self, strays: Sequence[str]) -> None:
        """Move stray notes and plans to refused/ if no sheet remains that they may belong to."""
        sheets = [entry.name for entry in self._folder.iterdir() if is_sheet(entry.name) and entry.name not in strays]
        for stray in strays:
            if not any(is_meant_for(stray, sheet) for sheet in sheets) and os.path.lexists(self._folder / stray):
                (self._folder / stray).rename(self._folder / "refused" / f"{self._stamp()}-{stray}")

    def _claim(self, path: Path) -> ClaimedSheet | None:
        """Claim a sheet with its plan and cover note. Returns None if another process has claimed or changed it.

        The cover note is copied first and removed last, so that a crash never separates the sheet from it.
        """
        stamp = self._stamp()
        target = self._working / f"{stamp}-{path.name}"
        plan = path.with_name(f"{path.stem}{PLAN_SUFFIX}")
        note, note_copy = _note_path(path), _note_path(target)
        if os.path.lexists(note):
            write_atomically(note_copy, _read_note(note))
        try:
            status_before = path.lstat()
            path.rename(target)
        except FileNotFoundError:
            note_copy.unlink(missing_ok=True)
            return None
        # A program can keep writing to the sheet after the rename, and a partial sheet must not be paid. A sheet that
        # has changed is therefore moved back until it is settled again.
        status_after = target.lstat()
        if (status_before.st_mtime_ns, status_before.st_size) != (status_after.st_mtime_ns, status_after.st_size):
            target.rename(path)
            note_copy.unlink(missing_ok=True)
            return None
        self._remove_copied_note(note, note_copy)
        if plan.is_file():
            plan.rename(self._working / f"{stamp}-{plan.name}")
        return ClaimedSheet(self._folder, target, path.name, target.name)

    def _remove_copied_note(self, note: Path, note_copy: Path) -> None:
        """Remove a cover note that has been copied, unless a new sheet needs it."""
        sheet = note.with_name(note.name.removesuffix(NOTE_SUFFIX))
        exists = os.path.lexists(note) and not (note.is_dir() and not note.is_symlink())  # not a folder
        is_copied = note_copy.exists() and exists and _read_note(note) == _read_note(note_copy)
        if is_copied and not os.path.lexists(sheet):
            note.unlink()


def adopt_folder(folder: Path) -> None:
    """Mark a folder as a drop folder. Raises `UsageError` if unsuitable, or `OutputError` if it cannot be written."""
    path = _resolve_drop_folder(folder)
    if _is_adopted(path):
        return
    try:
        (path / MARKER).unlink(missing_ok=True)  # someone else may have created it
        create_if_missing(path / MARKER, _MARKER_TEXT)
    except OSError as error:
        message = say("{path} cannot be written: {reason}.", path=path / MARKER, reason=say(error.strerror or ""))
        raise OutputError(message) from None


def _resolve_drop_folder(folder: Path) -> Path:
    """Return a drop folder's real path. Raises `UsageError` if it is not a folder, or is inside a drop folder."""
    if not os.path.isdir(folder):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise UsageError(say("{folder} is not a folder.", folder=folder))
    path = Path(os.path.realpath(folder))
    siblings = [path.parent / name for name in ("done", "refused")]
    if _OWN_FOLDERS.fullmatch(path.name) and all(sibling.is_dir() for sibling in siblings):
        message = say("{folder} is a subfolder of the drop folder {parent}.", folder=folder, parent=path.parent)
        raise UsageError(message, hint=say("Nothing was read or moved. Choose the drop folder itself."))
    return path


def _is_adopted(folder: Path) -> bool:
    """Return whether the folder has a marker from this account or root."""
    try:
        status = (folder / MARKER).lstat()
    except OSError:
        return False
    is_ours = status.st_uid in {os.geteuid(), 0} and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and is_ours


def _require_no_misplaced_files(folder: Path, guard: OutputGuard) -> None:
    """Raise `UsageError` if a folder contains a file that does not belong in a drop folder."""
    misplaced_file = guard.describe_own_file(folder)
    if misplaced_file is None:
        kinds = ((path.name, _misplaced_file_kind(path)) for path in sorted(folder.iterdir()))
        misplaced_file = next((f"{name} ({kind})" for name, kind in kinds if kind is not None), None)
    if misplaced_file is not None:
        raise UsageError(
            say("{folder} does not look like a drop folder: it contains {what}.", folder=folder, what=misplaced_file),
            hint=say(
                "Nothing was read or moved. Choose another folder. If this is the right one, confirm it once with "
                "`paygw-batch run-folder --adopt {folder}`.",
                folder=shlex.quote(str(folder)),
            ),
            for_terminal=True,
        )


def _misplaced_file_kind(path: Path) -> str | None:
    """Describe a file that does not belong in a drop folder (a configuration, key or journal), or return None."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    head = read_head(path, _HEAD_BYTES)
    if head.startswith(_DATABASE):
        return say("a journal or another database")
    if (_KEY.match if is_sheet(path.name) else _KEY.search)(head) is not None:
        return say("a key")
    return None if is_sheet(path.name) or not _is_configuration(head) else say("a configuration")


def _is_configuration(head: bytes) -> bool:
    try:
        return isinstance(tomllib.loads(head.decode()).get("gateway"), dict)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return False


def _note_path(sheet: Path) -> Path:
    return sheet.with_name(f"{sheet.name}{NOTE_SUFFIX}")


def _read_note(note: Path) -> bytes:
    """Read a cover note without following links. Return `_UNREADABLE_NOTE` if it cannot be read."""
    if note.is_symlink():
        return _UNREADABLE_NOTE
    try:
        return read_regular(note, MAX_NOTE_BYTES + 1)
    except OSError:
        return _UNREADABLE_NOTE


def _encode(text: str) -> bytes:
    """Encode text in which file names may contain bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace")
