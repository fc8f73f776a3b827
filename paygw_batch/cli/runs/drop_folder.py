"""Finds the settled sheets of a drop folder, claims one at a time, and moves it away afterwards.

    FOLDER/payroll.csv          dropped, and taken once nobody has written to it for a while
    FOLDER/working-1a2b3c4d/    claimed by a run of this endpoint; what an interrupted run leaves here comes first
    FOLDER/done/                submitted, with reconciliation and summary
    FOLDER/refused/             nothing of it was sent, with what is wrong

A sheet is claimed by renaming it, so that it has one owner, and under the lock of the journal, so that what lies among
the claimed sheets belongs to no living run. The folder of claimed sheets carries the endpoint's mark: what was begun at
one endpoint must never be continued at another.
"""

import hashlib
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
from paygw_batch.report.summary import Summary

SHEET_ENDINGS = frozenset({".csv", ".txt", ".tsv", ".parquet", ".xlsx"})
OUR_ENDINGS = (".reconciliation.csv", ".rejects.csv")
LOCK_PREFIXES = (".", "~")
"""How the name of a hidden file begins, and of the lock file of an office program."""
PLAN_ENDING = ".plan.json"


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
        """The path of its rejects, when the sheet is refused."""
        return self.folder / "refused" / f"{self._stem}.rejects.csv"

    @property
    def plan(self) -> Path:
        """The path of its plan now, if it has one."""
        return self.path.with_name(f"{self._stem}{PLAN_ENDING}")

    def finish(self, summary: Summary, *, is_refused: bool) -> None:
        """Write the summary, and move the sheet and its plan to where they belong; the sheet last."""
        place = self.folder / ("refused" if is_refused else "done")
        text = json.dumps(summary.as_json(), ensure_ascii=False, indent=1) + "\n"
        write_whole(place / f"{self._stem}.summary.json", text.encode())
        if self.plan.exists():
            self.plan.rename(place / self.plan.name)
        self.path.rename(place / self.path.name)


class Drop:
    """The drop folder `folder` as seen by runs for `endpoint`. Raises `UsageError` when it is no folder of ours."""

    def __init__(self, folder: Path, endpoint: str, *, settle_s: float, now: Now) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder.")
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
            yield from (Claimed(self._folder, path, path.name.partition("-")[2]) for path in left)
            for path in self._settled():
                if (claimed := self._claim(path)) is not None:
                    yield claimed
        except OSError as error:
            raise OutputError(
                f"The folder {self._folder} cannot be worked in: {(error.strerror or 'unknown reason').lower()}."
            ) from None

    def _settled(self) -> list[Path]:
        """Return the sheets that nobody has written to for a while, oldest first."""
        before_s = (self._now() - self._settle).timestamp()
        found = []
        for path in self._folder.iterdir():
            if not _is_sheet(path):
                continue
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_size > 0 and about.st_mtime <= before_s:
                found.append((about.st_mtime, path.name, path))
        return [path for _, _, path in sorted(found)]

    def _claim(self, path: Path) -> Claimed | None:
        """Take a sheet and its plan, or return None: another process took it, or is writing to it."""
        stamp = self._now().strftime("%Y%m%dT%H%M%S%fZ")
        target = self._working / f"{stamp}-{path.name}"
        plan = path.with_name(f"{path.stem}{PLAN_ENDING}")
        try:
            before = path.lstat()
            path.rename(target)
        except FileNotFoundError:
            return None
        after = target.lstat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            target.rename(path)
            return None
        if plan.is_file():
            plan.rename(self._working / f"{stamp}-{plan.name}")
        return Claimed(self._folder, target, path.name)


def _is_sheet(path: Path) -> bool:
    name = path.name
    return (
        path.suffix.lower() in SHEET_ENDINGS
        and not name.startswith(LOCK_PREFIXES)
        and not name.lower().endswith(OUR_ENDINGS)
        and not os.path.lexists(path.with_name(f"{name}.part"))
    )
