"""Sheets of collections: their columns, partly hidden numbers, and fields that a country does not use."""

import json
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.load import load_operation, load_rules, operation_names
from paygw_batch.countries.rules import FieldKind, OperatorTerms
from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.sheet.check.contract import ContractGate, payable_rows
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.clean import NumberColumn, bare_column, strip_separators
from paygw_batch.sheet.columns import operation_columns
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import check_operation, read_sheet
from tests.support.sheet_values import COLLECTED

RULES = load_rules("payin", {"KE": OperatorTerms(purpose="W"), "RW": OperatorTerms(purpose="R", order_desc="Fees")})
COMMANDS = {name: load_operation(name).command for name in operation_names()}
RWANDAN = {name: value for name, value in COLLECTED.items() if name not in {"merchant_data", "order_desc"}} | {
    "country": "RW",
    "amount": "5000",
    "account_name": "Keza Gasana",
    "cell_phone": "0788000103",
    "phone": "+250788***103",
}


def read(path: Path, *rows: dict[str, str], operation: str = "payin") -> Sheet:
    pl.DataFrame(rows).write_csv(path)
    return read_sheet(path, ReadOptions(operation=operation))


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    return tmp_path / "c.csv"


def validate_rows(path: Path, *rows: dict[str, str]) -> Validated:
    return validate(read(path, *rows), RULES)


def codes(result: Validated) -> list[str]:
    return result.defects["code"].to_list()


def test_valid_collection_row_becomes_instruction(sheet: Path) -> None:
    result = validate_rows(sheet, COLLECTED, {**RWANDAN, "client_orderid": "C-2"})
    assert codes(result) == []
    for part in result.parts():
        ContractGate(RULES, "payin").require_valid(payable_rows(part))
    kenyan, rwandan = (json.loads(text) for text in result.instructions["fields"])
    assert kenyan == {name: COLLECTED[name] for name in COLLECTED if name not in {"client_orderid", "amount"}}
    assert (rwandan["cell_phone"], rwandan["phone"]) == ("+250788000103", "+250788***103")
    assert (rwandan["account_name"], rwandan["order_desc"]) == ("Keza Gasana", "Fees")
    assert result.instructions["payee"].to_list() == ["+254712345678", "+250788000103"]
    assert result.rows["account_name"].to_list() == ["Jane Wanjiku", "Keza Gasana"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *(({name: "+254712345678"}, f"{name}.not_used") for name in ("cell_phone", "account_name")),
        *(({name: value}, f"{name}.format") for name, value in (("zip_code", "00 100#"), ("email", "jane"))),
        *(({name: ""}, f"{name}.missing") for name in ("zip_code", "merchant_data", "order_desc")),
        *(({"phone": number}, "phone.format") for number in ("+254*********", "+25471234567*8", "712***678")),
        *(({"phone": number}, "phone.format") for number in ("+2547123XX67", "+2547123XXX78 ext")),
        *(({"phone": "+255712***678"}, "phone.country"), ({"ipaddress": "1.2.3"}, "ipaddress.format")),
    ],
)
def test_invalid_collection_value_is_reported(sheet: Path, change: dict[str, str], code: str) -> None:
    assert codes(validate_rows(sheet, COLLECTED | change)) == [code]


@pytest.mark.parametrize("sign", ["*", "X", "x", "#", "•", "●", "×", "_", "?", "＊", "Ｘ"])  # noqa: RUF001 (as people write)
def test_hidden_digits_are_sent_as_asterisks(sheet: Path, sign: str) -> None:
    rwandan = RWANDAN | {"phone": f"250788{sign * 3}103", "client_orderid": "C-2"}
    result = validate_rows(sheet, COLLECTED | {"phone": f"+2547123{sign * 3}78"}, rwandan)
    assert codes(result) == []
    assert [json.loads(text)["phone"] for text in result.instructions["fields"]] == ["+2547123***78", "+250788***103"]


def test_defect_of_hidden_number_lists_accepted_signs(sheet: Path) -> None:
    (message,) = validate_rows(sheet, COLLECTED | {"phone": "+254*********"}).defects["message"]
    assert re.findall("[*X#]", message.partition("Use ")[2]) == ["*", "X", "#"]
    assert codes(validate_rows(sheet, RWANDAN | {"cell_phone": "+250788XXX103"})) == ["cell_phone.format"]


def test_south_africa_refuses_name_purpose_and_data(sheet: Path) -> None:
    african = RWANDAN | {"country": "ZA", "cell_phone": "27821000105", "phone": "27821000105", "amount": "5"}
    result = validate_rows(sheet, african | {"purpose": "X", "merchant_data": "t", "order_desc": "Fees"})
    assert sorted(codes(result)) == ["account_name.not_used", "merchant_data.not_used", "purpose.not_used"]


def test_missing_column_is_reported_unless_configured(sheet: Path) -> None:
    rows = {name: value for name, value in COLLECTED.items() if name not in {"city", "zip_code"}}
    with pytest.raises(SheetError, match=r"city \(needed for Kenya\); zip_code"):
        validate_rows(sheet, rows)
    assert codes(validate_rows(sheet, {k: v for k, v in RWANDAN.items() if k != "order_desc"})) == []


masked = st.text("0123456789*", min_size=9, max_size=9)


def read_phone(name: str, kind: FieldKind, written: str) -> tuple[bool, str]:
    """Return whether a Kenyan number is valid in a column, and what is sent."""
    column, text = NumberColumn.for_field(RULES["KE"], name, kind), pl.Series(name, [written])
    frame = pl.DataFrame([text, strip_separators(text).alias(bare_column(name))])
    ((valid, wire),) = frame.select(valid=column.is_valid, wire=column.as_sent).rows()
    return valid, wire


@given(written=st.sampled_from(["+254{}", "00254 {}", "254-{}", "0{}"]), digits=masked)
def test_only_phone_may_be_partly_hidden(written: str, digits: str) -> None:
    valid, wire = read_phone("phone", FieldKind.MASKED_PHONE, written.format(digits))
    if "*" in digits:
        assert valid == (set(digits) != {"*"})
        for name, kind in (("cell_phone", FieldKind.INTERNATIONAL_PHONE), ("account_number", FieldKind.WALLET)):
            assert not read_phone(name, kind, f"+254{digits}")[0]
    if valid:
        assert wire == f"+254{digits}"


def test_columns_of_other_operations_are_unknown(sheet: Path) -> None:
    result = read(sheet, COLLECTED | {"account_number": "254712345678"})
    assert result.unknown == ("account_number (sheet)",)
    assert read(sheet, COLLECTED | {"customer_url": "x"}).unknown == ("customer_url (sheet)",)
    payout = read(sheet, {"country": "KE", "amount": "1", "city": "Nairobi", "customer_url": "x"}, operation="payout")
    assert payout.unknown == ("city", "customer_url")
    check_operation(read(sheet, COLLECTED | {"account_number": "1", "receiver_phone": "1"}), COMMANDS)
    for operation in ("payout", "payin"):
        check_operation(read(sheet, {"country": "KE", "amount": "1"}, operation=operation), COMMANDS)


@pytest.mark.parametrize("operation", sheet_columns().by_operation)
def test_sheet_may_have_every_form_field_of_operation(operation: str) -> None:
    terms = {code: OperatorTerms(form="account", purpose="X") for code in ("CI",)} if operation == "payout" else {}
    rules = load_rules(operation, terms)
    wanted = {field.name for rule in rules.values() if rule.form for field in rule.form.fields if field.from_sheet}
    assert wanted <= set(operation_columns(operation))


def test_batch_id_changes_with_operation_and_fields(sheet: Path) -> None:
    rows = {"country": "XX", "client_orderid": "1", "amount": "1"}
    ids = [validate(read(sheet, rows, operation=name), load_rules(name, {})).batch for name in ("payout", "payin")]
    changes: tuple[dict[str, str], ...] = ({}, {"city": "Mombasa"}, {"merchant_data": "u"})
    ids += [validate_rows(sheet, COLLECTED | change).batch for change in changes]
    assert len(set(ids)) == 5


@pytest.mark.parametrize("operation", ["payin", "payout"])
def test_countries_sharing_currency_must_share_purpose(operation: str) -> None:
    form = "account" if operation == "payout" else None
    terms = {code: OperatorTerms(purpose=f"P-{code}", form=form) for code in ("CI", "SN")}
    named = rf"countries\.CI\.{operation}\.purpose, countries\.SN\.{operation}\.purpose"
    with pytest.raises(ConfigurationError, match=named):
        load_rules(operation, terms)
    load_rules(operation, {code: replace(one, purpose="P") for code, one in terms.items()})
