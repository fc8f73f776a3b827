"""Hostile sheets: each gets a clean verdict, without a crash or a lost row."""

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
from tests.sheet.hostile import HostileSheet, hostile_sheet, play
from tests.sheet.hostile import verdict as verdict_on
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, lines

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
def test_any_parquet_text_is_read_or_refused(rules: Rules, rows: list[dict[str, str | None]]) -> None:
    names = HEADER.split(",")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String)).with_row_index("row", offset=2)
    sheet = Sheet("made.parquet", "0" * 64, frame, dict(zip(names, names, strict=True)), ())
    assert validate(sheet, rules).rows.height == len(rows)


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
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, text in WORKBOOK_PARTS.items():
            archive.writestr(name, text)
    sheet = verdict(tmp_path / "pay.xlsx", file.getvalue(), rules)
    assert sheet is not None
    assert sheet.frame["client_orderid"].to_list() == ["A-1", "A-2"]


def test_sheet_of_extreme_size_is_read_or_refused(tmp_path: Path, rules: Rules) -> None:
    long = "9" * 1_000_000
    cells = GOOD.split(",")
    rows = [[",".join([*cells[:column], long, *cells[column + 1 :]])] for column in range(7)]
    rows += [[f"{GOOD},{long}"], [GOOD.replace("KE", f"Q{n}", 1).replace("A-1", f"A-{n}") for n in range(3_000)]]
    for some in rows:
        assert verdict(tmp_path / "pay.csv", lines(*some).encode(), rules) is not None
    header = HEADER + "".join(f",c{n}" for n in range(5_000))
    sheet = verdict(tmp_path / "pay.csv", lines(GOOD + ",x" * 5_000, header=header).encode(), rules)
    assert sheet is not None
    assert len(sheet.unknown) == 5_000


@pytest.mark.share(4)
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_damaged_samples_are_read_or_refused(start: int) -> None:
    """The first 400 sheets of `python -m tests.sheet.hostile --sheets 10000`."""
    verdicts, failures = play(range(start, start + 50))
    assert not failures
    assert verdicts.total() == 50


def test_hostile_sheets_are_reproducible_and_losses_found(tmp_path: Path) -> None:
    assert hostile_sheet(7).content == hostile_sheet(7).content
    assert hostile_sheet(7).content != hostile_sheet(8).content
    content = lines(GOOD, GOOD.replace("A-1", "A-2")).encode()
    assert verdict_on(tmp_path / "pay.csv", HostileSheet(".csv", content, 2)) == "read"
    with pytest.raises(AssertionError, match="3 rows went in, 2 came out"):
        verdict_on(tmp_path / "pay.csv", HostileSheet(".csv", content, 3))
