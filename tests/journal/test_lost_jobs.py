"""Jobs whose answers a network swallows: none keeps its lock for as long as its worker lives."""

import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest

from paygw_batch.cluster import calling
from paygw_batch.cluster.job_worker import JobWorker, ScheduledCommand
from tests.support.patience import until
from tests.support.wire_proxy import Trouble, WireProxy

NEVER = "0 0 29 2 1"
DEFER = """INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    SELECT 'verify', 'verify', 'verify', 'verify', jsonb_build_object('timestamp', extract(epoch FROM now())::bigint)"""


def defer(url: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c search_path=paygw_jobs") as connection:
        connection.execute(DEFER.encode())


def a_worker(url: str, done: Path) -> JobWorker:
    """A worker whose command of the timetable writes a line into a file."""
    program = [sys.executable, "-c", f"print('done', file=open({str(done)!r}, 'a'))"]
    entry = ScheduledCommand("verify", NEVER, "UTC", ("verify",))
    return JobWorker(url, 1.0, [entry], program, Mock(return_value=[]))


@pytest.mark.parametrize(
    ("request_of", "trouble"),
    [
        (b"{verify}", Trouble.SILENCE),  # the job is taken, and its worker never hears it
        (b"{verify}", Trouble.LOSE_ANSWER),
        (b"procrastinate_finish_job", Trouble.LOSE_REQUEST),
        (b"procrastinate_finish_job", Trouble.LOSE_ANSWER),
        (b"procrastinate_finish_job", Trouble.SILENCE),
    ],
)
def test_next_job_runs_after_connection_failure(
    database: str,
    proxy: WireProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_of: bytes,
    trouble: Trouble,
) -> None:
    monkeypatch.setattr(calling, "ANSWER_LIMIT_S", 1.0)
    proxy.only, proxy.trouble = request_of, trouble
    done = tmp_path / "done"
    done.touch()
    defer(database)
    jobs = a_worker(proxy.url(database), done)
    with closing(jobs):
        jobs.start()
        until(lambda: len(done.read_text().splitlines()) >= 1)
        until(lambda: proxy.trouble is Trouble.NONE)
        before = len(done.read_text().splitlines())
        defer(database)
        until(lambda: len(done.read_text().splitlines()) > before)
