"""Finds the settled sheets of a drop folder, claims one at a time, and moves it away afterwards.

    FOLDER/payroll.csv          dropped, and taken once nobody has written to it for a while
    FOLDER/payroll.csv.toml     its cover note, if any; taken and moved with it
    FOLDER/working-1a2b3c4d/    claimed by a run with this journal; an interrupted run's sheets come first
    FOLDER/done/                submitted, with reconciliation and summary
    FOLDER/refused/             not sent at all, with the reasons

Every other file in the folder is accounted for, too. A file that is not a sheet is refused after a while. A cover note
or plan that belongs to no sheet is named in the summary (`dropped_files.py`).

A sheet is claimed by renaming it, so it has one owner. It is claimed under the journal's lock, so claimed sheets belong
to no other living run. The name of the folder of claimed sheets contains a mark of the journal: work that was begun
with one journal must never continue with another.
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
from paygw_batch.files import create_once, head_of, read_regular, write_whole
from paygw_batch.language import say
from paygw_batch.settings.cover_note import MAX_NOTE_BYTES, CoverNote, parse_cover_note
from paygw_batch.show.outputs import OutputGuard
from paygw_batch.show.summary import Summary
from paygw_batch.trusted_files import check_directory
from paygw_batch.unattended.dropped_files import (
    NOTE_ENDING,
    PLAN_ENDING,
    FolderEntry,
    FolderState,
    companions_of,
    is_meant_for,
    is_sheet,
    sorted_files,
)

MARKER = ".paygw-adopted"
"""The name of the file that marks a folder as adopted."""
_MARKER_TEXT = b"A person said by `paygw-batch run-folder --adopt` that this is a drop folder.\n"
_OUR_FOLDERS = re.compile(r"done|refused|working-[0-9a-f]{8}")
_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*KEY-----")
_DATABASE = b"SQLite format 3\0"
_HEAD_BYTES = 64 * 1024
_UNREADABLE = b"\0"
"""The content that replaces that of an unreadable cover note. It is not TOML, so the sheet is refused."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed sheet at `path`. `kept_as`, its name in the subfolders of `folder`, starts with the time.

    A file with a `fault` is not claimed: it is refused without being read, and remains at its place until then.
    """

    folder: Path
    path: Path
    name: str
    kept_as: str
    fault: PaygwError | None = None

    @property
    def _stem(self) -> str:
        return Path(self.kept_as).stem

    @property
    def path_when_done(self) -> Path:
        return self.folder / "done" / self.kept_as

    @property
    def reconciliation(self) -> Path:
        return self.folder / "done" / f"{self._stem}.reconciliation.csv"

    @property
    def report(self) -> Path:
        return self.folder / "done" / f"{self._stem}.report.html"

    @property
    def rejects(self) -> Path:
        """The path of the rejects if the sheet is refused: a workbook for a workbook, if one can be written."""
        is_workbook = self.path.suffix.lower() == ".xlsx" and importlib.util.find_spec("openpyxl") is not None
        return self.folder / "refused" / f"{self._stem}.rejects{'.xlsx' if is_workbook else '.csv'}"

    @property
    def answer(self) -> Path:
        """The path of the answer to the sender of a refused sheet: the rejects, or a text with the reason."""
        return self.rejects if self.rejects.exists() else self.folder / "refused" / f"{self._stem}.refused.txt"

    @property
    def plan(self) -> Path:
        """The present path of the sheet's plan, if it has one."""
        return self.path.with_name(f"{self.path.stem}{PLAN_ENDING}")

    @property
    def note(self) -> CoverNote:
        """The sheet's cover note; an empty note if there is none. Raises `SheetError` if the note is wrong."""
        note = _note_of(self.path)
        if not os.path.lexists(note):
            return CoverNote()
        return parse_cover_note(_content(note), f"{self.name}{NOTE_ENDING}")

    def finish(self, summary: Summary, *, is_refused: bool) -> None:
        """Write the summary. Then move the plan and the cover note to their destination, and the sheet last.

        The sender of a refused sheet gets its rejects, or a text beside the sheet with the reason.
        """
        place = self.folder / ("refused" if is_refused else "done")
        if is_refused and self.answer != self.rejects:
            write_whole(self.answer, _bytes(self._answer(summary)))
        text = json.dumps(summary.as_json(), ensure_ascii=False, indent=1) + "\n"
        write_whole(place / f"{self._stem}.summary.json", _bytes(text))
        names = companions_of(self.kept_as)
        # The sheet is moved last. As long as it is in the folder of claimed sheets, the next run finishes it.
        for now, later in zip((*companions_of(self.path.name), self.path.name), (*names, self.kept_as), strict=True):
            with suppress(FileNotFoundError):  # there is none, or another host has finished the sheet
                self.path.with_name(now).rename(place / later)

    def _answer(self, summary: Summary) -> str:
        """Return the text for the sender of a refused sheet."""
        options = say(
            "Write options such as --worksheet or --reference into a file {file!r} beside the sheet: docs/cron.md.",
            file=f"{self.name}{NOTE_ENDING}",
        )
        parts = [
            say("{name!r} was refused. None of it was sent in this run.", name=self.name),
            summary.message,
            *([options] if summary.option else []),
            say("Correct the sheet and drop it again, under any name. A row that was paid before is not paid again."),
        ]
        return "\n\n".join(parts) + "\n"


class Drop:
    """The drop folder `folder`, for runs with the journal whose id `journal` returns.

    `guard` knows the program's own files, which are never touched. Raises `UsageError` if the folder holds files that
    do not belong there and no person has adopted it. Raises `ConfigurationError` if one of our subfolders is a link, or
    if others may write to it.
    """

    def __init__(
        self, folder: Path, journal: Callable[[], str], guard: OutputGuard, *, settle_s: float, now: Now
    ) -> None:
        self._folder = _drop_folder(folder)
        if not _is_adopted(self._folder):
            _refuse_own_state(self._folder, guard)
        mark = hashlib.sha256(journal().encode()).hexdigest()[:8]
        self._working = self._folder / f"working-{mark}"
        self._places = (self._working, self._folder / "done", self._folder / "refused")
        self._settle = timedelta(seconds=settle_s)
        self._now = now
        self._is_own, self._state_in = cache(guard.is_own), cache(_state_in)
        for place in self._places:
            if os.path.lexists(place):
                check_directory(place)

    def claim_all(self, hold: Callable[[], None] = lambda: None) -> Iterator[Claimed]:
        """Yield the sheets that an earlier run left, and then every settled file, oldest first.

        `hold` is called before each sheet, and makes sure that the journal is held.
        """
        try:
            self._make_places()
            for path in sorted(path for path in self._working.iterdir() if is_sheet(path.name)):
                name = path.name.partition("-")[2]
                hold()
                self._take_note_away(_note_of(self._folder / name), _note_of(path))
                yield Claimed(self._folder, path, name, path.name)
            for name in self._oldest_first(self.look()):
                hold()
                state = self.look()  # this includes files that were put beside the sheet meanwhile
                self._make_places()
                if name in state.unfit:
                    place, stored = self._folder / name, f"{self._stamp()}-{name}"
                    yield Claimed(self._folder, place, name, stored, state.unfit[name].error)
                    self._put_away(state.unfit[name].strays)
                elif name in state.ready and (claimed := self._claim(self._folder / name)) is not None:
                    yield claimed
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            raise OutputError(
                say("The folder {folder} cannot be used: {reason}.", folder=self._folder, reason=reason)
            ) from None

    def look(self) -> FolderState:
        entries, state = {}, {}
        with os.scandir(self._folder) as listed:
            names = [entry.name for entry in listed]
        for name in names:
            path = self._folder / name
            if _OUR_FOLDERS.fullmatch(name) or name == MARKER or self._is_own(path):
                continue
            try:
                about = path.lstat()
                kind = self._state_in(path)
            except FileNotFoundError:  # the file has just been renamed
                continue
            if kind is not None:
                state[name] = say("{name} is {kind}, so it was left alone.", name=name, kind=kind)
                continue
            is_file, is_folder = stat.S_ISREG(about.st_mode), stat.S_ISDIR(about.st_mode)
            entries[name] = FolderEntry(is_file, is_folder, self._is_settled(about))
        folder_state = sorted_files(entries)
        folder_state.left |= state
        return folder_state

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of waiting and unfinished files in the folder, and of refused files in its subfolder."""
        state, refused = self.look(), self._folder / "refused"
        answered = [] if not refused.is_dir() else [p for p in refused.iterdir() if p.name.endswith(".summary.json")]
        names = [*state.ready, *state.unfit, *state.waiting, *state.left]
        return {"waiting": len(names), "unfinished": len(state.unfinished), "refused": len(answered)}

    def _make_places(self) -> None:
        for place in self._places:
            place.mkdir(mode=0o700, exist_ok=True)
            check_directory(place)

    def _is_settled(self, about: os.stat_result) -> bool:
        """Return whether nobody has written to a file for a while. A time in the future is from another clock."""
        now = self._now()
        written_at = about.st_mtime if about.st_mtime <= now.timestamp() else about.st_ctime
        return written_at <= (now - self._settle).timestamp()

    def _oldest_first(self, state: FolderState) -> Sequence[str]:
        dated = []
        for name in (*state.ready, *state.unfit):
            try:
                dated.append(((self._folder / name).lstat().st_mtime, name))
            except FileNotFoundError:
                continue
        return [name for _, name in sorted(dated)]

    def _stamp(self) -> str:
        return self._now().strftime("%Y%m%dT%H%M%S%fZ")

    def _put_away(self, strays: Sequence[str]) -> None:
        """Move the notes and plans that caused refusals, once the last sheet that they caused to be refused is gone."""
        sheets = [entry.name for entry in self._folder.iterdir() if is_sheet(entry.name) and entry.name not in strays]
        for stray in strays:
            if not any(is_meant_for(stray, sheet) for sheet in sheets) and os.path.lexists(self._folder / stray):
                (self._folder / stray).rename(self._folder / "refused" / f"{self._stamp()}-{stray}")

    def _claim(self, path: Path) -> Claimed | None:
        """Claim a sheet, its plan and its cover note. Return None if another process has it, or is writing to it.

        The cover note is copied first and removed last, so a crash never leaves the sheet without it.
        """
        stamp = self._stamp()
        target = self._working / f"{stamp}-{path.name}"
        plan = path.with_name(f"{path.stem}{PLAN_ENDING}")
        note, copied = _note_of(path), _note_of(target)
        if os.path.lexists(note):
            write_whole(copied, _content(note))
        try:
            before = path.lstat()
            path.rename(target)
        except FileNotFoundError:
            copied.unlink(missing_ok=True)
            return None
        # A rename does not stop a program that still writes to the sheet, and half a sheet must not be paid. A sheet
        # that has changed goes back, and waits until nobody has written to it for a while.
        after = target.lstat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            target.rename(path)
            copied.unlink(missing_ok=True)
            return None
        self._take_note_away(note, copied)
        if plan.is_file():
            plan.rename(self._working / f"{stamp}-{plan.name}")
        return Claimed(self._folder, target, path.name, target.name)

    def _take_note_away(self, note: Path, copied: Path) -> None:
        """Remove a copied cover note from the folder, once no other sheet needs it."""
        sheet = note.with_name(note.name.removesuffix(NOTE_ENDING))
        is_there = os.path.lexists(note) and not (note.is_dir() and not note.is_symlink())  # a folder is no note
        is_taken = copied.exists() and is_there and _content(note) == _content(copied)
        if is_taken and not os.path.lexists(sheet):
            note.unlink()


def adopt(folder: Path) -> None:
    """Make a folder a drop folder, with all files in it. Raises `UsageError` or `OutputError` if that is impossible."""
    path = _drop_folder(folder)
    if _is_adopted(path):
        return
    try:
        (path / MARKER).unlink(missing_ok=True)  # a marker by somebody else does not count
        create_once(path / MARKER, _MARKER_TEXT)
    except OSError as error:
        raise OutputError(
            say("{path} cannot be written: {reason}.", path=path / MARKER, reason=say(error.strerror or ""))
        ) from None


def _drop_folder(folder: Path) -> Path:
    """Return the absolute path of a folder that can be a drop folder. Raises `UsageError` for any other folder."""
    if not os.path.isdir(folder):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise UsageError(say("{folder} is not a folder.", folder=folder))
    path = Path(os.path.realpath(folder))
    others = [path.parent / name for name in ("done", "refused")]
    if _OUR_FOLDERS.fullmatch(path.name) and all(other.is_dir() for other in others):
        raise UsageError(
            say("{folder} is a subfolder of the drop folder {parent}.", folder=folder, parent=path.parent),
            hint=say("Nothing was read or moved. Name the drop folder itself."),
        )
    return path


def _is_adopted(folder: Path) -> bool:
    """Return whether a person has adopted the folder, with a marker that nobody else could have put there."""
    try:
        about = (folder / MARKER).lstat()
    except OSError:
        return False
    is_ours = about.st_uid in {os.geteuid(), 0} and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(about.st_mode) and is_ours


def _refuse_own_state(folder: Path, guard: OutputGuard) -> None:
    """Raise `UsageError` if a folder holds files that do not belong in a drop folder."""
    content = guard.own_in(folder)
    if content is None:
        kinds = ((path.name, _state_in(path)) for path in sorted(folder.iterdir()))
        content = next((f"{name} ({kind})" for name, kind in kinds if kind is not None), None)
    if content is not None:
        raise UsageError(
            say("{folder} does not look like a drop folder: it holds {what}.", folder=folder, what=content),
            hint=say(
                "Nothing was read or moved. Name another folder. If this is the right one, adopt it once: "
                "`paygw-batch run-folder --adopt {folder}`.",
                folder=shlex.quote(str(folder)),
            ),
            for_terminal=True,
        )


def _state_in(path: Path) -> str | None:
    """Return words for a file that does not belong in a drop folder (a configuration, a key, a journal), or None."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    head = head_of(path, _HEAD_BYTES)
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


def _note_of(sheet: Path) -> Path:
    return sheet.with_name(f"{sheet.name}{NOTE_ENDING}")


def _content(note: Path) -> bytes:
    """Return the content of a cover note, without following a link."""
    if note.is_symlink():
        return _UNREADABLE
    try:
        return read_regular(note, MAX_NOTE_BYTES + 1)
    except OSError:
        return _UNREADABLE


def _bytes(text: str) -> bytes:
    """Return a text as bytes. A file name in the text may not be UTF-8."""
    return text.encode(errors="backslashreplace")
