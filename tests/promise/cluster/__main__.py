"""`python -m tests.promise.cluster`: many runs of the protocol, or the table of its planted bugs."""

import argparse
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from tests.promise.cluster.lanes import LaneRequest, play_lane, play_lanes
from tests.promise.cluster.protocol import BUGS, Broken, PlayTally, make_batch, play
from tests.support.long_runs import say, stop_on_sigterm
from tests.support.postgres_rows import make_postgres, postgres_place
from tests.support.postgres_server import PostgresServer, new_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promise.cluster", description=__doc__)
    parser.add_argument("--release", action="store_true", help="batches and failovers at the size of a release")
    parser.add_argument("--lives", type=int, default=0, help="lives of the protocol, one statement at a time")
    parser.add_argument("--batches", type=int, help="batches paid through kills, freezes, cuts and crashes")
    parser.add_argument("--failovers", type=int, help="standbys that take over, lagging or not")
    parser.add_argument("--rows", type=int, default=0, help="rows of a batch (default: 200, for a release 5000)")
    parser.add_argument("--lanes", type=int, default=4, help="how many are played side by side (default: %(default)s)")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--planted", choices=sorted(BUGS), metavar="BUG", help="switch a planted bug on, and find it")
    parser.add_argument("--table", action="store_true", help="hunt every planted bug, and print how soon it is found")
    arguments = parser.parse_args()
    seeds = range(arguments.start, arguments.start + (arguments.lives or 200))
    stop = stop_on_sigterm()
    wanted = LaneRequest.of(arguments)
    if arguments.lane is not None:
        return play_lane(wanted, arguments.lane, stop)
    if wanted.batches or wanted.failovers:
        return play_lanes(wanted, stop)
    with new_server() as server, TemporaryDirectory() as home:
        template = _template(server, Path(home))
        if arguments.table or arguments.planted:
            names = [arguments.planted] if arguments.planted else list(BUGS)
            return max(_hunt(server, template, name, seeds) for name in names)
        return _play(server, template, seeds, stop)


def _template(server: PostgresServer, home: Path) -> str:
    name = server.new_database()
    make_postgres(postgres_place(server.url(name), home))
    return make_batch(server, name, home)


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
