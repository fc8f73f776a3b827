"""Random kills: SIGKILL at any instant, again and again, until the batch is done; then the judge."""

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random
from threading import Event

from tests.promise.campaign.judge import Broken, judge_code, judge_end, judge_orders
from tests.promise.campaign.machine import GatewayProcess, Machine, Run, Spawner

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
SIGNED_IN_THREADS = "plants:key_known_to_be_sound"
SIGNED_IN_PROCESSES = "plants:signed_in_processes"
MAX_STARTS = 200


@dataclass
class Killed:
    """What a series of kills came to."""

    kills: int = 0
    kills_while_sending: int = 0
    runs_that_sent: int = 0
    batches: int = 0
    collected: int = 0
    """How many of the batches were collections."""
    orders: int = 0
    forgotten: int = 0
    """The people of how many batches were forgotten."""

    def __add__(self, other: "Killed") -> "Killed":
        return Killed(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Pace:
    """How long a run takes here, all of it and from its first order on, learned from those that are let end."""

    run_s: float = 0.3
    sending_s: float = 0.1

    def learn(self, run_s: float, sending_s: float) -> None:
        self.run_s += 0.2 * (run_s - self.run_s)
        self.sending_s += 0.2 * (sending_s - self.sending_s)


def _intents(machine: Machine) -> int:
    """Return how many intents the journal has, read by another library than the program's own."""
    path = machine.home / "journal.sqlite3"
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM fact WHERE kind = 'intended'")
        return int(count)


def kill_until_done(
    machine: Machine, at: GatewayProcess, rng: Random, pace: Pace, tally: Killed, planted: str = SIGNED_IN_THREADS
) -> None:
    """Submit a sheet and kill the program at random instants until it ends by itself; judge after each kill."""
    rows = rng.randrange(2, 50)
    sheet = machine.sheet(rows)
    before = 0
    for _ in range(MAX_STARTS):
        command = ("resume",) if before and rng.random() < 0.8 else (machine.command, sheet)
        intended = _intents(machine)
        run = machine.start(*command, planted=planted)
        if not is_let_end(run, at.of(machine.operation).record_bytes, rng, pace):
            run.send(signal.SIGKILL)
        code, arrived = run.done(), len(judge_orders(machine, at))
        # What a killed run had on its way may arrive, and what it had committed be found, during the next one.
        tally.runs_that_sent += arrived > before and _intents(machine) > intended
        if code == -signal.SIGKILL:
            tally.kills += 1
            tally.kills_while_sending += 0 < arrived < rows
            before = arrived
        elif code in ENDS:
            break
        else:
            raise Broken(f"exit code {code}: {machine.said()}")
    else:
        raise Broken("the batch is never done")
    judge_end(machine, at, rows)
    judge_code(machine, code)
    if machine.run("verify") not in {0, 5}:
        raise Broken(f"the journal is not sound: {machine.said()}")
    tally.batches += 1
    tally.collected += machine.operation == "payin"
    tally.orders += len(judge_orders(machine, at))


def is_let_end(run: Run, moved: Callable[[], int], rng: Random, pace: Pace) -> bool:
    """Wait for some instant of a run: any, or (narrow and wide) soon after something `moved`. Now and then, its end."""
    began_s, choice = time.monotonic(), rng.random()
    if choice < 0.2:
        return run.wait(rng.uniform(0.02, pace.run_s * 1.1)) is not None
    before = moved()
    while moved() == before:
        if run.wait(0.001) is not None:
            return True
    if choice > 0.95:
        moved_s = time.monotonic()
        run.done()
        pace.learn(time.monotonic() - began_s, time.monotonic() - moved_s)
    return run.wait(rng.uniform(0.0, rng.choice((0.003, 0.02, pace.sending_s)))) is not None


def _slug(seed: int | str) -> str:
    return str(seed).replace("/", "x")


def kill(
    directory: Path,
    spawner: Spawner,
    at: GatewayProcess,
    *,
    kills: int,
    seed: int | str,
    stop: Event | None = None,
    then: Callable[[Machine, GatewayProcess, Random, Pace, Killed], None] | None = None,
) -> Killed:
    """Kill until there were `kills`, or until told to `stop`.

    Every third batch is collected, and not paid out; every fifth is signed in processes, as large ones are; and with
    every fifth something more is done `then`, when it is done.
    """
    tally, pace, pace_then = Killed(), Pace(), Pace()
    life = 0
    while tally.kills < kills and not (stop is not None and stop.is_set()):
        rng = Random(f"{seed}/{life}")  # noqa: S311 (dice)
        name, concurrency = f"K{_slug(seed)}x{life}", rng.choice((1, 3, 16))
        operation = "payin" if life % 3 == 2 else "payout"
        machine = Machine.made(directory / name, spawner, at, prefix=name, concurrency=concurrency, operation=operation)
        planted = SIGNED_IN_PROCESSES if life % 5 == 4 else SIGNED_IN_THREADS
        try:
            kill_until_done(machine, at, rng, pace, tally, planted)
            if then is not None and life % 5 == 2:
                then(machine, at, rng, pace_then, tally)
        except Broken as broken:
            raise Broken(f"seed {seed}, life {life} in {machine.home}: {broken}") from None
        shutil.rmtree(machine.home)
        life += 1
    return tally
