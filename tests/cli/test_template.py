"""`template` writes an empty sheet that validates when filled in, pays nobody when empty, and is never overwritten."""

import openpyxl
import pytest
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.countries.load import load_rules
from paygw_batch.sheet.write.template import ColumnGuide, build_guides
from tests.cli.sheets import fill_worksheet, help_examples
from tests.support.program import Program

COUNTRIES, COLLECTED_FROM = (sorted(load_rules(operation, {})) for operation in ("payout", "payin"))


@pytest.mark.share(4)
@pytest.mark.parametrize("countries", [*([code] for code in COUNTRIES), ["KE", "TZ"], COUNTRIES], ids="+".join)
def test_template_filled_with_examples_is_valid(program: Program, countries: list[str]) -> None:
    path = program.home / "new.xlsx"
    made = program.json("template", *countries, "--out", path)
    assert made["exit_code"] == 0
    rows = help_examples(path)
    assert [row["country"] for row in rows] == countries
    fill_worksheet(path, rows)
    summary = program.json("validate", path)
    assert (summary["exit_code"], summary["rows"], summary["defect_list"]) == (0, len(countries), [])


@pytest.mark.share(4)
@pytest.mark.parametrize("countries", [*([code] for code in COLLECTED_FROM), COLLECTED_FROM], ids="+".join)
def test_filled_collection_template_is_valid(program: Program, countries: list[str]) -> None:
    path = program.home / "new.xlsx"
    made = program.json("template", *countries, "--collect", "--out", path)
    assert f"validate --collect {path}" in made["message"]
    rows = help_examples(path)
    fill_worksheet(path, rows)
    summary = program.json("validate", path, "--collect")
    assert (summary["exit_code"], summary["rows"], summary["defect_list"]) == (0, len(countries), [])


def test_filled_template_is_paid_in_sandbox(program: Program) -> None:
    path = program.home / "new.xlsx"
    program.run("template", "KE", "TZ", "ZA", "--out", path)
    fill_worksheet(path, help_examples(path))
    assert program.json("submit", path, "--out", program.home / "out.csv")["states"] == {"paid": 3}


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_empty_template_pays_nobody(program: Program, ending: str) -> None:
    path = program.home / f"new.{ending}"
    assert program.run("template", *COUNTRIES, "--out", path).exit_code == 0
    result = program.run("submit", path)
    assert result.exit_code == 3
    assert "has a header but no rows below it" in result.stderr
    assert program.record() == []


def test_csv_template_has_headings_and_shows_rules(program: Program) -> None:
    path = program.home / "new.csv"
    result = program.run("template", "KE", "--out", path)
    assert path.read_text() == "country,client_orderid,amount,currency,account_name,account_number,phone,purpose\n"
    output = " ".join(result.stdout.split())
    assert "leading zeros" in output
    assert "KES above zero" in output


def test_template_has_only_columns_of_chosen_countries(program: Program) -> None:
    columns = {
        code: program.json("template", code, "--out", program.home / f"{code}.csv")["columns"] for code in ("TZ", "ZA")
    }
    assert "receiver_email" in columns["TZ"]
    assert "account_number" not in columns["TZ"]
    assert "purpose" not in columns["ZA"]
    both = program.json("template", "za", "TZ", "ZA", "--out", program.home / "both.csv")["columns"]
    assert set(both) == {*columns["TZ"], *columns["ZA"]}


def test_template_has_text_cells_and_country_list(program: Program) -> None:
    path = program.home / "new.xlsx"
    program.run("template", "KE", "TZ", "--out", path)
    sheet = openpyxl.load_workbook(path)["Payees"]
    assert isinstance(sheet, Worksheet)
    assert {dimension.number_format for dimension in sheet.column_dimensions.values()} == {"@"}
    lists = {str(rule.sqref): rule.formula1 for rule in sheet.data_validations.dataValidation}
    assert lists["A2:A1048576"] == "Lists!$A$1:$A$2"
    assert [cell.value for cell in openpyxl.load_workbook(path)["Lists"]["A"]] == ["KE", "TZ"]


def test_help_worksheet_is_not_read_as_sheet(program: Program) -> None:
    path = program.home / "new.xlsx"
    program.run("template", "KE", "--out", path)
    fill_worksheet(path, help_examples(path))
    program.config.write_text(
        program.config.read_text() + '\n[columns]\n"What to write" = "amount"\n"Needed" = "country"\n'
    )
    assert program.json("validate", path)["rows"] == 1


def test_template_never_overwrites_file(program: Program) -> None:
    path = program.home / "new.xlsx"
    path.write_text("someone's work")
    result = program.run("template", "KE", "--out", path)
    assert result.exit_code == 2
    assert "already exists" in result.stderr
    assert path.read_text() == "someone's work"


@pytest.mark.parametrize(
    ("country", "sentence"),
    [("KY", "did you mean KE?"), ("BJ", "Benin is written BN"), ("Kenya", "write KE"), ("", "not a known country")],
)
def test_unknown_country_error_suggests_nearest(program: Program, country: str, sentence: str) -> None:
    result = program.run("template", "TZ", country, "--out", program.home / "new.xlsx")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not (program.home / "new.xlsx").exists()


def test_template_reports_missing_country_configuration(program: Program) -> None:
    result = program.run("template", "BN", "--out", program.home / "new.xlsx", config=False)
    assert result.exit_code == 2
    assert "countries.BN.payout.form" in result.stderr
    fine = program.run("template", "KE", "--out", program.home / "new.csv", config=False)
    assert fine.exit_code == 0
    assert "countries.KE.payout.purpose" in fine.stdout


@pytest.mark.parametrize("name", ["new.parquet", "new.txt", "new", "missing/new.xlsx"])
def test_template_is_workbook_or_csv(program: Program, name: str) -> None:
    assert program.run("template", "KE", "--out", program.home / name).exit_code == 2


def test_template_states_configured_amount_limits(program: Program) -> None:
    program.config.write_text(
        program.config.read_text().replace(
            'purpose = "SANDBOX-WALLET-KE"', 'purpose = "SANDBOX-WALLET-KE"\nmin_amount = "2000"\nmax_amount = "250000"'
        )
    )
    path = program.home / "new.xlsx"
    program.run("template", "KE", "--out", path)
    assert help_examples(path)[0]["amount"] == "2000"
    help_words = [str(row[3]) for row in openpyxl.load_workbook(path)["Help"].iter_rows(values_only=True)]
    assert any("At least 2000. At most 250000." in words for words in help_words)


def test_countries_with_same_rule_share_help_line() -> None:
    rules = load_rules("payout", {})
    name_guides = [guide for guide in build_guides([rules["KE"], rules["ZA"]]) if guide.column == "account_name"]
    assert name_guides == [
        ColumnGuide(
            "account_name",
            ("KE", "ZA"),
            needed=True,
            words="At most 256 characters, on one line.",
            example="Example Person",
        )
    ]
