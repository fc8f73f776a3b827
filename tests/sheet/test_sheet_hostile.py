"""Hostile sheets: each gets a clean verdict, without a crash or a lost row."""

import csv
import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.sheet.model import Sheet
from tests.sheet.hostile import HostileSheet, has_visible_text, hostile_sheet, play, read_hostile
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, lines


def read_csv(folder: Path, text: str) -> Sheet | None:
    return read_hostile(folder / "pay.csv", HostileSheet(".csv", text.encode(), None))


def _unguarded(cell: str) -> str:
    after = cell[1:2]
    is_guard = cell[:1] == "'" and (after in {*"0123456789"} or unicodedata.normalize("NFKC", after)[:1] in {*"=@+-"})
    return cell[1:] if is_guard else cell


unchanged = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹"), max_size=12
)
"""Text without digits of other scripts, which reading converts."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(150))
@given(
    rows=st.lists(st.lists(unchanged, min_size=8, max_size=8), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_of_other_program_reads_exactly(tmp_path: Path, rows: Any, delimiter: str, quoting: int, end: str) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(  # type: ignore[arg-type]
        [[*HEADER.split(","), "note"], *rows]
    )
    sheet = read_csv(tmp_path, text.getvalue())
    # An apostrophe before a formula or a number is a guard, which reading removes.
    expected = [[_unguarded(cell) or None for cell in row] for row in rows]
    visible = [has_visible_text([cell or "" for cell in row]) for row in expected]
    seen = [(number, *row) for number, row in enumerate(expected, start=2) if visible[number - 2]]
    assert (sheet.frame.rows() if sheet is not None else []) == seen


def test_sheet_of_extreme_size_is_read_or_refused(tmp_path: Path) -> None:
    long = "9" * 1_000_000
    cells = GOOD.split(",")
    rows = [[",".join([*cells[:column], long, *cells[column + 1 :]])] for column in range(7)]
    rows += [[f"{GOOD},{long}"], [GOOD.replace("KE", f"Q{n}", 1).replace("A-1", f"A-{n}") for n in range(3_000)]]
    for some in rows:
        assert read_csv(tmp_path, lines(*some)) is not None
    header = HEADER + "".join(f",c{n}" for n in range(5_000))
    sheet = read_csv(tmp_path, lines(GOOD + ",x" * 5_000, header=header))
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
    assert read_hostile(tmp_path / "pay.csv", HostileSheet(".csv", content, 2)) is not None
    with pytest.raises(AssertionError, match="3 rows went in, 2 came out"):
        read_hostile(tmp_path / "pay.csv", HostileSheet(".csv", content, 3))
