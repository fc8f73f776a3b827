"""Long runs on the command line, which end in order on SIGTERM and return the results so far."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Event
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def stop_on_sigterm() -> Event:
    """Return an event that is set when this process receives SIGTERM."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def run_pieces(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], *, workers: int, start_method: str, stop: Event
) -> Iterator[Result]:
    """Yield the results of the workers in any order, until all pieces are done or a stop was requested."""
    context = multiprocessing.get_context(start_method)
    with context.Pool(workers, signal.signal, (signal.SIGTERM, signal.SIG_DFL)) as pool:
        results = pool.imap_unordered(work, pieces)
        while not stop.is_set():
            with suppress(multiprocessing.TimeoutError):
                try:
                    yield results.next(1.0)
                except StopIteration:
                    return


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
