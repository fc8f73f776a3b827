"""The kills again, with the listener running.

The gateway accepts, and notifies late, twice, out of order and sometimes with a forgery. Both the sending and the
listening program are killed.
"""

import csv
import re
import shutil
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Protocol, Self

from tests.promise.campaign.judge import Broken, judge_end
from tests.promise.campaign.kills import SIGNED_IN_THREADS, SLOW, KillTally, Pace, kill_until_done
from tests.promise.campaign.machine import GatewayProcess, Machine, Run, Spawner
from tests.support.patience import wait_until
from tests.support.ports import free_port

NOTIFYING = (
    SLOW.replace("approved", "processing")
    + """
[[notification]]
order_id = ".*[0-24-9]"
status = "approved"
jitter_s = 0.5
times = 2

[[notification]]
order_id = ".*[0-24-9]"
status = "processing"
jitter_s = 0.5
method = "GET"

[[notification]]
order_id = ".*3"
status = "declined"
jitter_s = 0.2

[[notification]]
order_id = ".*4"
status = "declined"
forged = true
format = "form"
"""
)
SOUND = {0, 4, 5}


def proof_configuration(secret: Path) -> str:
    """Return the configuration of proven notifications, with a new secret file."""
    secret.write_text("a secret of more than enough bytes")
    secret.chmod(0o600)
    return f"""
[notifications]
token_env = "PAYGW_TOKEN"
authenticity = "shared-secret-hash"
hash_algorithm = "hmac-sha256"
hash_fields = ["client_orderid", "amount", "currency", "status"]
hash_separator = ";"
hash_field = "control"
secret_file = "{secret}"
"""


class ListenerRun:
    """Runs a listener next to a machine, killing and restarting it at random instants."""

    def __init__(self, machine: Machine, at: GatewayProcess, rng: Random) -> None:
        self.kills = 0
        self._machine = machine
        self._at = at
        self._rng = rng
        self._port = free_port()
        self._environ = {"PAYGW_TOKEN": "0123456789abcdef" * 2}
        self._spawner = Spawner()  # two threads must not share one
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_on)
        self._set_up()

    def _set_up(self) -> None:
        config = self._machine.home / "paygw.toml"
        url = f'server_callback_url = "http://127.0.0.1:{self._port}/paygw/{{token}}"'
        text = re.sub(r"(?m)^server_callback_url = .*$", url, config.read_text())
        config.write_text(f"{text}\n{proof_configuration(self._at.directory / 'secret.txt')}port = {self._port}\n")
        self._machine.environ.update(self._environ)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._spawner.close()

    def rest(self) -> None:
        """Stop killing and restarting the listener."""
        self._over.set()
        self._thread.join()

    def _start(self) -> Run:
        away = self._machine.with_spawner(self._spawner)
        return away.start("listen", out=str(away.home / "listen.txt"), err=str(away.home / "listen.txt"))

    def _keep_on(self) -> None:
        while not self._over.is_set():
            run = self._start()
            # On a busy machine it would always be killed during its start, and the gateway would give up.
            if self._rng.random() < 0.5:
                self._until_it_listens(run)
            self._over.wait(self._rng.uniform(0.05, 2.5))
            run.send(signal.SIGKILL)
            run.done()
            self.kills += 1

    def judge(self, rows: int, runs: int) -> None:
        """Check that the journal has every notification answered with 200, and that the totals agree."""
        del runs
        run = self._start()
        try:
            wait_until(
                self._is_all_taken_in, lambda: f"heard {self._heard()}, kept {self._kept()}: {self._machine.said()}"
            )
            self._until_it_listens(run)
        finally:
            run.send(signal.SIGTERM)
        if (code := run.done()) != 0:
            raise Broken(f"the listener ended with {code}")
        if self._machine.run("verify") != 0:
            raise Broken(f"the journal is not sound, or holds contradictions: {self._machine.said()}")
        name = "after.reconciliation.csv"
        sheet = self._machine.home / "payroll.csv"
        if self._machine.run("reconcile", sheet, "--out", self._machine.home / name) not in SOUND:
            raise Broken(self._machine.said())
        judge_end(self._machine, self._at, rows, name=name)
        left = [line["client_orderid"] for line in self._machine.reconciliation(name) if line["state"] == "accepted"]
        if left:
            raise Broken(f"notified, and still accepted: {left}")

    def _until_it_listens(self, run: Run) -> None:
        """Wait until the listener works, so that a signal does not hit its start."""
        while run.wait(0.02) is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return

    def _is_all_taken_in(self) -> bool:
        """Return whether the gateway has sent all notifications, and the journal has them."""
        orders = [line.client_orderid for line in self._at.record() if self._is_ours(line.client_orderid)]
        notification_count = sum(1 if order_id[-1] == "3" else 4 if order_id[-1] == "4" else 3 for order_id in orders)
        return self._heard() >= notification_count and self._kept() >= notification_count

    def _heard(self) -> int:
        with (self._at.directory / "sandbox-callbacks.csv").open(newline="") as stream:
            return sum(status == "200" and self._is_ours(order_id) for order_id, _, _, status in csv.reader(stream))

    def _kept(self) -> int:
        with closing(sqlite3.connect(f"file:{self._machine.journal}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM fact WHERE finding IS NOT NULL").fetchone()[0])

    def _is_ours(self, order_id: str) -> bool:
        return order_id.startswith(f"{self._machine.prefix}-")


class CompanionProcess(Protocol):
    """A program that runs next to a machine, and is killed too."""

    kills: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def rest(self) -> None:
        """Stop killing and restarting it."""

    def judge(self, rows: int, runs: int) -> None:
        """Check its results at the end of a batch, in which `runs` runs sent rows."""


def kill_with_companion(
    beside: Callable[[Machine, GatewayProcess, Random], CompanionProcess],
    letter: str,
    directory: Path,
    spawner: Spawner,
    at: GatewayProcess,
    *,
    kills: int,
    seed: int,
    stop: Event | None = None,
    planted: str = SIGNED_IN_THREADS,
) -> KillTally:
    """Kill runs until there were `kills` kills, with a companion meanwhile. Judge each batch at its end."""
    tally, pace = KillTally(), Pace()
    life = 0
    while tally.kills < kills and not (stop is not None and stop.is_set()):
        rng = Random(f"{letter}/{seed}/{life}")  # noqa: S311 (dice)
        name = f"{letter}{seed}x{life}"
        machine = Machine.create(directory / name, spawner, at, prefix=name)
        with beside(machine, at, Random(f"beside {letter}/{seed}/{life}")) as other:  # noqa: S311 (dice)
            try:
                sent_before = tally.runs_that_sent
                kill_until_done(machine, at, rng, pace, tally, planted)
                other.rest()
                rows = len((machine.home / "payroll.csv").read_text().splitlines()) - 1
                other.judge(rows, tally.runs_that_sent - sent_before)
            except AssertionError as broken:
                raise Broken(f"seed {seed}, life {life} in {machine.home}: {broken}") from None
        tally.kills += other.kills
        shutil.rmtree(machine.home)
        life += 1
    return tally


kill_with_listener = partial(kill_with_companion, ListenerRun, "L")
