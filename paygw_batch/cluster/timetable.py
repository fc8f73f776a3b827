"""Reads the timetable in the configuration: which command of the program runs when."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from croniter import croniter
from procrastinate.periodic import PeriodicTask
from procrastinate.tasks import Task

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.settings.sections import TimetableSection, pick_up_name

BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class ScheduledCommand:
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


def scheduled_in(timetable: TimetableSection) -> Iterator[ScheduledCommand]:
    zone = timetable.time_zone or "UTC"
    for pick_up in timetable.pick_up:
        words = ("run-folder", "--wait", *(["--collect"] if pick_up.collect else []), "--", str(pick_up.folder))
        yield ScheduledCommand(pick_up_name(pick_up.folder), pick_up.at, zone, words)
    if timetable.refresh is not None:
        yield ScheduledCommand("refresh", timetable.refresh, zone, ("refresh", "--wait"))
    if timetable.verify is not None:
        yield ScheduledCommand("verify", timetable.verify, zone, ("verify",))
    if timetable.backup is not None:
        yield ScheduledCommand(BACKUP, timetable.backup.at, zone, (BACKUP, str(timetable.backup.folder)))


def times_of(entry: ScheduledCommand, task: Task[..., object, ...]) -> PeriodicTask[..., object, ...]:
    """Return when a task is due by an entry of the timetable, in its zone: procrastinate's own times are UTC."""

    class Zoned(PeriodicTask[..., object, ...]):
        @cached_property
        def croniter(self) -> croniter:
            return croniter(entry.cron, datetime.now(ZoneInfo(entry.zone)))

    return Zoned(task=task, cron=entry.cron, periodic_id="", configure_kwargs={})
