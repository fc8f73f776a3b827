"""Warnings about valid rows, and their effect with `--strict`."""

from collections.abc import Iterable, Mapping

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sheet.check.repeats import payee_hashes, payee_warnings, rows_to_compare
from paygw_batch.sheet.check.validate import validate, warnings_as_defects
from paygw_batch.sheet.model import LINE_COLUMNS
from tests.support.long_part import example_count
from tests.support.sheet_values import KENYAN, TANZANIAN, build_sheet, codes

OTHER = "254712000000"


def kenyan_row(order_id: str, **changes: str) -> dict[str, str | None]:
    return {**KENYAN, "client_orderid": order_id, **changes}


@pytest.mark.parametrize(
    ("names", "warnings"),
    [
        (("OK", "ok.", "n/a", "N/A", "-", "...", "Test", "null", "XXX", "same as above", "?"), ["placeholder"]),
        (("nan", "NaN", "NaT", "undefined", "NULL", "None", "<NA>", "(null)", "\\N"), ["placeholder"]),
        (("0712345678", "+254 712", "1.0"), ["digits"]),
        (("Na", "No Yes", "Okello", "Testimony Oke", "X", "محمد", "Nullah", "O'Kay", "Ditto B."), []),
    ],
)
def test_only_implausible_name_gets_warning(rules: Rules, names: tuple[str, ...], warnings: list[str]) -> None:
    for name in names:
        result = validate(build_sheet(kenyan_row("A", account_name=name)), rules)
        assert codes(result.warnings) == [(2, f"account_name.{code}") for code in warnings], name
        assert result.payable_count == 1


def test_only_doubtful_rows_get_warnings(rules: Rules) -> None:
    sheet = build_sheet({**TANZANIAN, "receiver_first_name": "OK", "receiver_last_name": "123"})
    expected = [(2, "receiver_first_name.placeholder"), (2, "receiver_last_name.digits")]
    assert codes(validate(sheet, rules).warnings) == expected
    rows = [{**TANZANIAN, "amount": "10000"}, {**TANZANIAN, "client_orderid": "B", "receiver_first_name": "Juma"}]
    warnings = validate(build_sheet(*rows), rules).warnings
    assert sorted(codes(warnings)) == [(row, "account_name.two_names") for row in (2, 3)]
    assert not validate(build_sheet(KENYAN, TANZANIAN), rules).warnings.height
    two_accounts = build_sheet(kenyan_row("A"), kenyan_row("B", account_number=OTHER, phone=OTHER))
    assert not validate(two_accounts, rules).warnings.height


@pytest.mark.parametrize(
    ("other", "rows"),
    [
        *((name, []) for name in ("KAMAU, Wanjiru", "wanjiru  kamau", "Wánjirú Kamau", "Wanjiru-Kamau")),
        ("John Otieno", [2, 4]),
    ],
)
def test_only_account_with_two_names_gets_warnings(rules: Rules, other: str, rows: list[int]) -> None:
    sheet = build_sheet(
        kenyan_row("A", amount="10"),
        kenyan_row("B", amount="20", account_number=OTHER, phone=OTHER),
        kenyan_row("C", amount="30", account_name=other, account_number="0712345678"),
    )
    warnings = validate(sheet, rules).warnings
    assert codes(warnings) == [(row, "account_name.two_names") for row in rows]
    assert all("2 different names (rows 2, 4)" in message for message in warnings["message"])


def operator_rules(code: str, operator: str | None) -> Rules:
    return load_rules("payout", {code: OperatorTerms(purpose="WALLET", operator=operator)})


@pytest.mark.parametrize(
    ("number", "warned"),
    [
        *(("254712345678", False), ("0733123456", True)),  # 71 is Safaricom's, 73 Airtel's
        *(("254757123456", False), ("254750123456", True)),  # 75 is Airtel's, 757 Safaricom's: the longest counts
        ("254744123456", True),  # a longer prefix than Safaricom's own 74
    ],
)
def test_number_from_another_operator_gets_warning(number: str, warned: bool) -> None:
    sheet = build_sheet(kenyan_row("A", account_number=number, phone="+254733123456"))
    warnings = validate(sheet, operator_rules("KE", "Safaricom")).warnings
    result = [code for code in warnings["code"] if code.endswith(".operator")]
    assert result == (["account_number.operator"] if warned else [])
    assert not any("operator" in code for code in validate(sheet, operator_rules("KE", None)).warnings["code"])


def test_warning_about_number_names_its_possible_operators() -> None:
    sheet = build_sheet(kenyan_row("A", account_number="254733123456", phone="254733123456"))
    (message,) = validate(sheet, operator_rules("KE", "Safaricom")).warnings["message"]
    assert "like a number from Airtel, but this row pays through Safaricom" in message
    rules = operator_rules("TZ", "Airtel")
    warnings = validate(build_sheet({**TANZANIAN, "receiver_phone": "0621234567"}), rules).warnings
    assert codes(warnings) == [(2, "receiver_phone.operator")]
    assert not validate(build_sheet({**TANZANIAN, "receiver_phone": "0681234567"}), rules).warnings.height
    terms = OperatorTerms(purpose="W", operator="MTN", bank_account_pattern="[0-9]{10}")
    row = kenyan_row("A", country="NG", account_number="8021234567", phone="+2348031234567")
    warnings = validate(build_sheet(row), load_rules("payout", {"NG": terms})).warnings
    assert codes(warnings) == [(0, "account_number.two_meanings")]


def nigerian_row(order_id: str, account: str, phone: str = "+2348031234567") -> dict[str, str | None]:
    return kenyan_row(order_id, country="NG", account_number=account, phone=phone, account_name=order_id)


@pytest.mark.parametrize(
    ("account", "phone", "is_warned"),
    [
        ("8031234567", "+2348031234567", True),  # the row's own phone, without its zero
        ("8021234567", "08031234567", True),
        ("803 123 4567", "+2348031234567", True),  # the phone, and without spaces an account
        ("0123456789", "+2348031234567", False),  # not a possible phone number
        ("08031234567", "+2348031234567", False),  # not an account, because it has eleven digits
        ("2348031234567", "8031234567", False),
        ("08021234567", "+2348031234567", True),  # the wallet of another phone
    ],
)
def test_account_resembling_other_number_gets_warning(rules: Rules, account: str, phone: str, is_warned: bool) -> None:
    warnings = validate(build_sheet(nigerian_row("A", account, phone)), rules).warnings
    two_meanings = warnings.filter(pl.col("code") == "account_number.two_meanings")
    found = two_meanings.select("row", "column", "value").rows()
    assert found == ([(0, "account_number", account)] if is_warned else [])


@pytest.mark.parametrize(("account", "is_warned"), [("254712000000", True), ("0712 345 678", False)])
def test_wallet_other_than_phone_gets_warning(rules: Rules, account: str, is_warned: bool) -> None:
    warnings = validate(build_sheet(kenyan_row("A", account_number=account)), rules).warnings
    assert codes(warnings) == ([(0, "account_number.two_meanings")] if is_warned else [])
    assert not validate(build_sheet({**kenyan_row("A", account_number=account), "phone": "bad"}), rules).warnings.height


def test_ambiguous_accounts_share_one_warning(rules: Rules) -> None:
    rows = [nigerian_row(f"N{n}", f"80312345{n:02}", f"+23480312345{n:02}") for n in range(10, 30)]
    rows += [nigerian_row("X", "0123456789"), nigerian_row("Y", "8021234567")]
    rows += [kenyan_row("K", account_number="254733123456"), kenyan_row("L")]
    rows.append(nigerian_row("Z", "8031234599", "+2348031234599"))
    result = validate(build_sheet(*rows), rules)
    assert codes(result.warnings) == [(0, "account_number.two_meanings")]
    (message,) = result.warnings["message"]
    for sentence in (
        "8031234510 will be paid as a bank account. The row's phone number is +2348031234510. (21 rows: 2-21, 26)",
        "It could also be the mobile number +2348021234567. (1 row: 23)",
        "254733123456 will be paid, but the row's phone number is different: +254712345678. (1 row: 24)",
    ):
        assert sentence in message
    assert result.warnings_found.sorted_counts().rows() == [("account_number.two_meanings", 1, False)]
    assert result.payable_count == 25


def test_phone_used_as_account_is_never_bank_account() -> None:
    terms = OperatorTerms(purpose="A", bank_account_pattern="[0-9]{10}", phone_is_account=True)
    row = {**nigerian_row("A", ""), "phone": "8031234567"}
    del row["account_number"]
    result = validate(build_sheet(row), load_rules("payout", {"NG": terms}))
    assert result.instructions["payee"].to_list() == ["2348031234567"]
    assert codes(result.warnings) == [(2, "phone.zero_restored")]


def test_strict_check_turns_warnings_into_defects(rules: Rules) -> None:
    named = kenyan_row("B", account_name="OK", account_number=OTHER, phone=OTHER)
    lax = validate(build_sheet(kenyan_row("A"), named, kenyan_row("C", phone="712345678")), rules)
    strict = warnings_as_defects(lax)
    assert codes(strict.defects) == codes(lax.warnings)
    assert not strict.warnings.height
    assert set(strict.rows.filter("valid")["row"]).isdisjoint(lax.warnings["row"])
    assert strict.totals == lax.totals
    assert strict.batch != lax.batch
    clean = validate(build_sheet(KENYAN), rules)
    assert warnings_as_defects(clean).batch == clean.batch


PAYMENTS = st.fixed_dictionaries(
    {
        "valid": st.sampled_from([True, True, False]),
        "currency": st.sampled_from(["KES", "UGX"]),
        "amount": st.sampled_from(["5", "5.0", "5.00", "7"]),
        "account_name": st.sampled_from(["Ama Kofi", "Kofi, AMA", "Ama", None]),
        "account_number": st.sampled_from(["1", "2", "3", None]),
        "phone": st.sampled_from(["1", "4"]),
    }
)


def payment_lines(payments: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    made = [{**payment, "row": n, "client_orderid": f"A-{n}"} for n, payment in enumerate(payments, 2)]
    schema = dict.fromkeys(LINE_COLUMNS, pl.String) | {"row": pl.UInt32, "valid": pl.Boolean}
    return pl.DataFrame(made, schema=schema, orient="row")


@settings(deadline=None, max_examples=example_count(100))
@given(st.lists(PAYMENTS, max_size=8))
def test_payee_prefilter_keeps_every_warning(payments: list[dict[str, object]]) -> None:
    lines = payment_lines(payments)
    compared = lines.filter(pl.col("row").is_in(rows_to_compare(payee_hashes(lines)).implode()))
    assert sorted(payee_warnings(compared).rows()) == sorted(payee_warnings(lines).rows())


def test_payees_paid_several_times_are_not_compared() -> None:
    row = {"valid": True, "currency": "KES", "account_name": "Ama Kofi", "account_number": "1"}
    assert not rows_to_compare(payee_hashes(payment_lines([{**row, "amount": str(n)} for n in range(2, 9)]))).len()
