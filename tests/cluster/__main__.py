"""`python -m tests.cluster`: many lives of the protocol, or the table of its planted bugs."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event

from tests.campaign.machine import Spawner, gateway
from tests.cluster.planted import BUGS
from tests.cluster.protocol import Broken, Played, make_batch, play
from tests.cluster.trouble import SLOWLY, Endured, endure, fail_over
from tests.journal.postgres_rows import make_postgres, postgres_place
from tests.journal.postgres_server import PostgresServer, own_server
from tests.long_runs import stop_at_sigterm


def main() -> int:
    """Play lives, or hunt planted bugs; return 1 when anything broke, or a bug was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--lives", type=int, default=0, help="lives of the protocol, one statement at a time")
    parser.add_argument("--batches", type=int, default=0, help="batches paid through kills, freezes, cuts and crashes")
    parser.add_argument("--failovers", type=int, default=0, help="standbys that take over, lagging or not")
    parser.add_argument("--rows", type=int, default=200, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--planted", choices=sorted(BUGS), metavar="BUG", help="switch a planted bug on, and find it")
    parser.add_argument("--table", action="store_true", help="hunt every planted bug, and print how soon it is found")
    arguments = parser.parse_args()
    seeds = range(arguments.start, arguments.start + (arguments.lives or 200))
    stop = stop_at_sigterm()
    if arguments.batches or arguments.failovers:
        return _endure(arguments, stop)
    with own_server() as server, TemporaryDirectory() as home:
        template = _template(server, Path(home))
        if arguments.table or arguments.planted:
            names = [arguments.planted] if arguments.planted else list(BUGS)
            return max(_hunt(server, template, name, seeds) for name in names)
        return _play(server, template, seeds, stop)


def _template(server: PostgresServer, home: Path) -> str:
    name = server.new_database()
    make_postgres(postgres_place(server.url(name), home))
    return make_batch(server, name, home)


def _endure(arguments: argparse.Namespace, stop: Event) -> int:
    endured, began_s = Endured(), time.monotonic()
    with TemporaryDirectory() as place, own_server() as server, Spawner() as spawner:
        home = Path(place)
        with gateway(home / "gateway", SLOWLY) as at:
            parts: list[tuple[str, Callable[..., Endured]]] = [
                *((f"batch-{seed}", partial(endure, server=server, stop=stop)) for seed in range(arguments.batches)),
                *((f"failover-{seed}", fail_over) for seed in range(arguments.failovers)),
            ]
            for name, part in parts:
                if stop.is_set():
                    break
                seed = arguments.start + int(name.rpartition("-")[2])
                (home / name).mkdir(mode=0o700)
                try:
                    endured.add(part(home / name, spawner, at, seed=seed, rows=arguments.rows))
                except AssertionError as broken:
                    kept = shutil.copytree(home / name, Path(mkdtemp(prefix="paygw-cluster-")) / name)
                    _say(f"BROKEN: {name} with seed {seed}: {broken} (kept in {kept})")
                    return 1
                shutil.rmtree(home / name)
                _say(f"{name}: {endured}, {time.monotonic() - began_s:,.0f} s")
    _say(f"{endured}: 0 sent twice, 0 without an intent, 0 lost, every chain whole")
    return 0


def _play(server: PostgresServer, template: str, seeds: range, stop: Event) -> int:
    played, began_s, failures = Played(), time.monotonic(), 0
    for seed in seeds:
        if stop.is_set():
            break
        try:
            played.add(play(server, template, seed))
        except Broken as broken:
            failures += 1
            _say(f"{broken}\n  again: python -m tests.cluster --lives 1 --start {seed}")
        if seed % 100 == 99:
            _say(f"{played}, {failures} failures, {time.monotonic() - began_s:,.0f} s")
    used = os.times()
    _say(f"{played}: {failures} failures ({used.user + used.system:,.0f} s of processor time without the server's)")
    return 1 if failures else 0


def _hunt(server: PostgresServer, template: str, name: str, seeds: range) -> int:
    for seed in seeds:
        try:
            play(server, template, seed, BUGS[name])
        except Broken as broken:
            _say(f"{name}: {str(broken).partition(chr(10))[0]}")
            return 0
    _say(f"{name}: not found")
    return 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
