"""`python -m tests.campaign`: the process campaign at the size that is asked for, with what it came to."""

import argparse
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event

from .judge import Broken, judge_end, judge_orders
from .kills import FAST, SLOW, Killed, kill
from .listening import NOTIFYING, kill_with_listener, proving
from .machine import GatewayProcess, Machine, Spawner, gateway
from .ordinals import EVERYTHING, strike
from .power import play, record
from .tracing import why_not

RELEASE = {"kills": 10_000, "listening": 1_000, "starts": 1_000, "ordinals": 1, "power": 1}
START_ROWS = 8


def main() -> int:
    """Run what was asked for; return 1 when anything broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--release", action="store_true", help="everything, at the size of a release")
    parser.add_argument("--kills", type=int, default=0, help="random kills, half of them against a slow gateway")
    parser.add_argument("--listening", type=int, default=0, help="kills with the listener on, and killed as well")
    parser.add_argument("--starts", type=int, default=0, help="double starts")
    parser.add_argument(
        "--ordinals", type=int, default=0, metavar="N", help="each N-th ordinal of every call and fault"
    )
    parser.add_argument(
        "--power", type=int, default=0, metavar="N", help="power cut after each N-th operation of a run"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    sizes = RELEASE if arguments.release else vars(arguments)
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a directory of our own is made in it)
    with TemporaryDirectory(dir=place) as name, Spawner() as spawner:
        directory = Path(name)
        with gateway(directory / "fast", FAST) as fast, gateway(directory / "slow", SLOW) as slow:
            parts: list[tuple[str, Callable[[], str]]] = []
            if sizes["power"]:
                parts.append(("power loss", partial(_power, directory, spawner, slow, sizes["power"])))
            if sizes["starts"]:
                parts.append(("double starts", partial(_starts, directory, spawner, fast, sizes["starts"])))
            if sizes["ordinals"]:
                parts.append(("ordinals", partial(_ordinals, directory, spawner, slow, sizes["ordinals"])))
            if sizes["kills"]:
                parts.append(("kills", partial(_kills, directory, (fast, slow), sizes["kills"], arguments.seed)))
            if sizes["listening"]:
                parts.append(("listening", partial(_listening, directory, spawner, sizes["listening"], arguments.seed)))
            return max([_told(name, part, directory) for name, part in parts], default=0)


def _told(name: str, part: Callable[[], str], directory: Path) -> int:
    """Run a part and say what it came to. Where something broke, machines and records are kept to be looked at."""
    began_s = time.monotonic()
    try:
        told, code = part(), 0
    except AssertionError as broken:
        kept = shutil.copytree(directory, Path(mkdtemp(prefix="paygw-campaign-")) / directory.name)
        told, code = f"BROKEN: {broken} (kept in {kept})", 1
    _say(f"{name}: {told} ({time.monotonic() - began_s:,.0f} s)")
    return code


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _listening(directory: Path, spawner: Spawner, kills: int, seed: int) -> str:
    home = directory / "notifying"
    home.mkdir(mode=0o700)
    with gateway(home, NOTIFYING, proving(home / "secret.txt")) as notifying:
        tally = kill_with_listener(directory / "listening", spawner, notifying, kills=kills, seed=seed)
    return (
        f"{tally.kills:,} kills of runs and listeners over {tally.batches:,} batches, {tally.orders:,} orders: 0 sent "
        "twice, 0 lost, every notification that was answered with 200 in the journal"
    )


def _kills(directory: Path, gateways: Sequence[GatewayProcess], kills: int, seed: int) -> str:
    """Kill at all gateways side by side. A SIGTERM ends it in order, with what it came to so far."""
    stop = Event()

    def at_one(at: GatewayProcess) -> Killed:
        with Spawner() as spawner:
            return kill(
                directory / at.directory.name / "kills",
                spawner,
                at,
                kills=-(-kills // len(gateways)),
                seed=seed,
                stop=stop,
            )

    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with ThreadPoolExecutor(len(gateways)) as lanes:
        tallies = list(lanes.map(at_one, gateways))
    signal.signal(signal.SIGTERM, before)
    return "; ".join(
        f"{at.directory.name} gateway: {tally.kills:,} kills ({tally.kills_while_sending:,} while orders were leaving) "
        f"over {tally.batches:,} batches, {tally.orders:,} orders: 0 sent twice, 0 lost, 0 without an intent"
        for at, tally in zip(gateways, tallies, strict=True)
    )


def _starts(directory: Path, spawner: Spawner, at: GatewayProcess, starts: int) -> str:
    codes: Counter[int] = Counter()
    for number in range(starts):
        machine = Machine.made(directory / "starts" / str(number), spawner, at, prefix=f"D{number}")
        sheet = machine.sheet(START_ROWS)
        runs = [machine.start("submit", sheet) for _ in range(2 if number % 10 else 4)]
        codes.update(run.done() for run in runs)
        if len(judge_orders(machine, at)) != START_ROWS:
            raise Broken(f"start {number}: {machine.said()}")
        judge_end(machine, at, START_ROWS)
        shutil.rmtree(machine.home)
    return f"{starts:,} times two runs at once, each tenth time four; exit codes {dict(codes)}: 0 sent twice, 0 lost"


def _ordinals(directory: Path, spawner: Spawner, at: GatewayProcess, every: int) -> str:
    if why_not():
        return f"left out: {why_not()}"
    struck: Counter[str] = Counter()
    for call, fault in EVERYTHING:
        runs = strike(directory / "ordinals", spawner, at, call, fault, every=every)
        _say(f"  {call} {fault}: struck at {runs.runs} ordinals, exit codes {dict(runs.codes)}")
        struck[call] += runs.runs
    return f"{struck.total():,} runs struck {dict(struck)}: 0 sent twice, 0 lost"


def _power(directory: Path, spawner: Spawner, at: GatewayProcess, every: int) -> str:
    if why_not():
        return f"left out: {why_not()}"
    machine = Machine.made(directory / "power" / "home", spawner, at, prefix="POWER")
    operations = record(machine, "submit", machine.sheet(START_ROWS))
    disks = play(machine, operations, every=every)
    return f"{len(operations)} operations, {disks:,} disks: each opens, is sound, and owes nothing that had left"


if __name__ == "__main__":
    sys.exit(main())
