"""Commands with a journal in PostgreSQL: kills, a crashing server, roles, and every refusal."""

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import psycopg
import pytest

from paygw_batch.settings.configuration import load_settings
from paygw_batch.show.batch_status import running_process
from tests.cli.stopped import paid_orders, wait_for_record
from tests.support.clusters import ClusterProgram, journal_url, slow_down_sandbox
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import PostgresServer, new_server
from tests.support.program import Program, kenyan_rows, kill, read_csv
from tests.support.wire_proxy import ProxyFault, wire_proxy

ROWS = 60


def test_repeatedly_killed_database_run_pays_rows_once(cluster: ClusterProgram) -> None:
    slow_down_sandbox(cluster)
    sheet = cluster.sheet(kenyan_rows(ROWS))
    for lines in (0, 1, 20, 41):
        process = cluster.start("submit", sheet)
        wait_for_record(cluster, lines, process)
        kill(process)
    check_end(cluster, sheet)


def check_end(user: ClusterProgram, sheet: Path) -> None:
    """Compare the reconciliation of a batch with the gateway's own record."""
    summary = user.json("submit", sheet)
    reconciled = read_csv(summary["reconciliation"])
    assert [line["client_orderid"] for line in reconciled] == [f"PAY-{n}" for n in range(1, ROWS + 1)]
    assert {line["state"] for line in reconciled} <= {"paid", "in_doubt"}
    found = paid_orders(user)
    assert max(found.values()) == 1
    assert {line["client_orderid"] for line in reconciled if line["state"] == "paid"} <= set(found)
    assert user.json("verify")["exit_code"] == 0


@contextmanager
def run_own_cluster(program: Program) -> Iterator[tuple[ClusterProgram, PostgresServer]]:
    with new_server() as server:
        user = ClusterProgram(program.home, program.config)
        user.write_url(server.url())
        slow_down_sandbox(user)
        yield user, server


def test_run_continues_after_database_server_crash(program: Program) -> None:
    with run_own_cluster(program) as (user, server):
        sheet = user.sheet(kenyan_rows(ROWS))
        process = user.start("submit", sheet)
        wait_for_record(user, 10, process)
        server.stop("immediate")
        starting = threading.Thread(target=server.start)
        starting.start()
        _, stderr = process.communicate(timeout=PATIENCE_S)
        starting.join()
        assert process.returncode == 0, stderr
        assert Counter(paid_orders(user).values()) == {1: ROWS}
        check_end(user, sheet)


def run_refused(user: ClusterProgram, code: int, sentence: str, *arguments: str | Path) -> str:
    before = user.record()
    result = user.run(*(arguments or ("submit", user.sheet(kenyan_rows(2)))))
    assert (result.exit_code, "Traceback" in result.output) == (code, False), result.output
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) >= 2, "what to do next is missing"
    assert user.record() == before
    return result.stderr


def test_unreachable_database_address_is_refused(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
    for wrong in ("postgresql://paygw@127.0.0.1:1/x", postgres_server.url("no_such_database")):
        cluster.write_url(wrong)
        run_refused(cluster, 7, "cannot be reached")
    cluster.write_url(postgres_server.url(user="nobody_we_know"))
    run_refused(cluster, 7, "nobody_we_know")
    for wrong in ("mysql://x", "postgresql://paygw:secret@db/x", "postgresql://db/x?password=secret"):
        cluster.write_url(wrong)
        run_refused(cluster, 2, "journal")
        assert "secret" not in cluster.run("status").output
    cluster.write_url("postgresql://paygw@db/x", 'path = "a.sqlite3"\n')
    run_refused(cluster, 2, "path and url cannot both be set")


def test_unsafe_database_server_is_refused(program: Program) -> None:
    with run_own_cluster(program) as (user, server):
        pay_one_row(user)
        for setting in ("fsync", "full_page_writes"):
            change_setting(server, setting, "off")
            run_refused(user, 7, f"{setting} = off")
            assert f"{setting} = off" in doctor_finding(user)
            change_setting(server, setting, "on")
        user.write_url(server.url(), 'replication = "synchronous"\n')
        run_refused(user, 7, "does not wait for a standby")
        assert "does not wait for a standby" in doctor_finding(user)


@pytest.mark.parametrize("more", ["", 'replication = "sometimes"\n'])
def test_database_without_replication_setting_is_refused(cluster: ClusterProgram, more: str) -> None:
    cluster.write_url(journal_url(cluster), more)
    for command in (("doctor",), ("validate", cluster.sheet(kenyan_rows(1))), ("journal", "new")):
        refused = cluster.run(*command)
        assert (refused.exit_code, "asynchronous" in refused.stderr) == (2, True), refused.output


def test_doctor_compares_replication_setting_with_server(cluster: ClusterProgram) -> None:
    url = journal_url(cluster)
    assert cluster.run("submit", cluster.sheet(kenyan_rows(1))).exit_code == 0
    for word, state in (("none", "ok"), ("provider", "ok"), ("asynchronous", "warning"), ("synchronous", "wrong")):
        cluster.write_url(url, f'replication = "{word}"\n')
        (found,) = [check for check in cluster.json("doctor")["checks"] if check["check"] == "replication"]
        assert (found["state"], found["found"].partition(";")[0]) == (state, word)


def change_setting(server: PostgresServer, setting: str, value: str) -> None:
    server.execute(f"ALTER SYSTEM SET {setting} = {value}")
    server.execute("SELECT pg_reload_conf()")
    current_value = ""
    while current_value != value:  # every query uses a new session, which has the current settings
        with psycopg.connect(server.url()) as connection:
            ((current_value,),) = connection.execute("SELECT current_setting(%s)", (setting,)).fetchall()


def pay_one_row(user: ClusterProgram) -> None:
    assert user.run("submit", user.sheet(kenyan_rows(1), name="first.csv")).exit_code == 0


def doctor_finding(user: ClusterProgram) -> str:
    summary = user.json("doctor")
    assert summary["exit_code"] == 7
    (journal_check,) = [check for check in summary["checks"] if check["check"] == "journal"]
    assert journal_check["state"] == "wrong"
    return str(journal_check["found"])


def test_standby_is_readable_but_sends_nothing(program: Program) -> None:
    with run_own_cluster(program) as (user, server):
        pay_one_row(user)
        server.stop("fast")
        (server.home / "data" / "standby.signal").touch()
        server.start()
        sentence = f"postgres on 127.0.0.1:{server.port} is a read-only standby."
        hint = "List all servers in [journal] url, with target_session_attrs=read-write."
        batch = user.json("status")["batches"][0]["batch"]
        settled = ("resolve", "row", batch, "2", "--as", "paid", "--evidence", "ticket 7", "--by", "amina")
        for command in ((), ("resume",), ("work", "--once"), ("journal", "new"), ("limits", "--rate", "5"), settled):
            run_refused(user, 7, f"{sentence}\nNothing was sent. {hint}", *command)
        assert doctor_finding(user) == f"{sentence} Nothing was sent. {hint}"
        assert user.json("verify")["exit_code"] == 0
        user.write_url(f"{server.url()}?target_session_attrs=read-write")
        run_refused(user, 7, "session is read-only")


def test_connection_pooler_is_refused(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
    with wire_proxy(postgres_server.port) as proxy:
        proxy.trouble = ProxyFault.POOLER
        cluster.write_url(proxy.url(journal_url(cluster)))
        sentence, hint = "There is a pooler between this program and", "Set [journal] url to the server itself"
        for command in ((), ("status",), ("work", "--once"), ("journal", "new")):
            assert hint in run_refused(cluster, 7, sentence, *command)
        assert sentence in doctor_finding(cluster)


@pytest.mark.parametrize(("seconds", "which"), [(-45, "behind"), (45, "ahead of")])
def test_wrong_clock_is_refused(
    cluster: ClusterProgram, monkeypatch: pytest.MonkeyPatch, seconds: int, which: str
) -> None:
    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=seconds)

    pay_one_row(cluster)
    monkeypatch.setattr("paygw_batch.journal.postgres.session.datetime", Shifted)
    hint = "Set both clocks from the same time server, then try again."
    for command in ((), ("work", "--once")):
        assert hint in run_refused(cluster, 7, f" seconds {which} the clock of ", *command)
    assert f" seconds {which} the clock of " in doctor_finding(cluster)
    assert cluster.run("status").exit_code == 0  # to look is always possible
    monkeypatch.setattr("paygw_batch.journal.postgres.session.MAX_CLOCK_SKEW_S", 3600)
    assert cluster.run("submit", cluster.sheet(kenyan_rows(2))).exit_code == 0


def test_database_of_another_merchant_is_refused(cluster: ClusterProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1), name="first.csv"))
    text = cluster.config.read_text()
    second = text.replace('endpoint_id = "1000"', 'endpoint_id = "2000"')
    another = second.replace('consumer_key = "', 'consumer_key = "another-')
    cluster.config.write_text(another)
    run_refused(cluster, 7, "belongs to another merchant")
    cluster.config.write_text(second)
    assert cluster.json("submit", cluster.sheet(kenyan_rows(1), name="first.csv"))["sent_this_run"] == 0
    cluster.config.write_text(another)
    assert cluster.run("status").exit_code == 0, "the second endpoint was noted"
    cluster.config.write_text(text)
    with psycopg.connect(journal_url(cluster), autocommit=True) as connection:
        connection.execute("INSERT INTO paygw.migration VALUES (99, 'now')")
    run_refused(cluster, 7, "newer version")


def test_missing_cluster_extra_is_reported(cluster: ClusterProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    importing = re.compile(r"(psycopg|psycopg_binary)\b|paygw_batch\..*(postgres|database_location)")
    for name in [module for module in sys.modules if importing.match(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    run_refused(cluster, 2, "[cluster]'`", "status")


def test_second_command_is_refused_and_names_holder(cluster: ClusterProgram) -> None:
    sheet = cluster.sheet(kenyan_rows(1, amount="9005"))
    process = cluster.start("submit", sheet)
    wait_for_record(cluster, 1, process)
    held = cluster.run("submit", sheet)
    assert (held.exit_code, str(process.pid) in held.stderr) == (7, True), held.stderr
    assert cluster.run("status").exit_code != 7  # to look is always possible
    settings = load_settings(cluster.config, environ=cluster.environ)
    holder = running_process(settings)
    assert (holder and holder.pid) == process.pid
    kill(process)
    assert running_process(settings) is None


@pytest.mark.parametrize(
    ("role", "rights", "may", "may_not"),
    [
        ("stranger", "", "", "submit work status resolve retry limits find verify"),
        ("reader", "can read", "status find verify", "submit work resolve retry limits"),
        ("worker", "can send rows of started batches", "work status", "submit resolve retry limits"),
        ("desk", "can open batches", "submit", ""),
    ],
)
def test_database_role_limits_available_commands(
    cluster: ClusterProgram, role: str, rights: str, may: str, may_not: str
) -> None:
    assert cluster.run("submit", cluster.sheet(kenyan_rows(2))).exit_code == 0
    batch, owner = cluster.json("status")["batches"][0]["batch"], journal_url(cluster)
    database = owner.rpartition("/")[2]
    for _ in range(2):
        roles = cluster.json("journal", "new", "--roles")["roles"]
        assert roles == [f"{database}_reader", f"{database}_worker", f"{database}_desk"]
    assert cluster.run("journal", "new").exit_code == 7
    more = cluster.sheet(kenyan_rows(2, prefix="MORE", amount="700.00"), "more.csv")
    commands = {
        "submit": ["submit", str(more)],
        "work": ["work", "--once"],
        "status": ["status", batch],
        "resolve": ["resolve", "row", batch, "2", "--as", "paid", "--evidence", "ticket 7", "--by", "amina"],
        "retry": ["retry", batch],
        "limits": ["limits", "--rate", "5", "--by", "amina"],
        "find": ["find", "PAY-1"],
        "verify": ["verify"],
    }
    member = "" if role == "stranger" else f" IN ROLE {database}_{role}"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {database}_{role}_login LOGIN{member}".encode())
    cluster.write_url(owner.replace("paygw@", f"{database}_{role}_login@"))
    assert rights in cluster.run("doctor").output
    for command in may.split():
        assert cluster.run(*commands[command]).exit_code == 0, command
    for command in may_not.split():
        refused = cluster.run(*commands[command])
        sentence = "The role in [journal] url does not have permission to do this in"
        assert (refused.exit_code, sentence in refused.stderr) == (7, True), (command, refused.output)
        assert "To see the role's permissions, run `paygw-batch doctor`" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert len(cluster.record()) == (4 if role == "desk" else 2)
