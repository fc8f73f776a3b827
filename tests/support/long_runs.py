"""Long runs by the command line: a SIGTERM ends one in order, with what it came to so far."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Event
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def stop_at_sigterm() -> Event:
    """Return what is set when this process is asked to end."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def results_of(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], *, workers: int, start_method: str, stop: Event
) -> Iterator[Result]:
    """Yield what the workers make of each piece, in any order, until all are done or a stop was asked for."""
    context = multiprocessing.get_context(start_method)
    with context.Pool(workers, signal.signal, (signal.SIGTERM, signal.SIG_DFL)) as pool:
        results = pool.imap_unordered(work, pieces)
        while not stop.is_set():
            with suppress(multiprocessing.TimeoutError):
                try:
                    yield results.next(1.0)
                except StopIteration:
                    return
