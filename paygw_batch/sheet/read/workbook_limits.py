"""Limits the size of an unpacked workbook, if possible before unpacking it.

A few hundred KiB can unpack to hundreds of MiB of XML, all of which becomes objects. The limits are derived from
`limits.max_sheet_mib` (see docs/decisions/0105).
"""

import zipfile
from dataclasses import dataclass

from paygw_batch.errors import SheetError
from paygw_batch.language import say

MAX_CELL_CHARACTERS = 8 * 32_767
"""A cell has at most 32,767 characters. An escaped character takes seven."""
MAX_DEPTH = 64
"""The maximum depth of nested tags. Spreadsheets use ten."""
MAX_TAG_BYTES = 1 << 22
MAX_WORKSHEETS = 1_000
MAX_DOUBTS = 200_000
"""The maximum number of doubtful cells. A workbook with more was never calculated, or isn't a sheet of payees."""
_MAX_RATIO = 100
"""The maximum compression ratio. Spreadsheets have ratios of 5 to 30."""
_RATIO_FROM_BYTES = 16 * 1024 * 1024
"""Below this unpacked size, the ratio isn't checked."""
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_CELL_BYTES = 16
_INLINE_CHARACTERS = 12
"""Strings of at most this length need no memory beyond their cells."""
_STRING_BYTES = 57
_DOUBT_BYTES = 200


@dataclass(slots=True)
class Budget:
    """Counts the unpacked bytes and memory of a workbook. Methods raise `SheetError` if a limit is exceeded."""

    file: str
    max_bytes: int
    _unpacked: int = 0
    _cell_text_bytes: int = 0
    _shared_bytes: int = 0
    """The memory for shared strings and doubts, in bytes."""
    _doubt_count: int = 0

    def check_directory(self, archive: zipfile.ZipFile, packed_bytes: int) -> None:
        """Reject a workbook whose directory lists suspicious sizes or compression, before it is unpacked."""
        parts = archive.infolist()
        unpacked = sum(part.file_size for part in parts)
        if any(part.compress_type not in _COMPRESSIONS for part in parts):
            raise SheetError(
                say("{file} is compressed with a method that no spreadsheet program uses.", file=self.file),
                hint=say("Open it in your spreadsheet program and save it again."),
            )
        if unpacked > max(_RATIO_FROM_BYTES, packed_bytes * _MAX_RATIO):
            raise SheetError(
                say(
                    "{file} is {packed_bytes:.1f} MiB, but would be {unpacked:.0f} MiB when unpacked. No sheet of "
                    "payees compresses that much.",
                    file=self.file,
                    packed_bytes=packed_bytes / 2**20,
                    unpacked=unpacked / 2**20,
                ),
                hint=say("Copy the rows into a new workbook, or save the sheet as .csv."),
            )
        self._shared_bytes = packed_bytes

    def count_unpacked(self, byte_count: int) -> None:
        """Count bytes that are about to be unpacked."""
        self._unpacked += byte_count
        if self._unpacked > self.max_bytes:
            raise self.too_large_error()

    def count_string(self, text: str) -> None:
        self._shared_bytes += _STRING_BYTES + _max_text_bytes(text)
        self._check_memory(0)

    def count_text(self, text: str) -> None:
        """Count the text of a cell. Each cell has its own copy."""
        if len(text) > _INLINE_CHARACTERS:
            self._cell_text_bytes += _max_text_bytes(text)
            self._check_memory(0)

    def count_doubts(self, doubts: int, warnings: int) -> None:
        """Count doubtful cells (`doubts`), which become defects, and anything that may become a warning."""
        self._doubt_count += doubts
        if self._doubt_count > MAX_DOUBTS:
            raise SheetError(
                say(
                    "{file} has more than {most:,} cells that are formulas without a value, or numbers with more "
                    "digits than a spreadsheet can store.",
                    file=self.file,
                    most=MAX_DOUBTS,
                ),
                hint=say("Open it in your spreadsheet program, which calculates the formulas, and save it again."),
            )
        self._shared_bytes += (doubts + warnings) * _DOUBT_BYTES

    def check_memory_for_cells(self, rows: int, columns: int) -> None:
        """Check that this many rows and columns fit in memory. Empty cells need as much as full ones."""
        self._check_memory(rows * columns * _CELL_BYTES)

    def too_large_error(self) -> SheetError:
        return SheetError(
            say("{file} is too large when unpacked.", file=self.file),
            hint=say("Split the sheet, save it as .csv, or have the limit raised in the configuration."),
        )

    def _check_memory(self, cell_bytes: int) -> None:
        """Reject a workbook that needs too much memory. While pieces are joined, memory holds cells twice."""
        if self._shared_bytes + 2 * (self._cell_text_bytes + cell_bytes) > self.max_bytes // 2:
            raise self.too_large_error()


def _max_text_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
