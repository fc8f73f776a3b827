"""Kills, freezes, lost answers, black holes and crashes of the server, while two hosts pay; then failovers."""

import signal
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event

from tests.campaign.judge import Broken
from tests.campaign.machine import GatewayProcess, Run, Spawner
from tests.cluster.company import HOSTS, LEASE_S, Company
from tests.cluster.standby import both, caught_up, standby_of
from tests.journal.postgres_server import PostgresServer, own_server
from tests.journal.wire_proxy import Trouble

PLANTED = "plants:key_known_to_be_sound"
ENDS = {0, 4, 5, 6, 7, 130}
"""How a run may end by itself: in order, or stopped by the journal."""
MOST_STARTS = 60
PATIENCE_S = 60.0


@dataclass
class Endured:
    """What a campaign came to."""

    batches: int = 0
    orders: int = 0
    kills: int = 0
    freezes: int = 0
    crashes: int = 0
    cuts: int = 0
    failovers: int = 0
    lost_rows: int = 0
    """Rows that had been sent and that the server which took over did not know."""
    in_doubt: int = 0

    @property
    def hurt(self) -> int:
        """How many processes were hurt so far."""
        return self.kills + self.freezes + self.crashes + self.cuts

    def add(self, other: "Endured") -> None:
        """Count another part as well."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def wait_for(company: Company, run: Run, count: int) -> bool:
    """Wait until so many orders have arrived; False where the run ended before."""
    give_up_s = time.monotonic() + PATIENCE_S
    while len(company.orders()) < count:
        if run.wait(0.002) is not None:
            return False
        if time.monotonic() > give_up_s:
            raise Broken(f"nothing arrives any more: {company.hosts[HOSTS[0]].said()} {company.hosts[HOSTS[1]].said()}")
    return run.exit_code is None


def endure(
    home: Path, spawner: Spawner, at: GatewayProcess, server: PostgresServer, seed: int, rows: int, stop: Event
) -> Endured:
    """Pay one batch by two hosts through all that can happen, until it is done; judge all the while."""
    rng, endured = Random(f"cluster/{seed}"), Endured(batches=1)  # noqa: S311 - dice
    name = server.new_database()
    company = Company(home, spawner, at, server.url(name), f"C{seed}", [server.port])
    with closing(company):
        sheets = company.sheets(rows)
        frozen: list[Run] = []
        for _ in range(MOST_STARTS):
            host = rng.choice(HOSTS)
            machine = company.hosts[host]
            run = machine.start("submit", sheets[host], "--wait", "30", planted=PLANTED)
            wanted = min(rows, len(company.orders()) + rng.randrange(1, 40))
            is_cut = not stop.is_set() and wait_for(company, run, wanted)
            if is_cut:
                _strike(company, server, run, host, rng, endured, frozen)
            code = run.wait(0.0) if run in frozen else run.done()
            if code is not None and code not in ENDS | {-signal.SIGKILL}:
                raise Broken(f"seed {seed}: exit code {code}: {machine.said()}")
            for one in frozen:
                if len(company.orders()) > wanted or rng.random() < 0.5:
                    one.send(signal.SIGCONT)
                    one.done()
            frozen = [one for one in frozen if one.exit_code is None]
            if code in {0, 4, 5} and len(company.orders()) >= rows - 16 * endured.hurt:
                break
        else:
            raise Broken(f"seed {seed}: the batch is never done: {company.hosts[HOSTS[0]].said()}")
        for one in frozen:
            one.send(signal.SIGCONT)
            one.done()
        _finish(company, sheets, seed)
        states = company.judge(server.url(name), hurt=endured.hurt)
        endured.orders, endured.in_doubt = len(company.orders()), states.get("in_doubt", 0)
        if sum(states.values()) != rows:
            raise Broken(f"seed {seed}: {states} of {rows} rows")
    server.drop_database(name)
    return endured


def _strike(
    company: Company, server: PostgresServer, run: Run, host: str, rng: Random, endured: Endured, frozen: list[Run]
) -> None:
    """Let one thing happen to a run that is sending."""
    dice = rng.random()
    if dice < 0.5:
        run.send(signal.SIGKILL)
        endured.kills += 1
    elif dice < 0.62:
        run.send(signal.SIGSTOP)
        endured.freezes += 1
        frozen.append(run)
        time.sleep(LEASE_S + 0.5)  # what is tested is that time passes
    elif dice < 0.75:
        server.stop("immediate")
        server.start()
        endured.crashes += 1
    else:
        trouble = rng.choice([Trouble.LOSE_ANSWER, Trouble.LOSE_REQUEST, Trouble.LOSE_ANSWER, Trouble.SILENCE])
        company.proxies[host][0].trouble = trouble
        endured.cuts += 1


def _finish(company: Company, sheets: dict[str, Path], seed: int) -> None:
    """Pay what is left, and verify the journal on both hosts."""
    for proxies in company.proxies.values():
        for proxy in proxies:
            proxy.trouble = Trouble.NONE
    for host, machine in company.hosts.items():
        code = machine.run("submit", sheets[host], "--wait", "30", planted=PLANTED)
        if code not in {0, 4, 5}:
            raise Broken(f"seed {seed}: the last run on {host} ends with {code}: {machine.said()}")
        if machine.run("verify") not in {0, 5}:
            raise Broken(f"seed {seed}: the journal is not sound: {machine.said()}")


def fail_over(home: Path, spawner: Spawner, at: GatewayProcess, seed: int, rows: int) -> Endured:
    """Let a standby take over that lags, or does not, while north sends; then nobody may send what was sent."""
    rng, endured = Random(f"failover/{seed}"), Endured(failovers=1, batches=1)  # noqa: S311 - dice
    is_lagging, is_killed = rng.random() < 0.6, rng.random() < 0.5
    with own_server() as primary, standby_of(primary) as standby:
        ports = [primary.port, standby.port]
        company = Company(home, spawner, at, both(primary, standby), f"F{seed}", ports)
        with closing(company):
            sheets, (north, south) = company.sheets(rows), (company.hosts[host] for host in HOSTS)
            if south.run("journal", "roll-call") != 0:
                raise Broken(f"seed {seed}: {south.said()}")
            run = north.start("submit", sheets["north"], planted=PLANTED)
            wait_for(company, run, rng.randrange(1, rows // 2))
            if is_lagging:
                caught_up(primary)
                standby.stop("fast")
                wait_for(company, run, min(rows, len(company.orders()) + rng.randrange(1, rows // 2)))
            if is_killed:
                run.send(signal.SIGKILL)
            endured.kills += is_killed
            primary.stop("immediate")
            if is_lagging:
                standby.start()
            standby.control("promote")
            if run.wait(90.0) is None:
                raise Broken(f"seed {seed}: the run on north hangs")
            _after(company, sheets, standby, seed, endured)
    return endured


def _after(
    company: Company, sheets: dict[str, Path], standby: PostgresServer, seed: int, endured: Endured
) -> None:
    """Run on both hosts after a failover: either everything is there and they go on, or nobody sends."""
    north, south = (company.hosts[host] for host in HOSTS)
    before = {line.client_orderid for line in company.orders()}
    ready = _ready_rows(standby)
    endured.lost_rows = len(before & ready)
    first = south.run("submit", sheets["south"], planted=PLANTED)
    code = north.run("submit", sheets["north"], planted=PLANTED)
    if before & ready:
        if (first, code) != (7, 7) or len(company.orders()) != len(before):
            raise Broken(f"seed {seed}: {endured.lost_rows} rows are lost, and the runs end with {first} and {code}")
        if south.run("journal", "retire", _host_id(north), "--yes", "--by", "amina") != 0:
            raise Broken(f"seed {seed}: north cannot be retired: {south.said()}")
        code = south.run("submit", sheets["south"], planted=PLANTED)
        if len(company.orders()) != len(before):
            raise Broken(f"seed {seed}: something was sent after north was retired")
    else:
        code = south.run("submit", sheets["south"], planted=PLANTED)
    if code not in {0, 4, 5}:
        raise Broken(f"seed {seed}: the last run ends with {code}: {north.said()} {south.said()}")
    company.orders()
    if ready - before and not before & ready and _ready_rows(standby):
        raise Broken(f"seed {seed}: rows are left")
    if south.run("verify") not in {0, 5}:
        raise Broken(f"seed {seed}: the journal is not sound: {south.said()}")
    endured.orders = len(company.orders())


def _ready_rows(server: PostgresServer) -> set[str]:
    import psycopg  # noqa: PLC0415

    with psycopg.connect(server.url()) as connection:
        found = connection.execute("SELECT order_id FROM paygw.progress WHERE state = 'ready'").fetchall()
    return {order_id for (order_id,) in found}


def _host_id(machine: object) -> str:
    (path,) = machine.home.rglob("*.pg-host")  # type: ignore[attr-defined]
    return path.read_text()
