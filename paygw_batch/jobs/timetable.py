"""Reads the timetable of the configuration: what is done when, by which command of the program."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from zoneinfo import ZoneInfo

import attr
from croniter import croniter
from procrastinate.periodic import PeriodicTask

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.settings.sections import TimetableSection, pick_up_name

BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class Deed:
    """An entry of the timetable: its `name`, when it is due, and the `words` of its command.

    Its name is that of its queue: a host takes the jobs that its own configuration names, and does what that says.
    """

    name: str
    cron: str
    zone: str
    words: tuple[str, ...]

    def command_words(self) -> list[str]:
        """Return the words of its command now: a backup has a new name each time."""
        if self.name != BACKUP:
            return list(self.words)
        at = timestamp(utc_now()).replace("-", "").replace(":", "")
        return [BACKUP, f"{self.words[1]}/journal-{at}.dump"]


def deeds_of(timetable: TimetableSection) -> Iterator[Deed]:
    """Yield the entries of a timetable."""
    zone = timetable.time_zone or "UTC"
    for one in timetable.pick_up:
        words = ("run-folder", "--wait", *(["--collect"] if one.collect else []), "--", str(one.folder))
        yield Deed(pick_up_name(one.folder), one.at, zone, words)
    if timetable.refresh is not None:
        yield Deed("refresh", timetable.refresh, zone, ("refresh", "--wait"))
    if timetable.verify is not None:
        yield Deed("verify", timetable.verify, zone, ("verify",))
    if timetable.backup is not None:
        yield Deed(BACKUP, timetable.backup.at, zone, (BACKUP, str(timetable.backup.folder)))


@attr.dataclass(frozen=True)
class ZonedTask(PeriodicTask):  # type: ignore[type-arg]  # of any task
    """A periodic task whose times are those of a zone; procrastinate's own are UTC."""

    zone: str = "UTC"

    @cached_property
    def croniter(self) -> croniter:
        """The times, from now on."""
        return croniter(self.cron, datetime.now(ZoneInfo(self.zone)))
