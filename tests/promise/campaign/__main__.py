"""`python -m tests.promise.campaign`: the process campaign at the requested size, with its results."""

import argparse
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
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

START_ROWS = 8
NOTHING_BROKEN = "0 sent twice, 0 lost, 0 without an intent"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promise.campaign", description=__doc__)
    parser.add_argument("--release", action="store_true", help="everything, at the size of a release")
    for name, (_, what, _) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=what)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=4, help="how many batches are killed side by side (kills)")
    given, stop, code = parser.parse_args(), stop_on_sigterm(), 0  # SIGTERM: every part ends, with its results so far
    for name, (part, _, of_release) in PARTS.items():
        size = of_release if given.release else getattr(given, name)
        if size and not stop.is_set():
            code |= _run_part(name, partial(part, size=size, given=given, stop=stop))
    return code


def _run_part(name: str, part: Callable[[Path, Spawner], str]) -> int:
    began_s = time.monotonic()
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a directory of our own is made in it)
    with TemporaryDirectory(dir=folder) as home:
        directory = Path(home)
        try:
            with Spawner() as spawner:
                told, code = part(directory, spawner), 0
        except AssertionError as broken:
            kept = shutil.copytree(directory, Path(mkdtemp(prefix="paygw-campaign-")) / directory.name)
            told, code = f"BROKEN: {broken} (kept in {kept})", 1
    say(f"{name}: {told} ({time.monotonic() - began_s:,.0f} s)")
    return code


def _beside(
    kill_beside: Callable[..., KillTally], promise: str, directory: Path, spawner: Spawner, size: int, given: Namespace,
    stop: Event,
) -> str:  # fmt: skip
    """Kill runs next to a listener, a console or the sender of notices, which are killed as well."""
    home = directory / "beside"
    home.mkdir(mode=0o700)
    is_listener = kill_beside is kill_with_listener
    notifies = (NOTIFYING, proof_configuration(home / "secret.txt")) if is_listener else (SLOW,)
    with gateway(home, *notifies) as at:
        tally = kill_beside(directory / "machines", spawner, at, kills=size, seed=given.seed, stop=stop)
    return (
        f"{tally['kills']:,} kills over {tally['batches']:,} batches, {tally['runs_that_sent']:,} runs that sent rows, "
        f"{tally['orders']:,} orders: {NOTHING_BROKEN}, {promise}"
    )


def _kill(directory: Path, _: Spawner, size: int, given: Namespace, stop: Event) -> str:
    def in_lane(lane: int) -> KillTally:
        home, kills, seed = directory / f"lane-{lane}", -(-size // given.lanes), f"{given.seed}/{lane}"
        try:
            with gateway(home, SLOW if lane % 2 else FAST) as at, Spawner() as spawner:
                return kill(home / "kills", spawner, at, kills=kills, seed=seed, stop=stop, then=forget_until_done)
        except AssertionError:
            stop.set()  # report this before the other lanes continue for hours
            raise

    with ThreadPoolExecutor(given.lanes) as pool:
        tally = sum(pool.map(in_lane, range(given.lanes)), start=KillTally())
    return (
        f"{tally['kills']:,} kills ({tally['kills_while_sending']:,} while orders were leaving) over "
        f"{tally['batches']:,} batches ({tally['collected']:,} collected), {tally['orders']:,} orders, the people of "
        f"{tally['forgotten']:,} batches forgotten: {NOTHING_BROKEN}, 0 bytes left of who was forgotten"
    )


def _start(directory: Path, spawner: Spawner, size: int, stop: Event, **_: object) -> str:
    codes: Counter[int] = Counter()
    made = 0
    with gateway(directory / "fast", FAST) as at:
        while made < size and not stop.is_set():
            operation = "payin" if made % 3 == 2 else "payout"
            machine = Machine.create(directory / str(made), spawner, at, prefix=f"D{made}", operation=operation)
            sheet = machine.sheet(START_ROWS)
            runs = [machine.start(machine.command, sheet) for _ in range(2 if made % 10 else 4)]
            codes.update(run.done() for run in runs)
            if len(judge_orders(machine, at)) != START_ROWS:
                raise Broken(f"start {made}: {machine.said()}")
            judge_end(machine, at, START_ROWS)
            shutil.rmtree(machine.home)
            made += 1
    return (
        f"{made:,} times two runs at once, each tenth time four, {made * START_ROWS:,} orders; "
        f"exit codes {dict(codes)}: {NOTHING_BROKEN}"
    )


def _strike(directory: Path, spawner: Spawner, size: int, stop: Event, **_: object) -> str:
    if why_not():
        return f"left out: {why_not()}"
    struck: Counter[str] = Counter()
    pairs = 0
    with gateway(directory / "slow", SLOW) as at:
        for call, fault in EVERYTHING:
            codes = strike(directory / "ordinals", spawner, at, call, fault, every=size, stop=stop)
            struck[call] += codes.total()
            if stop.is_set():
                break
            say(f"  {call} {fault}: struck at {codes.total()} ordinals, exit codes {dict(codes)}")
            pairs += 1
    return (
        f"{struck.total():,} runs struck {dict(struck)}, {pairs} of {len(EVERYTHING)} pairs of call and fault at every "
        f"ordinal{'' if size == 1 else f' of each {size}'}: {NOTHING_BROKEN}"
    )


def _cut_power(directory: Path, spawner: Spawner, size: int, stop: Event, **_: object) -> str:
    if why_not():
        return f"left out: {why_not()}"
    with gateway(directory / "slow", SLOW) as at:
        machine = Machine.create(directory / "power" / "home", spawner, at, prefix="POWER", has_journal=False)
        operations = record(machine, "submit", machine.sheet(START_ROWS))
    disks = play(machine, operations, every=size, stop=stop)
    cut = ", stopped before the last" if stop.is_set() else ""
    return f"{len(operations)} operations, {disks:,} disks{cut}: each opens, is sound, and owes nothing that had left"


_LISTENER = partial(_beside, kill_with_listener, "every notification answered with 200 in the journal")
_CONSOLE = partial(_beside, kill_with_console, "every look answered, the page shows the reconciliation")
_NOTICES = partial(_beside, kill_with_notices, "each run told, and only a kill sends a notice twice")
PARTS: Mapping[str, tuple[Callable[..., str], str, int]] = {
    "power": (_cut_power, "power cut after each N-th operation of a run", 1),
    "starts": (_start, "double starts", 1_000),
    "ordinals": (_strike, "each N-th ordinal of every call and fault", 1),
    "kills": (_kill, "random kills, half of them against a slow gateway", 10_000),
    "listening": (_LISTENER, "kills with the listener on, and killed as well", 1_000),
    "console": (_CONSOLE, "kills with the console on, looked at, and killed as well", 1_000),
    "notices": (_NOTICES, "kills with notices on, and what sends them killed", 1_000),
}
"""The parts in the order of their runs, each with the help of its option and its size for a release."""


if __name__ == "__main__":
    sys.exit(main())
