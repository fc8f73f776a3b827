"""Jobs whose answers are lost in the network do not keep their lock while their worker lives."""

import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest

from paygw_batch.cluster import calling, job_worker
from paygw_batch.cluster.job_worker import JobWorker, ScheduledCommand
from tests.support.patience import wait_until
from tests.support.wire_proxy import ProxyFault, WireProxy

NEVER = "0 0 29 2 1"
DEFER = """INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    SELECT 'verify', 'verify', 'verify', 'verify', jsonb_build_object('timestamp', extract(epoch FROM now())::bigint)"""


def defer(url: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c search_path=paygw_jobs") as connection:
        connection.execute(DEFER.encode())


def build_worker(url: str, done: Path) -> JobWorker:
    """Return a worker whose timetable command writes a line to a file."""
    program = [sys.executable, "-c", f"print('done', file=open({str(done)!r}, 'a'))"]
    entry = ScheduledCommand("verify", NEVER, "UTC", ("verify",))
    return JobWorker(url, 1.0, [entry], program, Mock(return_value=[]))


@pytest.mark.parametrize(
    ("request_of", "trouble"),
    [
        (b"{verify}", ProxyFault.SILENCE),  # the job is taken, but the answer to its worker is lost
        (b"{verify}", ProxyFault.LOSE_ANSWER),
        (b"procrastinate_finish_job", ProxyFault.LOSE_REQUEST),
        (b"procrastinate_finish_job", ProxyFault.LOSE_ANSWER),
        (b"procrastinate_finish_job", ProxyFault.SILENCE),
    ],
)
def test_next_job_runs_after_connection_failure(
    database: str,
    proxy: WireProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_of: bytes,
    trouble: ProxyFault,
) -> None:
    monkeypatch.setattr(calling, "ANSWER_LIMIT_S", 1.0)
    monkeypatch.setattr(job_worker, "POLL_EVERY_S", 0.1)
    proxy.only, proxy.trouble = request_of, trouble
    done = tmp_path / "done"
    done.touch()
    defer(database)
    jobs = build_worker(proxy.url(database), done)
    with closing(jobs):
        jobs.start()
        wait_until(lambda: len(done.read_text().splitlines()) >= 1)
        wait_until(lambda: proxy.trouble is ProxyFault.NONE)
        before = len(done.read_text().splitlines())
        defer(database)
        wait_until(lambda: len(done.read_text().splitlines()) > before)
