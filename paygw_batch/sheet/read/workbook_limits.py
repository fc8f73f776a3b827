"""Limits the size of an unpacked workbook, and refuses it before unpacking if its directory shows that it is too large.

A few hundred KiB can contain hundreds of MiB of XML, and all of it becomes objects. All limits follow from
`limits.max_sheet_mib`. docs/decisions/0105 has the arithmetic.
"""

import zipfile
from dataclasses import dataclass

from paygw_batch.errors import SheetError
from paygw_batch.language import say

MAX_CELL_CHARACTERS = 8 * 32_767
"""A cell has at most 32,767 characters, each of which may be written as an escape of seven."""
MAX_DEPTH = 64
"""The maximum depth of nested tags. A spreadsheet writes ten."""
MAX_TAG_BYTES = 1 << 22
"""The maximum length of one tag or comment."""
MAX_WORKSHEETS = 1_000
MAX_DOUBTS = 200_000
"""The maximum number of doubtful cells. A workbook with more was never calculated, or is no sheet of payees."""
_MAX_RATIO = 100
"""The maximum ratio of the size of the parts to that of the file. Workbooks that spreadsheets save have 5 to 30."""
_RATIO_FROM_BYTES = 16 * 1024 * 1024
"""Below this size, the ratio does not matter."""
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_CELL_BYTES = 16
_INLINE_CHARACTERS = 12
"""A text of at most this length needs no memory besides its cell."""
_STRING_BYTES = 57
_DOUBT_BYTES = 200


@dataclass(slots=True)
class Budget:
    """Counts the unpacked bytes of one workbook, and the memory of its cells. Raises `SheetError` above a limit."""

    file: str
    max_bytes: int
    _unpacked: int = 0
    _texts: int = 0
    _held: int = 0
    """The memory of shared strings and doubts, in bytes."""
    _doubts: int = 0

    def check_directory(self, archive: zipfile.ZipFile, packed_bytes: int) -> None:
        """Refuse a workbook that is too large by its directory, before anything is unpacked."""
        parts = archive.infolist()
        unpacked = sum(part.file_size for part in parts)
        if any(part.compress_type not in _COMPRESSIONS for part in parts):
            raise SheetError(
                say("{file} is compressed in a way that no spreadsheet uses.", file=self.file),
                hint=say("Open it in the spreadsheet and save it again."),
            )
        if unpacked > max(_RATIO_FROM_BYTES, packed_bytes * _MAX_RATIO):
            raise SheetError(
                say(
                    "{file} is {packed_bytes:.1f} MiB, but would be {unpacked:.0f} MiB unpacked: no sheet of payees "
                    "compresses that much.",
                    file=self.file,
                    packed_bytes=packed_bytes / 2**20,
                    unpacked=unpacked / 2**20,
                ),
                hint=say("Copy the rows into a new workbook, or save the sheet as .csv."),
            )
        self._held = packed_bytes

    def unpack(self, count: int) -> None:
        """Count bytes that are about to be unpacked."""
        self._unpacked += count
        if self._unpacked > self.max_bytes:
            raise self.too_large()

    def hold_string(self, text: str) -> None:
        """Count a text of the table of shared strings."""
        self._held += _STRING_BYTES + _width(text)
        self._check(0)

    def hold_text(self, text: str) -> None:
        """Count the text of a cell, because each cell has its own copy."""
        if len(text) > _INLINE_CHARACTERS:
            self._texts += _width(text)
            self._check(0)

    def hold_doubts(self, doubts: int, hidden_rows: int) -> None:
        """Count the doubts that were found, because each becomes a defect, and each hidden row a warning."""
        self._doubts += doubts
        if self._doubts > MAX_DOUBTS:
            raise SheetError(
                say(
                    "{file} has more than {most:,} formulas without a value, or numbers of more digits than a "
                    "spreadsheet keeps.",
                    file=self.file,
                    most=MAX_DOUBTS,
                ),
                hint=say("Open it in the spreadsheet, which calculates the formulas, and save it again."),
            )
        self._held += (doubts + hidden_rows) * _DOUBT_BYTES

    def hold_cells(self, rows: int, columns: int) -> None:
        """Check the memory of this number of rows and columns. An empty cell needs as much as a full one."""
        self._check(rows * columns * _CELL_BYTES)

    def too_large(self) -> SheetError:
        return SheetError(
            say("{file} is too large once unpacked.", file=self.file),
            hint=say("Split the sheet, save it as .csv, or have the limit raised in the configuration."),
        )

    def _check(self, cells_bytes: int) -> None:
        """Refuse a workbook that needs too much memory. Cells are in memory twice while the pieces become one frame."""
        if self._held + 2 * (self._texts + cells_bytes) > self.max_bytes // 2:
            raise self.too_large()


def _width(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
