"""Random kills: SIGKILL at any instant, again and again, until the batch is done; then the judge."""

import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .judge import Broken, judge_end, judge_orders
from .machine import GatewayProcess, Machine, Run, Spawner

FAST = '[default]\nstatus = "approved"\n'
SLOW = """
[default]
status = "approved"
delay_s = 0.03

[[rule]]
order_id = ".*7"
fault = "drop_after"

[[rule]]
order_id = ".*3"
status = "declined"
commits = false
"""
ENDS = {0, 4, 5}
NO_BATCH_YET = 2
MOST_STARTS = 200


@dataclass
class Killed:
    """What a series of kills came to."""

    kills: int = 0
    kills_while_sending: int = 0
    batches: int = 0
    orders: int = 0


@dataclass
class Pace:
    """How long a whole run takes here, learned from those that were let end: kills fall anywhere within it."""

    run_s: float = 0.6

    def learn(self, seconds: float) -> None:
        self.run_s = 0.8 * self.run_s + 0.2 * seconds


def kill_until_done(machine: Machine, at: GatewayProcess, rng: Random, pace: Pace, tally: Killed) -> None:
    """Submit a sheet and kill the program at random instants until it ends by itself; judge after each kill."""
    rows = rng.randrange(2, 25)
    sheet = machine.sheet(rows)
    for start in range(MOST_STARTS):
        command = ("resume",) if start and rng.random() < 0.5 else ("submit", sheet)
        began_s = time.monotonic()
        run = machine.start(*command)
        before = tally.orders
        code = _wait(run, at, rng, pace)
        if code is None:
            run.send(signal.SIGKILL)
            code = run.done()
        if code != -signal.SIGKILL:
            pace.learn(time.monotonic() - began_s)
            if code in ENDS:
                break
            if code == NO_BATCH_YET and command == ("resume",):
                continue
            raise Broken(f"exit code {code}: {machine.said()}")
        tally.kills += 1
        tally.orders = before + len(judge_orders(machine, at))
        if 0 < tally.orders - before < rows:
            tally.kills_while_sending += 1
        tally.orders = before
    else:
        raise Broken("the batch is never done")
    judge_end(machine, at, rows)
    if machine.run("verify") not in {0, 5}:
        raise Broken(f"the journal is not sound: {machine.said()}")
    tally.batches += 1
    tally.orders += len(judge_orders(machine, at))


def _wait(run: Run, at: GatewayProcess, rng: Random, pace: Pace) -> int | None:
    """Wait for some instant of a run: any, or (narrow and wide) soon after an order arrived; or let it end."""
    choice = rng.random()
    if choice < 0.1:
        return run.done()
    if choice < 0.4:
        return run.wait(rng.uniform(0.02, pace.run_s * 1.1))
    arrived = at.record_bytes()
    while at.record_bytes() == arrived:
        if (code := run.wait(0.001)) is not None:
            return code
    return run.wait(rng.uniform(0.0, rng.choice((0.005, 0.05, 0.3))))


def kill(directory: Path, spawner: Spawner, at: GatewayProcess, *, kills: int, seed: int) -> Killed:
    """Kill until there were `kills`."""
    tally, pace = Killed(), Pace()
    life = 0
    while tally.kills < kills:
        machine = Machine.made(directory / f"life-{seed}-{life}", spawner, at, prefix=f"K{seed}x{life}")
        try:
            kill_until_done(machine, at, Random(f"{seed}/{life}"), pace, tally)  # noqa: S311 (dice)
        except Broken as broken:
            raise Broken(f"seed {seed}, life {life} in {machine.home}: {broken}") from None
        shutil.rmtree(machine.home)
        life += 1
    return tally
