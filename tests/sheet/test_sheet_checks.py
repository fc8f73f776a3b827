"""The checks of a row, on which validation and pandera's own `validate` must agree."""

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pandera.config import ValidationDepth, config_context

from paygw_batch.core.money import parse_amount, to_minor
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.errors import InternalError, SheetError
from paygw_batch.sheet.check.contract import (
    NO_COUNTRY,
    ContractGate,
    country_schema,
    find_invalid_values,
    rules_for_sheet,
    schema_checks,
)
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.clean import CLEANERS, clean_columns, is_clean
from paygw_batch.sheet.columns import known_columns, operation_columns
from tests.support.long_part import example_count, long
from tests.support.sheet_values import COLLECTED, KENYAN, TANZANIAN, build_sheet, codes

ABOUT_THE_SHEET = ["client_orderid.duplicate", "client_orderid.look_alike", "client_orderid.rewritten", "row.total"]
"""Codes of defects that depend on more than one value."""

Rows = list[dict[str, str | None]]
CELLS: dict[str, list[str | None]] = {
    "country": ["KE", "ke", "TZ", "UG", "NG", "ZA", "CI", "BN", "BF", "BJ", "Kenya", "XX", "Total", None],
    "client_orderid": ["A-1", "A-2", "2.02611E+11", "x" * 129, "a\u200bb", "a\u00a0b", "#N/A", None],
    "amount": ["1500", "1500.50", "100.105", "0", "0.00", "5", "250000.01", "1e3", "1,000", "#REF!", "12-Jan", None],
    "currency": ["KES", "kes", "TZS", "XOF", "USD", None],
    "account_name": ["Wanjiru Kamau", "Aïssatou", "12345", "x" * 257, "a\tb", "#N/A", None],
    "account_number": ["254712345678", "0712345678", "712345678", "0123456", "2.54712345678E+11", "2.5E+11", "x", None],
    "phone": ["+254712345678", "00254712345678", "+255621234567", "0712345", "+1 202 555 0100", "-0712345678", None],
    "purpose": ["WALLET-KE", "OTHER", None],
    "receiver_first_name": ["Asha", None],
    "receiver_last_name": ["Mushi", None],
    "receiver_phone": ["0621234567", "+255621234567", "621234567", "0712", None],
    "receiver_email": ["asha@example.com", "asha@example", "a@b@c.de", "@example.com", None],
    "receiver_country_code": ["TZ", "KE", "tz", None],
    "ipaddress": ["192.0.2.1", "192.0.2.256", "::1", None],
    "order_desc": ["Salary", None],
}

PAYIN_CELLS: dict[str, list[str | None]] = {
    **{name: CELLS[name] for name in ("country", "client_orderid", "amount", "currency", "account_name", "purpose")},
    "first_name": ["Jane", "a\tb", None],
    "last_name": ["Wanjiku", None],
    "phone": [*CELLS["phone"], "+254712***678", "+254*********", "0712***678"],
    "cell_phone": ["+254712345678", "0788000103", "+25078800010*", None],
    "email": CELLS["receiver_email"],
    "address1": ["1 Moi Avenue", "#REF!", None],
    "city": ["Nairobi", None],
    "zip_code": ["00100", "00 100#", None],
    "ipaddress": CELLS["ipaddress"],
    "order_desc": CELLS["order_desc"],
    "merchant_data": ["tag", None],
}
CELLS_OF = {"payout": CELLS, "payin": PAYIN_CELLS}
RIGHT_OF = {"payout": (KENYAN, TANZANIAN), "payin": (COLLECTED,)}


def rule_variants(operation: str, rules: Rules) -> Iterator[Rules]:
    """Yield rules with and without terms. Without them, some countries cannot be used."""
    yield rules if operation == "payout" else load_rules("payin", {"KE": OperatorTerms(purpose="WALLET-KE")})
    yield load_rules(operation, {})


def compare_with_pandera(rules: Rules, rows: Rows, operation: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the invalid values by pandera and the defects by validation, in the same order."""
    sheet = replace(build_sheet(*rows), operation=operation)
    place = ["row", "column"]
    defects = validate(sheet, rules).defects.filter(~pl.col("code").is_in(ABOUT_THE_SHEET))
    held = rules_for_sheet(rules, sheet.headers)
    return find_invalid_values(sheet.frame, held, operation_columns(operation)).sort(place), defects.sort(place)


def passes_gate(rules: Rules, rows: Rows, operation: str) -> bool:
    """Return whether these rows pass the gate, which runs all checks of a country at once."""
    sheet = build_sheet(*rows)
    try:
        ContractGate(rules_for_sheet(rules, sheet.headers), operation).require_valid(sheet.frame)
    except InternalError as error:
        return "validation passed a value that the schema refuses" not in error.message
    return True


@pytest.mark.share(4)
@pytest.mark.parametrize("examples", [4, long(300)])
@pytest.mark.parametrize("operation", CELLS_OF)
def test_validation_and_pandera_agree_on_any_rows(operation: str, examples: int, rules: Rules) -> None:
    def any_cell(name: str, cells: list[str | None]) -> st.SearchStrategy[str | None]:
        right = [row.get(name) for row in RIGHT_OF[operation]]
        return st.sampled_from(right) | st.sampled_from(cells) | st.text(max_size=12)

    any_row = st.fixed_dictionaries({name: any_cell(name, cells) for name, cells in CELLS_OF[operation].items()})

    @settings(deadline=None, max_examples=examples)
    @given(rows=st.lists(any_row, min_size=1, max_size=12))
    def assert_agreement(rows: Rows) -> None:
        for some in rule_variants(operation, rules):
            pandera, defects = compare_with_pandera(some, rows, operation)
            assert pandera.rows() == defects.select("row", "column").rows()
            assert passes_gate(some, rows, operation) == pandera.is_empty()

    assert_agreement()


@pytest.mark.share(2)
@pytest.mark.parametrize(("operation", "codes_at_least"), [("payout", 35), ("payin", 25)])
def test_validation_and_pandera_agree_on_listed_cells(rules: Rules, operation: str, codes_at_least: int) -> None:
    result: set[str] = set()
    for some in rule_variants(operation, rules):
        rows = [
            {**right, "country": country, "client_orderid": f"{country}-{name}-{at}-{which}", name: cell}
            for country in some
            for which, right in enumerate(RIGHT_OF[operation])
            for name, cells in CELLS_OF[operation].items()
            for at, cell in enumerate(cells)
        ]
        pandera, defects = compare_with_pandera(some, rows, operation)
        assert pandera.rows() == defects.select("row", "column").rows()
        result.update(defects["code"])
    assert len(result) >= codes_at_least


def test_difference_between_validation_and_pandera_is_detected(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is effective: it fails if validation drops a column's check."""
    monkeypatch.setattr(
        "paygw_batch.sheet.check.row_checker.schema_checks",
        lambda schema: tuple(check for check in schema_checks(schema) if check.column != "phone"),
    )
    pandera, defects = compare_with_pandera(rules, [{**KENYAN, "phone": "x"}], "payout")
    assert (pandera.rows(), defects.height) == ([(2, "phone")], 0)


def test_lazy_frame_would_hide_invalid_values(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: pandera checks only the schema of a lazy frame, and none of its values."""
    rows = build_sheet(KENYAN, {**KENYAN, "client_orderid": "A-2", "amount": "-5"}).frame
    assert find_invalid_values(rows, rules).rows() == [(3, "amount")]
    validate_frame = pa.DataFrameSchema.validate

    def validate_lazily(schema: pa.DataFrameSchema, frame: pl.DataFrame, **options: Any) -> Any:
        with config_context(validation_depth=ValidationDepth.SCHEMA_ONLY):
            return validate_frame(schema, frame.lazy(), **options)

    monkeypatch.setattr(pa.DataFrameSchema, "validate", validate_lazily)
    assert find_invalid_values(rows, rules).rows() == []


def test_checks_are_never_null_and_explain_failures(rules: Rules) -> None:
    cells = {**PAYIN_CELLS, **CELLS}
    frame = clean_columns(build_sheet(*({name: cell} for name in cells for cell in cells[name])).frame)
    for country in (NO_COUNTRY, *rules):
        for check in schema_checks(country_schema(country, rules)):
            explained = pl.any_horizontal(reason.applies for reason in check.reasons)
            asked = frame.select("row", passes=check.passes, explained=explained)
            assert not asked["passes"].null_count()
            assert asked.filter(~pl.col("passes"))["explained"].all(), check.column


@pytest.mark.parametrize("cleaning", Cleaning)
@given(
    text=st.one_of(
        st.text(max_size=12),
        st.text("0123456789.+-' \"=#AZaz", max_size=12),
        st.text("aéÅøĳŀŉſǅ \u0301\u0327", max_size=6),  # noqa: RUF001 - letters that have another spelling
    )
)
def test_cleaning_does_not_change_clean_text(cleaning: Cleaning, text: str) -> None:
    value = pl.Series([text])
    if is_clean(value, cleaning).item():
        assert CLEANERS[cleaning](value).item() == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(60))
@given(
    rows=st.lists(
        st.fixed_dictionaries({name: st.sampled_from(cells) | st.text(max_size=12) for name, cells in CELLS.items()}),
        min_size=1,
        max_size=12,
    )
)
def test_every_row_is_valid_or_has_reason(rules: Rules, rows: Rows) -> None:
    validated = validate(build_sheet(*rows), rules)
    assert validated.rows["row"].to_list() == list(range(2, len(rows) + 2))
    invalid = validated.rows.filter(~pl.col("valid"))
    assert set(invalid["row"]) == set(validated.defects["row"])
    assert invalid["error_code"].null_count() == invalid["message"].null_count() == 0
    assert set(validated.instructions["row"]) == set(validated.rows["row"]) - set(validated.defects["row"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=example_count(100))
@given(whole=st.integers(0, 10**16), rest=st.text("0123456789", max_size=4), code=st.sampled_from(["GH", "UG", "CI"]))
def test_sheet_and_core_read_amounts_identically(rules: Rules, whole: int, rest: str, code: str) -> None:
    text = f"{whole}.{rest}" if rest else str(whole)
    assume(len(text.replace(".", "").lstrip("0")) <= 15)  # further digits are rounding noise of a formula
    units = rules[code].minor_units
    amount = parse_amount(text, minor_units=units)
    digits = rules[code].numbers.dialling_code + rules[code].numbers.example
    row = {**KENYAN, "country": code, "amount": text, "account_number": digits, "phone": "+" + digits}
    instructions = validate(build_sheet(row), rules).instructions
    if amount is None or not amount:
        assert not instructions.height
    else:
        assert instructions.select("amount", "minor").row(0) == (text, to_minor(amount, minor_units=units))


def test_instruction_has_exact_fields_and_names(rules: Rules) -> None:
    validated = validate(build_sheet(KENYAN, TANZANIAN), rules)
    kenyan, tanzanian = (json.loads(fields) for fields in validated.instructions["fields"])
    assert kenyan == {name: KENYAN[name] for name in ("account_name", "account_number", "phone")}
    receiver = {name: value for name, value in TANZANIAN.items() if name.startswith("receiver_")}
    derived = {"ipaddress": "127.0.0.1", "order_desc": "Payout", "receiver_country_code": "TZ"}
    assert tanzanian == receiver | derived
    assert validated.instructions["payee"].to_list() == ["254712345678", "0621234567"]
    written = {**TANZANIAN, "client_orderid": "A-3", "order_desc": "Payout"}
    sheet = build_sheet(TANZANIAN, written)
    fields, content = (validate(sheet, rules).instructions[name].to_list() for name in ("fields", "content"))
    assert fields[0] == fields[1]
    assert content[0] != content[1]
    assert "127.0.0.1" not in content[0]
    for email in (TANZANIAN["receiver_email"], "x"):
        shown = validate(build_sheet({**TANZANIAN, "receiver_email": email}), rules).rows
        assert shown.select("account_name", "account_number", "phone").rows() == [("Asha Mushi", None, "0621234567")]
    names = ['Jane "JJ" Doe', "back\\slash", '\\"', "O'Brien", "${1}", "Aïssatou 张伟", "{}", "a/b"]
    rows = [{**KENYAN, "client_orderid": f"K{n}", "account_name": name} for n, name in enumerate(names)]
    rows += [{**TANZANIAN, "client_orderid": f"T{n}", "receiver_last_name": name} for n, name in enumerate(names)]
    fields = [json.loads(text) for text in validate(build_sheet(*rows), rules).instructions["fields"]]
    assert [item.get("receiver_last_name") or item["account_name"] for item in fields] == names * 2


def test_missing_values_are_derived_and_contradictions_refused(rules: Rules) -> None:
    row = validate(build_sheet(KENYAN), rules).rows.row(0, named=True)
    assert (row["currency"], row["purpose"]) == ("KES", "WALLET-KE")
    wrong = {**KENYAN, "currency": "UGX", "purpose": "OTHER", "receiver_country_code": "UG"}
    contradicting = [(2, f"{name}.mismatch") for name in ("currency", "purpose", "receiver_country_code")]
    assert codes(validate(build_sheet(wrong), rules).defects) == contradicting
    row = {**KENYAN, "country": "ZA", "account_number": "27711234567", "phone": "+27711234567"}
    good = validate(build_sheet(row), rules)
    assert good.rows["purpose"].to_list() == [None]
    assert codes(validate(build_sheet({**row, "purpose": "X"}), rules).defects) == [(2, "purpose.not_used")]


@pytest.mark.parametrize(
    ("country", "code", "sentence"),
    [
        (None, "country.missing", "missing"),
        *(("XX", "country.unknown", "Use one of BF, BN, CI"), ("BJ", "country.unknown", "BN")),
        *(("Kenya", "country.unknown", "enter KE"), ("Kenia", "country.unknown", "If you mean Kenya, enter KE")),
        ("Sénégale", "country.unknown", "If you mean Senegal, enter SN"),
    ],
)
def test_unusable_country_gets_matching_defect(rules: Rules, country: str | None, code: str, sentence: str) -> None:
    defects = validate(build_sheet({**KENYAN, "country": country}), rules).defects
    assert codes(defects) == [(2, code)]
    assert sentence in defects["message"][0]


@pytest.mark.parametrize(
    ("amounts", "code"),
    [
        (("1.250,00", "KSh 1,250.00", "150 000", "1,500/="), []),
        (("abc", "12-Jan", "-100"), ["amount.format"]),
        (("0",), ["amount.zero"]),
        (("2.5E+07",), ["amount.exponent"]),
    ],
)
def test_amount_invalid_in_every_country_is_reported(rules: Rules, amounts: tuple[str, ...], code: list[str]) -> None:
    for amount in amounts:
        defects = validate(build_sheet({**KENYAN, "country": "Kenia", "amount": amount}), rules).defects
        assert defects["code"].to_list() == ["country.unknown", *code], amount
        assert defects["correction"][0] is None  # another country may be meant


def test_country_without_form_is_refused_with_reason() -> None:
    bare_rules = load_rules("payout", {})
    defects = validate(build_sheet({**KENYAN, "country": "SN", "amount": "1500"}), bare_rules).defects
    assert codes(defects) == [(2, "country.unusable")]
    assert defects["message"][0] == bare_rules["SN"].unusable


def test_column_is_required_only_if_rows_need_it(rules: Rules) -> None:
    sheet = build_sheet({name: value for name, value in KENYAN.items() if name != "phone"}, TANZANIAN)
    with pytest.raises(SheetError, match=r"phone \(needed for Kenya\)"):
        validate(sheet, rules)
    assert set(build_sheet(KENYAN).frame.columns) < set(known_columns()) | {"row"}
    assert validate(build_sheet(KENYAN), rules).rows["valid"].all()


def test_totals_include_every_readable_amount(rules: Rules) -> None:
    sheet = build_sheet(KENYAN, {**KENYAN, "amount": "0.50"}, {**KENYAN, "amount": "1,000"}, TANZANIAN)
    totals = validate(sheet, rules).totals
    assert totals.rows == 4
    assert totals.sums == {"KES": Decimal("1501.00"), "TZS": Decimal(20000)}
