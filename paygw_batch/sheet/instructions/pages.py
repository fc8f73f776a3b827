"""A frame as pages of bytes, for the journal to keep."""

import io
from collections.abc import Iterable, Iterator

import polars as pl

from paygw_batch.errors import InternalError

ROWS_A_PAGE = 20_000


def to_pages(frame: pl.DataFrame) -> Iterator[bytes]:
    """Yield the frame as compressed Arrow IPC files of at most `ROWS_A_PAGE` rows; one page when it has no row."""
    parts = frame.iter_slices(ROWS_A_PAGE) if frame.height else [frame]
    for part in parts:
        page = io.BytesIO()
        part.write_ipc(page, compression="zstd")
        yield page.getvalue()


class Pager:
    """Makes pages of a frame that comes part by part: the same as of the whole."""

    def __init__(self) -> None:
        self._rest: pl.DataFrame | None = None

    def take(self, part: pl.DataFrame) -> list[bytes]:
        """Return the pages that are full with the next rows."""
        rows = part if self._rest is None else pl.concat([self._rest, part])
        full = rows.height - rows.height % ROWS_A_PAGE
        self._rest = rows.slice(full).rechunk()
        return list(to_pages(rows.head(full))) if full else []

    def last(self) -> list[bytes]:
        """Return the page of the rows that are left, if there are any."""
        return list(to_pages(self._rest)) if self._rest is not None and self._rest.height else []


def from_pages(pages: Iterable[bytes]) -> pl.DataFrame:
    """Return the frame that `to_pages` was given. Raises `InternalError` when there is no page."""
    parts = [pl.read_ipc(io.BytesIO(page)) for page in pages]
    if not parts:
        raise InternalError("a batch of the journal has no page of its sheet")
    return pl.concat(parts)
