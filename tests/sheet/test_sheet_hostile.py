"""Hostile sheets: each gets a clean verdict, without a crash or a lost row."""

import codecs
import csv
import io
import unicodedata
import zipfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.sheet.hostile import HostileSheet, hostile_sheet, play, records
from tests.sheet.hostile import verdict as verdict_on
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, lines

BODY = lines(*(GOOD.replace("A-1", f"A-{n}") for n in range(6))).encode()
AT = len(HEADER) + 1
NASTY = st.sampled_from([*b"\"',;\t\r\n\x00\xff\xe2=+-@ ", *codecs.BOM_UTF8])

hostile = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(150)
)


def verdict(path: Path, content: bytes, rules: Rules) -> Sheet | None:
    """Read and validate a sheet. Returns None if it is refused. Validation must return every row."""
    path.write_bytes(content)
    try:
        sheet = read_sheet(path, ReadOptions())
        validated = validate(sheet, rules)
    except SheetError:
        return None
    assert validated.rows["row"].equals(sheet.frame["row"])
    assert validated.rows.filter("valid").height == validated.instructions.height
    return sheet


def visible_rows(content: bytes) -> set[int]:
    """Return the numbers of non-blank lines after the first, computed independently."""
    below = records(content.decode("utf-8-sig"), ",", len(HEADER.split(",")))
    return {
        number
        for number, line in enumerate(below, start=2)
        if any(unicodedata.category(c)[0] not in "CZ" and c not in '",' for c in line)
    }


@st.composite
def mutated_sheets(draw: st.DrawFn, start: int) -> bytes:
    """Draw a sheet in which some bytes from `start` on were replaced, inserted or deleted."""
    content = bytearray(BODY)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(start, len(content)))
        what = draw(st.one_of(NASTY, st.integers(0, 255)))
        match draw(st.sampled_from("rid")):
            case "r":
                content[at : at + 1] = bytes([what])
            case "i":
                content[at:at] = bytes([what]) * draw(st.sampled_from([1, 1, 2, 40]))
            case _:
                del content[at : at + draw(st.integers(1, 60))]
    return bytes(content)


@hostile
@given(content=mutated_sheets(AT))
def test_damaged_bytes_below_header_lose_no_row(tmp_path: Path, rules: Rules, content: bytes) -> None:
    sheet = verdict(tmp_path / "pay.csv", content, rules)
    if sheet is not None:
        assert visible_rows(content) <= set(sheet.frame["row"])


@hostile
@given(content=mutated_sheets(0))
def test_sheet_with_changed_bytes_gets_clean_verdict(tmp_path: Path, rules: Rules, content: bytes) -> None:
    verdict(tmp_path / "pay.csv", content, rules)


@hostile
@given(content=st.binary(max_size=300))
def test_any_bytes_below_header_get_clean_verdict(tmp_path: Path, rules: Rules, content: bytes) -> None:
    verdict(tmp_path / "pay.csv", HEADER.encode() + b"\n" + content, rules)


printable = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)


def _unguarded(cell: str) -> str:
    after = cell[1:2]
    is_guard = cell[:1] == "'" and (after in {*"0123456789"} or unicodedata.normalize("NFKC", after)[:1] in {*"=@+-"})
    return cell[1:] if is_guard else cell


unchanged = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹"), max_size=12
)
"""Text without digits of other scripts, which reading converts."""


@hostile
@given(
    rows=st.lists(st.lists(unchanged, min_size=8, max_size=8), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_from_other_program_is_read_exactly(
    tmp_path: Path, rules: Rules, rows: list[list[str]], delimiter: str, quoting: int, end: str
) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(  # type: ignore[arg-type]
        [[*HEADER.split(","), "note"], *rows]
    )
    sheet = verdict(tmp_path / "pay.csv", text.getvalue().encode(), rules)
    # An apostrophe before a formula or a number is a guard, which reading removes.
    expected = [[_unguarded(cell) or None for cell in row] for row in rows]
    seen = [
        (number, *row)
        for number, row in enumerate(expected, start=2)
        if any(unicodedata.category(c)[0] not in "CZ" for cell in row if cell for c in cell)
    ]
    assert (sheet.frame.rows() if sheet is not None else []) == seen


@hostile
@given(
    rows=st.lists(
        st.fixed_dictionaries({name: st.one_of(st.none(), printable) for name in HEADER.split(",")}),
        min_size=1,
        max_size=8,
    )
)
def test_any_parquet_texts_get_a_clean_verdict(rules: Rules, rows: list[dict[str, str | None]]) -> None:
    names = HEADER.split(",")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String)).with_row_index("row", offset=2)
    sheet = Sheet("made.parquet", "0" * 64, frame, dict(zip(names, names, strict=True)), ())
    assert validate(sheet, rules).rows.height == len(rows)


def sample_workbook() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, text in WORKBOOK_PARTS.items():
            archive.writestr(name, text)
    return file.getvalue()


_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORKBOOK_PARTS = {
    "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    f'<Relationship Id="rId1" Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>'
    '<sheet name="Pay" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    f'<Relationship Id="rId1" Type="{_RELATIONS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
    "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_MAIN}"><sheetData>'
    + "".join(
        "<row>" + "".join(f'<c t="inlineStr"><is><t>{cell}</t></is></c>' for cell in row.split(",")) + "</row>"
        for row in (HEADER, GOOD, GOOD.replace("A-1", "A-2"))
    )
    + "</sheetData></worksheet>",
}


def test_workbook_without_addresses_styles_or_texts_is_read(tmp_path: Path, rules: Rules) -> None:
    sheet = verdict(tmp_path / "pay.xlsx", sample_workbook(), rules)
    assert sheet is not None
    assert sheet.frame["client_orderid"].to_list() == ["A-1", "A-2"]


@hostile
@given(data=st.data())
def test_workbook_with_changed_bytes_gets_clean_verdict(tmp_path: Path, rules: Rules, data: st.DataObject) -> None:
    content = bytearray(sample_workbook())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    verdict(tmp_path / "pay.xlsx", bytes(content), rules)


@hostile
@given(data=st.data())
def test_worksheet_with_changed_characters_gets_clean_verdict(
    tmp_path: Path, rules: Rules, data: st.DataObject
) -> None:
    text = WORKBOOK_PARTS["xl/worksheets/sheet1.xml"]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["<", ">", "/", '"', "<c/>", "<row/>", "<v>1", "</row>", "&#1;", "é"]))
            + text[at:]
        )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in WORKBOOK_PARTS.items():
            archive.writestr(name, text if name.endswith("sheet1.xml") else part)
    verdict(tmp_path / "pay.xlsx", file.getvalue(), rules)


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", range(12))
def test_parquet_file_with_changed_bytes_gets_clean_verdict(tmp_path: Path, rules: Rules, seed: int) -> None:
    file = io.BytesIO()
    pl.DataFrame(
        {name: [cell] * 50 for name, cell in zip(HEADER.split(","), GOOD.split(","), strict=True)}
    ).write_parquet(file)
    content = bytearray(file.getvalue())
    for step in range(1, 4):
        content[(seed * 7919 + step * 104_729) % len(content)] ^= 1 << seed % 8
    verdict(tmp_path / "pay.parquet", bytes(content), rules)


def test_very_long_field_gets_clean_verdict(tmp_path: Path, rules: Rules) -> None:
    long = "9" * 1_000_000
    for column in range(7):
        cells = GOOD.split(",")
        cells[column] = long
        assert verdict(tmp_path / "pay.csv", lines(",".join(cells)).encode(), rules) is not None
    assert verdict(tmp_path / "pay.csv", lines(GOOD + "," + long).encode(), rules) is not None


def test_very_many_columns_get_a_clean_verdict(tmp_path: Path, rules: Rules) -> None:
    header = HEADER + "".join(f",c{n}" for n in range(5_000))
    sheet = verdict(tmp_path / "pay.csv", lines(GOOD + ",x" * 5_000, header=header).encode(), rules)
    assert sheet is not None
    assert len(sheet.unknown) == 5_000


def test_many_unknown_countries_get_clean_verdict(tmp_path: Path, rules: Rules) -> None:
    rows = [GOOD.replace("KE", f"Q{n}", 1).replace("A-1", f"A-{n}") for n in range(3_000)]
    assert verdict(tmp_path / "pay.csv", lines(*rows).encode(), rules) is not None


@pytest.mark.share(4)
@pytest.mark.parametrize("start", range(0, 100, 25))
def test_damaged_samples_get_clean_verdict(start: int) -> None:
    """The first hundred sheets of `python -m tests.sheet.hostile --sheets 10000`."""
    verdicts, failures = play(range(start, start + 25))
    assert not failures
    assert verdicts.total() == 25


def test_seed_always_gives_same_sheet() -> None:
    assert hostile_sheet(7).content == hostile_sheet(7).content
    assert hostile_sheet(7).content != hostile_sheet(8).content


def test_hostile_sheet_test_detects_lost_row(tmp_path: Path) -> None:
    content = lines(GOOD, GOOD.replace("A-1", "A-2")).encode()
    assert verdict_on(tmp_path / "pay.csv", HostileSheet(".csv", content, 2)) == "read"
    with pytest.raises(AssertionError, match="3 rows went in, 2 came out"):
        verdict_on(tmp_path / "pay.csv", HostileSheet(".csv", content, 3))
