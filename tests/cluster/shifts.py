"""Several workers send a batch while they are killed, frozen, cut off and drained, and the server crashes."""

import signal
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event

import psycopg

from tests.campaign.judge import Broken
from tests.campaign.machine import GatewayProcess, Run, Spawner
from tests.cluster.company import LEASE_S, Company
from tests.cluster.trouble import Endured, Ordeal, Size, signed
from tests.journal.postgres_server import PostgresServer
from tests.journal.wire_proxy import Trouble
from tests.patience import PATIENCE_S

DESK = "desk"
FROZEN_S = LEASE_S * 1.3
TURN_S = 0.02
LOOK_EVERY_S = 0.2
HANDED_OVER = {0, 4, 5}
KILLED_OPENINGS = 0.3
_LEFT = """SELECT EXISTS (SELECT FROM paygw.run WHERE ended_at IS NULL),
    (SELECT count(*) FROM paygw.progress WHERE state IN ('ready', 'in_flight'))"""


@dataclass
class _Shift(Ordeal):
    """One batch that workers send. Each is started again when it ends, as a service is."""

    workers: dict[str, Run] = field(default_factory=dict)
    frozen_until_s: dict[str, float] = field(default_factory=dict)
    is_over: bool = False

    def hand_over(self) -> None:
        """Open the batch and hand it over, by a command that is killed now and then."""
        desk = self.company.hosts[DESK]
        while True:
            run = desk.start("submit", self.sheets[DESK], "--detach", "--wait", planted=self.planted)
            is_killed = self.rng.random() < KILLED_OPENINGS and not self.stop.is_set()
            if is_killed and run.wait(self.rng.uniform(0.0, 1.0)) is None:
                run.send(signal.SIGKILL)
                self.endured.kills += 1
            self.check(run, DESK)
            if run.exit_code in HANDED_OVER:
                return

    def man(self) -> None:
        """Start the workers that are not there, and let those go on that were frozen long enough."""
        for host in self.company.hosts.keys() - {DESK}:
            if (until_s := self.frozen_until_s.get(host)) is not None:
                if time.monotonic() > until_s:
                    self.thaw(host)
                continue
            run = self.workers.get(host)
            if run is not None and run.wait(0) is None:
                continue
            if run is not None:
                self.check(run, host)
            self.workers[host] = self.company.hosts[host].start("work", planted=self.planted)

    def thaw(self, host: str) -> None:
        """Let a frozen worker go on: what it had was taken over meanwhile."""
        self.workers[host].send(signal.SIGCONT)
        del self.frozen_until_s[host]

    def strike(self) -> None:
        """Let one thing happen to a worker, or to the server of all of them."""
        host = self.rng.choice(sorted(self.workers))
        run, size = self.workers[host], self.size
        dice = self.noted(run, host)
        for share, blow in (
            (size.kills, self.kill),
            (size.freezes, self.freeze),
            (size.crashes, lambda _: self.crash()),
            (size.drains, self.drain),
            (1.0, self.cut),
        ):
            if dice < share:
                blow(host)
                return
            dice -= share

    def kill(self, host: str) -> None:
        """Kill a worker, a frozen one too."""
        self.workers[host].send(signal.SIGKILL)
        self.frozen_until_s.pop(host, None)
        self.endured.kills += 1

    def freeze(self, host: str) -> None:
        """Freeze a worker for longer than its lease, while the others go on."""
        if host not in self.frozen_until_s:
            self.workers[host].send(signal.SIGSTOP)
            self.frozen_until_s[host] = time.monotonic() + FROZEN_S
            self.endured.freezes += 1

    def drain(self, host: str) -> None:
        """Ask a worker to end: it waits for what it has in flight."""
        if host not in self.frozen_until_s:
            self.workers[host].send(signal.SIGTERM)
            self.endured.drains += 1

    def send(self, url: str) -> None:
        """Let the workers send until nothing is left, and hand over again what a stop has left."""
        self.hand_over()
        struck, arrived, arrived_s, looked_s = self.soon(), 0, time.monotonic(), 0.0
        while True:
            self.man()
            now_s, count = time.monotonic(), len(self.company.orders())
            if count > arrived:
                arrived, arrived_s = count, now_s
            if count >= struck and not self.stop.is_set():
                self.strike()
                struck = self.soon()
            if now_s > looked_s + LOOK_EVERY_S:
                looked_s = now_s
                is_on, left = self.left(url)
                if not is_on and not left:
                    return
                if not is_on and not self.frozen_until_s:
                    self.hand_over()
            if now_s > arrived_s + PATIENCE_S:
                raise Broken(f"nothing arrives any more, {self.left(url)}: {self.company.said()}")
            time.sleep(TURN_S)

    def left(self, url: str) -> tuple[bool, int]:
        """Return whether a run is on, and how many rows are to be sent, or on their way."""
        with psycopg.connect(url, autocommit=True) as connection:
            ((is_on, left),) = connection.execute(_LEFT.encode()).fetchall()
        return is_on, left

    def finish(self) -> None:
        """Let every worker end in order, and hold the reconciliation to sheet and record."""
        for host in sorted(self.workers):
            self.company.proxies[host][0].trouble = Trouble.NONE
            if (until_s := self.frozen_until_s.get(host)) is not None:
                time.sleep(max(0.0, until_s - time.monotonic()))
                self.thaw(host)
            self.workers[host].send(signal.SIGTERM)
        for host, run in self.workers.items():
            self.check(run, host)
        desk = self.company.hosts[DESK]
        code = desk.run("submit", self.sheets[DESK], planted=self.planted)
        if code not in HANDED_OVER:
            raise Broken(f"the last `submit` ends with {code}: {desk.said()}")
        sheet = self.sheets[DESK]
        self.company.judge_reconciliation(sheet.with_name(f"{sheet.stem}.reconciliation.csv"), self.size.rows)
        self.verify(DESK)


def work_through(
    home: Path,
    spawner: Spawner,
    at: GatewayProcess,
    server: PostgresServer,
    seed: int,
    size: Size,
    stop: Event,
    planted: str | None = None,
) -> Endured:
    """Let several workers send one batch through all that can happen, until it is done; judge all the while."""
    rng, endured = Random(f"shift/{seed}"), Endured(batches=1, shared=1)  # noqa: S311 - dice
    name = server.new_database()
    names = (DESK, *(f"host-{number}" for number in range(1, size.workers + 1)))
    company = Company(
        *(home, spawner, at, server.url(name), f"W{seed}", [server.port], names),
        window=size.window,
        chunk_rows=size.chunk_rows,
    )
    shift = _Shift(company, server, rng, size, endured, company.sheets(size.rows), stop, planted or signed(seed))
    with closing(company):
        try:
            shift.send(server.url(name))
            shift.finish()
        finally:
            for run in shift.workers.values():
                run.send(signal.SIGKILL)
                run.wait()
        shift.judged(server.url(name))
    server.drop_database(name)
    return endured
