"""Kills, freezes, lost answers, black holes and server crashes while two hosts pay; then failovers."""

import signal
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg

from paygw_batch.journal.postgres.hosts import public_id
from tests.promise.campaign.judge import Broken
from tests.promise.campaign.kills import SLOW
from tests.promise.campaign.machine import GatewayProcess, Run, Spawner
from tests.promise.cluster.company import HOSTS, WINDOW, Company, either_server_url, standby_of, wait_until_caught_up
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import PostgresServer, new_server
from tests.support.wire_proxy import ProxyFault

PLANTED = "plants:key_known_to_be_sound"
ENDS = {0, 4, 5, 6, 7, 130}  # the ways in which a run may end by itself: in order, or stopped by the journal
MAX_STARTS = 200
CUTS = (ProxyFault.LOSE_ANSWER, ProxyFault.LOSE_REQUEST, ProxyFault.DELAY, ProxyFault.SILENCE)
SLOWLY = SLOW.replace("0.03", "0.1")


class OrdealTally(Counter[str]):
    """The totals of a campaign. Workers that are drained and job tables that are emptied are not hurt.

    `lost_rows` are sent rows that the server lacked after its takeover, `never_left` those in doubt after it that never
    reached the gateway. `accepted` counts the failovers after which the living host reported its rows.
    """

    @property
    def hurt(self) -> int:
        return sum(self[what] for what in ("kills", "freezes", "crashes", "cuts"))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a campaign's part, and the number of its mishaps."""

    rows: int
    strikes: int = 10  # the approximate number of mishaps in a batch
    kills: float = 0.35  # their share of the mishaps
    freezes: float = 0.10
    crashes: float = 0.20
    drains: float = 0.10
    empties: float = 0.10
    dropped: int = 0  # the number of rows in the sheet that the workers' timetable picks up
    window: int = WINDOW
    workers: int = 3


RELEASE = Size(5_000, 24, kills=0.50, freezes=0.17, crashes=0.06, drains=0.08, empties=0.08, dropped=60, window=32)


def signed(seed: int) -> str:
    """Return the plant of a batch: one of four signs in separate processes, as long runs do."""
    return "plants:signed_in_threads" if seed % 4 else "plants:signed_in_processes"


def wait_for(company: Company, run: Run, count: int) -> bool:
    """Wait for this number of orders. Return False if the run ended before."""
    give_up_s = time.monotonic() + PATIENCE_S
    while len(company.orders()) < count:
        if run.wait(0.01) is not None:
            return False
        if time.monotonic() > give_up_s:
            run.send(signal.SIGUSR1)  # it writes its stack (see `spawner.py`)
            time.sleep(1)
            raise Broken(f"nothing arrives any more: {company.said()}")
    return run.exit_code is None


@dataclass
class Ordeal:
    company: Company
    server: PostgresServer
    rng: Random
    size: Size
    endured: OrdealTally
    sheets: dict[str, Path]
    planted: str = PLANTED
    trail: list[str] = field(default_factory=list)
    next_strike: int = 0

    @property
    def rows(self) -> int:
        return self.size.rows

    def soon(self) -> int:
        """Return the number of orders after which the next mishap happens, at least one more.

        It counts on from the last such number: where orders came meanwhile, it is sooner. Where all have arrived,
        nothing more happens.
        """
        self.next_strike += self.rng.randrange(1, max(12, 2 * self.size.rows // self.size.strikes))
        return max(len(self.company.orders()) + 1, self.next_strike)

    def crash(self) -> None:
        self.server.stop("immediate")
        self.server.start()
        self.endured["crashes"] += 1

    def cut(self, host: str) -> None:
        self.company.proxies[host][0].trouble = trouble = self.rng.choice(CUTS)
        self.trail.append(f"{host} {trouble.value}")
        self.endured["cuts"] += 1

    def noted(self, run: Run, host: str) -> float:
        dice = self.rng.random()
        self.trail.append(f"{host} {run.pid} {len(self.company.orders())} orders, {dice:.2f}")
        return dice

    def check(self, run: Run, host: str) -> None:
        if run.done(600.0) == -signal.SIGTERM:
            self.endured["lost_signals"] += 1
        elif run.exit_code not in ENDS | {-signal.SIGKILL}:
            raise Broken(f"exit code {run.exit_code}: {self.company.hosts[host].said()}")

    def judged(self, url: str) -> None:
        states = self.company.judge(url, hurt=self.endured.hurt)
        self.endured["orders"], self.endured["in_doubt"] = len(self.company.orders()), states.get("in_doubt", 0)
        if sum(states.values()) != self.rows:
            raise Broken(f"{states} of {self.rows} rows")

    def verify(self, host: str) -> None:
        if self.company.hosts[host].run("verify") not in {0, 5}:
            raise Broken(f"the journal is not sound: {self.company.hosts[host].said()}")


@dataclass
class _TwoHosts(Ordeal):
    """Two hosts send one batch in turn, by `submit` and `resume`."""

    def start(self, host: str, *, has_batch: bool = False) -> Run:
        words = ("resume",) if has_batch and self.rng.random() < 0.8 else ("submit", self.sheets[host])
        return self.company.hosts[host].start(*words, "--wait", planted=self.planted)

    def strike(self, run: Run, host: str) -> tuple[Run, str] | None:
        """Let one mishap happen to a sending run. Return the run that continues, and its host."""
        dice, size = self.noted(run, host), self.size
        if dice < size.kills:
            run.send(signal.SIGKILL)
            self.endured["kills"] += 1
            self.check(run, host)
            return None
        if dice < size.kills + size.freezes:
            return self.freeze(run, host)
        if dice < size.kills + size.freezes + size.crashes:
            self.crash()
        else:
            self.cut(host)
        return run, host

    def freeze(self, run: Run, host: str) -> tuple[Run, str]:
        """Freeze a run until the other host sends. Return the run that took over."""
        run.send(signal.SIGSTOP)
        other = HOSTS[1 - HOSTS.index(host)]
        taker = self.start(other, has_batch=True)
        if wait_for(self.company, taker, self.soon()) and self.rng.random() < 0.5:
            taker.send(signal.SIGKILL)
            self.endured["kills"] += 1
        run.send(signal.SIGCONT)
        self.endured["freezes"] += 1
        self.check(run, host)
        return taker, other

    def send(self) -> None:
        """Send the batch by one host after the other, until it is done."""
        for _ in range(MAX_STARTS):
            host = self.rng.choice(HOSTS)
            sending: tuple[Run, str] | None = (self.start(host, has_batch=bool(self.company.orders())), host)
            while sending is not None:
                run, host = sending
                if not wait_for(self.company, run, self.soon()):
                    self.check(run, host)
                    if run.exit_code in {0, 4, 5}:
                        return
                    break
                sending = self.strike(run, host)
        raise Broken(f"the batch is never done: {self.company.said()}")

    def finish(self) -> None:
        for host, machine in self.company.hosts.items():
            self.company.proxies[host][0].trouble = ProxyFault.NONE
            code = self.start(host).done()
            if code not in {0, 4, 5}:
                raise Broken(f"the last run on {host} ends with {code}: {machine.said()}")
            self.verify(host)


def play_ordeal(
    home: Path, spawner: Spawner, at: GatewayProcess, server: PostgresServer, seed: int, size: Size
) -> OrdealTally:
    rng, endured = Random(f"cluster/{seed}"), OrdealTally(batches=1)  # noqa: S311 - dice
    name = server.new_database()
    company = Company(*(home, spawner, at, server.url(name), f"C{seed}", [server.port]), window=size.window)
    ordeal = _TwoHosts(company, server, rng, size, endured, company.sheets(size.rows), signed(seed))
    with closing(company):
        ordeal.send()
        ordeal.finish()
        ordeal.judged(server.url(name))
    server.drop_database(name)
    return endured


def play_failover(home: Path, spawner: Spawner, at: GatewayProcess, seed: int, rows: int) -> OrdealTally:
    """Let a standby take over while north sends. Nobody may resend: north reports lost rows, or south retires it."""
    rng, endured = Random(f"failover/{seed}"), OrdealTally(failovers=1, batches=1)  # noqa: S311 - dice
    is_lagging, is_killed, is_gone = rng.random() < 0.6, rng.random() < 0.5, rng.random() < 0.25
    is_killed |= is_gone  # a host that sees the takeover sends a heartbeat, so it is not retired
    with new_server() as primary, standby_of(primary) as standby:
        ports = [primary.port, standby.port]
        url = either_server_url(primary, standby)
        company = Company(home, spawner, at, url, f"F{seed}", ports, replication="asynchronous")
        with closing(company):
            sheets, (north, south) = company.sheets(rows), (company.hosts[host] for host in HOSTS)
            if south.run("journal", "roll-call") != 0:
                raise Broken(f"{south.said()}")
            run = north.start("submit", sheets["north"], planted=PLANTED)
            wait_for(company, run, rng.randrange(1, rows // 2))
            if is_lagging:
                wait_until_caught_up(primary)
                standby.stop("fast")
                wait_for(company, run, min(rows, len(company.orders()) + rng.randrange(1, rows // 2)))
            if is_killed:
                run.send(signal.SIGKILL)
            endured["kills"] += is_killed
            primary.stop("immediate")
            if is_lagging:
                standby.start()
            standby.control("promote")
            if run.wait(PATIENCE_S) is None:
                raise Broken("the run on north hangs")
            _run_after_failover(company, sheets, standby, endured, is_gone=is_gone)
    return endured


def _run_after_failover(
    company: Company, sheets: dict[str, Path], standby: PostgresServer, endured: OrdealTally, *, is_gone: bool
) -> None:
    """Run on both hosts after a failover. Either nothing is lost and they continue, or nobody sends."""
    north, south = (company.hosts[host] for host in HOSTS)
    before = set(company.orders())
    ready = _rows_in_state(standby, "ready")
    endured["lost_rows"] = len(before & ready)
    first = south.run("submit", sheets["south"], planted=PLANTED)
    code = 7 if is_gone and before & ready else north.run("submit", sheets["north"], planted=PLANTED)
    if before & ready:
        if (first, code) != (7, 7) or len(company.orders()) != len(before):
            raise Broken(f"{endured['lost_rows']} rows are lost, and the runs end with {first} and {code}")
        code = _repair_loss(company, sheets, standby, endured, is_gone=is_gone)
    else:
        code = south.run("submit", sheets["south"], planted=PLANTED)
    if code not in {0, 4, 5}:
        raise Broken(f"the last run ends with {code}: {north.said()} {south.said()}")
    company.orders()
    if _rows_in_state(standby, "ready"):
        raise Broken("rows are left")
    if south.run("verify") not in {0, 5}:
        raise Broken(f"the journal is not sound: {south.said()}")
    endured["orders"] = len(company.orders())


def _repair_loss(
    company: Company, sheets: dict[str, Path], standby: PostgresServer, endured: OrdealTally, *, is_gone: bool
) -> int:
    """Repair a failover that lost sent rows, and judge. Return the exit code of the next run."""
    north, south = (company.hosts[host] for host in HOSTS)
    before = set(company.orders())
    (path,) = north.home.rglob("journals/*/host")
    code = south.run("journal", "retire", public_id(path.read_text()), "--yes", "--by", "amina")
    if code != (0 if is_gone else 2):  # a host that lives is not retired
        raise Broken(f"retiring north ends with {code}: {south.said()}")
    if not is_gone and north.run("journal", "roll-call", "--accept-loss", "--yes", "--by", "amina") != 0:
        raise Broken(f"accepting the loss fails: {north.said()}")
    doubtful = _rows_in_state(standby, "in_doubt")
    if lost := before & _rows_in_state(standby, "ready"):
        raise Broken(f"sent, and ready again: {sorted(lost)}")
    endured["in_doubt"] += len(doubtful)
    if not is_gone:
        endured["accepted"] += 1
        endured["never_left"] += len(doubtful - before)
        # A killed process had intents for rows that were about to be sent.
        if len(doubtful - before) > company.window * endured["kills"]:
            raise Broken(f"in doubt, and never left: {sorted(doubtful - before)}")
    code = south.run("submit", sheets["south"], planted=PLANTED)
    if is_gone and len(company.orders()) != len(before):
        raise Broken("something was sent after north was retired")
    return code


def _rows_in_state(server: PostgresServer, state: str) -> set[str]:
    query = """SELECT coalesce(s.order_id, i.client_orderid)
        FROM paygw.state s JOIN paygw.instruction i ON i.number = s.instruction WHERE s.state = %s"""
    with psycopg.connect(server.url()) as connection:
        return {order_id for (order_id,) in connection.execute(query, (state,))}
