"""Tests the workers page, which exists only if several machines can send."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from paygw_batch.clock import timestamp
from paygw_batch.console.pages import people_page
from paygw_batch.journal import SharedWork, TimetableJob, UnfinishedRun, WorkerLife
from paygw_batch.journal.port import GateState, GateStop, GateStopKind
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_name
from tests.support.clusters import ClusterProgram
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.people import AUDITOR, House, Person, create_sandbox
from tests.support.postgres_server import PostgresServer
from tests.support.scripted_scenario import NOW

GATE = GateState(50.0, 8, "amina", timestamp(NOW), [], "", 0, 0, None, "")
WORKER = WorkerLife("nairobi-1", 4711, timestamp(NOW - timedelta(minutes=2)), timestamp(NOW), True, "b" * 16, 600)
RUN = UnfinishedRun("b" * 16, "salaries.csv", 12_345, is_urgent=True, is_stopped=False)


def test_workers_page_averages_rate_since_worker_start() -> None:
    page = people_page.work_values(SharedWork([WORKER], [RUN], GATE), [], Settings.model_validate({}), NOW)
    assert page["workers"] == [(WORKER, "salaries.csv", 300)]
    assert (page["rate_per_s"], page["in_flight"], page["stop_reason"]) == (50, 8, "")


def test_unset_limits_show_configured_values() -> None:
    gate = replace(GATE, rate_per_s=None, concurrency=None)
    page = people_page.work_values(SharedWork([], [], gate), [], Settings.model_validate({}), NOW)
    assert (page["rate_per_s"], page["in_flight"]) == (0, 16)


def test_workers_page_shows_stop_reason() -> None:
    stop = GateStop(GateStopKind.REQUESTED, 0, "A person stopped the run.")
    page = people_page.work_values(
        SharedWork([], [], replace(GATE, stop=stop, stopped_at=timestamp(NOW))), [], Settings.model_validate({}), NOW
    )
    assert "A person stopped the run." in page["stop_reason"]
    assert page["work"].gate.stopped_at == timestamp(NOW)


def test_timetable_jobs_are_described_by_task() -> None:
    settings = Settings.model_validate(
        {
            "journal": {"url": "postgresql://db/paygw", "replication": "none"},
            "timetable": {"time_zone": "Africa/Nairobi", "pick_up": [{"folder": "/srv/in", "at": "0 * * * *"}]},
        }
    )
    names = ("verify", pick_up_name(Path("/srv/in")), pick_up_name(Path("/srv/other")))
    jobs = [TimetableJob(name, False, 0, None, "nairobi-1", None, timestamp(NOW), 0) for name in names]
    page = people_page.work_values(SharedWork([], [], GATE), jobs, settings, NOW)
    assert [about for about, _ in page["jobs"]] == [
        "Verify the whole journal",
        "Pay the sheets in the folder in",
        "Pay the sheets in a folder of another machine",
    ]
    assert [job for _, job in page["jobs"]] == jobs


def test_journal_file_has_no_workers_page_or_link(ada: Person) -> None:
    assert ada.get("/workers").status_code == 404
    assert 'href="/workers"' not in ada.get("/").text


def test_workers_page_shows_running_worker(tmp_path: Path, postgres_server: PostgresServer) -> None:
    program = ClusterProgram(tmp_path, create_sandbox(tmp_path).config)
    database = postgres_server.new_database()
    program.write_url(postgres_server.url(database))
    program.make_journal()
    house = House(program)
    tom = house.person(AUDITOR)
    assert "No worker is running" in tom.get("/workers").text
    worker = program.start("work")
    wait_until(lambda: "<td>working</td>" in tom.get("/workers").text or worker.poll() is not None)
    page = tom.get("/workers").text
    assert 'aria-current="page">Workers' in page
    assert "<td>working</td>" in page
    worker.terminate()
    worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
    house.console.sessions.close()
    postgres_server.drop_database(database)
