"""Payrolls as HR systems export them: one number per person, the operator in a column, and custom headings."""

from dataclasses import replace

import pytest

from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, PurposeTerms
from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.sheet.check.validate import validate
from tests.support.program import Program, sandbox_toml
from tests.support.sheet_values import build_sheet, codes

ONE_NUMBER = "Employee Name,Country,Mobile Number,Net Pay,Currency"
PEOPLE = ["Jane Wanjiku,KE,0712345678,1500.50,KES", "Ali Otieno,KE,254722345679,800,KES"]
BASE = {"country": "KE", "amount": "10", "account_name": "Jane Wanjiku", "phone": "+254712345678"}
OPTIONS = ("--column-profile", "payroll-english", "--reference", "payroll-2026-11")


def test_common_payroll_is_paid_without_configuration(program: Program) -> None:
    sheet = program.sheet(PEOPLE, heading=ONE_NUMBER)
    result = program.run("submit", sheet, *OPTIONS)
    assert (result.exit_code, "the mobile wallet with the row's phone number: Kenya" in result.stdout) == (0, True)
    assert [line["account_number"] for line in program.record()] == ["254712345678", "254722345679"]
    assert program.json("submit", sheet, *OPTIONS)["sent_this_run"] == 0


def test_phone_is_account_only_without_account_column() -> None:
    rules = load_rules("payout", {"KE": OperatorTerms(purpose="A")})
    alone = validate(build_sheet(BASE), rules, reference="r")
    assert alone.instructions["payee"].to_list() == ["254712345678"]
    sheet = build_sheet({**BASE, "account_number": "0722345678"}, {**BASE, "account_number": None})
    beside = validate(sheet, rules, reference="r")
    assert beside.instructions["payee"].to_list() == ["254722345678"]
    assert codes(beside.defects) == [(3, "account_number.missing")]


def test_phone_as_account_is_required_and_checked_once() -> None:
    rules = load_rules("payout", {"KE": OperatorTerms(purpose="A", optional=("phone",))})
    phones = ("0712", None, "+255712345678")
    validated = validate(build_sheet(*({**BASE, "phone": phone} for phone in phones)), rules, reference="r")
    assert codes(validated.defects) == [(2, "phone.format"), (3, "phone.missing"), (4, "phone.country")]


def test_operator_terms_decide_if_phone_is_account() -> None:
    banks = OperatorTerms(purpose="A", bank_account_pattern="[0-9]{14}")
    for terms in (OperatorTerms(purpose="A", phone_is_account=False), banks):
        with pytest.raises(SheetError, match="does not have these columns: account_number"):
            validate(build_sheet(BASE), load_rules("payout", {"KE": terms}), reference="r")
    rules = load_rules("payout", {"KE": replace(banks, phone_is_account=True)})
    assert validate(build_sheet(BASE), rules, reference="r").instructions["payee"].to_list() == ["254712345678"]


def test_purpose_column_chooses_operator_for_each_row(program: Program) -> None:
    words = '"M-Pesa" = { purpose = "TEST-MPESA", operator = "Safaricom" }\n"Airtel Money" = "TEST-AIRTEL"\n'
    program.config.write_text(f"{sandbox_toml()}\n[countries.KE.payout.purposes]\n{words}")
    rows = [f"{row},{word}" for row, word in zip(PEOPLE, ("m-pesa", "AIRTEL MONEY"), strict=True)]
    sheet = program.sheet([*rows, "Jo Ng,KE,0733345678,5,KES,"], heading=f"{ONE_NUMBER},purpose")
    result = program.json("submit", sheet, *OPTIONS)
    assert result["states"] == {"paid": 3}
    default = next(line for line in program.record() if line["account_number"].startswith("25473"))["purpose"]
    assert {line["purpose"] for line in program.record()} == {"TEST-MPESA", "TEST-AIRTEL", default}
    rows = [row.replace("m-pesa", "airtel money") for row in rows]
    moved = program.sheet(rows, heading=f"{ONE_NUMBER},purpose")
    assert program.json("submit", moved, *OPTIONS, "--dry-run")["batch"] != result["batch"]


def test_unknown_or_missing_purpose_word_is_defect() -> None:
    purposes = {"M-Pesa": PurposeTerms("MP", "Safaricom"), "Airtel": PurposeTerms("AI")}
    rules = load_rules("payout", {"KE": OperatorTerms(purposes=purposes)})
    words = ("M pesa", "Orange", None, "AI")
    rows = ({**BASE, "amount": str(n), "purpose": word} for n, word in enumerate(words, 1))
    validated = validate(build_sheet(*rows), rules, reference="r")
    assert codes(validated.defects) == [(3, "purpose.mismatch"), (4, "purpose.missing")]
    assert validated.rows["purpose"].to_list() == ["MP", "Orange", None, "AI"]


def test_contradictory_purposes_are_refused() -> None:
    for purposes, said in (
        ({"M-Pesa": PurposeTerms("A"), "mpesa": PurposeTerms("B")}, "is the same word"),
        ({"M-Pesa": PurposeTerms("A", "Safricom")}, "Did you mean Safaricom"),
        ({" ": PurposeTerms("A")}, "one line of text"),
        ({"M-Pesa": PurposeTerms("")}, "one line of text"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            load_rules("payout", {"KE": OperatorTerms(purposes=purposes)})


def test_defect_shows_senders_heading(program: Program) -> None:
    sheet = program.sheet(["Jane Wanjiku,KE,0712345678,,KES", ",KE,0712345679,5,KES"], heading=ONE_NUMBER)
    output = program.run("validate", sheet, *OPTIONS).stdout
    assert "Row 2, Net Pay: Net Pay is missing." in output
    assert "Row 3, Employee Name: Employee Name is missing." in output
    found = program.json("validate", sheet, *OPTIONS)["defect_list"]
    headings = [(defect["column"], defect["heading"]) for defect in found]
    assert headings == [("amount", "Net Pay"), ("account_name", "Employee Name")]
