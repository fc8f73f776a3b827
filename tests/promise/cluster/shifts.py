"""Workers are killed, frozen, cut off and drained, their queue is emptied, and the server crashes."""

import os
import signal
import time
from bisect import bisect
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random

import psycopg

from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import GatewayProcess, Run, Spawner, children_of
from tests.promise.cluster.company import INTENT_LIVES_S, Company
from tests.promise.cluster.trouble import ENDS, Ordeal, OrdealTally, Size, signed
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import PostgresServer
from tests.support.wire_proxy import ProxyFault

DESK = "desk"
HANDED_OVER = {0, 4, 5}
DROPPED = "dropped.csv"
TIMETABLE = """
[timetable]
time_zone = "UTC"
verify = "*/2 * * * *"

[[timetable.pick_up]]
folder = "{folder}"
at = "* * * * *"
"""
_TABLES = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'paygw_jobs'"
_SESSIONS = "SELECT pid, state, wait_event, query_start, query FROM pg_stat_activity WHERE datname = current_database()"
_LEFT = """SELECT EXISTS (SELECT FROM paygw.run WHERE ended_at IS NULL),
    (SELECT count(*) FROM paygw.state WHERE state IN ('ready', 'in_flight'))"""


@dataclass
class _Shift(Ordeal):
    """One batch that workers send. Each is restarted when it ends, as a service is."""

    workers: dict[str, Run] = field(default_factory=dict)
    frozen_until_s: dict[str, float] = field(default_factory=dict)
    is_over: bool = False
    url: str = ""

    @property
    def rows(self) -> int:
        return self.size.rows + self.size.dropped

    @property
    def folder(self) -> Path:
        return self.company.hosts[DESK].home.parent / "drop"

    def drop(self) -> None:
        self.folder.mkdir(mode=0o700)
        for host in self.company.hosts.keys() - {DESK}:
            config = self.company.hosts[host].home / "paygw.toml"
            config.write_text(config.read_text() + TIMETABLE.format(folder=self.folder))
        sheet = self.company.hosts[DESK].sheet(self.size.dropped, name=DROPPED, first=self.size.rows)
        os.utime(sheet, (1, 1))  # nobody writes to it now
        sheet.rename(self.folder / DROPPED)

    def is_picked_up(self) -> bool:
        is_done = any(self.folder.glob(f"done/*-{DROPPED}")) and not any(self.folder.glob("working-*/*"))
        return is_done or not self.size.dropped

    def empty(self, _host: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = ", ".join(name for (name,) in connection.execute(_TABLES.encode()))
            try:
                connection.execute(f"TRUNCATE {tables}".encode())
            except psycopg.errors.DeadlockDetected:
                return
        self.endured["emptied"] += 1

    def hand_over(self) -> None:
        """Open the batch and hand it over, with a command that is sometimes killed."""
        desk = self.company.hosts[DESK]
        while True:
            run = desk.start("submit", self.sheets[DESK], "--detach", "--wait", planted=self.planted)
            if self.rng.random() < 0.3 and run.wait(self.rng.uniform(0.0, 1.0)) is None:
                run.send(signal.SIGKILL)
                self.endured["kills"] += 1
            self.check(run, DESK)
            if run.exit_code in HANDED_OVER:
                return

    def restart_workers(self) -> None:
        for host in self.company.hosts.keys() - {DESK}:
            if (until_s := self.frozen_until_s.get(host)) is not None:
                if time.monotonic() > until_s:
                    self.thaw(host)
                continue
            if (run := self.workers.get(host)) is not None:
                if run.wait(0) is None:
                    continue
                self.check(run, host)
            self.workers[host] = self.company.hosts[host].start("work", planted=self.planted)

    def thaw(self, host: str) -> None:
        self.workers[host].send(signal.SIGCONT)
        del self.frozen_until_s[host]

    def strike(self) -> None:
        host = self.rng.choice(sorted(self.workers))
        run, size = self.workers[host], self.size
        shares = size.kills, size.freezes, size.crashes, size.drains, size.empties
        blows = [self.kill, self.freeze, lambda _: self.crash(), self.drain, self.empty, self.cut]
        blow = bisect(list(accumulate(shares)), self.noted(run, host))
        blows[blow](host)

    def kill(self, host: str) -> None:
        # Half of the killed workers lose the commands of their timetable too, as on a host.
        children = children_of(self.workers[host].pid) if self.rng.random() < 0.5 else []
        self.workers[host].send(signal.SIGKILL)
        self.frozen_until_s.pop(host, None)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.endured["kills"] += 1 + len(children)

    def freeze(self, host: str) -> None:
        """Freeze a worker for longer than its intents live, while the others continue."""
        if host not in self.frozen_until_s:
            self.workers[host].send(signal.SIGSTOP)
            self.frozen_until_s[host] = time.monotonic() + INTENT_LIVES_S * 1.3
            self.endured["freezes"] += 1

    def drain(self, host: str) -> None:
        """Ask a worker to end. It waits for its rows in flight."""
        if host not in self.frozen_until_s:
            self.workers[host].send(signal.SIGTERM)
            self.endured["drains"] += 1

    def send(self) -> None:
        """Let the workers send until nothing remains, handing over again after a stop."""
        self.hand_over()
        struck, arrived, arrived_s, looked_s = self.soon(), 0, time.monotonic(), 0.0
        while True:
            self.restart_workers()
            now_s, count = time.monotonic(), len(self.company.orders())
            if count > arrived:
                arrived, arrived_s = count, now_s
            if count >= struck:
                self.strike()
                struck = self.soon()
            if now_s > looked_s + 0.2:
                looked_s = now_s
                is_on, left = self.left()
                if not is_on and not left and self.is_picked_up():
                    return
                if not is_on and left and not self.frozen_until_s:
                    self.hand_over()
                    looked_s = time.monotonic() + 2.0
            if now_s > arrived_s + 2 * PATIENCE_S:  # a command that failed four times is retried after 81 s
                raise Broken(f"nothing arrives any more, {self.left()}: {self.stuck()}; {self.company.said()}")
            time.sleep(0.02)

    def stuck(self) -> str:
        with psycopg.connect(self.url, autocommit=True) as connection:
            names = [name for (name,) in connection.execute(_TABLES.encode())]
            tables = {name: connection.execute(f"TABLE {name}".encode()).fetchall() for name in names}
            tables["sessions"] = connection.execute(_SESSIONS.encode()).fetchall()
        children = [child for run in self.workers.values() for child in children_of(run.pid)]
        commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
        for run in self.workers.values():
            run.send(signal.SIGUSR1)  # see `spawner.py`
        time.sleep(1.0)
        return f"{tables}, {commands}, {[str(path) for path in self.folder.rglob('*')]}"

    def left(self) -> tuple[bool, int]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            ((is_on, left),) = connection.execute(_LEFT.encode()).fetchall()
        return is_on, left

    def finish(self) -> None:
        """Let every worker end in order, and check the reconciliation."""
        for host in sorted(self.workers):
            self.company.proxies[host][0].trouble = ProxyFault.NONE
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
        if self.size.dropped:
            (found,) = self.folder.glob("done/*-dropped.reconciliation.csv")
            self.company.judge_reconciliation(found, self.size.dropped, first=self.size.rows)
            self.endured["picked_up"] += 1
            with psycopg.connect(self.url) as connection:
                ends = connection.execute(b"SELECT job, exit_code FROM paygw_jobs.paygw_result").fetchall()
            if wrong := [(job, code) for job, code in ends if code >= 0 and code not in ENDS - {6}]:
                raise Broken(f"{wrong}: {self.company.said()}")
        self.verify(DESK)


def play_shift(
    home: Path,
    spawner: Spawner,
    at: GatewayProcess,
    server: PostgresServer,
    seed: int,
    size: Size,
    planted: str | None = None,
) -> OrdealTally:
    """Let workers send one batch through all troubles until it is done, judging throughout."""
    rng, endured = Random(f"shift/{seed}"), OrdealTally(batches=1, shared=1)  # noqa: S311 - dice
    name = server.new_database()
    names = [DESK, *(f"host-{number}" for number in range(1, size.workers + 1))]
    company = Company(*(home, spawner, at, server.url(name), f"W{seed}", [server.port], names), window=size.window)
    shift = _Shift(company, server, rng, size, endured, company.sheets(size.rows), planted or signed(seed))
    shift.url = server.url(name)
    with closing(company):
        try:
            if size.dropped:
                shift.drop()
            shift.send()
            shift.finish()
        finally:
            for run in shift.workers.values():
                run.send(signal.SIGKILL)
                run.wait()
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if process.joinpath("cwd").readlink().is_relative_to(home):
                        os.kill(int(process.name), signal.SIGKILL)
        shift.judged(server.url(name))
    server.drop_database(name)
    return endured
