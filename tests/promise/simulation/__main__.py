"""`python -m tests.promise.simulation`: long runs of the simulation, and the table of planted bugs."""

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from threading import Event

from tests.promise.simulation.planted import BUGS, RUNS
from tests.promise.simulation.seeds import PLAYS, Failure, first_failure, hunt
from tests.support.long_runs import run_pieces, say, stop_on_sigterm

AT_ONCE = 500  # the number of seeds that a worker takes at a time


def main() -> int:
    arguments = _arguments()
    if arguments.table is not None:
        return _print_table(arguments.table or list(BUGS), range(arguments.start, arguments.start + arguments.seeds))
    return _play(arguments.kind, arguments.start, arguments.seeds, arguments.workers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.promise.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--kind", choices=sorted(PLAYS), default=RUNS, help="kind of scenarios (default: %(default)s)")
    parser.add_argument("--table", nargs="*", metavar="BUG", help="hunt planted bugs, and print how fast each is found")
    return parser.parse_args()


def _play(kind: str, start: int, seeds: int, workers: int) -> int:
    """Play seeds, in this process if it is the only worker. SIGTERM ends it and prints the results so far."""
    began_s = time.monotonic()
    stop = stop_on_sigterm()
    pieces = [range(at, min(at + AT_ONCE, start + seeds)) for at in range(start, start + seeds, AT_ONCE)]
    played = failures = 0
    for count, failure in _failures(kind, pieces, workers, stop):
        played += count
        if failure is not None:
            failures += 1
            again = f"python -m tests.promise.simulation --kind {kind} --seeds 1 --start {failure.seed}"
            say(f"{failure}\n  again: {again}")
        if played % 10_000 < AT_ONCE:
            say(f"{played:,} seeds, {played / (time.monotonic() - began_s):,.0f}/s")
    seconds = time.monotonic() - began_s
    say(
        f"{played:,} seeds from {start:,} in {seconds:,.0f} s ({played / seconds:,.0f}/s with {workers} workers): "
        f"{failures} failures"
    )
    return 1 if failures else 0


def _failures(kind: str, pieces: Sequence[range], workers: int, stop: Event) -> Iterator[tuple[int, Failure | None]]:
    """Yield the result of each piece, in any order, until all are played or a stop was requested."""
    gc.freeze()  # scenarios leave much that is only found going round in circles: looked for rarely, and nowhere else
    gc.set_threshold(100_000, 10, 10)
    if workers == 1:
        yield from map(partial(first_failure, kind=kind), takewhile(lambda _: not stop.is_set(), pieces))
        return
    yield from run_pieces(partial(first_failure, kind=kind), pieces, workers=workers, start_method="fork", stop=stop)


def _print_table(names: Sequence[str], seeds: range) -> int:
    """Print one line for each planted bug. Exit code 1 unless an invariant finds each bug."""
    say("| planted bug | found by | seeds | seconds |\n| --- | --- | --- | --- |")
    missed = 0
    for name in names:
        began_s = time.monotonic()
        played, failure = hunt(name, seeds)
        by = failure.invariant if failure else "nothing"
        missed += by not in BUGS[name].found_by
        say(f"| {name} | {by} | {played} | {time.monotonic() - began_s:.2f} |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
