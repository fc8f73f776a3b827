"""Hosts that share a journal in PostgreSQL, and the judge, who reads the sheet, the gateway's record and the tables."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.postgres.session import Server
from paygw_batch.sandbox.compare import compare, read_reconciliation
from paygw_batch.sandbox.record import RecordLine
from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner, whole_lines
from tests.support.postgres_rows import open_postgres, postgres_place
from tests.support.postgres_server import PostgresServer
from tests.support.wire_proxy import WireProxy

HOSTS = ("north", "south")
WINDOW = 4
INTENT_LIVES_S = 5
PRELOADED: tuple[str, ...] = ("psycopg", "paygw_batch.cluster.work_command", "paygw_batch.cluster.database_place")
"""The modules that a process imports if its journal is in PostgreSQL."""
_INTENDED = """SELECT f.order_id FROM fact f
    WHERE f.kind = 'intended' AND NOT EXISTS (SELECT FROM contradiction c WHERE c.fact = f.number)"""
_ROWS = """SELECT coalesce(s.order_id, i.client_orderid), s.state, f.process
    FROM state s JOIN instruction i ON i.number = s.instruction
    LEFT JOIN fact f ON s.state = 'in_doubt' AND f.number = s.intent"""
_JOURNAL = re.compile(r"(?m)^path = .*\n(?: *#.*\n)?")


class Company:
    """Hosts, each with its own files and behind its own network."""

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
            through = url
            for proxy in self.proxies[host]:
                through = proxy.url(through)
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
        """Close the network."""
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.close()

    def sheets(self, rows: int, first: int = 0) -> dict[str, Path]:
        """Write the same sheet on all hosts."""
        return {
            host: machine.sheet(rows, name=f"sheet-{first}.csv", first=first) for host, machine in self.hosts.items()
        }

    def orders(self) -> Mapping[str, RecordLine]:
        """Return the company's orders at the gateway by id. None may be there twice.

        Only new parts of the record are read.
        """
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
        """Return the latest output of the programs on all hosts."""
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


def host(home: Path, name: str, url: str, **more: object) -> DatabasePlace:
    (home / name).mkdir(mode=0o700, exist_ok=True)
    server = Server(url, commit_limit_s=60.0, **more)  # type: ignore[arg-type]  # figures of a test
    return replace(postgres_place(url, home / name), server=server)


NORTH, SOUTH = "north", "south"


class SplitCompany:
    """Two hosts that share a database, each with its own files."""

    def __init__(self, server: PostgresServer, template: str, home: Path) -> None:
        self.server, self.home = server, home
        self.name = server.new_database(template)
        for host in (NORTH, SOUTH):
            (home / host).mkdir(mode=0o700)

    def host(self, name: str) -> DatabasePlace:
        return postgres_place(self.server.url(self.name), self.home / name)

    def opens(self, monkeypatch: pytest.MonkeyPatch, name: str) -> PostgresJournal:
        monkeypatch.setattr("socket.gethostname", lambda: name)
        return open_postgres(self.host(name))

    def backup(self) -> str:
        return self.server.new_database(self.name)

    def restore(self, backup: str) -> None:
        self.server.drop_database(self.name)
        self.server.execute(f"ALTER DATABASE {backup} RENAME TO {self.name}")

    def replace(self) -> None:
        """Replace the database with a copy of itself while others are connected."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false".encode())
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(ended.encode(), (self.name,))
        self.restore(self.backup())
