"""Timetable times follow a time zone, including clock changes, and job names fit their channel."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from procrastinate import App
from procrastinate.testing import InMemoryConnector

from paygw_batch.cluster.job_worker import ScheduledCommand, periodic_task_for, scheduled_commands
from paygw_batch.settings.sections import TimetableSection


def _do_nothing(timestamp: int) -> None:
    """Do nothing."""


def due_times(entry: ScheduledCommand, at: str) -> str:
    app = App(connector=InMemoryConnector())
    times = periodic_task_for(entry, app.task(name=entry.name)(_do_nothing))
    start = datetime.fromisoformat(at).timestamp()
    return datetime.fromtimestamp(times.croniter.get_next(ret_type=float, start_time=start), UTC).isoformat()


@pytest.mark.parametrize(
    ("cron", "zone", "at", "due"),
    [
        ("0 3 * * *", "Africa/Nairobi", "2026-11-24T00:30:00+00:00", "2026-11-25T00:00:00+00:00"),
        ("0 3 * * *", "UTC", "2026-11-24T00:30:00+00:00", "2026-11-24T03:00:00+00:00"),
        # Clocks go forward at 2:00, so there is no 2:30. They go back at 3:00.
        ("30 2 * * *", "Europe/Paris", "2026-03-28T12:00:00+00:00", "2026-03-29T01:00:00+00:00"),
        ("30 4 * * *", "Europe/Paris", "2026-10-24T12:00:00+00:00", "2026-10-25T03:30:00+00:00"),
    ],
)
def test_due_time_follows_time_zone(cron: str, zone: str, at: str, due: str) -> None:
    assert due_times(ScheduledCommand("verify", cron, zone, ("verify",)), at) == due


def test_timetable_entry_has_name_and_command(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 200)
    section = TimetableSection.model_validate(
        {
            "time_zone": "Africa/Nairobi",
            "refresh": "*/15 * * * *",
            "verify": "0 3 * * *",
            "backup": {"folder": "/srv/backup", "at": "0 4 * * *"},
            "pick_up": [{"folder": str(folder), "at": "* * * * *", "collect": True}],
        }
    )
    found = {entry.name: entry for entry in scheduled_commands(section)}
    assert all(len(f"procrastinate_queue_v1#{name}".encode()) < 64 for name in found)
    (pick_up, *_) = found.values()
    assert pick_up.command_arguments() == ["run-folder", "--wait", "--collect", "--", str(folder)]
    assert found["refresh"].command_arguments() == ["refresh", "--wait"]
    command, path = found["backup"].command_arguments()
    assert (command, Path(path).parent, Path(path).suffix) == ("backup", Path("/srv/backup"), ".dump")
