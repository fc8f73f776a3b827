"""The meaning of amounts, countries and currencies by each answer about their spelling."""

import polars as pl
import pytest

from paygw_batch.countries.load import load_rules
from paygw_batch.sheet.check.spelling import Spelling, readings
from paygw_batch.sheet.model import Sheet

RULES = load_rules("payout", {})


def read_cells(spelling: Spelling, **cells: str | None) -> dict[str, str]:
    row = {"country": "KE", "amount": "5.00", "currency": None} | cells
    texts = [pl.Series(name, [text], pl.String) for name, text in row.items()]
    frame = pl.DataFrame([pl.Series("row", [2], pl.UInt32), *texts])
    headers = {name: name for name in row}
    result = readings(Sheet("pay.csv", "", frame, headers, ()), RULES, spelling)
    return dict(result.select("column", "correction").iter_rows())


@pytest.mark.parametrize(
    ("text", "comma", "point"),
    [
        ("1.234,50", "1234.50", None),
        ("1,234.50", None, "1234.50"),
        ("1.500", "1500", None),
        ("1,500", None, "1500"),
        ("150 000", "150000", "150000"),
        ("150 000,5", "150000.5", None),
        ("1.234.567", "1234567", None),
        ("KSh 38,500.00", None, "38500.00"),
        ("1234.50", None, None),
        ("12.34,5", None, None),
        ("12-Jan", None, None),
        ("-1.500", None, None),
    ],
)
def test_decimal_sign_gives_each_amount_one_meaning(text: str, comma: str | None, point: str | None) -> None:
    for sign, meaning in (("comma", comma), ("point", point)):
        assert read_cells(Spelling(sign, None, is_text=True), amount=text).get("amount") == meaning


def test_decimals_are_cut_only_from_text() -> None:
    comma = Spelling("comma", None, is_text=True)
    assert read_cells(comma, country="SN", amount="175 000,00") == {"amount": "175000"}
    assert read_cells(comma, country="SN", amount="175 000,50") == {}
    assert read_cells(Spelling("comma", None, is_text=False), amount="12.345") == {}


@pytest.mark.parametrize("country", ["S\xe9n\xe9gal", "SENEGAL", "senegal", "C\xf4te d\u2019Ivoire", "Afrique du Sud"])
def test_country_names_are_recognised(country: str) -> None:
    codes = {"S": "SN", "s": "SN", "C": "CI", "A": "ZA"}
    words = Spelling(None, "words", is_text=True)
    assert read_cells(words, country=country) == {"country": codes[country[0]]}
    assert read_cells(words, country="Total") == {}


def test_currency_name_is_read_only_for_country() -> None:
    words = Spelling("comma", "words", is_text=True)
    expected = {"country": "SN", "currency": "XOF", "amount": "1500"}
    assert read_cells(words, country="S\xe9n\xe9gal", currency="F CFA", amount="1.500") == expected
    assert read_cells(words, currency="FCFA") == {}
    assert read_cells(words, country=None, amount="1.500") == {}
