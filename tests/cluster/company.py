"""Two hosts that share a journal in PostgreSQL, and the judge, who reads the gateway's record and the tables."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import psycopg

from paygw_batch.sandbox.record import RecordLine
from tests.campaign.judge import Broken, orders_of
from tests.campaign.machine import GatewayProcess, Machine, Spawner
from tests.journal.wire_proxy import WireProxy

HOSTS = ("north", "south")
WINDOW = 4
LEASE_S = 5
_INTENDED = "SELECT details FROM fact WHERE kind = 'intended' AND contradicts IS NULL"
_JOURNAL = re.compile(r"(?m)^path = .*\n(?: *#.*\n)?")


class Company:
    """Two hosts, each with files of its own, each behind a network of its own."""

    def __init__(
        self, home: Path, spawner: Spawner, at: GatewayProcess, url: str, prefix: str, ports: Iterable[int]
    ) -> None:
        self.at, self.url = at, url
        self.proxies = {host: [WireProxy(port) for port in ports] for host in HOSTS}
        self.hosts: dict[str, Machine] = {}
        for host in HOSTS:
            through = url
            for proxy in self.proxies[host]:
                through = proxy.url(through)
            machine = Machine.made(home / host, spawner, at, prefix=prefix, concurrency=WINDOW, has_journal=False)
            config = machine.home / "paygw.toml"
            kept = f'url = "{through}"\nlease_s = {LEASE_S}\nchunk_rows = 10\n'
            text, count = _JOURNAL.subn(kept, config.read_text(), count=1)
            if count != 1:
                raise AssertionError("the configuration has no [journal] path")
            config.write_text(text)
            self.hosts[host] = machine
        first = self.hosts[HOSTS[0]]
        if first.run("journal", "new") != 0:
            raise AssertionError(f"no journal was made: {first.said()}")

    def close(self) -> None:
        """Let go of the network."""
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.close()

    def sheets(self, rows: int, first: int = 0) -> dict[str, Path]:
        """Write the same sheet on both hosts."""
        return {
            host: machine.sheet(rows, name=f"sheet-{first}.csv", first=first) for host, machine in self.hosts.items()
        }

    def orders(self) -> list[RecordLine]:
        """Return the company's orders that reached the gateway; none may be there twice."""
        machine = self.hosts[HOSTS[0]]
        orders = orders_of(machine, self.at.record(machine.since))
        seen: set[str] = set()
        for line in orders:
            if line.client_orderid in seen:
                raise Broken(f"sent twice: {line.client_orderid}")
            seen.add(line.client_orderid)
        return orders

    def judge(self, url: str, *, hurt: int) -> dict[str, int]:
        """Hold the tables to the record, once nothing runs any more; return the rows by state."""
        orders = {line.client_orderid: line for line in self.orders()}
        with psycopg.connect(url, options="-c search_path=paygw") as connection:
            intended = {json.loads(one)["order_id"] for (one,) in connection.execute(_INTENDED.encode()).fetchall()}
            rows = connection.execute("SELECT order_id, state, sent_orderid FROM progress").fetchall()
        if unintended := orders.keys() - intended:
            raise Broken(f"sent without an intent: {sorted(unintended)}")
        states: dict[str, int] = {}
        doubtful = 0
        for order_id, state, _ in rows:
            states[state] = states.get(state, 0) + 1
            line = orders.get(order_id)
            if state in {"paid", "rejected"} and line is None:
                raise Broken(f"{order_id} is {state}, and never arrived")
            if state == "paid" and line is not None and line.committed != "yes":
                raise Broken(f"{order_id} is paid here, and not there")
            if state in {"ready", "in_flight"}:
                raise Broken(f"{order_id} is {state} at the end")
            doubtful += state == "in_doubt" and (line is None or line.answer != "drop_after")
        if doubtful > WINDOW * hurt:
            raise Broken(f"{doubtful} rows are in doubt, and {hurt} processes were hurt")
        if lost := orders.keys() - {order_id for order_id, _, _ in rows}:
            raise Broken(f"arrived, but unknown here: {sorted(lost)}")
        return states
