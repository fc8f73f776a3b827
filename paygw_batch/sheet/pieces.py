"""Sheets in pieces: so that memory for what lies between a file and its figures does not grow with the file."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import polars as pl

from paygw_batch.sheet.result import Sheet

ROWS_AT_ONCE = 250_000
_THREADS = 4

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a sheet as in its `frame`, and those of its `defects` that are in them."""

    frame: pl.DataFrame
    defects: pl.DataFrame


class Source(Protocol):
    """A sheet that can be gone through piece by piece, as often as need be."""

    @property
    def operation(self) -> str:
        """What its rows are for."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of its frame, beside `row`."""

    @property
    def unknown(self) -> Sequence[str]:
        """Those that mean nothing to us, in its order."""

    def pieces(self) -> Iterator[Callable[[], Piece]]:
        """Yield what makes each piece, in order."""


def each(source: Source, work: Callable[[Piece], _Made]) -> Iterator[_Made]:
    """Yield what `work` makes of each piece of a sheet, in order.

    Some are worked at beside each other (polars lets go of the interpreter's lock); no more are begun than that.
    """
    threads = min(pl.thread_pool_size(), _THREADS)
    begun: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for make in source.pieces():
            begun.append(pool.submit(lambda make: work(make()), make))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


@dataclass(frozen=True, slots=True)
class InMemory:
    """A sheet whose frame is there already."""

    sheet: Sheet

    @property
    def operation(self) -> str:
        """As in `Source`."""
        return self.sheet.operation

    @property
    def columns(self) -> Sequence[str]:
        """As in `Source`."""
        return self.sheet.frame.columns[1:]

    @property
    def unknown(self) -> Sequence[str]:
        """As in `Source`."""
        return self.sheet.unknown

    def pieces(self) -> Iterator[Callable[[], Piece]]:
        """As in `Source`."""
        for frame in self.sheet.frame.iter_slices(ROWS_AT_ONCE):
            yield partial(self._piece, frame)

    def _piece(self, frame: pl.DataFrame) -> Piece:
        of_piece = pl.col("row").is_between(frame["row"][0], frame["row"][-1])
        return Piece(frame, self.sheet.defects.filter(of_piece))
