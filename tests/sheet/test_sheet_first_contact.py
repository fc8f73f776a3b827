"""Values typed by hand: damaged amounts, digits of other scripts, unusual names, and the answers about spelling."""

import json
from collections.abc import Callable

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import Rules
from paygw_batch.sheet.check.damage import MAYBE_DAMAGED, repair_name
from paygw_batch.sheet.check.spelling import Answers, interpreted_cells
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Validated
from tests.support.sheet_values import MakeSheet, build_sheet, lines

Check = Callable[[str], Validated]


def row(amount: str = "1500", *, name: str = "Jane Wanjiku", number: str = "254712345678", order: str = "A-1") -> str:
    return f'KE,{order},"{amount}",KES,"{name}",{number},+254712345678'


@pytest.fixture
def checked(sheet: MakeSheet, rules: Rules) -> Check:
    return lambda line: validate(sheet(lines(line)), rules)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (row(name="Jane \u202eukijnaW"), "account_name.direction"),
        (row(name="Jane\u200fWanjiku"), "account_name.direction"),
        *((row(name=name), "account_name.formula_sign") for name in ("=cmd|calc", '=HYPERLINK(""http://x"")')),
        *((row(name=name), "account_name.formula_sign") for name in ("@SUM(A1)", "-Jane", "+Jane", "\uff1dcmd|calc")),
        (row(name="A\ufffdcha"), "account_name.lost_character"),
        (row(order="A\ufffd1"), "client_orderid.lost_character"),
    ],
)
def test_deceptive_or_lost_character_is_defect(checked: Check, line: str, code: str) -> None:
    assert checked(line).defects["code"].to_list() == [code]


def test_emoji_in_name_gets_warning(checked: Check) -> None:
    result = checked(row(name="Jane \N{SPARKLES} Wanjiku"))
    assert result.defects.is_empty()
    assert result.warnings["code"].to_list() == ["account_name.emoji"]
    assert checked(row(name="Nana Afia O'Neill-Smith Jr. 2")).warnings.is_empty()


@pytest.mark.parametrize("digits", ["٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹"], ids=["Arabic", "Persian"])
def test_digits_of_other_scripts_get_warning(checked: Check, digits: str) -> None:
    theirs = str.maketrans("0123456789.", f"{digits}\N{ARABIC DECIMAL SEPARATOR}")
    result = checked(row("1500.50".translate(theirs), number="254712345678".translate(theirs)))
    assert result.defects.is_empty()
    assert result.instructions["amount"].to_list() == ["1500.50"]
    assert result.instructions["payee"].to_list() == ["254712345678"]
    assert result.warnings.select("code", "message").rows() == [
        ("amount.other_digits", f"{'1500.50'.translate(theirs)} was read as 1500.50."),
        ("account_number.other_digits", f"{'254712345678'.translate(theirs)} was read as 254712345678."),
    ]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("A\u00c3\u00afcha", "A\u00efcha"),  # UTF-8 read as Latin-1
        ("N\u00e2\u20ac\u2122Diaye", "N\u2019Diaye"),  # UTF-8 read as Windows-1252
        ("A\u00c3\u0192\u00c2\u00afcha", "A\u00efcha"),  # misread twice
        ("Jos\u221a\u00a9", "Jos\u00e9"),  # UTF-8 read as Mac Roman
        ("N&#39;Diaye", "N'Diaye"),
        ("Tom &amp;amp; Co", "Tom & Co"),
        ("<b>Awa</b><br/>Diop", "Awa Diop"),
        ("Amina undefined", "Amina"),
        ("nan Diop", "Diop"),
        ("N%27Diaye", "N'Diaye"),
        ("A\\u00efcha", "A\u00efcha"),
        ("N\\'Diaye", "N'Diaye"),
        ("Awa_x000D_ Diop", "Awa Diop"),
    ],
)
def test_warning_about_damaged_name_suggests_repair(checked: Check, name: str, right: str) -> None:
    result = checked(row(name=name))
    assert result.defects.is_empty()
    assert result.warnings.select("code", "value", "correction").rows() == [("account_name.damaged", name, right)]
    assert f"Is the name {right}?" in result.warnings["message"][0]
    assert result.rows["account_name"].to_list() == [name]


def test_name_is_normalised_before_comparison(checked: Check, sheet: MakeSheet, rules: Rules) -> None:
    result = checked(row(name="Aissatou\u00a0Ne\u0301\u2003Diop"))
    assert json.loads(result.instructions["fields"][0])["account_name"] == "Aissatou N\u00e9 Diop"
    rows = (row(name="M\u00aa Jose\u0301"), row("1600", name="Ma Jos\u00e9", order="A-2"))
    assert validate(sheet(lines(*rows)), rules).warnings.is_empty()


DAMAGED = st.lists(
    st.sampled_from(
        [
            *("&#39;", "&lt;", "%C3", "\\", "\\u00ef", "_x000D_", "nan", "null", "<b", "<", ">", " ", "a", "Z"),
            *("\u00c3", "\u00af", "\u00e9", "\u00e2\u20ac\u2122", "\u221a", "\u251c", "\u00a9", "\u00c9", "\u2019"),
        ]
    )
).map("".join)


@given(st.one_of(st.text(st.characters(codec="utf-8"), max_size=30), DAMAGED))
def test_repaired_name_contains_no_further_damage(name: str) -> None:
    result = repair_name(name)
    assert result == name or pl.Series([name]).str.contains(MAYBE_DAMAGED).item()
    assert repair_name(result) == result


def read_cells(spelling: Answers, **cells: str | None) -> dict[str, str]:
    row = {"country": "KE", "amount": "5.00", "currency": None} | cells
    result = interpreted_cells(build_sheet(row), load_rules("payout", {}), spelling)
    return dict(result.select("column", "correction").iter_rows())


@pytest.mark.parametrize(
    ("text", "comma", "point"),
    [
        *(("1.234,50", "1234.50", None), ("1.500", "1500", None), ("150 000,5", "150000.5", None)),
        *(("1.234.567", "1234567", None), ("150 000", "150000", "150000"), ("1,234.50", None, "1234.50")),
        *(("1,500", None, "1500"), ("KSh 38,500.00", None, "38500.00")),
        *((text, None, None) for text in ("1234.50", "12.34,5", "12-Jan", "-1.500")),
    ],
)
def test_decimal_separator_makes_amounts_unambiguous(text: str, comma: str | None, point: str | None) -> None:
    for sign, meaning in (("comma", comma), ("point", point)):
        assert read_cells(Answers(sign, None, is_text=True), amount=text).get("amount") == meaning


def test_decimals_are_dropped_only_from_text() -> None:
    comma = Answers("comma", None, is_text=True)
    assert read_cells(comma, country="SN", amount="175 000,00") == {"amount": "175000"}
    assert read_cells(comma, country="SN", amount="175 000,50") == {}
    assert read_cells(Answers("comma", None, is_text=False), amount="12.345") == {}


def test_names_of_countries_and_currencies_are_recognised() -> None:
    names = {"Sénégal": "SN", "SENEGAL": "SN", "senegal": "SN", "Côte d\u2019Ivoire": "CI", "Afrique du Sud": "ZA"}
    only_words, words = (Answers(numbers, "words", is_text=True) for numbers in (None, "comma"))
    assert {name: read_cells(only_words, country=name)["country"] for name in names} == names
    assert read_cells(only_words, country="Total") == {}
    expected = {"country": "SN", "currency": "XOF", "amount": "1500"}
    assert read_cells(words, country="S\xe9n\xe9gal", currency="F CFA", amount="1.500") == expected
    assert read_cells(words, currency="FCFA") == {}
    assert read_cells(words, country=None, amount="1.500") == {}
