"""Reads the lines of a statement that came as a workbook (.xlsx): the first visible worksheet that has its header."""

from collections.abc import Callable, Iterator, Sequence

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.read.headings import HEADER_ROWS
from paygw_batch.sheet.read.xlsx_cells import Row, Workbook

FIRST_BYTES = b"PK\x03\x04"
"""How a workbook begins. No CSV does."""


def workbook_lines(
    data: bytes, file: str, max_bytes: int, is_header: Callable[[Sequence[str]], bool]
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the header, and each line below it that is not empty, with its row; every line is as long as the header.

    Raises `SheetError` where no visible worksheet has a header, several have one, or a cell's value is lost.
    """
    workbook = Workbook(data, file=file, max_bytes=max_bytes)
    parts = [part for part in workbook.worksheets() if not part.hidden]
    fitting = [part for part in parts if _header(workbook.rows(part), is_header) is not None]
    if len(fitting) != 1:
        raise _unclear(file, [part.name for part in fitting])
    rows = workbook.rows(fitting[0])
    header = _header(rows, is_header)
    if header is None:
        return
    width = max(header.texts)
    yield header.number, _cells(header, width)
    for row in rows:
        cells = _cells(row, width)
        if not any(cell.strip() for cell in cells):
            continue
        if doubt := next((at for at in row.doubts if at <= width), None):
            raise SheetError(
                say(
                    "{file}, row {row}: {value} is a formula without a value, or a number that was cut.",
                    file=file,
                    row=row.number,
                    value=row.texts[doubt],
                ),
                hint=say("Ask for the statement as CSV, or with these cells as text."),
            )
        yield row.number, cells


def _unclear(file: str, fitting: Sequence[str]) -> SheetError:
    if fitting:
        names = ", ".join(repr(name) for name in fitting)
        return SheetError(
            say("{file}: several worksheets look like a statement: {names}.", file=file, names=names),
            hint=say("Save the one that is meant as CSV."),
        )
    return SheetError(
        say("{file} has no worksheet with the columns order_id, amount and currency.", file=file),
        hint=say("`[statement.columns]` in the configuration says which of the gateway's headings is which column."),
    )


def _header(rows: Iterator[Row], is_header: Callable[[Sequence[str]], bool]) -> Row | None:
    """Return the first row that is a header, and leave `rows` behind it."""
    for row in rows:
        if row.number > HEADER_ROWS:
            return None
        if row.texts and is_header(_cells(row, max(row.texts))):
            return row
    return None


def _cells(row: Row, width: int) -> list[str]:
    return [row.texts.get(column, "") for column in range(1, width + 1)]
