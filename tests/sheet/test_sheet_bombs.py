"""Workbooks that are small files but large when unpacked are refused early, within limits of memory."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from openpyxl.utils import get_column_letter

from paygw_batch.errors import SheetError
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.support.long_part import long
from tests.support.sheet_values import GOOD, HEADER

MIB = 1 << 20
NAMESPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
Parts = dict[str, bytes | list[bytes]]


def inline(texts: str, row: int) -> bytes:
    cells = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in texts.split(","))
    return f'<row r="{row}">{cells}</row>'.encode()


ROWS = inline(HEADER, 1) + inline(GOOD, 2)


def worksheet(*content: bytes) -> list[bytes]:
    return [f"<worksheet {NAMESPACE}><sheetData>".encode(), *content, b"</sheetData></worksheet>"]


def workbook(sheets: int = 1, *, strings: list[bytes] | None = None, first: list[bytes] | None = None) -> Parts:
    def relation(identity: str, kind: str, target: str) -> str:
        return f'<Relationship Id="{identity}" Type="{RELATIONS}/{kind}" Target="{target}"/>'

    numbers = range(1, sheets + 1)
    names = "".join(f'<sheet name="S{n}" sheetId="{n}" r:id="rId{n}" xmlns:r="{RELATIONS}"/>' for n in numbers)
    links = "".join(relation(f"rId{n}", "worksheet", f"worksheets/sheet{n}.xml") for n in numbers)
    parts: Parts = {f"xl/worksheets/sheet{n}.xml": worksheet() for n in numbers}
    parts["xl/worksheets/sheet1.xml"] = first or worksheet(ROWS)
    if strings is not None:
        links += relation("texts", "sharedStrings", "sharedStrings.xml")
        parts["xl/sharedStrings.xml"] = [f"<sst {NAMESPACE}>".encode(), *strings, b"</sst>"]
    root = relation("rId1", "officeDocument", "xl/workbook.xml")
    return {
        "_rels/.rels": f"<Relationships>{root}</Relationships>".encode(),
        "xl/workbook.xml": f"<workbook {NAMESPACE}><sheets>{names}</sheets></workbook>".encode(),
        "xl/_rels/workbook.xml.rels": f"<Relationships>{links}</Relationships>".encode(),
        **parts,
    }


def write_workbook(parts: Parts, path: Path, *, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            with archive.open(name, "w") as part:
                for chunk in [content] if isinstance(content, bytes) else content:
                    part.write(chunk)
    return path


def add_ballast(parts: Parts, mib: int) -> Parts:
    """Add incompressible bytes, so that the compression ratio is plausible."""
    return {**parts, "docProps/ballast.bin": Random(0).randbytes(mib * MIB)}  # noqa: S311 (the same in every run)


CHILD = """
import sys
from pathlib import Path
from paygw_batch.errors import SheetError
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
try:
    read_sheet(Path(sys.argv[1]), ReadOptions())
    output = "read"
except SheetError as error:
    output = error.message
status = Path("/proc/self/status")  # getrusage starts with the memory of the parent process
lines = status.read_text().splitlines() if status.exists() else []
print(max([int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")], default=0), output)
"""


def read_in_child(path: Path) -> tuple[int, str]:
    """Read a sheet in a child process. Return its peak memory in MiB, and its output."""
    done = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, text=True, check=True, timeout=300)
    peak, _, output = done.stdout.strip().partition(" ")
    return int(peak), output


def inline_cell(*text: bytes) -> list[bytes]:
    return worksheet(ROWS, b'<row r="3"><c t="inlineStr"><is><t>', *text, b"</t></is></c></row>")


BOMBS: dict[str, Callable[[], Parts]] = {
    "empty shared strings": lambda: workbook(strings=[b"<si/>" * 1_000_000] * 20),
    "a worksheet of blanks": lambda: workbook(first=worksheet(ROWS, *[b" " * MIB] * 100)),
    "a giant cell": lambda: workbook(first=inline_cell(*[b"x" * MIB] * 100)),
    "worksheets": lambda: workbook(90) | {f"xl/worksheets/sheet{n}.xml": worksheet(b" " * MIB) for n in range(1, 90)},
}


@pytest.mark.share(3)
@pytest.mark.parametrize("bomb", BOMBS)
def test_tightly_packed_workbook_is_refused_before_unpacking(bomb: str, tmp_path: Path) -> None:
    path = write_workbook(BOMBS[bomb](), tmp_path / "bomb.xlsx")
    assert path.stat().st_size < 2 * MIB
    peak, output = read_in_child(path)
    assert "No sheet of payees compresses that much" in output
    assert peak < 400


def wide_workbook(rows: int) -> Parts:
    """Return the maximum number of columns, one cell per row, and a blank row, which is dropped by a copy."""
    letters = [get_column_letter(n % 990 + 1).encode() for n in range(rows)]
    cells = (b'<row r="%d"><c r="%s%d"><v>1</v></c></row>' % (n, letters[n], n) for n in range(3, rows))
    blank = b'<row r="99999"><c t="inlineStr"><is><t>&#x200b;</t></is></c></row>'
    return workbook(first=worksheet(ROWS, *cells, blank))


WITHIN_THE_RATIO: dict[str, Callable[[], Parts]] = {
    "many comments": lambda: workbook(first=worksheet(ROWS, *[(b"<!--" + b" " * 1_000 + b"-->") * 1_000] * 60)),
    "shared strings": lambda: workbook(strings=[b"<si/>" * 100_000] * 6),
    "one long string in every cell": lambda: workbook(
        strings=[b"<si><t>", b"y" * 30_000, b"</t></si>"],
        first=worksheet(ROWS, *(b'<row r="%d"><c t="s"><v>0</v></c></row>' % n for n in range(3, 4_000))),
    ),
    "a giant cell": lambda: workbook(first=inline_cell(*[b"x" * MIB] * 20)),
    "a giant shared string": lambda: workbook(strings=[b"<si><t>", *[b"x" * MIB] * 20, b"</t></si>"]),
    "a giant attribute": lambda: workbook(first=worksheet(ROWS, b'<row r="', *[b"3" * MIB] * 20, b'"></row>')),
    "a giant comment": lambda: workbook(first=worksheet(ROWS, b"<!--", *[b"-x" * MIB] * 10, b"-->")),
    "a column for every row": lambda: wide_workbook(10_000),
    "formulas without a value": lambda: workbook(
        first=worksheet(ROWS, *(b'<row r="%d">%s</row>' % (n, b"<c><f>A</f></c>" * 500) for n in range(3, 600)))
    ),
    "too many worksheets": lambda: workbook(1_100),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("bomb", WITHIN_THE_RATIO)
def test_workbook_growing_too_large_is_refused_while_unpacking(bomb: str, tmp_path: Path) -> None:
    path = write_workbook(add_ballast(WITHIN_THE_RATIO[bomb](), 1), tmp_path / "bomb.xlsx")
    with pytest.raises(SheetError, match="too large when unpacked"):
        read_sheet(path, ReadOptions(max_sheet_bytes=48 * MIB))


def test_uncalculated_or_deeply_nested_workbook_is_refused(tmp_path: Path) -> None:
    cells = b"".join(b"<c><f>A%d</f></c>" % n for n in range(500))
    rows = [b'<row r="%d">%s</row>' % (n, cells) for n in range(3, 500)]
    path = write_workbook(add_ballast(workbook(first=worksheet(ROWS, *rows)), 1), tmp_path / "never-calculated.xlsx")
    with pytest.raises(SheetError, match="more than 200,000 cells that are formulas without a value") as refusal:
        read_sheet(path, ReadOptions())
    assert "calculates the formulas" in (refusal.value.hint or "")
    path = write_workbook(workbook(first=worksheet(ROWS, b"<x>" * 100_000, b"</x>" * 100_000)), tmp_path / "bomb.xlsx")
    with pytest.raises(SheetError, match="damaged or protected"):
        read_sheet(path, ReadOptions())


def long_texts(rows: int) -> Parts:
    texts = (b"%d" % n + b"y" * 30_000 for n in range(3, rows))
    made = (b'<row r="%d"><c t="inlineStr"><is><t>%s</t></is></c></row>' % (n, text) for n, text in enumerate(texts, 3))
    return workbook(first=worksheet(ROWS, *made))


@pytest.mark.long
@pytest.mark.parametrize(("bomb", "fits", "over"), [(wide_workbook, 16_000, 20_000), long(long_texts, 8_800, 17_000)])
def test_memory_stays_bounded_at_limits(tmp_path: Path, bomb: Callable[[int], Parts], fits: int, over: int) -> None:
    for rows, is_read in ((fits, True), (over, False)):
        peak, output = read_in_child(write_workbook(add_ballast(bomb(rows), 6), tmp_path / "bomb.xlsx"))
        assert output == "read" if is_read else "too large when unpacked" in output
        assert peak < 700


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_workbook_compression_is_refused(tmp_path: Path, compression: int) -> None:
    path = write_workbook(workbook(), tmp_path / "odd.xlsx", compression=compression)
    with pytest.raises(SheetError, match="compressed with a method that no spreadsheet program uses"):
        read_sheet(path, ReadOptions())


DECLARED = b'<dimension ref="A1:XFD1048576"/><cols><col min="1" max="1000000" width="9"/></cols><sheetData>'


@pytest.mark.parametrize(
    "first",
    [
        [f"<worksheet {NAMESPACE}>".encode(), DECLARED, ROWS, b"</sheetData></worksheet>"],
        worksheet(re.sub(b' r="[0-9]+"', b"", ROWS)),
    ],
    ids=["declares a million columns", "rows and cells without an address"],
)
def test_plain_workbook_without_styles_is_read(tmp_path: Path, first: list[bytes]) -> None:
    frame = read_sheet(write_workbook(workbook(first=first), tmp_path / "pay.xlsx"), ReadOptions()).frame
    assert frame["client_orderid"].to_list() == ["A-1"]


def test_zip_with_false_sizes_uses_little_memory(tmp_path: Path) -> None:
    path = write_workbook(workbook(first=worksheet(ROWS, *[b" " * MIB] * 100)), tmp_path / "lies.xlsx")
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = -1
        while (at := content.find(signature, at + 1)) >= 0:
            if int.from_bytes(content[at + offset : at + offset + 4], "little") > MIB:
                content[at + offset : at + offset + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(content)
    peak, output = read_in_child(path)
    assert "damaged or protected" in output
    assert peak < 400
