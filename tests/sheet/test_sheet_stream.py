"""Large texts, gone through block by block: they come to the same as read as a whole, and every refusal is the same."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.sheet import findings
from paygw_batch.sheet.check import judge
from paygw_batch.sheet.check.validate import validate, validate_opened, warnings_as_defects
from paygw_batch.sheet.findings import Findings
from paygw_batch.sheet.model import Validated
from paygw_batch.sheet.pieces import Piece
from paygw_batch.sheet.read.parquet import ParquetStream
from paygw_batch.sheet.read.sheet_file import ReadOptions, open_sheet, read_sheet
from paygw_batch.sheet.read.text import Marks, is_plain_utf8
from paygw_batch.sheet.read.text_stream import TextStream
from tests.long_part import share_of
from tests.sheet.hostile import hostile_sheet
from tests.sheet.sheet_values import GOOD, HEADER, lines

RECEIVER = "country,client_orderid,amount,receiver_first_name,receiver_last_name,receiver_phone,receiver_email"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is a few rows, and looking at some rows beforehand shows nothing."""
    monkeypatch.setattr("paygw_batch.sheet.read.text_stream.BLOCK_BYTES", 400)
    monkeypatch.setattr("paygw_batch.sheet.read.text_stream.LOOK_BYTES", 1)
    monkeypatch.setattr("paygw_batch.sheet.read.parquet.LARGE_BYTES", 0)
    monkeypatch.setattr("paygw_batch.sheet.read.parquet.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("paygw_batch.sheet.read.parquet.LOOK_ROWS", 1)


def rows(count: int, first: int = 1) -> list[str]:
    """Return good rows, each with an order id and a phone of its own."""
    return [GOOD.replace("A-1", f"A-{n}").replace("712345678", f"7123{n:05}") for n in range(first, first + count)]


def counted(found: Findings) -> tuple[object, ...]:
    """Return how many findings there are and the first of them, held against all of them."""
    every = found.every.frame
    kinds = found.kinds()
    assert found.first.rows() == every.head(findings.LISTED).rows()
    assert found.rows.sort().to_list() == sorted(set(every["row"]))
    assert found.is_empty == every.is_empty()
    assert sorted(kinds.select("code", "count").rows()) == sorted(Counter(every["code"]).items())
    for code in kinds["code"]:
        assert found.examples(code).equals(every.filter(pl.col("code") == code).head(findings.EXAMPLES))
    return tuple(kinds.rows())


def told(found: Validated) -> tuple[object, ...]:
    """Return all that a sheet comes to."""
    sheet = found.sheet
    return (
        (sheet.name, sheet.sha256, dict(sheet.headers), sheet.unknown, sheet.notes, sheet.defects.rows()),
        (found.batch, found.totals, sorted(map(str, found.counts.rows())), found.height),
        (found.defects.rows(), found.warnings.rows()),
        (found.rows.columns, found.rows.rows(), found.instructions.rows()),
        sheet.frame.rows(),
    )


def outcome(work: Callable[[], Validated]) -> tuple[object, ...]:
    """Return all that a sheet comes to, or the sentences that refuse it."""
    try:
        return told(work())
    except SheetError as error:
        return ("refused", error.message, error.hint)


def both_ways(path: Path, content: bytes, rules: Rules, reference: str | None = None) -> tuple[object, ...]:
    """Return what a text comes to, and hold it against what it comes to as a whole."""
    path.write_bytes(content)
    options = ReadOptions()
    in_blocks = outcome(lambda: validate_opened(open_sheet(path, options), rules, reference=reference))
    assert in_blocks == outcome(lambda: validate(read_sheet(path, options), rules, reference=reference))
    return in_blocks


CASES = {
    "good": lines(*rows(30)),
    "CR LF, no end of the last line": "\r\n".join([HEADER, *rows(30)]),
    "a mark": "\ufeff" + lines(*rows(30)),
    "a title above the header": "Payroll\n\n" + lines(*rows(30)),
    "sep=": "sep=;\n" + lines(*rows(30)).replace(",", ";"),
    "an order id again at the end": lines(*rows(30), rows(1)[0].replace("71230", "71231")),
    "an order id in another spelling at the end": lines(*rows(30), rows(1)[0].replace("A-1", "a\u20131")),
    "paid again at the end": lines(*rows(30), rows(1)[0].replace("A-1", "B-1")),
    "blank lines and rows": lines(*rows(12), "", ",,,,,", *rows(12, 20), "", ""),
    "a field too many, a field too few": lines(*rows(12), rows(1, 50)[0] + ",1", *rows(12, 20), "KE,A-99,15"),
    "findings of every kind": lines(
        *(
            row.replace("+254", "" if n % 3 else "+255").replace(
                "Wanjiru", ("Wanjiru", "=W", "W \U0001f600")[n % 7 % 3]
            )
            for n, row in enumerate(rows(20))
        ),
        *(row.replace("KE,", "UG,").replace(",1500.50", ",0") for row in rows(9, 30)),
        *(row.replace("A-", "A\u200b") for row in (*rows(4, 50), *rows(4, 50))),
        ",,,,,",
        "Total,,30000,,,",
        "KE,A-99,15",
        *(row.replace("Wanjiru Kamau", "712345678") for row in rows(9, 60)),
    ),
    "quoted": lines(*(row.replace(",Wanjiru Kamau", ',"Kamau, ""W"""') for row in rows(30))),
    "a quotation mark that does not close": lines(
        *rows(25), rows(1, 60)[0].replace("Wanjiru", '"Wanjiru'), *rows(9, 70)
    ),
    "a total": lines(*rows(20), "Total,,30000,,,", *rows(3, 40)),
    "bad rows": lines(*(row.replace(",1500.50", ",1e3") if n % 3 else row for n, row in enumerate(rows(30)))),
    "nameless columns": lines(*(f"{row},,{'x' * (n == 28)}" for n, row in enumerate(rows(30))), header=HEADER + ",,"),
    "nameless columns that hold nothing": lines(*(row + ",," for row in rows(30)), header=HEADER + ",,"),
    "an unknown column, first filled at the end": lines(
        *(f"{row},{'late' * (n > 25)}" for n, row in enumerate(rows(30))), header=HEADER + ",note"
    ),
    "a known column, first filled at the end": lines(
        *(f"{row},{'Salary' * (n > 25)}" for n, row in enumerate(rows(30))), header=HEADER + ",order_desc"
    ),
    "a control character at the end": lines(*rows(30), rows(1, 50)[0].replace("Kamau", "Kam\x07au")),
    "U+2028 at the end": lines(*rows(30), rows(1, 50)[0].replace("Kamau", "Kam\u2028au")),
    "a lone CR": lines(*rows(30), rows(1, 50)[0].replace("Kamau", "Kam\rau")),
    "remarks of two lines": lines(*(f'{row},"a\nb"' for row in rows(30)), header=HEADER + ",note"),
    "a remark of two lines at the end": lines(*rows(30), rows(1, 50)[0] + ',"a\nb"', header=HEADER + ",note"),
    "a comma too many": lines(*(row + "," for row in rows(30))),
    "a field too many in every row": lines(*(row + ",x" for row in rows(30))),
    "a field too few in every row": lines(*(row.rpartition(",")[0] for row in rows(30))),
    "a comma too many in most rows": lines(*(row + "," for row in rows(30)), *rows(5, 60)),
    "headings without a name": lines(*rows(30), header=HEADER + ",,"),
    "the end of a DOS file": lines(*rows(30)) + "\x1a",
    "damaged names": lines(
        *(row.replace("Wanjiru", "W\xc3\xa9" if n % 3 else "W\ufffd") for n, row in enumerate(rows(30)))
    ),
    "apostrophes that guard": lines(*(row.replace("Wanjiru", "'=Wanjiru") for row in rows(30))),
    "no order ids and a quotation mark that does not close": lines(
        *(row.replace(f"A-{n},", "") for n, row in enumerate(rows(30), 1)),
        'KE,15,KES,"W,254712345678,+254712345678',
        header=HEADER.replace("client_orderid,", ""),
    ),
    "no row": HEADER + "\n" * 500,
    "no known header": "\n".join(rows(30)),
    "another country at the end": lines(*rows(20), *(row.replace("KE,", "XX,") for row in rows(5, 40))),
    "lines longer than a block": lines(*(row.replace("Wanjiru", "W" * 900) for row in rows(3))),
}


@pytest.mark.share(4)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("case", CASES)
def test_a_text_in_blocks_comes_to_the_same_as_a_whole(tmp_path: Path, rules: Rules, case: str) -> None:
    both_ways(tmp_path / "pay.csv", CASES[case].encode(), rules)


@pytest.mark.share(3)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("case", ["findings of every kind", "another country at the end", "good"])
def test_findings_that_are_only_counted_come_to_the_same(
    tmp_path: Path, rules: Rules, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pay.csv"
    kept = both_ways(path, CASES[case].encode(), rules)
    for module in (findings, judge):
        monkeypatch.setattr(module, "LISTED", 4)
    whole = validate(read_sheet(path, ReadOptions()), rules)
    monkeypatch.setattr(judge, "MAX_KEPT", 2)
    monkeypatch.setattr(judge, "LITTLE", 0)
    assert both_ways(path, CASES[case].encode(), rules) == kept
    in_blocks = validate_opened(open_sheet(path, ReadOptions()), rules)
    assert counted(in_blocks.defects_found) == counted(whole.defects_found)
    assert counted(in_blocks.warnings_found) == counted(whole.warnings_found)
    assert (case == "findings of every kind") == bool(whole.warnings_found.rows.len() > findings.LISTED)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "content", [b"\xff\xfe" + lines(*rows(9)).encode("utf-16-le"), lines(*rows(9)).encode() + b"\xff"]
)
def test_other_encodings_come_to_the_same(tmp_path: Path, rules: Rules, content: bytes) -> None:
    both_ways(tmp_path / "pay.csv", content, rules)


@pytest.mark.usefixtures("small_blocks")
def test_derived_order_ids_are_the_same(tmp_path: Path, rules: Rules) -> None:
    header = HEADER.replace("client_orderid,", "")
    content = lines(*(row.replace(f"A-{n},", "") for n, row in enumerate(rows(30), 1)), header=header)
    found = both_ways(tmp_path / "pay.csv", (content + content.splitlines()[1] + "\n").encode(), rules, "R")
    assert found[0] != "refused"


@pytest.mark.usefixtures("small_blocks")
def test_a_column_that_is_missing_is_told_at_the_end(tmp_path: Path, rules: Rules) -> None:
    header, cut = HEADER.rsplit(",", 1)[0], [row.rsplit(",", 1)[0] for row in rows(30)]
    assert both_ways(tmp_path / "pay.csv", lines(*cut, header=header).encode(), rules)[0] == "refused"


@pytest.mark.usefixtures("small_blocks")
def test_warnings_can_be_made_defects_of_a_streamed_sheet(tmp_path: Path, rules: Rules) -> None:
    path = tmp_path / "pay.csv"
    path.write_text(CASES["paid again at the end"], encoding="utf-8")
    streamed = warnings_as_defects(validate_opened(open_sheet(path, ReadOptions()), rules))
    assert told(streamed) == told(warnings_as_defects(validate(read_sheet(path, ReadOptions()), rules)))
    assert streamed.defects.height == 2


@pytest.mark.usefixtures("small_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=share_of(120))
@given(seed=st.integers(0, 10**6))
def test_hostile_texts_come_to_the_same(tmp_path: Path, rules: Rules, seed: int) -> None:
    sheet = hostile_sheet(seed)
    both_ways(tmp_path / f"pay{sheet.ending}", sheet.content, rules)


@pytest.mark.usefixtures("small_blocks")
def test_a_large_text_is_streamed_in_several_pieces(tmp_path: Path) -> None:
    path = tmp_path / "pay.csv"
    path.write_text(CASES["good"], encoding="utf-8")
    source = open_sheet(path, ReadOptions())
    assert isinstance(source, TextStream)
    pieces = [make() for make in source.pieces()]
    assert len(pieces) > 3
    assert [row for piece in pieces for row in piece.frame["row"]] == list(range(2, 32))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("look_bytes", "readings"), [(1, 2), (200, 1)])
def test_a_column_that_only_the_last_rows_fill_costs_no_second_reading_where_it_was_seen(
    tmp_path: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch, look_bytes: int, readings: int
) -> None:
    path = tmp_path / "pay.csv"
    path.write_text(CASES["a known column, first filled at the end"], encoding="utf-8")
    monkeypatch.setattr("paygw_batch.sheet.read.text_stream.LOOK_BYTES", look_bytes)
    begun: list[TextStream] = []
    pieces = TextStream.pieces

    def counted(source: TextStream) -> Iterator[Callable[[], Piece]]:
        begun.append(source)
        return pieces(source)

    monkeypatch.setattr(TextStream, "pieces", counted)
    assert validate_opened(open_sheet(path, ReadOptions()), rules).batch
    assert len(begun) == readings


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_is_changed_after_it_was_validated_gives_no_rows(tmp_path: Path, rules: Rules) -> None:
    path = tmp_path / "pay.csv"
    path.write_text(CASES["good"], encoding="utf-8")
    validated = validate_opened(open_sheet(path, ReadOptions()), rules)
    path.write_text(CASES["good"].replace("Wanjiru", "Mallory", 1), encoding="utf-8")
    with pytest.raises(SheetError, match="changed since it was read"):
        _ = validated.rows


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_is_changed_between_two_passings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pay.csv"
    path.write_text(CASES["good"], encoding="utf-8")
    source = open_sheet(path, ReadOptions())
    assert all(make().frame.height for make in source.pieces())
    path.write_text(CASES["good"].replace("Wanjiru", "Mallory", 1), encoding="utf-8")
    with pytest.raises(SheetError, match="changed since it was read"):
        _ = [make() for make in source.pieces()]


@pytest.mark.usefixtures("small_blocks")
def test_a_text_with_too_many_rows_is_refused_in_the_same_words(tmp_path: Path, rules: Rules) -> None:
    path, options = tmp_path / "pay.csv", ReadOptions(max_rows=20)
    path.write_text(CASES["good"], encoding="utf-8")
    with pytest.raises(SheetError, match="has 30 rows; at most 20 are allowed"):
        validate_opened(open_sheet(path, options), rules)


def as_frame(text: str) -> pl.DataFrame:
    """Return a text of good lines as a frame of texts."""
    header, *found = text.splitlines()
    names = header.split(",")
    cells = [[cell or None for cell in line.split(",")] for line in found]
    return pl.DataFrame(cells, schema=dict.fromkeys(names, pl.String), orient="row")


THIRTY = as_frame(lines(*rows(30)))
NTH = pl.int_range(pl.len())
PARQUET_CASES = {
    "good": THIRTY,
    "an order id again at the end": pl.concat([THIRTY, THIRTY.tail(1)]),
    "paid again at the end": pl.concat([THIRTY, THIRTY.head(1).with_columns(client_orderid=pl.lit("B-1"))]),
    "bad rows": THIRTY.with_columns(amount=pl.when(NTH % 3 == 0).then(pl.lit("1e3")).otherwise("amount")),
    "floats, some of them not whole": THIRTY.with_columns(amount=1000.0 + pl.when(NTH % 9 == 5).then(0.5).otherwise(0)),
    "decimals": THIRTY.with_columns(amount=pl.col("amount").cast(pl.Decimal(20, 4))),
    "an unknown column, first filled at the end": THIRTY.with_columns(note=pl.when(NTH > 25).then(pl.lit("late"))),
    "a known column, first filled at the end": THIRTY.with_columns(order_desc=pl.when(NTH > 25).then(pl.lit("Salary"))),
    "a nameless column": THIRTY.with_columns(pl.when(NTH == 28).then(pl.lit("x")).alias(" ")),
    "a nameless column that holds nothing": THIRTY.with_columns(pl.lit(None, pl.String).alias(" ")),
    "a few rows that hold nothing": THIRTY.with_columns(
        pl.when(NTH.is_between(3, 5)).then(None).otherwise(pl.all()).name.keep()
    ),
    "a part that holds nothing": THIRTY.with_columns(
        pl.when(NTH.is_between(6, 15)).then(None).otherwise(pl.all()).name.keep()
    ),
    "a control character at the end": THIRTY.with_columns(
        account_name=pl.when(NTH == 29).then(pl.lit("W\nK")).otherwise("account_name")
    ),
    "remarks of two lines": THIRTY.with_columns(note=pl.lit("a\nb\n")),
    "a remark that is a line break": THIRTY.with_columns(pl.lit("\n").alias(" ")),
    "digits of another script": THIRTY.with_columns(
        amount=pl.when(NTH == 29).then(pl.lit("\u0661\u0665\u0660")).otherwise("amount")
    ),
    "no order ids": THIRTY.drop("client_orderid"),
    "a nested column": THIRTY.with_columns(extra=pl.lit([1, 2])),
    "no known heading": THIRTY.rename(str.swapcase).select(x="COUNTRY"),
    "no row": THIRTY.clear(),
}


@pytest.mark.share(6)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("case", PARQUET_CASES)
def test_parquet_part_by_part_comes_to_the_same_as_a_whole(tmp_path: Path, rules: Rules, case: str) -> None:
    path = tmp_path / "pay.parquet"
    PARQUET_CASES[case].write_parquet(path, row_group_size=10)
    both_ways(path, path.read_bytes(), rules, "R")


@pytest.mark.usefixtures("small_blocks")
def test_a_large_parquet_file_is_decoded_in_several_parts(tmp_path: Path) -> None:
    path = tmp_path / "pay.parquet"
    THIRTY.write_parquet(path)
    source = open_sheet(path, ReadOptions())
    assert isinstance(source, ParquetStream)
    pieces = [make() for make in source.pieces()]
    assert [piece.frame.height for piece in pieces] == [7, 7, 7, 7, 2]
    assert [row for piece in pieces for row in piece.frame["row"]] == list(range(2, 32))


@pytest.mark.usefixtures("small_blocks")
def test_the_rows_of_parquet_are_those_of_the_bytes_that_were_validated(tmp_path: Path, rules: Rules) -> None:
    path = tmp_path / "pay.parquet"
    THIRTY.write_parquet(path)
    found = validate_opened(open_sheet(path, ReadOptions()), rules)
    THIRTY.head(5).write_parquet(path)
    assert sum(part.instructions.height for part in found.parts()) == 30
    with pytest.raises(SheetError, match="was changed since it was read"):
        _ = found.sheet.frame


@given(
    st.lists(st.text(alphabet='a,"\x07é', max_size=4), min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(0, 3),
)
def test_marks_that_are_alike_have_all_fields_in_each_line(
    texts: list[str], end: str, is_ended: bool, delimiters: int
) -> None:
    text = end.join(texts) + (end if is_ended or not texts[-1] else "")
    marks = Marks.of(("a,b\n" + text).encode(), b",", len("a,b\n"))
    assert marks.lines == len(texts)
    plain = not any(sign in text for sign in '"\x07')
    assert marks.are_alike(delimiters) == (plain and all(line.count(",") == delimiters for line in texts))
    assert marks.is_plain_utf8(text.encode()) == is_plain_utf8(text.encode())
