"""`python -m tests.promise.campaign`: the process campaign at the requested size, with its results."""

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event

from tests.promise.campaign.companions import (
    NOTIFYING,
    kill_with_console,
    kill_with_listener,
    kill_with_notices,
    proof_configuration,
)
from tests.promise.campaign.judge import Broken, judge_end, judge_orders
from tests.promise.campaign.kills import FAST, SLOW, KillTally, forget_until_done, kill
from tests.promise.campaign.machine import Machine, Spawner, gateway, why_not
from tests.promise.campaign.ordinals import EVERYTHING, strike
from tests.promise.campaign.power import play, record
from tests.support.long_runs import say, stop_on_sigterm

RELEASE = dict.fromkeys(("listening", "console", "notices", "starts"), 1_000)
RELEASE |= {"kills": 10_000, "ordinals": 1, "power": 1}
PARTS = {
    "power": "power cut after each N-th operation of a run",
    "starts": "double starts",
    "ordinals": "each N-th ordinal of every call and fault",
    "kills": "random kills, half of them against a slow gateway",
    "listening": "kills with the listener on, and killed as well",
    "console": "kills with the console on, looked at, and killed as well",
    "notices": "kills with notices on, and what sends them killed",
}
"""The parts in the order of their runs, with the help of their options."""
START_ROWS = 8
NOTHING_BROKEN = "0 sent twice, 0 lost, 0 without an intent"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promise.campaign", description=__doc__)
    parser.add_argument("--release", action="store_true", help="everything, at the size of a release")
    for name, what in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=what)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=4, help="how many batches are killed side by side (kills)")
    arguments = parser.parse_args()
    stop = stop_on_sigterm()
    # Every part then ends in order, with its results so far.
    sizes = RELEASE if arguments.release else vars(arguments)
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a directory of our own is made in it)
    parts: list[tuple[str, Callable[[Path, Spawner], str]]] = [
        ("power loss", partial(_power, every=sizes["power"], stop=stop)),
        ("double starts", partial(_starts, starts=sizes["starts"], stop=stop)),
        ("ordinals", partial(_ordinals, every=sizes["ordinals"], stop=stop)),
        ("kills", partial(_kills, kills=sizes["kills"], seed=arguments.seed, lanes=arguments.lanes, stop=stop)),
        *(
            (name, partial(_beside, name, kills=sizes[name], seed=arguments.seed, stop=stop))
            for name in ("listening", "console", "notices")
        ),
    ]
    code = 0
    for (name, part), size in zip(parts, map(sizes.__getitem__, PARTS), strict=True):
        if size and not stop.is_set():
            code |= _run_part(name, part, place)
    return code


def _run_part(name: str, part: Callable[[Path, Spawner], str], place: str | None) -> int:
    began_s = time.monotonic()
    with TemporaryDirectory(dir=place) as home:
        directory = Path(home)
        try:
            with Spawner() as spawner:
                told, code = part(directory, spawner), 0
        except AssertionError as broken:
            kept = shutil.copytree(directory, Path(mkdtemp(prefix="paygw-campaign-")) / directory.name)
            told, code = f"BROKEN: {broken} (kept in {kept})", 1
    say(f"{name}: {told} ({time.monotonic() - began_s:,.0f} s)")
    return code


def _beside(name: str, directory: Path, spawner: Spawner, *, kills: int, seed: int, stop: Event) -> str:
    """Kill runs next to a listener, a console or the sender of notices, which are killed as well."""
    kill_beside, what, promise = {
        "listening": (kill_with_listener, "listeners", "every notification answered with 200 in the journal"),
        "console": (kill_with_console, "consoles", "every look answered, the page shows the reconciliation"),
        "notices": (kill_with_notices, "senders of notices", "each run told, and only a kill sends a notice twice"),
    }[name]
    home = directory / name
    home.mkdir(mode=0o700)
    notifies = (NOTIFYING, proof_configuration(home / "secret.txt")) if name == "listening" else (SLOW,)
    with gateway(home, *notifies) as at:
        tally = kill_beside(directory / "machines", spawner, at, kills=kills, seed=seed, stop=stop)
    return (
        f"{tally['kills']:,} kills of runs and {what} over {tally['batches']:,} batches, "
        f"{tally['runs_that_sent']:,} runs that sent rows, {tally['orders']:,} orders: {NOTHING_BROKEN}, {promise}"
    )


def _kills(directory: Path, _: Spawner, *, kills: int, seed: int, lanes: int, stop: Event) -> str:
    def in_lane(lane: int) -> KillTally:
        home = directory / f"lane-{lane}"
        try:
            with gateway(home, SLOW if lane % 2 else FAST) as at, Spawner() as spawner:
                share = -(-kills // lanes)
                seeded = f"{seed}/{lane}"
                return kill(home / "kills", spawner, at, kills=share, seed=seeded, stop=stop, then=forget_until_done)
        except AssertionError:
            stop.set()  # report this before the other lanes continue for hours
            raise

    with ThreadPoolExecutor(lanes) as pool:
        tally = sum(pool.map(in_lane, range(lanes)), start=KillTally())
    return (
        f"{tally['kills']:,} kills ({tally['kills_while_sending']:,} while orders were leaving) over "
        f"{tally['batches']:,} batches ({tally['collected']:,} collected), {tally['orders']:,} orders, the people of "
        f"{tally['forgotten']:,} batches forgotten: {NOTHING_BROKEN}, 0 bytes left of who was forgotten"
    )


def _starts(directory: Path, spawner: Spawner, *, starts: int, stop: Event) -> str:
    codes: Counter[int] = Counter()
    made = orders = 0
    with gateway(directory / "fast", FAST) as at:
        while made < starts and not stop.is_set():
            operation = "payin" if made % 3 == 2 else "payout"
            machine = Machine.create(
                directory / "starts" / str(made), spawner, at, prefix=f"D{made}", operation=operation
            )
            sheet = machine.sheet(START_ROWS)
            runs = [machine.start(machine.command, sheet) for _ in range(2 if made % 10 else 4)]
            codes.update(run.done() for run in runs)
            if len(judge_orders(machine, at)) != START_ROWS:
                raise Broken(f"start {made}: {machine.said()}")
            judge_end(machine, at, START_ROWS)
            shutil.rmtree(machine.home)
            made += 1
            orders += START_ROWS
    return (
        f"{made:,} times two runs at once, each tenth time four, {orders:,} orders; exit codes {dict(codes)}: 0 sent "
        "twice, 0 lost, 0 without an intent"
    )


def _ordinals(directory: Path, spawner: Spawner, *, every: int, stop: Event) -> str:
    if why_not():
        return f"left out: {why_not()}"
    struck: Counter[str] = Counter()
    pairs = 0
    with gateway(directory / "slow", SLOW) as at:
        for call, fault in EVERYTHING:
            runs = strike(directory / "ordinals", spawner, at, call, fault, every=every, stop=stop)
            struck[call] += runs.runs
            if stop.is_set():
                break
            say(f"  {call} {fault}: struck at {runs.runs} ordinals, exit codes {dict(runs.codes)}")
            pairs += 1
    return (
        f"{struck.total():,} runs struck {dict(struck)}, {pairs} of {len(EVERYTHING)} pairs of call and fault at every "
        f"ordinal{'' if every == 1 else f' of each {every}'}: 0 sent twice, 0 lost, 0 without an intent"
    )


def _power(directory: Path, spawner: Spawner, *, every: int, stop: Event) -> str:
    if why_not():
        return f"left out: {why_not()}"
    with gateway(directory / "slow", SLOW) as at:
        machine = Machine.create(directory / "power" / "home", spawner, at, prefix="POWER", has_journal=False)
        operations = record(machine, "submit", machine.sheet(START_ROWS))
    disks = play(machine, operations, every=every, stop=stop)
    cut = ", stopped before the last" if stop.is_set() else ""
    return f"{len(operations)} operations, {disks:,} disks{cut}: each opens, is sound, and owes nothing that had left"


if __name__ == "__main__":
    sys.exit(main())
