"""A share of a run, `work --once BATCH`, repeated, killed, and stopped at any moment; and limits that workers share."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from paygw_batch.cli.main import cli
from paygw_batch.cli.signals import _OPTIONS_WITH_VALUE, parse_command_name
from paygw_batch.sandbox.server import SandboxApp
from tests.cli.stopped import IMPORTS, run_with_signal
from tests.support.clusters import ClusterProgram, Hosts, hosts_on, is_finished, new_hosts, require_exit_code
from tests.support.long_part import share
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.postgres_server import PostgresServer, new_server
from tests.support.program import kenyan_rows, kill, read_csv

ROWS = 60
SLOWLY = "[default]\ndelay_s = 0.2\n"
"""A gateway that takes three seconds for a batch."""


def hand_over(hosts: Hosts, name: str = "staff", *, prefix: str = "PAY", amount: str = "1500.50") -> str:
    sheet = hosts.office.sheet(kenyan_rows(ROWS, prefix=prefix, amount=amount), f"{name}.csv")
    summary = hosts.office.json("submit", sheet, "--detach")
    assert summary["exit_code"] == 0, summary
    return str(summary["batch"])


def test_repeated_share_sends_only_unsent_rows(hosts: Hosts) -> None:
    staff, others = hand_over(hosts), hand_over(hosts, "others", prefix="OTHER", amount="80")
    host = hosts.host("one")
    assert host.json("work", "--once", others)["exit_code"] == 0
    assert {order.partition("-")[0] for order in hosts.record()} == {"OTHER"}
    assert (host.json("work", "--once", others)["sent_this_run"], hosts.record().total()) == (0, ROWS)
    assert host.json("work", "--once", staff)["sent_this_run"] == ROWS
    assert hosts.office.json("work", "--once")["exit_code"] == 0
    assert set(hosts.record().values()) == {1}


def test_next_share_continues_after_time_limit(tmp_path: Path, postgres_server: PostgresServer) -> None:
    with new_hosts(tmp_path, postgres_server, behaviour=SLOWLY) as hosts:
        batch, one = hand_over(hosts), hosts.host("one")
        assert one.json("work", "--once", batch, "--for", "1")["exit_code"] == 6
        states = Counter(hosts.office.json("status", batch)["states"])
        # A busy machine may not have sent anything in time.
        assert (set(states) | {"paid"}, states["paid"]) == ({"paid", "ready"}, hosts.record().total())
        assert one.json("work", "--once", batch)["exit_code"] == 0
        assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})


def test_work_refuses_unknown_batch_or_missing_option(hosts: Hosts) -> None:
    for options in (["staff"], ["--for", "5"], ["--once", "abcdef"]):
        assert hosts.host("one").json("work", *options)["exit_code"] == 2, options


def test_urgent_batch_is_sent_first(hosts: Hosts) -> None:
    hand_over(hosts)
    urgent = hosts.office.sheet(kenyan_rows(5, prefix="URGENT", amount="70"), "urgent.csv")
    assert hosts.office.json("submit", urgent, "--detach", "--urgent")["exit_code"] == 0
    assert hosts.host("one").json("work", "--once")["exit_code"] == 0
    arrived = [line["client_orderid"].partition("-")[0] for line in read_csv(hosts.record_path)]
    assert (arrived[:5], Counter(arrived)) == (["URGENT"] * 5, Counter({"PAY": ROWS, "URGENT": 5}))


@pytest.mark.long
def test_worker_interrupts_batch_for_urgent_batch(tmp_path: Path, postgres_server: PostgresServer) -> None:
    with new_hosts(tmp_path, postgres_server, behaviour="[default]\ndelay_s = 2\n") as hosts:
        hand_over(hosts)
        worker = hosts.host("one").start("work", "--once")
        hosts.wait_for_record(4, worker)
        urgent = hosts.office.sheet(kenyan_rows(5, prefix="URGENT", amount="70"), "urgent.csv")
        assert hosts.office.json("submit", urgent, "--detach", "--urgent")["exit_code"] == 0
        stdout, stderr = worker.communicate(timeout=PATIENCE_S)
        assert (worker.returncode, stderr.count("Sending")) == (0, 3), stdout + stderr
        arrived = [line["client_orderid"].partition("-")[0] for line in read_csv(hosts.record_path)]
        assert (arrived[-1], Counter(arrived)) == ("PAY", Counter({"PAY": ROWS, "URGENT": 5}))


IN_FLIGHT = "SELECT instruction FROM paygw.state WHERE state = 'in_flight'"
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'paygw-batch' AND datname = current_database()"


def test_status_shows_rows_of_killed_process_in_doubt(tmp_path: Path, postgres_server: PostgresServer) -> None:
    with new_hosts(tmp_path, postgres_server, behaviour=SLOWLY) as hosts:
        batch = hand_over(hosts)
        working = hosts.host("one").start("work", "--once", batch)
        hosts.wait_for_record(8, working)
        with hosts.blocked_commits():
            hosts.wait_until_blocked()
            summary = hosts.office.json("status", batch)
            states = Counter(summary["states"])
            assert (states["in_flight"], states["in_doubt"], states.total()) == (len(hosts.ask(IN_FLIGHT)), 0, ROWS)
            assert (summary["exit_code"], summary["needs_person"], summary["in_doubt"]) == (6, [], [])
            assert "in_flight" in summary["totals"]["KES"]
            assert "being sent" in hosts.office.run("status", batch).stdout
            listed = hosts.office.json("status")
            assert (listed["states"], listed["totals"]) == (summary["states"], summary["totals"])
            kill(working)
        wait_until(lambda: not hosts.ask(SESSIONS))
        left = Counter(hosts.office.json("status", batch)["states"])
        assert (left["in_flight"], left["in_doubt"]) == (0, len(hosts.ask(IN_FLIGHT)))


MOMENTS = [*IMPORTS[:2], "paygw_batch.cluster.work_command", "apsw", "psycopg", "procrastinate"]
MOMENTS += ["call:settings_for", "call:Worker.serve", "call:DatabaseLocation.open_to_work", "call:RollCall.answer"]
MOMENTS += ["call:Worker._serve_with_journal", "call:open_gateway"]


@pytest.mark.share(16)
@pytest.mark.parametrize("at", share(range(len(MOMENTS)), every=4))
def test_worker_with_early_signal_exits_normally(hosts: Hosts, at: int) -> None:
    batch, number = hand_over(hosts), signal.SIGINT if at % 2 else signal.SIGTERM
    for asked, code in ([], 0), (["--once", batch], 6):
        process = run_with_signal(hosts.host("one"), MOMENTS[at], number, "--json", "work", *asked)
        assert process.returncode == code, process.stderr
        assert "it sent 0 rows" in json.loads(process.stdout)["message"]
        assert "Traceback" not in process.stderr
    assert hosts.record() == Counter()


def test_waiting_worker_stops_during_server_outage(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with new_server() as server, hosts_on(tmp_path, server.url()) as hosts:
        waiting = hosts.host("one").start("work")
        hosts.wait_for_workers(waiting)
        server.stop()
        assert not is_finished(waiting), waiting.communicate()
        waiting.send_signal(signal.SIGTERM)
        stdout, stderr = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, "it sent 0 rows" in stdout) == (0, True), stdout + stderr


def test_command_name_is_found_after_options() -> None:
    options = {name for one in cli.params if not getattr(one, "is_flag", False) for name in one.opts}
    assert options - {"--version", "--help"} == _OPTIONS_WITH_VALUE
    assert parse_command_name(["-v", "--config", "work", "--lang=fr", "status", "work"]) == "status"
    assert parse_command_name(["--json"]) == ""


def test_limits_command_sets_and_shows_limits(cluster: ClusterProgram) -> None:
    cluster.json("submit", cluster.sheet(kenyan_rows(1), name="first.csv"))
    limits = cluster.json("limits")["limits"]
    assert (limits["rate_per_s"], limits["concurrency"], limits["set_by"]) == (None, None, None)
    assert limits["configured"]["concurrency"] == 16
    changed = cluster.json("limits", "--rate", "1000", "--concurrency", "2", "--by", "Amina")["limits"]
    assert (changed["rate_per_s"], changed["concurrency"]) == (1000, 2)
    assert changed["set_by"].startswith("Amina (login ")
    assert cluster.json("submit", cluster.sheet(kenyan_rows(12)))["states"] == {"paid": 12}
    limits = cluster.json("limits")["limits"]
    assert (limits["concurrency"], limits["workers"], limits["stop_reason"]) == (2, [], None)
    text = cluster.run("limits", "--as-configured", "--by", "Amina")
    assert "16 rows (from this host's configuration)" in text.output
    assert cluster.json("verify")["exit_code"] == 0


def test_limits_command_shows_stop_reason_until_next_run(cluster: ClusterProgram) -> None:
    sheet = cluster.sheet(kenyan_rows(30, amount="9006"))
    assert cluster.json("submit", sheet)["exit_code"] == 5
    stopped = cluster.json("limits")["limits"]
    assert stopped["stop_reason"] == "5 consecutive rows ended in doubt."
    assert "stopped since" in cluster.run("limits").output
    assert cluster.json("resume")["states"]["in_doubt"] == 10


def test_two_workers_respect_concurrency_limit(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    in_progress, seen, answer = set[object](), [0], SandboxApp._answer

    async def counted(app: SandboxApp, *given: Any) -> ASGIApp:
        in_progress.add(order := object())
        seen.append(len(in_progress))
        try:
            return await answer(app, *given)
        finally:
            in_progress.remove(order)

    monkeypatch.setattr(SandboxApp, "_answer", counted)
    hosts.office.json("limits", "--concurrency", "2", "--rate", "500", "--by", "Amina")
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    workers = [hosts.host(name).start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    assert hosts.office.json("submit", sheet)["states"] == {"paid": ROWS}
    for process in workers:
        process.terminate()
        require_exit_code(process, 0)
    assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    assert 0 < max(seen) <= 2 * 2, "each has the whole limit until it knows of the other"
    limits = hosts.office.json("limits")["limits"]
    assert (limits["workers"], limits["stop_reason"], limits["concurrency"]) == ([], None, 2)
    assert hosts.office.json("verify")["exit_code"] == 0


def test_worker_needs_only_worker_role(hosts: Hosts, postgres_server: PostgresServer) -> None:
    assert hosts.office.json("journal", "new", "--roles")["exit_code"] == 0
    name = hosts.database.rpartition("/")[2]
    postgres_server.execute(f"CREATE ROLE {name}_one LOGIN IN ROLE {name}_worker")
    host = hosts.host("one")
    host.config.write_text(host.config.read_text().replace(hosts.database, postgres_server.url(name, f"{name}_one")))
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    assert hosts.office.json("submit", sheet, "--detach")["exit_code"] == 0
    assert "worker: can send rows of started batches" in host.run("doctor").output
    for decided in (["submit", host.sheet(kenyan_rows(1))], ["limits", "--rate", "1"], ["resume"]):
        refused = host.run(*decided)
        assert (refused.exit_code, "does not have permission to do this" in refused.stderr) == (7, True), refused.output
    assert not hosts.record()
    require_exit_code(host.start("work", "--once"), 0)
    assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    taking_jobs = host.start("work")
    hosts.wait_for_workers(taking_jobs)
    more = hosts.office.sheet(kenyan_rows(5, prefix="MORE", amount="70"), "more.csv")
    assert hosts.office.json("submit", more)["states"] == {"paid": 5}
    kill(taking_jobs)
    assert hosts.office.json("verify")["exit_code"] == 0
