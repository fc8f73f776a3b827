"""`python -m tests.promise.cluster`: many runs of the protocol, the table of its planted bugs, or whole batches."""

import argparse
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event

from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import Spawner, gateway
from tests.promise.cluster.company import PRELOADED
from tests.promise.cluster.lean_gateway import lean_gateway
from tests.promise.cluster.protocol import BUGS, PlayTally, make_batch, play
from tests.promise.cluster.shifts import play_shift
from tests.promise.cluster.trouble import RELEASE, SLOWLY, OrdealTally, Size, play_failover, play_ordeal
from tests.support.long_runs import run_pieces, say, stop_on_sigterm
from tests.support.postgres_rows import make_postgres, postgres_location
from tests.support.postgres_server import PostgresServer, new_server

VERIFYING = SLOWLY.replace("0.1", "0.005").replace(".*7", ".*57").replace(".*3", ".*[16]3")
"""The rules of the lean gateway for the sandbox, which verifies every request."""
Part = tuple[float, str, int]  # its place in the order of parts, `submit`, `work` or `failover`, and its seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promise.cluster", description=__doc__)
    parser.add_argument("--release", action="store_true", help="batches and failovers at the size of a release")
    parser.add_argument("--lives", type=int, default=0, help="lives of the protocol, one statement at a time")
    parser.add_argument("--batches", type=int, help="batches paid through kills, freezes, cuts and crashes")
    parser.add_argument("--failovers", type=int, help="standbys that take over, lagging or not")
    parser.add_argument("--rows", type=int, default=0, help="rows of a batch (default: 200, for a release 5000)")
    parser.add_argument("--lanes", type=int, default=4, help="how many are played side by side (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--table", nargs="*", metavar="BUG", help="hunt planted bugs, and print how soon each is found")
    arguments = parser.parse_args()
    seeds = range(arguments.start, arguments.start + (arguments.lives or 200))
    stop = stop_on_sigterm()
    batches = 204 * arguments.release if arguments.batches is None else arguments.batches
    failovers = 50 * arguments.release if arguments.failovers is None else arguments.failovers
    if batches or failovers:
        parts = [(at / batches, "work" if at % 2 else "submit", arguments.start + at) for at in range(batches)]
        parts += [(at / failovers, "failover", arguments.start + at) for at in range(failovers)]
        return _play_parts(arguments, sorted(parts), stop)
    with new_server() as server, TemporaryDirectory() as home:
        name = server.new_database()
        make_postgres(postgres_location(server.url(name), Path(home)))
        template = make_batch(server, name, Path(home))
        if arguments.table is not None:
            return max(_hunt(server, template, name, seeds) for name in arguments.table or BUGS)
        return _play(server, template, seeds, stop)


def _play_parts(arguments: argparse.Namespace, parts: list[Part], stop: Event) -> int:
    """Play batches and failovers in parallel processes. Return 1 as soon as one is broken."""
    size, total = RELEASE if arguments.release else Size(200), OrdealTally()
    if arguments.rows:
        size = replace(size, rows=arguments.rows)
    work, began_s = partial(_play_part, size, is_release=arguments.release), time.monotonic()
    for what, endured in run_pieces(work, parts, workers=arguments.lanes, start_method="fork", stop=stop):
        if endured is None:
            say(f"{total}: BROKEN: {what}")
            return 1
        total.update(endured)
        say(f"{what}: {total}, {time.monotonic() - began_s:,.0f} s")
    say(f"{total}: 0 sent twice, 0 without an intent, 0 lost, every chain whole")
    return 0


def _play_part(size: Size, part: Part, *, is_release: bool) -> tuple[str, OrdealTally | None]:
    """Play a part with its own server, gateway and spawner. In a release run, one gateway of four verifies."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    _, kind, seed = part
    began_s, memory = time.monotonic(), Path("/dev/shm")  # noqa: S108 (a directory of our own is made in it)
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        home, rules = Path(folder), VERIFYING if is_release else SLOWLY
        serving = lean_gateway if is_release and seed % 4 else partial(gateway, behaviour=rules)
        (home / kind).mkdir(mode=0o700)
        with new_server() as server, Spawner(*PRELOADED) as spawner, serving(home / "gateway") as at:
            try:
                if kind == "failover":
                    endured = play_failover(home / kind, spawner, at, seed=seed, rows=200)
                else:
                    played = play_shift if kind == "work" else play_ordeal
                    endured = played(home / kind, spawner, at, server, seed=seed, size=size)
            except AssertionError as broken:
                kept = shutil.copytree(home / kind, Path(mkdtemp(prefix="paygw-cluster-")) / kind)
                return f"{kind} with seed {seed}: {broken} (kept in {kept})", None
    return f"{kind}-{seed} ({time.monotonic() - began_s:.0f} s)", endured


def _play(server: PostgresServer, template: str, seeds: range, stop: Event) -> int:
    played, began_s, failures = PlayTally(), time.monotonic(), 0
    for seed in seeds:
        if stop.is_set():
            break
        try:
            played.update(play(server, template, seed))
        except Broken as broken:
            failures += 1
            say(f"{broken}\n  again: python -m tests.promise.cluster --lives 1 --start {seed}")
        if seed % 100 == 99:
            say(f"{played}, {failures} failures, {time.monotonic() - began_s:,.0f} s")
    used = os.times()
    say(f"{played}: {failures} failures ({used.user + used.system:,.0f} s of processor time without the server's)")
    return 1 if failures else 0


def _hunt(server: PostgresServer, template: str, name: str, seeds: range) -> int:
    for seed in seeds:
        try:
            play(server, template, seed, BUGS[name])
        except Broken as broken:
            say(f"{name}: {str(broken).partition(chr(10))[0]}")
            return 0
    say(f"{name}: not found")
    return 1


if __name__ == "__main__":
    sys.exit(main())
