"""Write every sheet of this folder again: `python samples/make_samples.py`. The same files come out each time."""
# ruff: noqa: INP001  (scripts beside data, no package)

import argparse
import tomllib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from make_collections import make_collections
from make_sheet import CONFIG, PEOPLE, make_sheet
from xlsxwriter import Workbook

FOLDER = Path(__file__).resolve().parent

SpoiltRow = tuple[str, str, dict[str, str]]
"""(country whose good row it is made from, what is to be said of it, what is written instead)."""

COLUMNS = (
    "country",
    "client_orderid",
    "amount",
    "currency",
    "account_name",
    "account_number",
    "phone",
    "purpose",
    "receiver_first_name",
    "receiver_last_name",
    "receiver_phone",
    "receiver_email",
    "receiver_country_code",
    "ipaddress",
    "order_desc",
    "what_is_wrong",
)

GOOD = {
    "KE": {"currency": "KES", "account_name": "Mwende Karanja", "account_number": "254712000101"},
    "UG": {"currency": "UGX", "account_name": "Kato Mukasa", "account_number": "256772000102"},
    "RW": {"currency": "RWF", "account_name": "Keza Gasana", "account_number": "250788000103"},
    "EG": {"currency": "EGP", "account_name": "Salma Zaki", "account_number": "201000000104"},
    "ZA": {"currency": "ZAR", "account_name": "Anele Botha", "account_number": "27821000105"},
    "CI": {"currency": "XOF", "account_name": "Aya N'Guessan", "account_number": "2250700000106"},
    "GN": {"currency": "XOF", "account_name": "Hawa Sylla", "account_number": "224621000107"},
    "BN": {"currency": "XOF", "account_name": "Afi Zinsou", "account_number": "2290197000108"},
    "TZ": {
        "currency": "TZS",
        "receiver_first_name": "Upendo",
        "receiver_last_name": "Mrema",
        "receiver_phone": "0754000109",
        "receiver_email": "upendo.mrema@example.com",
    },
}
"""A row of each of these countries that has no defect; order id and amount are added to it."""

WRONG_AMOUNTS = (
    ("", "no amount"),
    ("0", "zero"),
    ("0.00", "zero"),
    ("-50", "below zero"),
    ("100.105", "more decimals than KES has"),
    ("1,000.00", "a comma between thousands"),
    ("1,000", "a comma: one thousand, or one with three decimals"),
    ("1.000,50", "a point between thousands, a comma before decimals"),
    ("1000,50", "a comma before decimals"),
    ("KES 1,000", "the currency beside the number"),
    ("1,000/=", "a shilling mark"),
    ("1 000", "a blank between thousands"),
    ("(100)", "brackets, as book-keepers write below zero"),
    ("+5", "a sign"),
    ("1.", "a point without decimals"),
    (".5", "a point without a whole part"),
    ("0100", "a zero in front"),
    ("1e3", "an exponent"),
    ("12-Jan", "a date made by a spreadsheet"),
    ("1/2", "a fraction, or a date"),
    ("1\u0660\u0660\u0660", "digits of two scripts"),
    ("\uff11\uff10\uff10\uff10", "full-width digits"),
    ("1234567890123456", "sixteen digits"),
    ("#N/A", "a spreadsheet's error"),
    ("=A1*2", "a formula"),
    ("one thousand", "words"),
)
"""(amount, what is wrong with it), each in a KES row."""

OTHER_DEFECTS: tuple[SpoiltRow, ...] = (
    ("KE", "country missing", {"country": ""}),
    ("KE", "no such country", {"country": "XX"}),
    ("KE", "a name where the code belongs", {"country": "Kenya"}),
    ("BN", "the ISO code of Benin; this gateway writes BN", {"country": "BJ"}),
    ("KE", "another country's currency", {"currency": "UGX"}),
    ("GN", "Guinea's own currency; this gateway pays XOF", {"currency": "GNF"}),
    ("UG", "UGX has no decimals", {"amount": "15000.50"}),
    ("CI", "XOF has no decimals", {"amount": "15000.5"}),
    ("KE", "order id missing", {"client_orderid": ""}),
    ("KE", "the same order id twice", {"client_orderid": "DEF-TWICE"}),
    ("UG", "the same order id twice", {"client_orderid": "DEF-TWICE"}),
    ("KE", "an order id of 129 characters", {"client_orderid": "D" * 129}),
    ("KE", "account name missing", {"account_name": ""}),
    ("RW", "account name missing; Rwanda insists", {"account_name": ""}),
    ("KE", "account number missing", {"account_number": ""}),
    ("KE", "phone missing", {"phone": ""}),
    ("KE", "a number that is too short", {"account_number": "25471200", "phone": "+25471200"}),
    ("KE", "a number that is too long", {"account_number": "25471200010199", "phone": "+25471200010199"}),
    ("KE", "letters in a number", {"phone": "+2547I2OOO1O1"}),
    ("KE", "a Tanzanian number", {"account_number": "255754000110", "phone": "+255754000110"}),
    ("KE", "a number cut by a spreadsheet", {"account_number": "2.54712E+11"}),
    ("CI", "an old number of eight digits", {"account_number": "22507000106", "phone": "+22507000106"}),
    ("BN", "an old number of eight digits", {"account_number": "22997000108", "phone": "+22997000108"}),
    ("EG", "a number of no operator", {"account_number": "201900000104", "phone": "+201900000104"}),
    ("KE", "another purpose than the configured one", {"purpose": "SOME-OTHER-CHANNEL"}),
    ("ZA", "South Africa takes no purpose", {"purpose": "SOME-CHANNEL"}),
    ("TZ", "first name missing", {"receiver_first_name": ""}),
    ("TZ", "last name missing", {"receiver_last_name": ""}),
    ("TZ", "receiver's phone missing", {"receiver_phone": ""}),
    ("TZ", "a Kenyan phone", {"receiver_phone": "+254712000101"}),
    ("TZ", "e-mail missing", {"receiver_email": ""}),
    ("TZ", "no e-mail address", {"receiver_email": "upendo.mrema(at)example.com"}),
    ("TZ", "another country for the receiver", {"receiver_country_code": "KE"}),
    ("TZ", "no IPv4 address", {"ipaddress": "10.0.0.300"}),
    ("TZ", "an IPv6 address", {"ipaddress": "2001:db8::1"}),
    ("KE", "three things at once", {"amount": "1,5", "phone": "12", "currency": "USD"}),
    (
        "KE",
        "a total at the foot of the sheet",
        {"country": "", "client_orderid": "TOTAL", "amount": "48250.00", "currency": "", "account_name": ""}
        | {"account_number": "", "phone": ""},
    ),
    ("KE", "a name with a sign that turns the text", {"account_name": "Mwende \u202ekaranja"}),
    ("KE", "a name that begins like a formula", {"account_name": "=1+1"}),
    ("KE", "an order id that a spreadsheet changed", {"client_orderid": "00042", "amount": "4200"}),
    ("KE", "an order id that a spreadsheet changed", {"client_orderid": "42.0", "amount": "4200"}),
    ("KE", "a name that lost a letter", {"account_name": "Mwende Kar\ufffdnja"}),
)
"""At least one row of each kind of defect that is not about an amount."""

GOOD_WITH_A_TWIST: tuple[SpoiltRow, ...] = (
    ("KE", "", {}),
    ("TZ", "", {}),
    ("ZA", "", {}),
    ("KE", "", {"amount": "1500.5", "account_number": "0712000111", "phone": "0712 000-111"}),
    ("KE", "", {"account_number": "00254712000112", "phone": "(+254) 712.000.112"}),
    ("KE", "warning: a zero eaten by a spreadsheet", {"account_number": "712000113", "phone": "712000113"}),
    ("KE", "", {"account_number": "2.54712000114E+11", "phone": "'+254712000114"}),
    ("TZ", "", {"receiver_country_code": "TZ", "ipaddress": "192.0.2.10", "order_desc": "Wages", "amount": "52000"}),
    ("KE", "warning: looks like the next row", {"account_number": "254712000115", "amount": "750"}),
    ("KE", "warning: looks like the row before", {"account_number": "254712000115", "amount": "750"}),
    ("CI", "nothing where form and purpose are configured for CI", {}),
    ("BN", "nothing where form and purpose are configured for BN", {}),
)
"""Rows without a defect."""

OUTCOMES = (
    ("1200", "paid"),
    ("9001", "rejected: declined"),
    ("9002.50", "accepted: processing"),
    ("1350.75", "paid"),
    ("9003", "rejected: filtered"),
    ("9004", "rejected: error"),
    ("1500", "paid"),
    ("9006", "in doubt: the answer is no JSON; the money left"),
    ("1650", "paid"),
    ("9007.25", "in doubt: the connection dropped after the money left"),
    ("1800", "paid"),
    ("9008", "in doubt: the connection dropped before the money left"),
    ("1950.10", "paid"),
    ("9009", "in doubt: HTTP 500 after the money left"),
    ("2100", "paid"),
    ("9010", "in doubt: a status word that is not configured"),
    ("2250", "paid"),
    ("9012", "rejected: HTTP 429 with a rest of a second, declined"),
    ("2400", "paid"),
    ("9005", "in doubt: no answer, until the read time-out"),
    ("9011", "in doubt: the answer names another order; the run stops"),
)
"""(amount, what becomes of it in the sandbox). The two that take longest or stop the run come last."""

TO_MEND = (
    ("Country", "Client Order ID", "Amount", "Currency", "Account Name", "Account Number", "Phone", "Department"),
    ("KE", "OCT-01", 1500.50, "KES", "Wanjiru Kamau", "254712345678", "+254712345678", "Field"),
    ("KE", "OCT-02", "1,000.00", "KES", "Otieno Odhiambo", "0722345", "0722 345 678", "Field"),
    ("KE", "OCT-03", datetime(2026, 1, 12, tzinfo=UTC), "KES", "", "254733345678", "0733 345 678", "Office"),
    ("KE", "OCT-04", 750, "USD", "Achieng Otieno", 712345111, "0712 345 111", "Office"),
    ("BJ", "OCT-05", 900, "XOF", "Afi Zinsou", "2290197000108", "+2290197000108", "Office"),
    ("KE", "OCT-06", 12000, "KES", "Mwende Karanja", "254712000101", "+254712000101", "Office"),
)
"""What people's workbooks are like: a date where an amount was typed, a zero that the spreadsheet has eaten, a gap."""


def every_defect() -> pl.DataFrame:
    """Return a sheet with at least one row of each kind of defect, and rows without one before and after."""
    spoilt: list[SpoiltRow] = [("KE", words, {"amount": amount}) for amount, words in WRONG_AMOUNTS]
    rows = _defect_rows([*GOOD_WITH_A_TWIST, *spoilt, *OTHER_DEFECTS, ("RW", "", {})])
    # Blank cells are null, as in every other sheet here.
    lines = [{column: row.get(column) or None for column in COLUMNS} for row in rows]
    return pl.DataFrame(lines, schema=dict.fromkeys(COLUMNS, pl.String))


def _defect_rows(rows: Iterable[SpoiltRow]) -> Iterator[dict[str, str]]:
    for number, (country, words, instead) in enumerate(rows, start=1):
        row = {"country": country, "client_orderid": f"DEF-{number:03}", "amount": str(1_000 + 25 * number)}
        row |= GOOD[country]
        if "account_number" in row:
            row["phone"] = f"+{row['account_number']}"
        yield row | instead | {"what_is_wrong": words}


def outcomes() -> pl.DataFrame:
    """Return a sheet that shows everything the sandbox can answer."""
    amounts, words = zip(*OUTCOMES, strict=True)
    sheet = make_sheet(len(OUTCOMES), seed=9, countries=["KE"], prefix="OUT").drop("department")
    return sheet.with_columns(amount=pl.Series(amounts), what_becomes_of_it=pl.Series(words))


def mixed() -> pl.DataFrame:
    """Return a payroll over all countries, without a defect where the XOF zone is configured."""
    return make_sheet(200, seed=2026, prefix="PAY")


def of_country(code: str) -> pl.DataFrame:
    """Return five rows of one country."""
    return make_sheet(5, seed=sum(code.encode()), countries=[code], prefix=code).drop("department")


def write_workbook(path: Path) -> None:
    """Write a workbook with errors for others to correct."""
    with Workbook(path, {"remove_timezone": True}) as workbook:
        workbook.set_properties({"created": datetime(2026, 11, 21)})  # noqa: DTZ001 (the library takes no zone)
        sheet = workbook.add_worksheet("October")
        sheet.write_string(
            0, 0, "Acme Field Services - October 2026", workbook.add_format({"bold": True, "font_size": 14})
        )
        heading = workbook.add_format({"bold": True, "bg_color": "#DDEBF7", "bottom": 1})
        day = workbook.add_format({"num_format": "d-mmm", "align": "right"})
        for row, cells in enumerate(TO_MEND, start=2):
            for column, cell in enumerate(cells):
                if isinstance(cell, datetime):
                    sheet.write_datetime(row, column, cell, day)
                elif isinstance(cell, str):
                    sheet.write_string(row, column, cell, heading if row == 2 else None)  # noqa: PLR2004 (as above)
                else:
                    sheet.write_number(row, column, cell)
        for column, width in enumerate((9, 16, 12, 10, 20, 18, 18, 12)):
            sheet.set_column(column, column, width)
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)


def having(operation: str) -> list[str]:
    """Return the countries that have an operation."""
    of_country = {code: tomllib.loads((CONFIG / f"countries/{code}.toml").read_text("utf-8")) for code in PEOPLE}
    return [code for code, country in of_country.items() if operation in country["operations"]]


def write_collections(folder: Path) -> None:
    """Write the sheets of customers to collect from."""
    (folder / "collections").mkdir(exist_ok=True, parents=True)
    for code in having("payin"):
        sheet = make_collections(5, seed=sum(code.encode()), prefix=f"COL-{code}", countries=[code])
        sheet.write_csv(folder / f"collections/{code}.csv")
    make_collections(100, seed=1, prefix="COL").write_csv(folder / "collections-mixed.csv")


def write_all(folder: Path) -> None:
    """Write every sheet into `folder`."""
    write_collections(folder)
    (folder / "countries").mkdir(exist_ok=True, parents=True)
    for code in having("payout"):
        of_country(code).write_csv(folder / f"countries/{code}.csv")
    mixed().write_csv(folder / "payroll-mixed.csv")
    mixed().write_parquet(folder / "payroll-mixed.parquet")
    every_defect().write_csv(folder / "every-defect.csv")
    outcomes().write_csv(folder / "outcomes.csv")
    write_workbook(folder / "to-mend.xlsx")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write every sheet of the samples again.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    write_all(parser.parse_args().folder)
