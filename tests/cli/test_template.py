"""`template` writes an empty sheet that validates when filled in, pays nobody when empty, and is never overwritten."""

import openpyxl
import pytest
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.countries.load import load_rules
from paygw_batch.sheet.write.template import ColumnGuide, build_guides
from tests.cli.sheets import fill_worksheet, help_examples
from tests.support.program import Program

COUNTRIES, COLLECTED_FROM = (sorted(load_rules(operation, {})) for operation in ("payout", "payin"))


CASES: list[tuple[list[str], list[str]]] = [*(([], [code]) for code in COUNTRIES), ([], ["KE", "TZ"]), ([], COUNTRIES)]
CASES += [(["--collect"], codes) for codes in (*([code] for code in COLLECTED_FROM), COLLECTED_FROM)]


@pytest.mark.share(4)
@pytest.mark.parametrize(("options", "countries"), CASES, ids="+".join)
def test_template_filled_with_examples_is_valid(program: Program, options: list[str], countries: list[str]) -> None:
    path = program.home / "new.xlsx"
    made = program.json("template", *countries, *options, "--out", path)
    assert (made["exit_code"], " ".join(["validate", *options, str(path)]) in made["message"]) == (0, True)
    rows = help_examples(path)
    assert [row.get("country") for row in rows] == countries
    fill_worksheet(path, rows)
    summary = program.json("validate", path, *options)
    assert (summary["exit_code"], summary["rows"], summary["defect_list"]) == (0, len(countries), [])


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_empty_template_pays_nobody(program: Program, ending: str) -> None:
    path = program.home / f"new.{ending}"
    assert program.run("template", *COUNTRIES, "--out", path).exit_code == 0
    result = program.run("submit", path)
    assert (result.exit_code, "has a header but no rows below it" in result.stderr) == (3, True)
    assert program.record() == []


def test_csv_template_has_headings_and_shows_rules(program: Program) -> None:
    path = program.home / "new.csv"
    result = program.run("template", "KE", "--out", path)
    assert path.read_text() == "country,client_orderid,amount,currency,account_name,account_number,phone,purpose\n"
    output = " ".join(result.stdout.split())
    assert "leading zeros" in output
    assert "An amount in KES" in output


def test_template_has_only_columns_of_chosen_countries(program: Program) -> None:
    tanzania, south_africa, both = (
        set(program.json("template", *codes, "--out", program.home / f"{codes[0]}.csv")["columns"])
        for codes in (("TZ",), ("ZA",), ("za", "TZ", "ZA"))
    )
    assert "receiver_email" in tanzania - south_africa
    assert not {"account_number"} & tanzania | {"purpose"} & south_africa
    assert both == tanzania | south_africa


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
    columns = '\n[columns]\n"What to write" = "amount"\n"Needed" = "country"\n'
    program.config.write_text(program.config.read_text() + columns)
    assert program.json("validate", path)["rows"] == 1


@pytest.mark.parametrize(
    ("country", "sentence"),
    [
        ("KY", "Did you mean KE?"),
        ("BJ", "The gateway's code for Benin is BN"),
        ("Kenya", "write KE"),
        ("", "not a known country"),
    ],
)
def test_unknown_country_error_suggests_nearest(program: Program, country: str, sentence: str) -> None:
    result = program.run("template", "TZ", country, "--out", program.home / "new.xlsx")
    assert (result.exit_code, sentence in result.stderr) == (2, True)
    assert not (program.home / "new.xlsx").exists()


def test_template_reports_missing_country_configuration(program: Program) -> None:
    result = program.run("template", "BN", "--out", program.home / "new.xlsx", config=False)
    assert (result.exit_code, "countries.BN.payout.form" in result.stderr) == (2, True)
    fine = program.run("template", "KE", "--out", program.home / "new.csv", config=False)
    assert (fine.exit_code, "countries.KE.payout.purpose" in fine.stdout) == (0, True)


@pytest.mark.parametrize("name", ["new.parquet", "new.txt", "new", "missing/new.xlsx"])
def test_template_is_workbook_or_csv(program: Program, name: str) -> None:
    assert program.run("template", "KE", "--out", program.home / name).exit_code == 2


def test_template_states_configured_amount_limits(program: Program) -> None:
    purpose = 'purpose = "SANDBOX-WALLET-KE"'
    limited = f'{purpose}\nmin_amount = "2000"\nmax_amount = "250000"'
    program.config.write_text(program.config.read_text().replace(purpose, limited))
    path = program.home / "new.xlsx"
    program.run("template", "KE", "--out", path)
    assert help_examples(path)[0]["amount"] == "2000"
    help_words = [str(row[3]) for row in openpyxl.load_workbook(path)["Help"].iter_rows(values_only=True)]
    assert any("At least 2000. At most 250000." in words for words in help_words)


def test_countries_with_same_rule_share_guide_line() -> None:
    rules = load_rules("payout", {})
    name_guides = [guide for guide in build_guides([rules["KE"], rules["ZA"]]) if guide.column == "account_name"]
    text, example = "At most 256 characters, on one line.", "Example Person"
    assert name_guides == [ColumnGuide("account_name", ("KE", "ZA"), is_required=True, help_text=text, example=example)]
