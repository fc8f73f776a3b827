"""Reads sheets in pieces, so that memory does not grow with the file."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.model import Headed, Sheet

ROWS_AT_ONCE = 250_000
_CORES_A_PIECE = 2
"""The number of cores that polars keeps busy with one piece, more or less: pieces in parallel cost memory."""
_MAX_AT_ONCE = 4

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a sheet as in its `frame`, and those of its `defects` that are in them."""

    frame: pl.DataFrame
    defects: pl.DataFrame


class NeedsWholeFile(Exception):
    """The file cannot be streamed: it must be read as a whole."""


def changed_since_read(name: str) -> SheetError:
    """Return the error for a sheet whose file has other bytes than those that were read first."""
    return SheetError(say("{name} was changed since it was read.", name=name), hint=say("Run the command again."))


def frame_read_again(whole: Callable[[], Sheet], name: str, sha256: str | None) -> pl.DataFrame:
    """Return the frame of a sheet that was gone through, read as a whole. `sha256` is of the bytes that were read.

    Raises `SheetError` if the file has others by now.
    """
    sheet = whole()
    if sheet.sha256 != sha256:
        raise changed_since_read(name)
    return sheet.frame


class SheetSource(Headed, Protocol):
    """A sheet that can be gone through piece by piece, as often as need be. `headers` has all of the `nameless`."""

    @property
    def unknown(self) -> Sequence[str]:
        """As in `Sheet`, with all of the `nameless`."""

    @property
    def nameless(self) -> Collection[str]:
        """Columns without a heading, which count for nothing unless they hold something."""

    def columns_likely_filled(self) -> Collection[str]:
        """Return columns that hold something, from a look at some rows: most of them, or all."""

    def pieces(self) -> Iterator[Callable[[], Piece]]:
        """Yield functions that make the pieces, in order. Yielding and making may raise `NeedsWholeFile`."""

    def sheet(self, held: Collection[str]) -> Sheet:
        """Return the sheet, when it has been gone through and these columns were found to hold something."""

    def whole(self) -> Sheet:
        """Return the sheet read as a whole. Raises `SheetError`."""


def held_in(frame: pl.DataFrame) -> set[str]:
    """Return the columns that hold anything."""
    return {column.name for column in frame if column.null_count() < frame.height}


def each(source: SheetSource, work: Callable[[Piece], _Made]) -> Iterator[_Made]:
    """Apply `work` to each piece of a sheet, and yield the results in order.

    Some are worked at beside each other (polars lets go of the interpreter's lock); no more are begun than that.
    """
    threads = max(1, min(pl.thread_pool_size() // _CORES_A_PIECE, _MAX_AT_ONCE))
    begun: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for make in source.pieces():
            begun.append(pool.submit(copy_context().run, lambda make: work(make()), make))  # it has the language
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


@dataclass(frozen=True, slots=True)
class InMemory:
    """A `SheetSource` whose frame is there already."""

    whole_sheet: Sheet

    @property
    def name(self) -> str:
        """As in `SheetSource`."""
        return self.whole_sheet.name

    @property
    def operation(self) -> str:
        """As in `SheetSource`."""
        return self.whole_sheet.operation

    @property
    def headers(self) -> Mapping[str, str]:
        """As in `SheetSource`."""
        return self.whole_sheet.headers

    @property
    def unknown(self) -> Sequence[str]:
        """As in `SheetSource`."""
        return self.whole_sheet.unknown

    @property
    def nameless(self) -> Collection[str]:
        """As in `SheetSource`: those that hold nothing have been dropped."""
        return ()

    def columns_likely_filled(self) -> Collection[str]:
        """As in `SheetSource`: all of them."""
        return held_in(self.whole_sheet.frame)

    def pieces(self) -> Iterator[Callable[[], Piece]]:
        """As in `SheetSource`."""
        for frame in self.whole_sheet.frame.iter_slices(ROWS_AT_ONCE):
            yield partial(self._piece, frame)

    def sheet(self, held: Collection[str]) -> Sheet:  # noqa: ARG002 (as in `SheetSource`)
        """As in `SheetSource`."""
        return self.whole_sheet

    def whole(self) -> Sheet:
        """As in `SheetSource`."""
        return self.whole_sheet

    def _piece(self, frame: pl.DataFrame) -> Piece:
        of_piece = pl.col("row").is_between(frame["row"][0], frame["row"][-1])
        return Piece(frame, self.whole_sheet.defects.filter(of_piece))
