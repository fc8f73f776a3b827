"""Phone and wallet numbers: many spellings, one wire form, and no guess if two meanings are possible."""

import re
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.countries.kinds import Cleaning
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import FieldKind, MobileNumbers, OperatorTerms, Rules
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.clean import NumberColumn, bare_column, clean_columns, is_clean, strip_separators
from tests.support.long_part import example_count
from tests.support.sheet_values import KENYAN, TANZANIAN, build_sheet, codes

KENYAN_WAYS = [
    *("+254712345678", "254712345678", "00254712345678", "0712345678", "+254 712 345 678", "+254 (712) 345-678"),
    *("+254 (0)712 345 678", "(0712) 345-678", "0712.345.678", "0712\u2011345\u2011678", "0712\u00a0345\u202f678"),
    *("\u200e+254712345678\u200f", "2.54712345678E+11", "2.54712345678e+11", "2,54712345678E+11", "254712345678.0"),
]


@pytest.mark.parametrize("written", KENYAN_WAYS)
def test_kenyan_number_is_recognised_in_every_spelling(rules: Rules, written: str) -> None:
    validated = validate(build_sheet({**KENYAN, "phone": written, "account_number": written}), rules)
    assert validated.rows.select("phone", "account_number").rows() == [("+254712345678", "254712345678")]
    assert not validated.warnings.height


@pytest.mark.parametrize(
    ("written", "code", "sentence"),
    [
        ("0712345", "phone.format", "0712345 has 7 digits, but a Kenyan mobile number has 10, as in 0712 123 456."),
        ("254412345678", "phone.format", "254412345678 is not a Kenyan mobile number, such as +2547"),
        ("+2540712345678", "phone.format", "has 13 digits, but a Kenyan mobile number has 12 and starts with 254."),
        ("2.54712E+11", "phone.exponent", "the spreadsheet dropped digits of this number"),
        ("2.5471234568E+11", "phone.exponent", "the spreadsheet dropped digits of this number"),
        ("+255621234567", "phone.country", "is a number from Tanzania, but the country of this row is KE"),
        *(("255621234567", "phone.country", "Tanzania"), ("+12025550100", "phone.country", "another country")),
        ("0712345678/0722345678", "phone.format", "is not a Kenyan mobile number"),
        *((text, "phone.format", "is not") for text in ("0712 345 678 x", "-0712345678", "71234567.8", "12-Jan", "+")),
        *(
            (text, "phone.format", "is not")
            for text in ("n/a", "٠٧١٢٣٤٥٦٧٨", "\uff10\uff17\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18")
        ),
        *(("07123456780.0", "phone.format", "digits"), ("#N/A", "phone.error_mark", "spreadsheet error")),
    ],
)
def test_invalid_number_is_defect_with_reason(rules: Rules, written: str, code: str, sentence: str) -> None:
    defects = validate(build_sheet({**KENYAN, "phone": written}), rules).defects
    assert codes(defects) == [(2, code)]
    assert sentence in defects["message"][0]


def test_lost_zero_is_restored_with_warning(rules: Rules) -> None:
    validated = validate(build_sheet({**KENYAN, "phone": "712345678", "account_number": "712345678.0"}), rules)
    assert validated.rows.select("phone", "account_number").rows() == [("+254712345678", "254712345678")]
    assert codes(validated.warnings) == [(2, "account_number.zero_restored"), (2, "phone.zero_restored")]
    assert "712345678 was read as +254712345678" in validated.warnings["message"][1]


@pytest.mark.parametrize(
    ("country", "written", "phone", "warned"),
    [
        *(("CI", written, "+2250123456789", False) for written in ("+225 01 23 45 67 89", "0123456789")),
        *(("CI", "123456789", "+2250123456789", True), ("BN", "0195123456", "+2290195123456", False)),
        *(("BN", "195123456", "+2290195123456", True), ("SN", "701234567", "+221701234567", False)),
        *(("BF", "70123456", "+22670123456", False), ("BF", "1123456", "+22601123456", True)),
        *(("ZA", "0711234567", "+27711234567", False), ("EG", "01001234567", "+201001234567", False)),
    ],
)
def test_country_determines_leading_zero(rules: Rules, country: str, written: str, phone: str, *, warned: bool) -> None:
    row = {**KENYAN, "amount": "1500", "country": country, "phone": written, "account_number": phone}
    validated = validate(build_sheet(row), rules)
    assert validated.rows["phone"].to_list() == [phone]
    assert codes(validated.warnings) == ([(2, "phone.zero_restored")] if warned else [])


def test_receiver_form_converts_to_local_number(rules: Rules) -> None:
    for written in ("0621234567", "+255621234567", "255 621 234 567"):
        validated = validate(build_sheet({**TANZANIAN, "receiver_phone": written}), rules)
        assert validated.rows["phone"].to_list() == ["0621234567"]
    (message,) = validate(build_sheet({**TANZANIAN, "receiver_phone": "06212345"}), rules).defects["message"]
    assert message == "06212345 has 8 digits, but a Tanzanian mobile number has 10, as in 0621 234 567."


def test_bank_account_is_accepted_if_operator_allows_it(rules: Rules) -> None:
    row = {**KENYAN, "country": "NG", "phone": "+2348021234567"}
    validated = validate(build_sheet({**row, "account_number": " 0021234567 "}), rules)
    assert validated.instructions["payee"].to_list() == ["0021234567"]
    # This could be a mobile number without its zero. The operator's pattern takes precedence, with a warning.
    either = validate(build_sheet({**row, "account_number": "8021234567"}), rules)
    assert either.instructions["payee"].to_list() == ["8021234567"]
    assert codes(either.warnings) == [(0, "account_number.two_meanings")]
    wallet = validate(build_sheet({**row, "account_number": "08021234567"}), rules)
    assert wallet.instructions["payee"].to_list() == ["2348021234567"]
    # Kenya pays only to wallets.
    kenyan = validate(build_sheet({**KENYAN, "account_number": "1021234567"}), rules)
    assert codes(kenyan.defects) == [(2, "account_number.format")]


def convert_numbers(numbers: MobileNumbers, *values: str) -> tuple[list[bool | None], list[str | None]]:
    """Return which of `values` are valid numbers, and their wire forms."""
    frame = clean_columns(build_sheet(*({"phone": value} for value in values)).frame)
    made = NumberColumn("phone", "phone", FieldKind.INTERNATIONAL_PHONE, numbers, None)
    read = frame.select(valid=made.is_valid, wire=pl.when(made.is_valid).then(made.as_sent))
    return read["valid"].to_list(), read["wire"].to_list()


def test_ambiguous_number_is_refused_when_lengths_differ(rules: Rules) -> None:
    either = replace(rules["ZA"].numbers, pattern="(?:2[0-9]{6}|27[0-9]{7})", national_lengths=(7, 9))
    valid, wire = convert_numbers(either, "272123456", "+272123456", "2123456", "02123456", "27271234567")
    # 272123456: 27 and a number of seven digits, or a number of nine without its zero.
    assert valid == [False, True, True, True, True]
    assert wire == [None, "+272123456", "+272123456", "+272123456", "+27271234567"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(150))
@given(data=st.data())
def test_all_spellings_give_same_number(rules: Rules, data: st.DataObject) -> None:
    numbers = rules[data.draw(st.sampled_from(sorted(rules)))].numbers
    national = data.draw(st.from_regex(numbers.pattern, fullmatch=True))
    starts = (f"+{numbers.dialling_code}", f"00{numbers.dialling_code}", numbers.trunk_prefix)
    valid, wire = convert_numbers(numbers, *(start + national for start in starts))
    assert valid == [True] * 3
    assert set(wire) == {f"+{numbers.dialling_code}{national}"}


SIGNS = "0123456789+-(). \u00a0\u200b'=\"eE,"


@settings(deadline=None, max_examples=example_count(500))
@given(
    text=st.text(SIGNS, max_size=20)
    | st.text("0123456789+- .(\t\u0663\uff15'e", max_size=24)
    | st.from_regex(r"\A\+?[0-9]{1,3}([ -][0-9]{1,4})*\Z")
)
def test_removing_separators_keeps_digits_and_order(text: str) -> None:
    read = strip_separators(pl.Series("phone", [text])).item()
    if set(text) <= set(SIGNS):
        texts = (text, text.replace("(0)", ""), text.lower().split("e")[0].removesuffix(".0"))
        digits = {"".join(c for c in one if c.isdigit()) for one in texts}
        assert "".join(c for c in read if c.isdigit()) in digits
    frame = clean_columns(pl.DataFrame({"row": pl.Series([2], dtype=pl.UInt32), "phone": [text]}))
    assert frame[bare_column("phone")].item() == strip_separators(frame["phone"]).item()
    if is_clean(pl.Series([text]), Cleaning.NUMBER).item():
        assert re.fullmatch(r"\+?[0-9]+", text)
        assert frame["phone"].item() == frame[bare_column("phone")].item() == text


FORMER_NUMBERS = {
    "BN": "22997123456=0197123456 +22997123456=0197123456 0022961123456=0161123456 61123456=0161123456",
    "CI": "22507123456=0707123456 48123456=0748123456 +22509123456=0709123456 22505123456=0505123456 "
    "84123456=0584123456 +22556123456=0556123456 22501123456=0101123456 70123456=0170123456 42123456=0142123456 "
    "03123456=0103123456",
}
"""By country, what was written under the former numbering plan, and the national number today."""


@pytest.mark.parametrize(
    ("country", "written", "national"),
    [(country, *pair.split("=")) for country, pairs in FORMER_NUMBERS.items() for pair in pairs.split()],
)
def test_former_number_is_defect_unless_configured(rules: Rules, country: str, written: str, national: str) -> None:
    code = rules[country].numbers.dialling_code
    row = {**KENYAN, "country": country, "amount": "1500", "currency": "XOF"}
    old = {"account_number": written, "phone": written}
    new = {"account_number": f"{code}{national}", "phone": f"+{code}{national}"}
    result = validate(build_sheet(row | old), rules).defects
    assert result.select("code", "correction").rows() == [(f"{name}.renumbered", new[name]) for name in new]
    assert result["message"][0].endswith(f"changed its numbering plan. Enter {code}{national}.")
    assert codes(validate(build_sheet(row | new), rules).defects) == []
    rules = load_rules("payout", {country: OperatorTerms(form="account", purpose="X", former_numbers=True)})
    former = re.sub("[^0-9]", "", written)[-8:]
    sent = validate(build_sheet(row | old), rules)
    assert sent.rows.select("account_number", "phone").rows() == [(f"{code}{former}", f"+{code}{former}")]
    assert validate(build_sheet(row | new), rules).defects.select("code", "correction").rows() == [
        ("account_number.renumbered", f"{code}{former}"),
        ("phone.renumbered", f"+{code}{former}"),
    ]


@pytest.mark.parametrize(
    ("country", "written"),
    [("BN", "22921123456"), ("BN", "2299712345"), ("CI", "22520123456"), ("CI", "31123456"), ("CI", "2250712345")],
)
def test_landline_or_truncated_number_has_no_suggestion(rules: Rules, country: str, written: str) -> None:
    row = {**KENYAN, "country": country, "amount": "1500", "currency": "XOF", "phone": written}
    defects = validate(build_sheet({**row, "account_number": written}), rules).defects
    assert set(defects["code"]) == {"account_number.format", "phone.format"}


@pytest.mark.parametrize("country", ["BN", "CI"])
@given(data=st.data())
def test_suggested_number_is_valid_in_current_plan(country: str, data: st.DataObject) -> None:
    for is_former in (False, True):
        terms = OperatorTerms(form="account", purpose="X", former_numbers=is_former)
        numbers = load_rules("payout", {country: terms})[country].numbers
        assert numbers.renumbering is not None
        pattern, front = data.draw(st.sampled_from(numbers.renumbering.conversions))
        result = re.fullmatch(pattern, data.draw(st.from_regex(pattern, fullmatch=True)))
        assert result is not None
        assert re.fullmatch(numbers.pattern, front + result[1])
        assert re.fullmatch(numbers.pattern, numbers.example)


def test_configuration_can_add_number_range(rules: Rules) -> None:
    row = {**KENYAN, "phone": "0164712345", "account_number": "254164712345"}
    assert set(validate(build_sheet(row), rules).defects["code"]) == {"phone.format", "account_number.format"}
    terms = {"KE": OperatorTerms(purpose="X", also_numbers=("164", "16"))}
    validated = validate(build_sheet(row), load_rules("payout", terms))
    assert validated.rows.select("phone", "account_number").rows() == [("+254164712345", "254164712345")]
    longer = validate(build_sheet({**row, "phone": "01647123456"}), load_rules("payout", terms))
    assert codes(longer.defects) == [(2, "phone.format")]


@pytest.mark.parametrize(
    ("country", "decimals", "amount", "sentence"),
    [
        ("KE", 0, "1500", None),
        ("KE", 0, "1500.00", "the gateway accepts only whole amounts in KES. Enter 1500."),
        (
            "KE",
            0,
            "1500.50",
            "the gateway accepts only whole amounts in KES. If the amount can be rounded, enter 1501.",
        ),
        ("KE", 1, "1500.5", None),
        ("KE", 1, "1500.50", "the gateway accepts fewer decimal places than KES uses. Enter 1500.5."),
        ("UG", 0, "1500.00", "UGX has no decimal places. Enter 1500."),
    ],
)
def test_operator_may_accept_fewer_decimals(country: str, decimals: int, amount: str, sentence: str | None) -> None:
    rules = load_rules("payout", {country: OperatorTerms(purpose="X", decimals=decimals)})
    number = "254712345678" if country == "KE" else "256712345678"
    row = {**KENYAN, "country": country, "currency": "", "amount": amount}
    defects = validate(build_sheet({**row, "phone": f"+{number}", "account_number": number}), rules).defects
    assert defects["message"].to_list() == ([f"{amount}: {sentence}"] if sentence else [])
