"""Workers on several hosts: real processes, one database, and one gateway with its own record."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.cli.signals import Interruption
from paygw_batch.cluster import work_command
from paygw_batch.cluster.job_worker import JobWorker
from paygw_batch.core.shown_states import STOPPED_BY_PERSON
from tests.cli.metrics import read_gauges
from tests.cli.stopped import stop_process
from tests.support.clusters import Hosts, hosts_on, is_finished, require_exit_code
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.postgres_server import new_server
from tests.support.program import kenyan_rows, kill, read_csv

ROWS = 60
WINDOW = 4
"""The configured number of requests in flight per worker."""


def is_paid_once(hosts: Hosts) -> bool:
    return hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})


def hand_over(hosts: Hosts) -> tuple[Path, str]:
    """Offer a batch to workers. Return its sheet and its id."""
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    summary = hosts.office.json("submit", sheet, "--detach")
    assert summary["exit_code"] == 0
    return sheet, summary["batch"]


def test_submit_follows_batch_sent_by_two_workers(hosts: Hosts) -> None:
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    workers = [hosts.host(name).start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    summary = hosts.office.json("submit", sheet)
    assert (summary["states"], summary["exit_code"], summary["sent_this_run"]) == ({"paid": ROWS}, 0, ROWS)
    assert len(read_csv(summary["reconciliation"])) == ROWS
    assert is_paid_once(hosts)
    listed = hosts.office.json("workers")["workers"]
    assert [worker["is_alive"] for worker in listed] == [True, True]
    assert sum(worker["rows"] for worker in listed) == ROWS
    output = hosts.office.run("workers").output
    assert "2 workers are running" in output
    assert all(str(process.pid) in output for process in workers)
    for process in workers:
        process.send_signal(signal.SIGTERM)
        assert "The worker has stopped" in require_exit_code(process, 0)
    assert hosts.office.json("workers")["workers"] == []
    assert hosts.office.json("verify")["exit_code"] == 0


def test_batch_is_handed_to_workers_once(hosts: Hosts) -> None:
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    assert hosts.office.run("submit", sheet, "--detach", "--first", "1").exit_code == 2
    result = hosts.office.run("submit", sheet, "--detach")
    assert (result.exit_code, hosts.record()) == (0, Counter())
    assert "No worker is running" in result.stderr
    assert "The workers will send 60 rows" in result.stdout
    assert hosts.office.run("submit", sheet, "--detach").exit_code == 0
    assert hosts.ask("SELECT count(*) FROM paygw.run") == [(1,)]
    host = hosts.host("one")
    host.config.write_text(f'{host.config.read_text()}\n[reporting]\nmetrics = "paygw.prom"\n')
    assert "sent 60 rows" in require_exit_code(host.start("work", "--once"), 0)
    gauges = read_gauges(host)
    assert (gauges["paygw_gate_stopped"], 'paygw_workers{state="alive"}' in gauges) == (0, True)
    assert not [name for name in gauges if "run_rows_left" in name], "the run is over, so it would alert forever"
    assert is_paid_once(hosts)
    assert hosts.ask("SELECT count(*) FROM paygw.run WHERE ended_at IS NULL") == [(0,)]
    assert hosts.office.json("submit", sheet, "--detach")["states"] == {"paid": ROWS}
    assert hosts.office.json("submit", sheet)["sent_this_run"] == 0


def test_second_worker_finishes_batch_of_killed_worker(hosts: Hosts) -> None:
    sheet, _ = hand_over(hosts)
    dying = hosts.host("one").start("work")
    hosts.wait_for_record(10, dying)
    kill(dying)
    other = hosts.host("two").start("work", "--once")
    other.communicate(timeout=PATIENCE_S)
    assert other.returncode in {0, 5}
    summary = hosts.office.json("reconcile", sheet, "--out", hosts.office.home / "r.csv")
    assert summary["exit_code"] in {0, 5}, summary
    reconciled = read_csv(summary["reconciliation"])
    assert {line["state"] for line in reconciled} <= {"paid", "in_doubt"}
    assert summary["states"].get("in_doubt", 0) <= WINDOW
    record = hosts.record()
    assert max(record.values()) == 1
    assert {line["client_orderid"] for line in reconciled if line["state"] == "paid"} <= set(record)
    assert hosts.office.json("verify")["exit_code"] == 0


INTENDED = """SELECT i.client_orderid, s.state FROM paygw.state s JOIN paygw.instruction i ON i.number = s.instruction
    JOIN paygw.fact f ON f.number = s.intent
    WHERE f.kind = 'intended' AND f.process = (SELECT min(process) FROM paygw.fact WHERE kind = 'intended')"""
ASLEEP_S = 0.1
"""How long to wait until all threads of a process are frozen or waiting."""
LOOKS_UP_SLOWLY = """
import asyncio, pathlib, runpy
from paygw_batch.gateway.http import transport
async def look_up(*asked):
    pathlib.Path("asked").touch()
    while not pathlib.Path("answered").exists():
        await asyncio.sleep(0.01)
    return ["127.0.0.1"]
transport.AddressCache.resolve = look_up
runpy.run_module("paygw_batch", run_name="__main__")
"""
"""The program with a name lookup that a test answers, so that committed requests wait for their connection."""


def test_frozen_worker_sends_nothing_after_resuming(hosts: Hosts) -> None:
    """Its intent is committed and its connection is opening when another worker puts its row in doubt."""
    hand_over(hosts)
    host = hosts.host("one")
    command = [sys.executable, "-c", LOOKS_UP_SLOWLY, "--config", str(host.config), "work"]
    environ, pipe = {**os.environ, **host.environ}, subprocess.PIPE
    frozen = subprocess.Popen(command, env=environ, cwd=host.home, stdout=pipe, stderr=pipe, text=True)
    wait_until(lambda: (host.home / "asked").exists() or is_finished(frozen))
    assert not is_finished(frozen), frozen.communicate()
    with stop_process(frozen):
        other = hosts.host("two").start("work")
        wait_until(lambda: hosts.record().total() == ROWS - 1 or is_finished(other))
        assert not is_finished(other), other.communicate()
        (host.home / "answered").touch()
    wait_until(lambda: hosts.ask("SELECT 1 FROM paygw.fact WHERE kind = 'not_sent'") == [(1,)] or is_finished(frozen))
    for process in (frozen, other):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    ((doubtful, state),) = hosts.ask(INTENDED)
    arrived = Counter(line["client_orderid"] for line in read_csv(hosts.record_path))
    assert (arrived[str(doubtful)], state) == (0, "in_doubt")
    assert (arrived.total(), max(arrived.values())) == (ROWS - 1, 1)
    assert hosts.office.json("verify")["exit_code"] == 5, "sound, and it keeps the late word that nothing left"


def test_frozen_waiting_worker_ends_on_signal(hosts: Hosts) -> None:
    worker = hosts.host("one").start("work")
    hosts.wait_for_workers(worker)
    time.sleep(ASLEEP_S)
    worker.send_signal(signal.SIGSTOP)
    time.sleep(ASLEEP_S)
    worker.send_signal(signal.SIGCONT)
    worker.send_signal(signal.SIGTERM)  # the system may deliver it to any thread of a resumed process
    require_exit_code(worker, 0)


def test_stopping_worker_finishes_its_rows(hosts: Hosts) -> None:
    sheet, _ = hand_over(hosts)
    leaving = hosts.host("one").start("work")
    hosts.wait_for_record(10, leaving)
    leaving.send_signal(signal.SIGTERM)
    require_exit_code(leaving, 0)
    states = hosts.office.json("status", sheet)["states"]
    assert set(states) <= {"paid", "ready"}
    assert sum(hosts.record().values()) == states["paid"]
    assert hosts.ask("SELECT count(*) FROM paygw.process WHERE ended_at IS NULL") == [(0,)]
    require_exit_code(hosts.host("two").start("work", "--once"), 0)
    assert is_paid_once(hosts)


def test_lost_claims_never_pay_twice(hosts: Hosts) -> None:
    hand_over(hosts)
    workers = [hosts.host(name).start("work", "--once") for name in ("one", "two")]
    hosts.wait_for_record(10, workers[0])
    hosts.ask("""UPDATE paygw.state SET claimed_by = NULL WHERE instruction IN (
        SELECT instruction FROM paygw.state WHERE claimed_by IS NOT NULL ORDER BY instruction FOR UPDATE)""")
    for worker in workers:
        require_exit_code(worker, 0)
    assert is_paid_once(hosts)


def test_operator_stops_batch_until_next_start(hosts: Hosts) -> None:
    sheet, batch = hand_over(hosts)
    with hosts.blocked_commits():
        worker = hosts.host("one").start("work", "--once")
        hosts.wait_until_blocked()
        following = hosts.office.start("--lang", "fr", "submit", sheet)
        assert following.stderr is not None
        while "Envoi" not in (line := following.stderr.readline()):
            assert following.poll() is None, line
        assert "Workers will not start any more rows" in hosts.office.run("workers", "--stop", batch).stdout
        assert hosts.ask("SELECT stop_reason FROM paygw.run") == [(STOPPED_BY_PERSON,)]
    assert "Une personne a arrêté l'exécution." in require_exit_code(following, 6)
    require_exit_code(worker, 6)
    states = Counter(hosts.office.json("status", sheet)["states"])
    assert states["paid"] <= WINDOW
    assert (states.total(), set(states) - {"paid", "ready"}) == (ROWS, set())
    assert hosts.office.run("workers", "--stop", batch).exit_code == 2
    require_exit_code(hosts.host("two").start("work", "--once"), 0)
    assert hosts.record().total() == states["paid"], "a stopped batch waits for a person"
    assert hosts.office.json("submit", sheet)["states"] == {"paid": ROWS}
    assert is_paid_once(hosts)


def test_interrupting_submit_stops_batch(hosts: Hosts) -> None:
    sheet, _ = hand_over(hosts)
    with hosts.blocked_commits():
        worker = hosts.host("one").start("work")
        hosts.wait_until_blocked()
        following = hosts.office.start("submit", sheet)
        assert following.stderr is not None
        while "Sending" not in following.stderr.readline():
            assert following.poll() is None
        following.send_signal(signal.SIGINT)
        stopped = "SELECT number FROM paygw.run WHERE stop_reason IS NOT NULL"
        wait_until(lambda: bool(hosts.ask(stopped)))
    require_exit_code(following, 130)
    states = Counter(hosts.office.json("status", sheet)["states"])
    assert states["paid"] <= WINDOW
    assert hosts.record().total() == states["paid"]
    worker.send_signal(signal.SIGTERM)
    require_exit_code(worker, 0)


def test_worker_exits_with_error_without_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paygw_batch.journal.postgres.guarded_session._RECONNECT_LIMIT_S", 0.5)
    monkeypatch.setattr("paygw_batch.cluster.job_worker.POLL_INTERVAL_S", 0.25)
    monkeypatch.setattr("paygw_batch.cluster.calling._TIMEOUT_S", 1.0)
    tmp_path.chmod(0o700)
    with new_server() as server, hosts_on(tmp_path, server.url()) as hosts:

        def stop() -> None:
            hosts.wait_for_workers(count=1)
            server.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        gone = hosts.host("one").run("work")
        stopping.join()
        assert (gone.exit_code, "can no longer be written" in gone.stderr) == (7, True)
        assert "Traceback" not in gone.output


def test_worker_ends_after_lost_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import or a callback of the interpreter can swallow a signal; a worker waiting for jobs must still end."""
    monkeypatch.setattr(work_command, "interruption", Interruption())
    jobs, journal = Mock(spec=JobWorker), Mock()
    worker = work_command.Worker(Mock(), Mock(), None, ())
    worker._job_worker = jobs

    def lose_it() -> None:
        with suppress(KeyboardInterrupt):
            worker._end_now(signal.SIGTERM, None)

    jobs.next.side_effect = lose_it
    worker._serve_jobs(journal, jobs)
    jobs.wake.assert_called_once_with()


def test_notification_wakes_waiting_worker() -> None:
    jobs = JobWorker("postgresql://127.0.0.1:1/none", 5.0, (), (), Mock())
    with closing(jobs._loop):
        jobs.wake()
        assert jobs.next() is None
