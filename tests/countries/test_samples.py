"""The sample sheets match their scripts, and are valid for their countries."""

import re
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from openpyxl import load_workbook
from polars.testing import assert_frame_equal

from paygw_batch.core.money import parse_amount
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import CountryRule
from paygw_batch.sandbox.reply import default_behaviour
from tests.support.checkout import import_script

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
RULES = load_rules("payout", {})
CLEAN = ["payroll-mixed.csv", *(f"countries/{code}.csv" for code in sorted(RULES))]
SANDBOX_AMOUNTS = [rule.amount_whole for rule in default_behaviour().rule]


MAKE_SHEET, _, MAKE_SAMPLES = (import_script(f"samples/make_{name}.py") for name in ("sheet", "collections", "samples"))
"""The order matters, because the last one imports the others."""


def read_sample(name: str) -> pl.DataFrame:
    return pl.read_csv(SAMPLES / name, infer_schema=False)


def national_number(written: str, rule: CountryRule) -> str:
    """Return the national significant number of a number in any of the samples' spellings."""
    digits = written.replace(" ", "")
    dialling, trunk = rule.numbers.dialling_code, rule.numbers.trunk_prefix
    for start in (f"+{dialling}", dialling, trunk):
        rest = digits.removeprefix(start)
        if start and rest != digits and len(rest) in rule.numbers.national_lengths:
            return rest
    return digits


def test_samples_match_script(tmp_path: Path) -> None:
    MAKE_SAMPLES.write_all(tmp_path)
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    for name in written:
        if name.endswith(".csv"):
            assert (tmp_path / name).read_bytes() == (SAMPLES / name).read_bytes(), name
        elif name.endswith(".xlsx"):
            made, stands = (load_workbook(path / name) for path in (tmp_path, SAMPLES))
            assert made.sheetnames == stands.sheetnames
            for one, other in zip(made, stands, strict=True):
                assert list(one.values) == list(other.values), name
        else:
            assert_frame_equal(pl.read_parquet(tmp_path / name), pl.read_parquet(SAMPLES / name))


@pytest.mark.parametrize("name", CLEAN)
def test_clean_sample_has_no_defects(name: str) -> None:
    for row in read_sample(name).iter_rows(named=True):
        rule = RULES[row["country"]]
        amount = parse_amount(row["amount"], minor_units=rule.minor_units)
        assert amount is not None
        assert amount > 0
        assert row["currency"] == rule.currency
        account = {"account_name", "account_number", "phone"}
        receiver = {"receiver_first_name", "receiver_last_name", "receiver_phone", "receiver_email"}
        theirs = receiver if row["country"] == "TZ" else account
        filled = {column for column, value in row.items() if value} - {"department"}
        assert filled == {"country", "client_orderid", "amount", "currency"} | theirs
        for column in theirs & {"account_number", "phone", "receiver_phone"}:
            assert re.fullmatch(rule.numbers.pattern, national_number(row[column], rule)), row[column]


def test_mixed_payroll_has_listed_countries_and_no_purpose() -> None:
    sheet = read_sample("payroll-mixed.csv")
    assert_frame_equal(pl.read_parquet(SAMPLES / "payroll-mixed.parquet"), sheet)
    assert set(sheet["country"]) == set(MAKE_SHEET.MIXED)
    assert ("department" in sheet.columns, "purpose" in sheet.columns) == (True, False)
    payees = sheet.select(pl.coalesce("account_number", "receiver_email"))
    assert sheet.height == sheet["client_orderid"].n_unique() == payees.n_unique() == 200


def test_samples_share_no_order_ids() -> None:
    names = [*CLEAN, "every-defect.csv", "outcomes.csv"]
    ids = [set(read_sample(name)["client_orderid"].drop_nulls()) for name in names]
    assert sum(map(len, ids)) == len(set().union(*ids))


@pytest.mark.parametrize("name", [*CLEAN, "every-defect.csv"])
def test_ordinary_samples_avoid_special_sandbox_amounts(name: str) -> None:
    wholes = read_sample(name)["amount"].drop_nulls().str.extract(r"^([0-9]+)").drop_nulls().cast(pl.Int64)
    assert not wholes.is_in(SANDBOX_AMOUNTS).any()


def test_outcomes_sample_triggers_each_answer_once() -> None:
    sheet = read_sample("outcomes.csv")
    assert set(sheet["currency"]) == {"KES"}
    wholes = [int(Decimal(amount)) for amount in sheet["amount"]]
    assert sorted(whole for whole in wholes if whole in SANDBOX_AMOUNTS) == SANDBOX_AMOUNTS
    assert len(wholes) > len(SANDBOX_AMOUNTS)


def test_samples_readme_states_totals_and_defects() -> None:
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| ([A-Z]{3}) \| ([0-9]+) \| ([0-9.]+) \|$", readme, re.MULTILINE)
    by_currency = read_sample("payroll-mixed.csv").partition_by("currency", as_dict=True)
    expected = {code: (rows.height, sum(map(Decimal, rows["amount"]))) for (code,), rows in by_currency.items()}
    assert {currency: (int(rows), Decimal(total)) for currency, rows, total in stated} == expected
    sheet = read_sample("every-defect.csv")
    words = sheet["what_is_wrong"].fill_null("")
    fine = sheet.filter((words == "") | words.str.contains("^(?:warning|nothing)"))
    assert f"| `every-defect.csv` | {sheet.height} |" in readme
    assert f"its {fine.height} rows without a defect" in readme


def test_make_sheet_is_deterministic_and_adds_defects(tmp_path: Path) -> None:
    make_sheet = MAKE_SHEET.make_sheet
    assert_frame_equal(make_sheet(500, seed=3, bad_share=0.1), make_sheet(500, seed=3, bad_share=0.1))
    assert not make_sheet(500, seed=3).equals(make_sheet(500, seed=4, prefix="S3"))
    clean, spoilt = make_sheet(5_000, bad_share=0.0), make_sheet(5_000, bad_share=0.2)
    key = pl.concat_str(pl.all().fill_null("-"), separator="|")
    changed = (clean.select(key).to_series() != spoilt.select(key).to_series()).sum()
    assert 800 < changed < 1_200
    assert clean["client_orderid"].equals(spoilt["client_orderid"])
    sheet = make_sheet(50_000)
    accounts = sheet["account_number"].drop_nulls()
    assert accounts.n_unique() == accounts.len()
    assert set(sheet.dtypes) == {pl.String}
    with pytest.raises(SystemExit, match=r"must end in \.csv or \.parquet"):
        MAKE_SHEET.write(make_sheet(1), tmp_path / "sheet.xls")
