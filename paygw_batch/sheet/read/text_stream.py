"""Reads large files of delimited text block by block, so that memory does not grow with the file.

A record is a physical line, or the file is refused (`delimited`): so a block of whole lines can be read by itself, with
the header put before it. Anything unusual (another encoding, control characters, a quotation mark that does not close,
no row at all) ends the streaming with `NeedsWholeFile`. The file is then read as a whole, as small files are, and that
reading accepts it or words the error.
"""

import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.pieces import NeedsWholeFile, Piece, changed_since_read, frame_read_again, held_in
from paygw_batch.sheet.read.delimited import Start, find_header, read_rows
from paygw_batch.sheet.read.format import Kind, check_first_bytes
from paygw_batch.sheet.read.frame import (
    Table,
    found_in,
    has_other_digits,
    headers_of,
    streamed_sheet,
    without_blank_rows,
)
from paygw_batch.sheet.read.headings import Vocabulary
from paygw_batch.sheet.read.text import UTF8_MARK, Marks, is_plain_utf8

BLOCK_BYTES = 8 * 1024 * 1024
"""The size of a block. A file of one block is read as a whole."""
_HEAD_BYTES = 256 * 1024
"""How much of a file is searched for its header."""
_LOOKS = 32
LOOK_BYTES = 16 * 1024
"""The number of samples taken from a file before it is read, and the size of each."""


class TextStream:
    """A `pieces.Source`: a file of delimited text, gone through block by block.

    Every passing hashes exactly the bytes that it parses; a file with other bytes than in the first is refused.
    """

    def __init__(
        self, path: Path, vocabulary: Vocabulary, *, file: str, max_rows: int, whole: Callable[[], Sheet]
    ) -> None:
        """`whole` reads the file as a whole. Raises `NeedsWholeFile`."""
        self._path = path
        self._max_rows = max_rows
        self._whole = whole
        self._sha256: str | None = None
        self._file: tuple[int, int, int] | None = None
        self._defects: dict[int, pl.DataFrame] = {}
        self.operation = vocabulary.operation
        self.name = file
        with self._opened() as opened:
            block = os.pread(opened.fileno(), min(_HEAD_BYTES, BLOCK_BYTES), 0)
            self._start, self._header = _header(block[: block.rfind(b"\n") + 1], vocabulary, file)
        self._delimiter = self._start.delimiter.encode()
        self._headings = self._start.headings
        self.headers: Mapping[str, str] = headers_of(self._headings)
        self.unknown: Sequence[str] = self._headings.unknown
        self.nameless: Collection[str] = self._headings.nameless

    def pieces(self) -> Iterator[Callable[[], Piece]]:
        """As in `Source`. Raises `NeedsWholeFile`, and `SheetError` for a file that changed since the first pass."""
        digest = hashlib.sha256()
        lines_before = 0
        with self._opened() as file:
            before = os.fstat(file.fileno())
            found = (before.st_dev, before.st_ino, before.st_size)
            if self._file not in {None, found}:
                raise changed_since_read(self.name)
            self._file = found
            begin = self._start.offset
            for block, end in _blocks(file):
                digest.update(memoryview(block)[:end])
                text = b"".join((self._header, memoryview(block)[begin:end]))
                marks = Marks.of(text, self._delimiter, len(self._header))
                if marks.lines:
                    yield partial(self._piece, text, marks, lines_before)
                lines_before += marks.lines
                begin = 0
                if lines_before > self._max_rows:
                    raise NeedsWholeFile
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or not lines_before:
            raise NeedsWholeFile
        if self._sha256 not in {None, digest.hexdigest()}:
            raise changed_since_read(self.name)
        self._sha256 = digest.hexdigest()

    def columns_likely_filled(self) -> Collection[str]:
        """As in `Source`. The last rows of a sorted sheet may fill a column that is empty in all the others."""
        with self._opened() as file:
            size = os.fstat(file.fileno()).st_size
            places = range(self._start.offset, size, max(LOOK_BYTES, size // _LOOKS))
            blocks = [os.pread(file.fileno(), LOOK_BYTES, at) for at in places]
        text = b"".join(block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1] for block in blocks)
        marks = Marks.of(text, self._delimiter)
        return held_in(without_blank_rows(self._table(self._header + text, marks, 0))) if marks.lines else ()

    def sheet(self, held: Collection[str]) -> Sheet:
        """As in `Source`."""
        return streamed_sheet(
            self._headings,
            held,
            self._defects,
            file=self.name,
            operation=self.operation,
            sha256=self._sha256 or "",
            frame=partial(frame_read_again, self._whole, self.name, self._sha256),
        )

    def whole(self) -> Sheet:
        """As in `Source`."""
        return self._whole()

    def _piece(self, text: bytes, marks: Marks, lines_before: int) -> Piece:
        table = self._table(text, marks, lines_before)
        frame = without_blank_rows(table).rechunk()
        if not frame.height or has_other_digits(frame, text):
            raise NeedsWholeFile
        self._defects[lines_before] = found_in(table.defects, frame)
        return Piece(frame, self._defects[lines_before])

    def _table(self, text: bytes, marks: Marks, lines_before: int) -> Table:
        if not marks.is_plain_utf8(text):
            raise NeedsWholeFile
        start = self._start.of_part(self._header, lines_before)
        try:
            return read_rows(text, start, marks, self.name)
        except SheetError as error:
            raise NeedsWholeFile from error

    def _opened(self) -> io.FileIO:
        try:
            return io.FileIO(self._path)
        except OSError as error:
            raise NeedsWholeFile from error


def _blocks(file: io.FileIO) -> Iterator[tuple[bytearray, int]]:
    """Yield the file in blocks of whole lines: bytes, and how many of them are the block. Each overwrites the last."""
    at = 0
    block = bytearray(BLOCK_BYTES)
    while size := os.preadv(file.fileno(), [block], at):
        is_last = not os.pread(file.fileno(), 1, at + size)
        end = size if is_last else block.rfind(b"\n", 0, size) + 1
        if not end:
            raise NeedsWholeFile
        yield block, end
        at += end


def _header(block: bytes, vocabulary: Vocabulary, file: str) -> tuple[Start, bytes]:
    """Find the header in the first block (behind a mark), and return its place and its line."""
    text = block.removeprefix(UTF8_MARK)
    try:
        check_first_bytes(block, Kind.DELIMITED, file)
        if not is_plain_utf8(text):
            raise NeedsWholeFile
        start = find_header(text, vocabulary, file)
    except SheetError as error:
        raise NeedsWholeFile from error
    header = text[text.rfind(b"\n", 0, start.offset - 1) + 1 : start.offset]
    return replace(start, offset=start.offset + len(block) - len(text)), header
