"""Loads and saves a sender's workbook with openpyxl, within limits and only in memory.

This module needs the `excel` extra, and is imported only if that is installed.
"""

import io
import zipfile
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

from openpyxl import load_workbook
from openpyxl.drawing.spreadsheet_drawing import SpreadsheetDrawing
from openpyxl.utils import range_boundaries
from openpyxl.workbook import Workbook
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.writer.excel import ExcelWriter

from paygw_batch.language import mark, say
from paygw_batch.sheet.read.xlsx_cells import Handlers

MAX_UNPACKED_BYTES = 32 * 1024 * 1024
"""The maximum size of an unpacked workbook. See docs/performance.md for the memory and time needed."""
_MAX_RANGED_CELLS = 200_000
"""The maximum number of cells in merged cells and links. The library creates an object for each one."""
_RANGE_TAGS = frozenset({"mergeCell", "hyperlink"})
_UNCOPIED_PARTS = {
    "xl/media/": mark("pictures"),
    "xl/charts/": mark("charts"),
    "xl/pivotTables/": mark("pivot tables"),
    "xl/slicers/": mark("slicers"),
    "xl/ctrlProps/": mark("form controls"),
    "xl/embeddings/": mark("embedded objects"),
    "xl/threadedComments/": mark("comment threads"),
    "xl/queryTables/": mark("queries"),
    "xl/vbaProject.bin": mark("macros"),
}


def find_copy_obstacle(data: bytes) -> str:
    """Return a clause that says why the library must not load this workbook, or "" if it may.

    The library unpacks all parts, reads document type declarations, and creates an object for each cell in a range. So
    a small file could exhaust the memory.
    """
    cell_count = 0

    def count_range(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal cell_count
        cell_count += _range_size(attributes.get("ref", "")) if name in _RANGE_TAGS else 0

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked_bytes = sum(info.file_size for info in archive.infolist())
            if unpacked_bytes > MAX_UNPACKED_BYTES:
                return say(
                    "the workbook is {unpacked} MiB when unpacked, which is more than {most}",
                    unpacked=unpacked_bytes >> 20,
                    most=MAX_UNPACKED_BYTES >> 20,
                )
            for info in archive.infolist():
                if info.filename.endswith((".xml", ".rels")):
                    Handlers(start=count_range).create_parser().Parse(archive.read(info), True)
    except (expat.ExpatError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError):
        return say("a part of the workbook is damaged, or contains a document type declaration (DTD)")
    if cell_count > _MAX_RANGED_CELLS:
        return say("merged cells or links in the workbook span too many cells")
    return ""


def _range_size(ref: str) -> int:
    """Return the number of cells in a range such as `A1:C3`. Raises `ValueError` for other strings."""
    left, top, right, bottom = range_boundaries(ref)
    if left is None or top is None or right is None or bottom is None:
        return _MAX_RANGED_CELLS + 1  # whole rows or columns
    return (right - left + 1) * (bottom - top + 1)


def load_workbook_copy(data: bytes) -> Workbook:
    """Load a workbook with its formulas, but not their values.

    Raises `ValueError` for a table without column names, because `save_workbook` would create every cell in the table
    to find them.
    """
    book = load_workbook(io.BytesIO(data), rich_text=True)
    if not all(table.tableColumns for sheet in book.worksheets for table in sheet.tables.values()):
        raise ValueError("a table names no columns")
    return book


def save_workbook(book: Workbook) -> bytes:
    """Save a workbook as bytes. The library's own `save` would write payees' data to temporary files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        _InMemoryWriter(book, archive).save()
    return file.getvalue()


def lost_part_kinds(original: bytes, copy: bytes) -> list[str]:
    """Return the kinds of parts that are missing from the copy."""
    counts = zip(_UNCOPIED_PARTS.values(), _count_parts(original), _count_parts(copy), strict=True)
    return [kind for kind, old_count, new_count in counts if old_count > new_count]


class _InMemoryWriter(ExcelWriter):
    _archive: zipfile.ZipFile

    def write_worksheet(self, ws: Any) -> None:
        """Write a worksheet in memory instead of in a temporary file."""
        ws._drawing = SpreadsheetDrawing()  # noqa: SLF001 (like the method that this overrides)
        ws._drawing.charts = ws._charts  # noqa: SLF001 (as above)
        ws._drawing.images = ws._images  # noqa: SLF001 (as above)
        writer: Any = WorksheetWriter(ws, out=io.BytesIO())
        writer.write()
        ws._rels = writer._rels  # noqa: SLF001 (as above)
        self._archive.writestr(ws.path[1:], writer.read())
        self.manifest.append(ws)


def _count_parts(data: bytes) -> list[int]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name for name in archive.namelist() if not name.endswith(".rels")]
    return [sum(name.startswith(prefix) for name in names) for prefix in _UNCOPIED_PARTS]
