"""Problems of real payout sheets, from their bytes to what a person sees."""

import codecs
import io
import re
from typing import Any

import openpyxl
import polars as pl
import pytest

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet
from tests.support.sheet_values import GOOD, HEADER, MakeSheet, codes, lines

SEMICOLONS = lines(GOOD).replace(",", ";")
UNCLOSED = "row 2: a quotation mark"
FRENCH = lines("KE,A-1,1500.50,KES,Aïssatou Né,254712345678,+254712345678")
TABS = FRENCH.replace(",", "\t")


def names(sheet: Sheet) -> list[str]:
    return sheet.frame["account_name"].to_list()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        pytest.param(FRENCH.encode(), "pay.csv", id="plain UTF-8"),
        pytest.param(codecs.BOM_UTF8 + FRENCH.encode(), "PAY.CSV", id="with a byte order mark"),
        pytest.param(codecs.BOM_UTF16_LE + FRENCH.encode("utf-16-le"), "pay.csv", id="UTF-16, little end first"),
        pytest.param(codecs.BOM_UTF16_BE + FRENCH.encode("utf-16-be"), "pay.csv", id="UTF-16, big end first"),
        pytest.param(codecs.BOM_UTF32_LE + FRENCH.encode("utf-32-le"), "pay.csv", id="UTF-32"),
        pytest.param(FRENCH.replace("\n", "\r\n").encode(), "pay.csv", id="CR LF"),
        pytest.param(FRENCH.replace("\n", "\r").encode(), "pay.csv", id="CR alone"),
        pytest.param(FRENCH.rstrip("\n").encode(), "pay.csv", id="no end of the last line"),
        pytest.param(FRENCH.replace(",", ";").encode(), "pay.csv", id="semicolons"),
        pytest.param(TABS.encode(), "pay.tsv", id="tabs"),
        pytest.param(codecs.BOM_UTF16_LE + TABS.encode("utf-16-le"), "pay.txt", id="Unicode text from Excel"),
        pytest.param(FRENCH.replace(",", "|").encode(), "pay.txt", id="bars"),
        pytest.param(("sep=;\r\n" + FRENCH.replace(",", ";")).encode(), "pay.csv", id="a line sep=;"),
        pytest.param(("SEP=^\n" + FRENCH.replace(",", "^")).encode(), "pay.csv", id="a delimiter of one's own"),
        pytest.param(re.sub("([^,\n]+)", r'"\1"', FRENCH).encode(), "pay.csv", id="every field quoted"),
    ],
)
def test_valid_sheet_is_read_in_every_format(sheet: MakeSheet, rules: Rules, content: bytes, name: str) -> None:
    read = sheet(content, name)
    assert read.frame.select("row", "account_name", "phone").rows() == [(2, "Aïssatou Né", "+254712345678")]
    assert validate(read, rules).instructions.height == 1


def test_configured_encoding_is_tried_if_not_utf8(sheet: MakeSheet) -> None:
    content = FRENCH.encode("cp1252")
    with pytest.raises(SheetError, match=r"pay\.csv, line 2: the text is not UTF-8") as refused:
        sheet(content)
    assert "encoding" in refused.value.hint
    assert names(sheet(content, encoding="cp1252")) == names(sheet(FRENCH, encoding="cp1252")) == ["Aïssatou Né"]
    with pytest.raises(ConfigurationError, match="cp9999"):
        sheet(content, encoding="cp9999")
    with pytest.raises(SheetError, match="not valid CP1252"):
        sheet(lines(GOOD.replace("Kamau", "Kam\x81u")).encode("latin-1"), encoding="cp1252")
    padded = "é" * 700_000
    content = lines(GOOD, f"KE,A-2,1,KES,{padded},2,3").encode() + b"KE,\xff\n"
    with pytest.raises(SheetError, match="line 4"):
        sheet(content)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param("", "is empty", id="nothing at all"),
        pytest.param("\n\n\n", "no recognisable header", id="blank lines"),
        pytest.param(HEADER, "no rows below it", id="a header alone"),
        pytest.param(HEADER + "\n,,,,,,\n \n", "no rows below it", id="blank rows alone"),
        pytest.param(GOOD, "no recognisable header", id="no known header"),
        pytest.param("name;sum\nJane;5\n", "no recognisable header", id="a header in other words"),
        pytest.param("country,amt\nKE,5\n", "no column amount", id="a column missing"),
        pytest.param("country,client_orderid,amonut\nKE,5,1\n", "is it the column 'amonut'", id="a column misspelt"),
        pytest.param(lines(GOOD).replace("phone", "Amount"), "mean the same column", id="a heading twice"),
        pytest.param(f"{HEADER},note,note\n{GOOD},a,b\n", "mean the same column", id="an unknown heading twice"),
        pytest.param(lines(GOOD).replace("Kamau", "Kam\x00au"), "line 2: .* NUL byte", id="a NUL byte"),
        pytest.param(lines(GOOD).encode("utf-16-le"), "NUL byte", id="UTF-16 without a byte order mark"),
        pytest.param(lines(GOOD).encode() + b"KE,\xc3", "line 3: the text is not UTF-8", id="half a letter at the end"),
        pytest.param(lines(GOOD).replace("Kamau", '"Kam\nau"'), UNCLOSED, id="a line break"),
        pytest.param(lines(GOOD, GOOD, GOOD).replace("Wanjiru", '"Wanjiru', 1), UNCLOSED, id="one quote"),
        pytest.param(
            lines(GOOD, GOOD, GOOD.replace("Kamau", 'Kamau"')).replace("Wanjiru", '"Wanjiru', 1),
            UNCLOSED,
            id="a quote that closes rows later",
        ),
        pytest.param(lines(GOOD.replace("Kamau", 'Ka"m"au')), UNCLOSED, id="quotes inside"),
        pytest.param(lines(GOOD.replace("Kamau", '"Ka"mau')), UNCLOSED, id="text after a quote"),
    ],
)
def test_malformed_sheet_is_refused_with_message(sheet: MakeSheet, content: bytes | str, sentence: str) -> None:
    with pytest.raises(SheetError, match=sentence) as refused:
        sheet(content)
    assert refused.value.message.startswith("pay.csv")


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        *((f"Kam{sign}au", "Kam au") for sign in ("\x07", "\x85", "\u2028", "\v", "\x1f", "\x91")),
        ("Nu\xc3\x91ez \xc3\x89", "Nu\xd1ez \xc9"),
    ],
)
def test_control_character_in_name_is_row_defect(sheet: MakeSheet, rules: Rules, broken: str, repaired: str) -> None:
    defects = validate(sheet(lines(GOOD.replace("Kamau", broken), GOOD.replace("A-1", "A-2"))), rules).defects
    assert defects.select("row", "code", "correction").rows() == [(2, "account_name.format", f"Wanjiru {repaired}")]


@pytest.mark.parametrize("column", ["country", "client_orderid", "amount", "account_number", "phone"])
def test_line_break_is_defect_only_inside_value(sheet: MakeSheet, rules: Rules, column: str) -> None:
    cells = dict(zip(HEADER.split(","), GOOD.split(","), strict=True))
    inside = cells | {column: f'"{cells[column][:1]}\n{cells[column][1:]}"'}
    at_the_end = cells | {column: f'"{cells[column]} \r\n\n"', "client_orderid": "A-2"}
    validated = validate(sheet(lines(",".join(inside.values()), ",".join(at_the_end.values()))), rules)
    assert {row for row, _ in codes(validated.defects)} == {2}
    assert validated.instructions["row"].to_list() == [3]


def test_extra_field_in_every_row_is_reported_once(sheet: MakeSheet) -> None:
    rows = [GOOD.replace("A-1", f"A-{n}") for n in range(3)]
    read = sheet(lines(*(row + "," for row in rows)))
    assert read.notes == ("Every row ends with an empty field that has no heading. These fields are ignored.",)
    assert read.frame.equals(sheet(lines(*rows)).frame)
    assert sheet(lines(*rows, header=HEADER + ",,")).frame.equals(read.frame)
    assert sheet(lines(*(row + ",x," for row in rows), header=HEADER + ",note")).unknown == ("note",)
    for content, said in (
        (lines(*(row + ",x" for row in rows)), "every row has one field more .* does each line end with a comma"),
        (lines(*(row + ",x," for row in rows)), "every row has 2 fields more"),
        (lines(*(row + ";x" for row in rows)).replace(",", ";"), "line end with a semicolon"),
        (lines(*(row + ",x" for row in rows), GOOD), "most rows have 8 fields, but the header has 7"),
        (lines(*(row.rpartition(",")[0] for row in rows)), "most rows have 6 fields, but the header has 7"),
    ):
        with pytest.raises(SheetError, match=said):
            sheet(content)


@pytest.mark.parametrize(
    ("row", "fields", "good_rows"),
    [
        ("KE,A-1,1,000.00,KES,Jane,254712345678,+254712345678", "8 fields", 1),
        ("KE,A-1,1500,KES,Jane,254712345678,+254712345678,", "8 fields", 1),
        *((GOOD.replace("Wanjiru Kamau", '"Kamau, W."') + ",x", "8 fields", count) for count in (0, 1, 50_000)),
        *(("KE,A-1,1500,KES,Jane,254712345678", "6 fields", 1), ("x", "one field", 1)),
    ],
)
def test_ragged_row_is_found_among_many(sheet: MakeSheet, rules: Rules, row: str, fields: str, good_rows: int) -> None:
    validated = validate(sheet(lines(row, *(GOOD.replace("A-1", f"B-{n}") for n in range(good_rows)))), rules)
    assert codes(validated.defects)[0] == (2, "row.fields")
    assert validated.defects["message"][0].startswith(f"The row has {fields}, but the header has 7")
    assert set(validated.defects["row"]) == {2}


def test_extra_and_missing_fields_do_not_cancel_out(sheet: MakeSheet, rules: Rules) -> None:
    short, long = GOOD.rpartition(",")[0], GOOD.replace("A-1", "A-2") + ",x"
    result = codes(validate(sheet(lines(short, long, GOOD.replace("A-1", "A-3"))), rules).defects)
    assert [row for row, code in result if code == "row.fields"] == [2, 3]


def test_blank_rows_are_dropped_and_totals_found(sheet: MakeSheet, rules: Rules) -> None:
    content = lines(GOOD, "", ",,,,,,", '"","",,,,,', " , ,\u00a0,,\u200b,,", GOOD.replace("A-1", "A-2"), "", ",,,,,,")
    validated = validate(sheet(content), rules)
    assert validated.rows["row"].to_list() == [2, 7]
    assert validated.totals.rows == 2
    assert sheet(lines(GOOD, ",,,,,,x", "note,,,,,,")).frame["row"].to_list() == [2, 3, 4]
    for total in ("TOTAL,,1500.50,,,,", ",,1500.50,,Grand total:,,", ",,1500.50,,,,Totaux"):
        validated = validate(sheet(lines(GOOD, total)), rules)
        assert codes(validated.defects)[0] == (3, "row.total")
        assert validated.rows["valid"].to_list() == [True, False]


def test_header_is_found_within_twenty_rows(sheet: MakeSheet) -> None:
    read = sheet('Payroll "November\n\nprepared by,A. N. Other\n' + lines(GOOD))
    assert read.frame["row"].to_list() == [5]
    assert sheet("x\n" * 19 + lines(GOOD)).frame.height == 1
    with pytest.raises(SheetError, match="no recognisable header"):
        sheet("x\n" * 20 + lines(GOOD))
    book = openpyxl.Workbook()
    page = book.worksheets[0]
    page["A1"], page["A6"], page["B6"] = "ACME Ltd", "country", "Pay"
    made = io.BytesIO()
    book.save(made)
    with pytest.raises(SheetError, match="row 6: the header has no column amount"):
        sheet(made.getvalue(), "pay.xlsx")


@pytest.mark.parametrize(("line", "row"), [("sep=;", 2), ('sep="', 3), ("sep=a", 3), ("sep=", 3), ("sep=;;", 3)])
def test_separator_line_is_not_read_as_row(sheet: MakeSheet, line: str, row: int) -> None:
    assert sheet(line + "\n" + SEMICOLONS).frame["row"].to_list() == [row]


@pytest.mark.parametrize("wrapped", ["'0712345678", '"=""0712345678"""', '="0712345678"', "\u202a0712345678\u202c"])
def test_quoted_formula_number_is_unwrapped(sheet: MakeSheet, rules: Rules, wrapped: str) -> None:
    validated = validate(sheet(lines(GOOD.replace("+254712345678", wrapped))), rules)
    assert validated.rows["phone"].to_list() == ["+254712345678"]


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("amount", "code", "advice"),
    [
        *((amount, "amount.format", "Enter 1000.50") for amount in ('"1.000,50"', '"1000,50"', '"KES 1,000.50"')),
        *((amount, "amount.format", "could mean 1000 or 1") for amount in ('"1,000/="', '"KES 1,000"')),
        *(('"1,000.00"', "amount.format", "Enter 1000.00"), ('"1,000,000"', "amount.format", "Enter 1000000")),
        *(('"1,250"', "amount.format", "could mean 1250 or 1.25"), ("007", "amount.format", "Enter 7")),
        *(("5 000 Ksh", "amount.format", "Enter 5000"), ("Kshs. 2 000", "amount.format", "Enter 2000.")),
        *(("1500/-", "amount.format", "Enter 1500."), ("1\u00a0500", "amount.format", "Enter 1500")),
        *(("1'000'000", "amount.format", "Enter 1000000."), ("9" * 16, "amount.format", "more than 15 digits")),
        *((amount, "amount.format", "negative") for amount in ("(100)", "-5")),
        *((amount, "amount.format", "plain") for amount in ("+5", "1.", ".5", "5\u0660\u0660", "\uff15\uff10\uff10")),
        *((amount, "amount.format", "plain") for amount in ("15x", "15oo", "2x15", "5$", "1 5", "5 000 F CFA", "१५००")),
        *((amount, "amount.format", "date") for amount in ("12-Jan", "1/2", "2026-01-12", "12/01/2026")),
        *((amount, "amount.exponent", "in digits only") for amount in ("1e3", "1.5E+06")),
        *(("2.500", "amount.decimals", "could mean 2500 or 2.5"), ("1.5000", "amount.decimals", "Enter 1.50.")),
        ("100.100", "amount.decimals", "could mean 100100 or 100.1"),
        ("100.000", "amount.decimals", "could mean 100000 or 100"),
        ("100.105", "amount.decimals", "KES has 2 decimal places"),
        *((amount, "amount.zero", "greater than zero") for amount in ("0", "0.00")),
        *(("5", "amount.minimum", "10"), ("250000.01", "amount.maximum", "250000")),
        *(("#REF!", "amount.error_mark", "spreadsheet error"), ("", "amount.missing", "missing")),
    ],
)
def test_unusual_amount_gets_suggestion(sheet: MakeSheet, rules: Rules, amount: str, code: str, advice: str) -> None:
    validated = validate(sheet(lines(GOOD.replace("1500.50", amount))), rules)
    assert codes(validated.defects) == [(2, code)]
    assert advice in validated.defects["message"][0]


@pytest.mark.parametrize(
    ("code", "amount", "right"),
    [
        *(("KE", "45833.3333", "45833.33"), ("KE", "45833.335", "45833.34"), ("KE", "1500.5000", "1500.50")),
        *(("UG", "45833.5", "45834"), ("UG", "45833.49999", "45833"), ("UG", "1500.00", "1500")),
        *(("KE", "0.004", None), ("UG", "1.500", None), ("UG", "0.4", None)),
        ("KE", "45.833", None),  # it could mean 45,833
    ],
)
def test_excess_decimals_round_half_up(sheet: MakeSheet, rules: Rules, code: str, amount: str, right: Any) -> None:
    row = GOOD.replace("1500.50", amount)
    row = row if code == "KE" else row.replace("KE,", "UG,").replace("KES", "UGX").replace("2547", "2567")
    validated = validate(sheet(lines(row)), rules)
    result = validated.defects.filter(pl.col("code") == "amount.decimals").select("value", "correction").rows()
    assert (result, validated.payable_count) == ([(amount, right)], 0)


@pytest.mark.parametrize("amount", ["10", "1500.5", "1500.50", "250000", " 1500 ", "\u200b1500"])
def test_amount_keeps_sheet_digits_in_instruction(sheet: MakeSheet, rules: Rules, amount: str) -> None:
    validated = validate(sheet(lines(GOOD.replace("1500.50", amount))), rules)
    assert validated.instructions["amount"].to_list() == [amount.strip(" \u200b")]


def test_messages_shorten_long_values(sheet: MakeSheet, rules: Rules) -> None:
    defect = validate(sheet(lines(GOOD.replace("1500.50", "x" * 500))), rules).defects
    assert defect["value"].to_list() == ["x" * 60 + "..."]
    assert len(defect["message"][0]) < 200


def test_unknown_columns_are_kept_if_filled(sheet: MakeSheet, rules: Rules) -> None:
    content = lines(GOOD + ",Sales,x,7", header=HEADER + ",Department,State,state")
    read = sheet(content)
    assert read.unknown == ("Department", "State", "state (sheet)")
    assert read.headers["state (sheet)"] == "state"
    assert validate(read, rules).rows.select("Department", "State", "state (sheet)").rows() == [("Sales", "x", "7")]
    assert sheet(lines(GOOD + ",", header=HEADER + ",")).unknown == ()
    assert sheet(lines(GOOD + ",x", header=HEADER + ",")).unknown == ("column 8",)


def test_headings_match_in_any_spelling_or_alias(sheet: MakeSheet) -> None:
    header = "COUNTRY, Client Order-ID ,\u200bAmount,curr_ency,Account  Name,ACCOUNTNUMBER,Phone"
    assert sheet(lines(GOOD, header=header)).frame.columns[1:] == HEADER.split(",")
    content = lines(GOOD).replace("amount", "Net Pay")
    assert sheet(content, aliases={"net_pay": "amount"}).frame["amount"].to_list() == ["1500.50"]
    with pytest.raises(ConfigurationError, match="amuont"):
        sheet(content, aliases={"net pay": "amuont"})
    assert sheet(lines("7," + GOOD, header="PK," + HEADER)).unknown == ("PK",)


def test_values_are_text_and_empty_values_null(sheet: MakeSheet) -> None:
    read = sheet(lines('KE,007,1.50,,"",0712345678,'))
    assert read.frame.dtypes == [pl.UInt32, *[pl.String] * 7]
    assert read.frame.row(0) == (2, "KE", "007", "1.50", None, None, "0712345678", None)
