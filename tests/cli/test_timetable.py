"""The timetable: cron's work done once across all hosts by workers, in a time zone, and taken over if a host dies."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from procrastinate import App
from procrastinate.testing import InMemoryConnector

from paygw_batch.cluster.job_worker import ScheduledCommand, periodic_task_for, scheduled_commands
from paygw_batch.settings.sections import TimetableSection, pick_up_job_name
from tests.promise.campaign.machine import children_of
from tests.support.clusters import Host, Hosts, new_hosts, require_exit_code
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.postgres_server import BIN, PostgresServer
from tests.support.program import HEADING, kenyan_rows, kill

ROWS = 40
ONCE = "59 23 31 12 *"
"""A time that never comes during a test, which requests the job itself."""
ASKED = """SELECT paygw_jobs.procrastinate_defer_jobs_v1(ARRAY[
    ROW(%(queue)s::text, %(queue)s::text, 0, %(queue)s::text, %(queue)s::text, %(arguments)s::jsonb, NULL)
    ]::paygw_jobs.procrastinate_job_to_defer_v1[])"""
JOBS = "SELECT status::text, attempts FROM paygw_jobs.procrastinate_jobs WHERE queue_name <> 'share'"
RESULTS = "SELECT job, exit_code FROM paygw_jobs.paygw_result ORDER BY job"


@pytest.fixture
def hosts(hosts: Hosts) -> Hosts:
    (hosts.folder / "drop").mkdir(mode=0o700)
    return hosts


def configure_timetable(host: Host, folder: Path, at: str = ONCE, *, more: str = "") -> Host:
    entry = f'[[timetable.pick_up]]\nfolder = "{folder / "drop"}"\nat = "{at}"\n'
    text = host.config.read_text()
    host.config.write_text(f'{text}\n[timetable]\ntime_zone = "Africa/Nairobi"\n{more}\n{entry}')
    return host


def queue_job(hosts: Hosts, queue: str, *, ago_s: int = 0) -> None:
    due = {"timestamp": int(time.time()) - ago_s}
    with psycopg.connect(hosts.database, options="-c search_path=paygw_jobs") as connection:
        connection.execute(ASKED, {"queue": queue, "arguments": json.dumps(due)})


def drop_sheet(folder: Path, name: str = "staff", *, rows: int = ROWS) -> None:
    sheet = folder / "drop" / f"{name}.csv"
    sheet.write_text("\n".join([HEADING, *kenyan_rows(rows, prefix=name.upper())]) + "\n")
    os.utime(sheet, (1, 1))


def is_paid_once(hosts: Hosts, *, rows: int = ROWS) -> bool:
    record = hosts.record()
    return (set(record.values()), record.total()) == ({1}, rows)


def stop_workers(*workers: "subprocess.Popen[str]") -> None:
    for process in workers:
        process.terminate()
        require_exit_code(process, 0)


def test_all_workers_send_scheduled_folder(hosts: Hosts) -> None:
    folder = hosts.folder
    workers = [configure_timetable(hosts.host(name), folder).start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    drop_sheet(folder)
    queue_job(hosts, pick_up_job_name(folder / "drop"))
    wait_until(lambda: hosts.ask(RESULTS))
    assert hosts.ask(RESULTS) == [(pick_up_job_name(folder / "drop"), 0)]
    assert is_paid_once(hosts)
    file_names = sorted(path.name.partition("-")[2] for path in (folder / "drop/done").iterdir())
    assert file_names == ["staff.csv", "staff.reconciliation.csv", "staff.report.html", "staff.summary.json"]
    assert hosts.ask("SELECT count(*) FROM paygw.run") == [(1,)]
    wait_until(lambda: not hosts.ask(JOBS))  # finished jobs are deleted
    (job,) = hosts.office.json("workers")["jobs"]
    assert (job["name"], job["exit_code"], job["is_being_done"]) == (pick_up_job_name(folder / "drop"), 0, False)
    assert "drop" in configure_timetable(hosts.office, folder).run("workers").stdout
    assert "jobs of workers" in hosts.office.run("doctor").stdout
    stop_workers(*workers)


def test_missed_timetable_run_is_skipped(hosts: Hosts) -> None:
    folder, queue = hosts.folder, pick_up_job_name(hosts.folder / "drop")
    drop_sheet(folder)
    queue_job(hosts, queue, ago_s=700)
    worker = configure_timetable(hosts.host("one"), folder).start("work")
    hosts.wait_for_workers(worker)
    wait_until(lambda: any(one["missed_at"] for one in hosts.office.json("workers")["jobs"]))
    wait_until(lambda: not hosts.ask(JOBS))
    (job,) = hosts.office.json("workers")["jobs"]
    assert (job["name"], job["exit_code"], job["ended_at"]) == (queue, None, None)
    assert time.time() - datetime.fromisoformat(job["missed_at"]).timestamp() >= 700
    assert (hosts.record().total(), (folder / "drop/staff.csv").exists()) == (0, True)
    queue_job(hosts, queue)
    wait_until(lambda: hosts.ask(RESULTS) == [(queue, 0)])
    assert is_paid_once(hosts)
    assert hosts.office.json("workers")["jobs"][0]["missed_at"] == job["missed_at"]
    kill(worker)


@pytest.mark.parametrize(("silent_s", "result"), [(60, 0), (700, None)])
def test_worker_skips_job_of_long_dead_worker(hosts: Hosts, silent_s: int, result: int | None) -> None:
    queue_job(hosts, "verify", ago_s=1000)
    hosts.ask(
        "SET search_path = paygw_jobs; WITH dead AS (INSERT INTO procrastinate_workers (last_heartbeat) "  # noqa: S608
        f"VALUES (now() - interval '{silent_s} s') RETURNING id) "
        "UPDATE procrastinate_jobs SET status = 'doing', worker_id = dead.id FROM dead"
    )
    worker = configure_timetable(hosts.host("one"), hosts.folder, more=f'verify = "{ONCE}"').start("work")
    hosts.wait_for_workers(worker)
    wait_until(lambda: hosts.ask(RESULTS))
    assert hosts.ask(RESULTS) == [("verify", result)]
    kill(worker)


def test_folder_of_dead_host_is_picked_up_once(hosts: Hosts) -> None:
    folder, queue = hosts.folder, pick_up_job_name(hosts.folder / "drop")
    dying = configure_timetable(hosts.host("one"), folder).start("work")
    hosts.wait_for_workers(dying)
    drop_sheet(folder)
    queue_job(hosts, queue)
    hosts.wait_for_record(5, dying)
    children = children_of(dying.pid)
    kill(dying)
    for child in children:
        os.kill(child, signal.SIGKILL)
    assert Counter(hosts.ask(JOBS))[("doing", 0)] == 1
    other = configure_timetable(hosts.host("two"), folder).start("work")
    wait_until(lambda: hosts.ask(RESULTS))
    assert hosts.ask(RESULTS)[0][1] in {0, 5}
    states = Counter(hosts.office.json("status")["states"])
    assert (set(states) <= {"paid", "in_doubt"}, states.total(), states["in_doubt"] <= 4) == (True, ROWS, True)
    assert set(hosts.record().values()) == {1}
    assert not list((folder / "drop").glob("working-*/*"))
    assert [path.name.partition("-")[2] for path in (folder / "drop/done").glob("*.csv")].count("staff.csv") == 1
    other.send_signal(signal.SIGTERM)
    other.communicate(timeout=PATIENCE_S)
    assert hosts.office.json("verify")["exit_code"] == 0


@pytest.mark.long
def test_emptied_job_tables_do_not_lose_payments(hosts: Hosts) -> None:
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    workers = [hosts.host(name).start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    assert hosts.office.json("submit", sheet, "--detach")["exit_code"] == 0
    hosts.wait_for_record(5, workers[0])
    names = hosts.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'paygw_jobs'")
    tables = ", ".join(f"paygw_jobs.{name}" for (name,) in names)
    hosts.ask(f"TRUNCATE {tables}")
    wait_until(lambda: hosts.record().total() == ROWS)
    # The workers accept jobs again, so the next batch is sent as well.
    for name, amount in (("OTHER", "70"), ("THIRD", "80")):
        more = hosts.office.sheet(kenyan_rows(ROWS, prefix=name, amount=amount), f"{name}.csv")
        assert hosts.office.json("submit", more)["states"] == {"paid": ROWS}
        hosts.ask(f"TRUNCATE {tables}")
    assert is_paid_once(hosts, rows=3 * ROWS)
    stop_workers(*workers)
    assert hosts.office.json("verify")["exit_code"] == 0


def test_worker_takes_only_configured_jobs(hosts: Hosts) -> None:
    (hosts.folder / "backups").mkdir(mode=0o700)
    backup = f'[timetable.backup]\nfolder = "{hosts.folder / "backups"}"\nat = "{ONCE}"'
    host = configure_timetable(hosts.host("one"), hosts.folder, more=backup)
    host.more["PATH"] = f"{BIN}:{os.environ['PATH']}"
    worker = host.start("work")
    hosts.wait_for_workers(worker)
    queue_job(hosts, "verify")  # an entry that this host does not have
    queue_job(hosts, "backup")
    wait_until(lambda: hosts.ask(RESULTS))
    (copy,) = (hosts.folder / "backups").iterdir()
    assert (copy.stat().st_mode & 0o777, copy.read_bytes()[:5]) == (0o600, b"PGDMP")
    assert hosts.ask(RESULTS) == [("backup", 0)]
    wait_until(lambda: hosts.ask(JOBS) == [("todo", 0)])  # the result is written before its job is deleted
    kill(worker)


@pytest.mark.long
def test_workers_finish_run_after_run_folder_signal(tmp_path: Path, postgres_server: PostgresServer) -> None:
    (tmp_path / "drop").mkdir(mode=0o700)
    with new_hosts(tmp_path, postgres_server, behaviour="[default]\ndelay_s = 1\n") as hosts:
        worker = hosts.host("one").start("work")
        hosts.wait_for_workers(worker)
        drop_sheet(tmp_path)
        following = hosts.office.start("run-folder", tmp_path / "drop")
        hosts.wait_for_record(4, following)
        following.send_signal(signal.SIGTERM)
        _, stderr = following.communicate(timeout=PATIENCE_S)
        assert (following.returncode, "The workers now send" in stderr) == (130, True), stderr
        wait_until(lambda: hosts.record().total() == ROWS)
        assert list((tmp_path / "drop").glob("working-*/*"))  # it is continued before any other sheet
        assert hosts.office.json("run-folder", tmp_path / "drop")["states"] == {"paid": ROWS}
        assert is_paid_once(hosts)
        kill(worker)


def test_second_run_folder_is_refused_while_first_runs(hosts: Hosts) -> None:
    worker = hosts.host("one").start("work")
    hosts.wait_for_workers(worker)
    drop_sheet(hosts.folder)
    drop_sheet(hosts.folder, "others", rows=7)
    with hosts.blocked_commits():
        following = hosts.office.start("run-folder", hosts.folder / "drop")
        hosts.wait_until_blocked()
        second = hosts.host("two").run("run-folder", hosts.folder / "drop")
        assert (second.exit_code, "is already doing this" in second.stderr) == (7, True), second.stderr
    stdout, stderr = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0, stdout + stderr
    assert is_paid_once(hosts, rows=ROWS + 7)
    kill(worker)


@pytest.mark.long
def test_timetable_job_runs_once_across_hosts(hosts: Hosts) -> None:
    folder = hosts.folder
    workers = [configure_timetable(hosts.host(name), folder, "* * * * *").start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    drop_sheet(folder)
    wait_until(lambda: hosts.record().total() == ROWS, look_every_s=0.5)
    deferred = hosts.ask("SELECT defer_timestamp FROM paygw_jobs.procrastinate_periodic_defers")
    assert len(set(deferred)) == len(deferred)
    assert is_paid_once(hosts)
    for process in workers:
        kill(process)


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
    task: Any = App(connector=InMemoryConnector()).task(name="verify")(lambda **_: None)
    times = periodic_task_for(ScheduledCommand("verify", cron, zone, ("verify",)), task)
    start = datetime.fromisoformat(at).timestamp()
    assert datetime.fromtimestamp(times.croniter.get_next(ret_type=float, start_time=start), UTC).isoformat() == due


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
