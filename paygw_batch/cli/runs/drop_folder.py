"""Finds the settled sheets of a drop folder, claims one at a time, and moves it away afterwards.

    FOLDER/payroll.csv          dropped, and taken once nobody has written to it for a while
    FOLDER/payroll.csv.toml     its cover note, if it has one: taken and moved with it
    FOLDER/working-1a2b3c4d/    claimed by a run of this endpoint; what an interrupted run leaves here comes first
    FOLDER/done/                submitted, with reconciliation and summary
    FOLDER/refused/             nothing of it was sent, with what is wrong

A sheet is claimed by renaming it, so that it has one owner, and under the lock of the journal, so that what lies among
the claimed sheets belongs to no living run. The folder of claimed sheets carries the endpoint's mark: what was begun at
one endpoint must never be continued at another.
"""

import hashlib
import importlib.util
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from paygw_batch.clock import Now
from paygw_batch.errors import OutputError, UsageError
from paygw_batch.files import write_whole
from paygw_batch.language import say
from paygw_batch.report.summary import Summary
from paygw_batch.settings.cover_note import MAX_NOTE_BYTES, CoverNote, parse_cover_note

SHEET_ENDINGS = frozenset({".csv", ".txt", ".tsv", ".parquet", ".xlsx"})
OUR_ENDINGS = (".reconciliation.csv", ".rejects.csv", ".refused.txt")
LOCK_PREFIXES = (".", "~")
"""How the name of a hidden file begins, and of the lock file of an office program."""
PLAN_ENDING = ".plan.json"
NOTE_ENDING = ".toml"
_UNREADABLE = b"\0"
"""The content that is used for a cover note that cannot be read: no TOML, so that the sheet is refused for it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed sheet. Its name in `folder`'s subfolders starts with the time of the claim."""

    folder: Path
    path: Path
    name: str

    @property
    def _stem(self) -> str:
        return self.path.stem

    @property
    def path_when_done(self) -> Path:
        """The path of the sheet once it has been submitted."""
        return self.folder / "done" / self.path.name

    @property
    def reconciliation(self) -> Path:
        """The path of its reconciliation."""
        return self.folder / "done" / f"{self._stem}.reconciliation.csv"

    @property
    def report(self) -> Path:
        """The path of the page for people."""
        return self.folder / "done" / f"{self._stem}.report.html"

    @property
    def rejects(self) -> Path:
        """The path of its rejects, when the sheet is refused: of a workbook a workbook, where one can be written."""
        is_workbook = self.path.suffix.lower() == ".xlsx" and importlib.util.find_spec("openpyxl") is not None
        return self.folder / "refused" / f"{self._stem}.rejects{'.xlsx' if is_workbook else '.csv'}"

    @property
    def plan(self) -> Path:
        """The path of its plan now, if it has one."""
        return self.path.with_name(f"{self._stem}{PLAN_ENDING}")

    @property
    def note(self) -> CoverNote:
        """Its cover note; an empty one where it has none. Raises `SheetError` for a wrong one."""
        if not self._note.exists():
            return CoverNote()
        return parse_cover_note(_content(self._note), f"{self.name}{NOTE_ENDING}")

    @property
    def _note(self) -> Path:
        return _note_of(self.path)

    def finish(self, summary: Summary, *, is_refused: bool) -> None:
        """Write the summary, and move the sheet, its plan and its cover note to where they belong; the sheet last.

        The sender of a refused sheet gets its rejects, or a text beside it that says why.
        """
        place = self.folder / ("refused" if is_refused else "done")
        if is_refused and not self.rejects.exists():
            write_whole(place / f"{self._stem}.refused.txt", self._answer(summary).encode())
        text = json.dumps(summary.as_json(), ensure_ascii=False, indent=1) + "\n"
        write_whole(place / f"{self._stem}.summary.json", text.encode())
        if self.plan.exists():
            self.plan.rename(place / self.plan.name)
        if self._note.exists():
            self._note.rename(place / self._note.name)
        self.path.rename(place / self.path.name)

    def _answer(self, summary: Summary) -> str:
        """Return the text for the sender of a refused sheet."""
        options = say(
            "What an option such as --sheet or --reference says can be written into a file {file} beside the sheet: "
            "docs/cron.md.",
            file=f"{self.name}{NOTE_ENDING}",
        )
        parts = [
            say("{name} was refused. Nothing of it was sent in this run.", name=self.name),
            summary.message,
            *([options] if "--" in summary.message else []),
            say("Mend the sheet and drop it again, under any name: a row that was paid before is not paid again."),
        ]
        return "\n\n".join(parts) + "\n"


class Drop:
    """The drop folder `folder` as seen by runs for `endpoint`. Raises `UsageError` when it is no folder of ours."""

    def __init__(self, folder: Path, endpoint: str, *, settle_s: float, now: Now) -> None:
        if not folder.is_dir():
            raise UsageError(say("{folder} is no folder.", folder=folder))
        self._folder = folder.absolute()
        mark = hashlib.sha256(endpoint.encode()).hexdigest()[:8]
        self._working = self._folder / f"working-{mark}"
        self._settle = timedelta(seconds=settle_s)
        self._now = now

    def claim_all(self) -> Iterator[Claimed]:
        """Yield the sheets that an earlier run left, then every settled sheet, oldest first."""
        try:
            for place in (self._working, self._folder / "done", self._folder / "refused"):
                place.mkdir(mode=0o700, exist_ok=True)
            left = sorted(path for path in self._working.iterdir() if path.suffix.lower() in SHEET_ENDINGS)
            for path in left:
                name = path.name.partition("-")[2]
                self._take_note_away(_note_of(self._folder / name), _note_of(path))
                yield Claimed(self._folder, path, name)
            for path in self._settled():
                if (claimed := self._claim(path)) is not None:
                    yield claimed
        except OSError as error:
            raise OutputError(
                say(
                    "The folder {folder} cannot be worked in: {reason}.",
                    folder=self._folder,
                    reason=say(error.strerror or "unknown reason").lower(),
                )
            ) from None

    def _settled(self) -> list[Path]:
        """Return the sheets that nobody has written to for a while, oldest first."""
        before_s = (self._now() - self._settle).timestamp()
        found = []
        for path in self._folder.iterdir():
            if not _is_sheet(path):
                continue
            about, note = path.lstat(), _note_of(path)
            is_young = os.path.lexists(note) and note.lstat().st_mtime > before_s
            if stat.S_ISREG(about.st_mode) and about.st_size > 0 and about.st_mtime <= before_s and not is_young:
                found.append((about.st_mtime, path.name, path))
        return [path for _, _, path in sorted(found)]

    def _claim(self, path: Path) -> Claimed | None:
        """Take a sheet, its plan and its cover note, or return None when someone was quicker or is writing to it.

        The cover note is copied first, and taken away last: wherever a crash falls, the sheet is not without it.
        """
        stamp = self._now().strftime("%Y%m%dT%H%M%S%fZ")
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
        after = target.lstat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            target.rename(path)
            copied.unlink(missing_ok=True)
            return None
        self._take_note_away(note, copied)
        if plan.is_file():
            plan.rename(self._working / f"{stamp}-{plan.name}")
        return Claimed(self._folder, target, path.name)

    def _take_note_away(self, note: Path, copied: Path) -> None:
        """Remove a cover note from the folder once it was copied to its claimed sheet, and no other sheet wants it."""
        sheet = note.with_name(note.name.removesuffix(NOTE_ENDING))
        is_taken = copied.exists() and os.path.lexists(note) and _content(note) == _content(copied)
        if is_taken and not os.path.lexists(sheet):
            note.unlink()


def _note_of(sheet: Path) -> Path:
    return sheet.with_name(f"{sheet.name}{NOTE_ENDING}")


def _content(note: Path) -> bytes:
    """Return the content of a cover note, never through a link."""
    try:
        with open(note, "rb", opener=_open_regular) as stream:
            return stream.read(MAX_NOTE_BYTES + 1)
    except OSError:
        return _UNREADABLE


def _open_regular(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_sheet(path: Path) -> bool:
    name = path.name
    return (
        path.suffix.lower() in SHEET_ENDINGS
        and not name.startswith(LOCK_PREFIXES)
        and not name.lower().endswith(OUR_ENDINGS)
        and not os.path.lexists(path.with_name(f"{name}.part"))
        and not os.path.lexists(path.with_name(f"{name}{NOTE_ENDING}.part"))
    )
