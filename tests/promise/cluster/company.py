"""Hosts that share a journal in PostgreSQL, and the judge, who reads the sheet, the gateway's record and the tables."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import reduce
from pathlib import Path

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.lifecycle import State
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.postgres.session import Server
from paygw_batch.sandbox.compare import compare, read_reconciliation
from paygw_batch.sandbox.record import RecordLine
from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner, whole_lines
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.ports import free_port
from tests.support.postgres_rows import execute_as_owner, open_postgres, postgres_location, read_postgres
from tests.support.postgres_server import BIN, PostgresServer, as_unprivileged_user, new_server
from tests.support.wire_proxy import WireProxy

HOSTS = NORTH, SOUTH = ("north", "south")
WINDOW = 4
INTENT_LIVES_S = 5
PRELOADED: tuple[str, ...] = ("psycopg", "paygw_batch.cluster.work_command", "paygw_batch.cluster.database_location")
"""The modules that a process imports if its journal is in PostgreSQL."""
_INTENDED = """SELECT f.order_id FROM fact f
    WHERE f.kind = 'intended' AND NOT EXISTS (SELECT FROM contradiction c WHERE c.fact = f.number)"""
_ROWS = """SELECT coalesce(s.order_id, i.client_orderid), s.state, f.process
    FROM state s JOIN instruction i ON i.number = s.instruction
    LEFT JOIN fact f ON s.state = 'in_doubt' AND f.number = s.intent"""
_JOURNAL = re.compile(r"(?m)^path = .*\n(?: *#.*\n)?")


class Company:
    def __init__(
        self,
        home: Path,
        spawner: Spawner,
        at: GatewayProcess,
        url: str,
        prefix: str,
        ports: Iterable[int],
        names: Sequence[str] = HOSTS,
        *,
        window: int = WINDOW,
        replication: str = "none",
    ) -> None:
        self.at, self.url, self.window = at, url, window
        self._prefix = f"{prefix}-"
        self._orders: dict[str, RecordLine] = {}
        self._read_bytes = at.record_bytes()
        self.proxies = {host: [WireProxy(port) for port in ports] for host in names}
        self.hosts: dict[str, Machine] = {}
        for host in names:
            through = reduce(lambda place, proxy: proxy.url(place), self.proxies[host], url)
            machine = Machine.create(
                *(home / host, spawner, at), prefix=prefix, concurrency=window, has_journal=False, since=0
            )
            config = machine.home / "paygw.toml"
            kept = f'url = "{through}"\nreplication = "{replication}"\nintent_lives_s = {INTENT_LIVES_S}\n'
            text, count = _JOURNAL.subn(kept, config.read_text(), count=1)
            if count != 1:
                raise AssertionError("the configuration has no [journal] path")
            config.write_text(text)
            self.hosts[host] = machine
        first = self.hosts[names[0]]
        if first.run("journal", "new") != 0:
            raise AssertionError(f"no journal was created: {first.said()}")

    def close(self) -> None:
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.close()

    def sheets(self, rows: int) -> dict[str, Path]:
        return {host: machine.sheet(rows, name="sheet.csv") for host, machine in self.hosts.items()}

    def orders(self) -> Mapping[str, RecordLine]:
        """Return the company's orders at the gateway by id, reading the record's new parts. None may be there twice."""
        if self.at.record_bytes() > self._read_bytes:
            lines, length = whole_lines(self.at.newer(self._read_bytes))
            self._read_bytes += length
            for line in lines:
                if line.client_orderid in self._orders:
                    raise Broken(f"sent twice: {line.client_orderid}")
                if line.client_orderid.startswith(self._prefix):
                    self._orders[line.client_orderid] = line
        return self._orders

    def said(self) -> str:
        written = [machine.home / "err.txt" for machine in self.hosts.values()]
        return "; ".join(f"{path.parent.name}: {path.read_text()[-500:]}" for path in written if path.exists())

    def judge(self, url: str, *, hurt: int) -> dict[str, int]:
        """Compare the tables with the record, after everything has ended. Return the rows by state."""
        orders = self.orders()
        with psycopg.connect(url, options="-c search_path=paygw") as connection:
            intended = {order_id for (order_id,) in connection.execute(_INTENDED.encode())}
            rows = connection.execute(_ROWS.encode()).fetchall()
        if unintended := orders.keys() - intended:
            raise Broken(f"sent without an intent: {sorted(unintended)}")
        states: Counter[str] = Counter()
        doubtful: Counter[int] = Counter()
        for order_id, state, process in rows:
            states[state] += 1
            line = orders.get(order_id)
            if state in {"paid", "rejected"} and line is None:
                raise Broken(f"{order_id} is {state}, and never arrived")
            if state == "paid" and line is not None and line.committed != "yes":
                raise Broken(f"{order_id} is paid here, and not there")
            if state in {"ready", "in_flight"}:
                raise Broken(f"{order_id} is {state} at the end")
            doubtful[process] += state == "in_doubt" and (line is None or line.answer != "drop_after")
        if doubtful.total() > self.window * hurt:
            raise Broken(f"{doubtful.total()} rows are in doubt (by process: {doubtful}), and {hurt} were hurt")
        if lost := orders.keys() - {order_id for order_id, _, _ in rows}:
            raise Broken(f"arrived, but unknown here: {sorted(lost)}")
        return dict(states)

    def judge_reconciliation(self, path: Path, rows: int, first: int = 0) -> None:
        """Compare a reconciliation with sheet and record: every row is there once, with its state."""
        lines = read_reconciliation(path)
        wanted = {f"{self._prefix}{number}" for number in range(first, first + rows)}
        if len(lines) != rows or {line["client_orderid"] for line in lines} != wanted:
            raise Broken(f"the reconciliation has {len(lines)} rows, but the sheet has {rows}")
        if differences := compare((line for order_id, line in self.orders().items() if order_id in wanted), lines):
            raise Broken("; ".join(differences))


def host(home: Path, name: str, url: str, **more: object) -> DatabaseLocation:
    (home / name).mkdir(mode=0o700, exist_ok=True)
    server = Server(url, commit_limit_s=60.0, **more)  # type: ignore[arg-type]  # figures of a test
    return replace(postgres_location(url, home / name), server=server)


class SplitCompany:
    """Two hosts with one database, which goes back to a backup."""

    def __init__(self, server: PostgresServer, template: str, home: Path, patching: pytest.MonkeyPatch) -> None:
        self.server, self.home, self._patching = server, home, patching
        self.name = server.new_database(template)
        for host in HOSTS:
            (home / host).mkdir(mode=0o700)

    def host(self, name: str) -> DatabaseLocation:
        return postgres_location(self.server.url(self.name), self.home / name)

    def at(self, name: str) -> DatabaseLocation:
        """Return the place of a host, and let this process be on it from now on."""
        self._patching.setattr("socket.gethostname", lambda: name)
        return self.host(name)

    def opens(self, name: str) -> PostgresJournal:
        return open_postgres(self.at(name))

    def query(self, text: str) -> list[tuple[object, ...]]:
        return execute_as_owner(self.host(SOUTH), text)

    def states(self, name: str = SOUTH) -> list[State]:
        with closing(read_postgres(self.host(name))) as journal:
            return [row.state for row in journal.rows(1)]

    def backup(self) -> str:
        return self.server.new_database(self.name)

    def restore(self, backup: str) -> None:
        self.server.drop_database(self.name)
        self.server.execute(f"ALTER DATABASE {backup} RENAME TO {self.name}")

    def disconnect(self) -> None:
        """End all connections to the database, and allow no others."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false".encode())
            ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(ended.encode(), (self.name,))

    def replace(self) -> None:
        self.disconnect()
        self.restore(self.backup())


def standby_of(primary: PostgresServer) -> AbstractContextManager[PostgresServer]:
    copied = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "paygw", "-X", "stream", "-R", "-c", "fast"]

    def copy(home: Path) -> PostgresServer:
        if os.geteuid() == 0:
            shutil.chown(home, "nobody")
        backup = [*as_unprivileged_user(), str(BIN / "pg_basebackup"), "-D", str(home / "data"), "--no-sync", *copied]
        environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
        subprocess.run(backup, env=environ, stdin=subprocess.DEVNULL, cwd="/", check=True)
        standby = PostgresServer(home, free_port())
        standby.start()
        return standby

    return new_server(copy)


def either_server_url(first: PostgresServer, second: PostgresServer) -> str:
    """Return the URL that names two servers: the writable one is used."""
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    return f"postgresql://paygw@{hosts}/postgres?target_session_attrs=read-write"


def until(server: PostgresServer, query: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        wait_until(lambda: connection.execute(query.encode()).fetchall() == [(True,)], query)


def wait_until_caught_up(primary: PostgresServer) -> None:
    until(primary, "SELECT bool_or(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication")


def wait_for_standby(server: PostgresServer, names: str) -> None:
    """Let every commit wait for a standby of these names, or for none."""
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    server.execute("SELECT pg_reload_conf()")
    until(server, f"SELECT current_setting('synchronous_standby_names') = '{names}'")


def block_commits(server: PostgresServer) -> None:
    """Let every commit wait for a missing standby. Return when they do: the checkpointer reads settings late."""
    wait_for_standby(server, "ghost")
    give_up_s = time.monotonic() + PATIENCE_S
    with psycopg.connect(server.url(), autocommit=True) as one, psycopg.connect(server.url(), autocommit=True) as other:
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        while True:
            commit = threading.Thread(target=one.execute, args=("SELECT pg_logical_emit_message(true, '', '')",))
            commit.start()
            while commit.is_alive():
                assert time.monotonic() < give_up_s
                if other.execute(cancel, (one.info.backend_pid,)).fetchall():
                    commit.join()
                    return
                time.sleep(0.01)
