"""`template` writes an empty sheet that validates when filled in, pays nobody when empty, and is never overwritten."""

import openpyxl
import pytest

from paygw_batch.countries.load import load_rules
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


def test_help_worksheet_is_not_read_as_sheet(program: Program) -> None:
    path = program.home / "new.xlsx"
    program.run("template", "KE", "--out", path)
    fill_worksheet(path, help_examples(path))
    columns = '\n[columns]\n"What to write" = "amount"\n"Needed" = "country"\n'
    program.config.write_text(program.config.read_text() + columns)
    assert program.json("validate", path)["rows"] == 1


def test_error_about_unknown_country_suggests_nearest(program: Program) -> None:
    known = {"KY": "Did you mean KE?", "BJ": "code for Benin is BN", "Kenya": "write KE", "": "not a known country"}
    for country, sentence in known.items():
        result = program.run("template", "TZ", country, "--out", program.home / "new.xlsx")
        assert (result.exit_code, sentence in result.stderr) == (2, True), country
    assert not (program.home / "new.xlsx").exists()


def test_template_reports_missing_country_configuration(program: Program) -> None:
    result = program.run("template", "BN", "--out", program.home / "new.xlsx", config=False)
    assert (result.exit_code, "countries.BN.payout.form" in result.stderr) == (2, True)
    fine = program.run("template", "KE", "--out", program.home / "new.csv", config=False)
    assert (fine.exit_code, "countries.KE.payout.purpose" in fine.stdout) == (0, True)


def test_template_is_workbook_or_csv(program: Program) -> None:
    for name in ("new.parquet", "new.txt", "new", "missing/new.xlsx"):
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
