"""Large sheets, checked in pieces, give the same results and errors as in one piece."""

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.sheet import findings
from paygw_batch.sheet.check import row_checker, tally
from paygw_batch.sheet.check.validate import validate, warnings_as_defects
from paygw_batch.sheet.findings import Findings
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from paygw_batch.sheet.read.text import LineMarks
from tests.sheet.hostile import hostile_sheet
from tests.support.long_part import example_count
from tests.support.sheet_values import GOOD, HEADER, lines


def small_pieces() -> Any:
    return patch.object(tally, "ROWS_AT_ONCE", 7)


def good_rows(count: int, first: int = 1) -> list[str]:
    return [GOOD.replace("A-1", f"A-{n}").replace("712345678", f"7123{n:05}") for n in range(first, first + count)]


def checked_counts(result: Findings) -> tuple[object, ...]:
    """Return the counts of findings, after comparing counts and first findings with all findings."""
    all_findings = result.all_findings.frame
    sorted_counts = result.sorted_counts()
    assert result.first.rows() == all_findings.head(findings.MAX_LISTED).rows()
    assert result.rows.sort().to_list() == sorted(set(all_findings["row"]))
    assert result.is_empty == all_findings.is_empty()
    assert sorted(sorted_counts.select("code", "count").rows()) == sorted(Counter(all_findings["code"]).items())
    for code in sorted_counts["code"]:
        expected = all_findings.filter(pl.col("code") == code).head(findings.EXAMPLES_PER_CODE)
        assert result.examples(code).equals(expected)
    return tuple(sorted_counts.rows())


def sheet_results(result: Validated) -> tuple[object, ...]:
    sheet = result.sheet
    return (
        (sheet.name, sheet.sha256, dict(sheet.headers), sheet.unknown, sheet.notes, sheet.defects.rows()),
        (result.batch, result.totals, sorted(map(str, result.counts.rows())), result.height),
        (result.defects.rows(), result.warnings.rows()),
        (result.rows.columns, result.rows.rows(), result.instructions.rows()),
        sheet.frame.rows(),
    )


def results_in_pieces(path: Path, content: bytes, rules: Rules, reference: str | None = None) -> tuple[object, ...]:
    """Return the results or the error of a sheet in pieces, after comparing them with those in one piece."""
    path.write_bytes(content)

    def outcome() -> tuple[object, ...]:
        try:
            return sheet_results(validate(sheet, rules, reference=reference))
        except SheetError as error:
            return ("refused", error.message, error.hint)

    try:
        sheet = read_sheet(path, ReadOptions())
    except SheetError as error:
        return ("refused", error.message, error.hint)
    with small_pieces():
        in_pieces = outcome()
    assert in_pieces == outcome()
    return in_pieces


ROWS, AGAIN = good_rows(30), good_rows(1)[0]
CASES = {
    "good": lines(*ROWS),
    "CR LF, no end of the last line": "\r\n".join([HEADER, *ROWS]),
    "a mark": "\ufeff" + lines(*ROWS),
    "a title above the header": "Payroll\n\n" + lines(*ROWS),
    "sep=": "sep=;\n" + lines(*ROWS).replace(",", ";"),
    "an order id again at the end": lines(*ROWS, AGAIN.replace("71230", "71231")),
    "an order id in another spelling at the end": lines(*ROWS, AGAIN.replace("A-1", "a\u20131")),
    "paid again at the end": lines(*ROWS, AGAIN.replace("A-1", "B-1")),
    "blank lines and rows": lines(*good_rows(12), "", ",,,,,", *good_rows(12, 20), "", ""),
    "a field too many, a field too few": lines(*ROWS[:12], f"{AGAIN},1", *good_rows(12, 20), "KE,A-99,15"),
    "findings of every kind": lines(
        *(
            row.replace("+254", "" if n % 3 else "+255").replace("Wanjiru", ["Wanjiru", "=W", "W\U0001f600"][n % 7 % 3])
            for n, row in enumerate(good_rows(20))
        ),
        *(row.replace("KE,", "UG,").replace(",1500.50", ",0") for row in good_rows(9, 30)),
        *(row.replace("A-", "A\u200b") for row in (*good_rows(4, 50), *good_rows(4, 50))),
        *(",,,,,", "Total,,30000,,,", "KE,A-99,15"),
        *(row.replace("Wanjiru Kamau", "712345678") for row in good_rows(9, 60)),
    ),
    "quoted": lines(*(row.replace(",Wanjiru Kamau", ',"Kamau, ""W"""') for row in ROWS)),
    "an open quotation mark": lines(*ROWS, good_rows(1, 60)[0].replace("Wanjiru", '"Wanjiru'), *good_rows(9, 70)),
    "a total": lines(*good_rows(20), "Total,,30000,,,", *good_rows(3, 40)),
    "bad rows": lines(*(row.replace(",1500.50", ",1e3") if n % 3 else row for n, row in enumerate(ROWS))),
    "nameless columns": lines(*(f"{row},,{'x' * (n == 28)}" for n, row in enumerate(ROWS)), header=HEADER + ",,"),
    "nameless columns that hold nothing": lines(*(row + ",," for row in ROWS), header=HEADER + ",,"),
    "late notes": lines(*(f"{row},{'late' * (n > 25)}" for n, row in enumerate(ROWS)), header=HEADER + ",note"),
    "late texts": lines(*(f"{row},{'Pay' * (n > 25)}" for n, row in enumerate(ROWS)), header=HEADER + ",order_desc"),
    "a control character at the end": lines(*ROWS, good_rows(1, 50)[0].replace("Kamau", "Kam\x07au")),
    "U+2028 at the end": lines(*ROWS, good_rows(1, 50)[0].replace("Kamau", "Kam\u2028au")),
    "a lone CR": lines(*ROWS, good_rows(1, 50)[0].replace("Kamau", "Kam\rau")),
    "remarks of two lines": lines(*(f'{row},"a\nb"' for row in ROWS), header=HEADER + ",note"),
    "a remark of two lines at the end": lines(*ROWS, good_rows(1, 50)[0] + ',"a\nb"', header=HEADER + ",note"),
    "a comma too many": lines(*(row + "," for row in ROWS)),
    "a field too many in every row": lines(*(row + ",x" for row in ROWS)),
    "a field too few in every row": lines(*(row.rpartition(",")[0] for row in ROWS)),
    "a comma too many in most rows": lines(*(row + "," for row in ROWS), *good_rows(5, 60)),
    "headings without a name": lines(*ROWS, header=HEADER + ",,"),
    "the end of a DOS file": lines(*ROWS) + "\x1a",
    "damage": lines(*(row.replace("Wanjiru", "W\xc3\xa9" if n % 3 else "W\ufffd") for n, row in enumerate(ROWS))),
    "apostrophes that guard": lines(*(row.replace("Wanjiru", "'=Wanjiru") for row in ROWS)),
    "no order ids and an open quotation mark": lines(
        *(row.replace(f"A-{n},", "") for n, row in enumerate(ROWS, 1)),
        'KE,15,KES,"W,254712345678,+254712345678',
        header=HEADER.replace("client_orderid,", ""),
    ),
    "no phone": lines(*(row.rpartition(",")[0] for row in ROWS), header=HEADER.rpartition(",")[0]),
    "no row": HEADER + "\n" * 500,
    "no known header": "\n".join(ROWS),
    "another country at the end": lines(*good_rows(20), *(row.replace("KE,", "XX,") for row in good_rows(5, 40))),
    "long lines": lines(*(row.replace("Wanjiru", "W" * 900) for row in good_rows(3))),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("case", CASES)
def test_sheet_in_pieces_matches_whole_sheet(tmp_path: Path, rules: Rules, case: str) -> None:
    results_in_pieces(tmp_path / "pay.csv", CASES[case].encode(), rules)


@pytest.mark.share(3)
@pytest.mark.parametrize("case", ["findings of every kind", "another country at the end", "good"])
def test_findings_of_pieces_match(tmp_path: Path, rules: Rules, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pay.csv"
    previous = results_in_pieces(path, CASES[case].encode(), rules)
    for module in (findings, row_checker):
        monkeypatch.setattr(module, "MAX_LISTED", 4)
    whole = validate(read_sheet(path, ReadOptions()), rules)
    assert results_in_pieces(path, CASES[case].encode(), rules) == previous
    whole_counted = checked_counts(whole.defects_found), checked_counts(whole.warnings_found)
    with small_pieces():
        in_pieces = validate(read_sheet(path, ReadOptions()), rules)
        assert (checked_counts(in_pieces.defects_found), checked_counts(in_pieces.warnings_found)) == whole_counted
    assert (case == "findings of every kind") == bool(whole.warnings_found.rows.len() > findings.MAX_LISTED)


def test_derived_ids_and_strict_defects_match_whole(tmp_path: Path, rules: Rules) -> None:
    header = HEADER.replace("client_orderid,", "")
    content = lines(*(row.replace(f"A-{n},", "") for n, row in enumerate(ROWS, 1)), header=header)
    result = results_in_pieces(tmp_path / "pay.csv", (content + content.splitlines()[1] + "\n").encode(), rules, "R")
    assert result[0] != "refused"
    path = tmp_path / "pay.csv"
    path.write_text(CASES["paid again at the end"], encoding="utf-8")
    with small_pieces():
        in_pieces = warnings_as_defects(validate(read_sheet(path, ReadOptions()), rules))
        assert in_pieces.defects.height == 2
        result = sheet_results(in_pieces)
    assert result == sheet_results(warnings_as_defects(validate(read_sheet(path, ReadOptions()), rules)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(120))
@given(seed=st.integers(0, 10**6))
def test_hostile_sheet_reads_identically_in_pieces(tmp_path: Path, rules: Rules, seed: int) -> None:
    sheet = hostile_sheet(seed)
    results_in_pieces(tmp_path / f"pay{sheet.ending}", sheet.content, rules)


@given(
    st.lists(st.text(alphabet='a,"\x07é', max_size=4), min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(0, 3),
)
def test_line_scan_recognises_uniform_lines(texts: list[str], end: str, is_ended: bool, delimiters: int) -> None:
    text = end.join(texts) + (end if is_ended or not texts[-1] else "")
    marks = LineMarks.scan(("a,b\n" + text).encode(), b",", len("a,b\n"))
    assert marks.line_count == len(texts)
    plain = '"' not in text
    assert marks.are_uniform(delimiters) == (plain and all(line.count(",") == delimiters for line in texts))
