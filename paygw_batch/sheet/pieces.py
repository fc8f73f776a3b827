"""Goes through the rows of a sheet in pieces, several at a time, so that checks take little memory."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from paygw_batch.sheet.model import Sheet

ROWS_AT_ONCE = 250_000
_CORES_A_PIECE = 2  # that polars keeps busy, more or less: pieces in parallel cost memory
_MAX_AT_ONCE = 4

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a sheet as in its `frame`, and those of its `defects` that are in them."""

    frame: pl.DataFrame
    defects: pl.DataFrame


def pieces_of(sheet: Sheet) -> Iterator[Piece]:
    for frame in sheet.frame.iter_slices(ROWS_AT_ONCE):
        of_piece = pl.col("row").is_between(frame["row"][0], frame["row"][-1])
        yield Piece(frame, sheet.defects.filter(of_piece))


def each(sheet: Sheet, work: Callable[[Piece], _Made]) -> Iterator[_Made]:
    """Apply `work` to each piece of a sheet, and yield the results in order.

    A few pieces are in work at once (polars releases the interpreter's lock), and no more than those are begun.
    """
    threads = max(1, min(pl.thread_pool_size() // _CORES_A_PIECE, _MAX_AT_ONCE))
    begun: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces_of(sheet):
            begun.append(pool.submit(copy_context().run, work, piece))  # it has the language
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
