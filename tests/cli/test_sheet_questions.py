"""Questions about a sheet: its run, encoding, worksheet, headings and spellings. Unattended, they are refusals."""

import tomllib
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from tests.cli.conversing import converse
from tests.cli.sheets import write_workbook
from tests.support.approving import plan_file, policy
from tests.support.program import HEADING, Program, kenyan_rows, read_csv, sandbox_toml


@pytest.fixture
def nameless(program: Program) -> Path:
    """Write a sheet without order ids, as HR systems do."""
    rows = [",".join(row.split(",")[:1] + row.split(",")[2:]) for row in kenyan_rows(2)]
    return program.sheet(rows, heading=HEADING.replace("client_orderid,", ""))


@pytest.fixture
def french(program: Program) -> Path:
    """Write a CSV file like French Excel, with semicolons and cp1252."""
    names = ("Aïcha Traoré", "Hélène N'Dri", "Zoë Müller")
    rows = [row.replace("Jane Wanjiku", name) for row, name in zip(kenyan_rows(3), names, strict=True)]
    path = program.home / "paie.csv"
    path.write_bytes("\r\n".join(row.replace(",", ";") for row in (HEADING, *rows)).encode("cp1252"))
    return path


def test_sheet_without_ids_needs_name(program: Program, nameless: Path) -> None:
    for command in ("validate", "submit"):
        result = program.run(command, nameless)
        assert (result.exit_code, "no order ids" in result.stderr) == (3, True)
        assert "--reference payroll-2026-11" in result.stderr
    assert not program.record()
    shown, code = converse(program, "submit", nameless, answers=[("payroll-", "payroll-2026-11")])
    assert code == 0, shown
    assert "Your sheet has no order ids. What is this payment run called? [payroll-" in shown
    assert "--reference payroll-2026-11" in shown
    again = program.json("submit", nameless, "--reference", "payroll-2026-11")
    assert (again["known"], again["sent_this_run"], len(program.record())) == (2, 0, 2)


def test_encoding_question_shows_three_sample_names(program: Program, french: Path) -> None:
    refused = program.run("validate", french)
    assert (refused.exit_code, "--encoding cp1252" in refused.stderr) == (3, True)
    assert "Aïcha Traoré, Hélène N'Dri, Zoë Müller" in refused.stderr
    shown, code = converse(program, "submit", french, answers=[("Are these spelled correctly", "y")])
    assert code == 0, shown
    assert "--encoding cp1252" in shown
    named = program.json("submit", french, "--encoding", "cp1252")
    assert (named["exit_code"], named["known"]) == (0, 3)


def test_rejected_or_unknown_encoding_is_refused(program: Program, french: Path) -> None:
    shown, code = converse(program, "submit", french, answers=[("Are these spelled correctly", "n")])
    assert (code, "not UTF-8" in shown, program.record()) == (3, True, [])
    sheet = program.sheet(kenyan_rows(2))
    for name in ("cp9999", "rot13", "utf-16", ""):
        result = program.run("validate", sheet, "--encoding", name)
        assert (result.exit_code, "is not a text encoding" in result.stderr) == (2, True)
    plain, named = program.json("validate", sheet), program.json("validate", sheet, "--encoding", "cp1252")
    assert plain["batch"] == named["batch"], "an encoding that is not needed changes nothing"


@pytest.fixture
def workbook(program: Program) -> Path:
    november = kenyan_rows(3, amount="20", prefix="NOV")
    return write_workbook(program.home / "pay.xlsx", October=kenyan_rows(2, prefix="OCT"), November=november)


def test_worksheet_is_chosen_by_name_or_number(program: Program, workbook: Path) -> None:
    for command in ("validate", "submit"):
        result = program.run(command, workbook)
        assert (result.exit_code, "'October' (2 rows), 'November' (3 rows)" in result.stderr) == (3, True)
        assert "--worksheet October" in result.stderr
    assert not program.record()
    shown, code = converse(program, "validate", workbook, answers=[("Which worksheet", "2")])
    assert (code, "3 rows, no defect" in shown, "--worksheet November" in shown) == (0, True, True), shown
    shown, code = converse(program, "validate", workbook, answers=[("Which worksheet", "October")])
    assert (code, "2 rows, no defect" in shown) == (0, True), shown


def test_worksheet_option_compares_case_if_needed(program: Program, workbook: Path) -> None:
    assert program.json("validate", workbook, "--worksheet", "november")["rows"] == 3
    for sheet, worksheet, why in (
        (workbook, "December", "no worksheet called 'December'"),
        (workbook, "December", "'October', 'November'"),
        (program.sheet(kenyan_rows(1)), "October", "has no worksheets"),
    ):
        result = program.run("validate", sheet, "--worksheet", worksheet)
        assert (result.exit_code, why in result.stderr) == (3, True)
    changed = openpyxl.load_workbook(workbook)
    copied: Any = changed.copy_worksheet(changed["October"])
    copied._WorkbookChild__title = "OCTOBER"  # a name that openpyxl refuses to write
    copied.append(kenyan_rows(3)[2].split(","))
    changed.save(workbook)
    assert program.json("validate", workbook, "--worksheet", "OCTOBER")["rows"] == 3
    assert "several worksheets called 'october'" in program.run("validate", workbook, "--worksheet", "october").stderr


def test_each_worksheet_gets_own_batch_and_reconciliation(program: Program, workbook: Path) -> None:
    october, november = (program.json("submit", workbook, "--worksheet", name) for name in ("October", "November"))
    for name, summary in (("OCT", october), ("NOV", november)):
        assert summary["exit_code"] == 0
        assert {row["client_orderid"][:3] for row in read_csv(summary["reconciliation"])} == {name}
    assert program.json("submit", workbook, "--worksheet", "October")["sent_this_run"] == 0
    assert len(program.record()) == 5
    assert program.json("resume", october["batch"])["reconciliation"] == october["reconciliation"]
    result = program.run("status", workbook)
    assert result.exit_code == 2, "which of both?"
    assert all(named in result.stderr for named in (october["batch"], november["batch"], "pay.xlsx [November]"))


def test_signed_plan_contains_encoding(program: Program, french: Path) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    plan, said = plan_file(program), ("--encoding", "cp1252")
    summary = program.json("plan", french, "--out", plan, "--key", program.home / "ada.pem", *said)
    assert [finding["value"] for finding in summary["findings"] if finding["code"] == "sheet.encoding"] == ["cp1252"]
    result = program.run("approve", plan, "--sheet", french, *said, "--key", program.home / "cleo.pem")
    assert (result.exit_code, "the file was read as cp1252" in result.stdout) == (0, True), result.stderr
    other = program.run("submit", french, "--encoding", "cp1250", "--plan", plan)
    assert (other.exit_code, program.record()) == (8, []), other.stderr
    assert program.json("submit", french, *said, "--plan", plan)["states"] == {"paid": 3}


@pytest.fixture
def spelled(program: Program) -> Path:
    """Write a sheet with country names, and amounts with a point as thousands separator."""
    return program.sheet([row.replace("KE,", "kenya,") for row in kenyan_rows(3, amount='"1.100,50"')])


def test_sheet_questions_are_asked_only_once(program: Program, spelled: Path) -> None:
    refused = program.run("validate", spelled)
    assert (refused.exit_code, "If kenya means KE, use --names words." in refused.stdout) == (3, True), refused.stdout
    asked = [("Does kenya mean KE", "y"), ("Does 1.100,50 mean 1100.50", "y")]
    shown, code = converse(program, "validate", spelled, answers=asked)
    assert (code, "--names words --numbers comma" in shown) == (0, True), shown
    shown, code = converse(program, "validate", spelled, answers=[(asked[0][0], "y"), (asked[1][0], "n")])
    assert (code, "3 of 3 rows have defects" in shown) == (3, True), shown
    program.config.write_text(program.config.read_text() + '\n[sheet]\nnames = "words"\nnumbers = "comma"\n')
    paid = program.json("submit", spelled)
    assert paid["states"] == {"paid": 3}, paid["message"]
    assert {line["amount"] for line in program.record()} == {"1100.50"}


def test_plan_shows_how_cells_are_interpreted(program: Program, spelled: Path) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    plan, said = plan_file(program), ("--names", "words", "--numbers", "comma")
    summary = program.json("plan", spelled, "--out", plan, "--key", program.home / "ada.pem", *said)
    found = [finding for finding in summary["findings"] if finding["code"] == "sheet.spelling"]
    read = [(finding["column"], finding["value"], finding["becomes"], finding["rows"]) for finding in found]
    assert read == [("country", "kenya", "KE", "2-4"), ("amount", "1.100,50", "1100.50", "2-4")]
    result = program.run("approve", plan, "--sheet", spelled, *said, "--key", program.home / "cleo.pem")
    assert (result.exit_code, "amount: 1.100,50 was read as 1100.50" in result.stdout) == (0, True), result.stderr
    plain = program.sheet(kenyan_rows(3, amount="1100.50"), name="plain.csv")
    assert program.run("submit", plain, "--plan", plan).exit_code == 8
    assert program.json("submit", spelled, *said, "--plan", plan)["states"] == {"paid": 3}


ENGLISH = "Country Code,Payment Ref,Net Pay,Currency,Employee Name,Account No,Mobile"


def test_matching_profile_is_suggested_and_used_on_request(program: Program) -> None:
    sheet = program.sheet(["Pay of November,,,,,,", ENGLISH, *kenyan_rows(2)], "pay.csv", "Muster GmbH,,,,,,")
    for command in ("validate", "submit"):
        refused = program.run(command, sheet)
        assert (refused.exit_code, "--column-profile payroll-english" in refused.stderr) == (3, True)
        assert "row 3: these are headings of the profile payroll-english." in refused.stderr.replace("\n", " ")
    assert program.record() == []
    assert program.json("submit", sheet, "--column-profile", "payroll-english")["states"] == {"paid": 2}


def test_option_and_variable_override_configured_profile(program: Program) -> None:
    configured = program.config.read_text()
    program.config.write_text(configured + '\n[sheet]\ncolumn_profile = "payroll-french"\n')
    sheet = program.sheet(kenyan_rows(1), "pay.csv", ENGLISH)
    assert "the profile payroll-english" in program.run("submit", sheet).stderr
    assert program.json("validate", sheet, PAYGW_COLUMN_PROFILE="payroll-english")["exit_code"] == 0
    assert program.json("submit", sheet, "--column-profile", "payroll-english")["states"] == {"paid": 1}
    program.config.write_text(configured + '\n[sheet]\ncolumn_profile = "payrol-english"\n')
    for command in (("validate", sheet), ("doctor",)):
        result = program.run(*command)
        assert (result.exit_code, "Did you mean payroll-english?" in " ".join(result.output.split())) == (2, True)


def test_payroll_worksheet_is_found_among_others(program: Program) -> None:
    worksheets = {"Notes": ["Name,Remark,Amount"], "Staff pay": [ENGLISH, *kenyan_rows(1)]}
    path = write_workbook(program.home / "pay.xlsx", "Payroll of November", Cover=[], **worksheets)
    refused = " ".join(program.run("validate", path).stderr.split())
    assert "pay.xlsx, worksheet 'Staff pay', row 2: these are headings of the profile payroll-english." in refused
    headings = program.home / "map.toml"
    program.run("validate", path, "--map", headings)
    assert '"Net Pay" = "amount"' in headings.read_text()
    assert program.json("validate", path, "--column-profile", "payroll-english")["exit_code"] == 0


def test_missing_column_suggests_matching_profile(program: Program) -> None:
    heading = "country,client_orderid,amount,currency,Employee Name,account_number,phone"
    result = program.run("validate", program.sheet(kenyan_rows(1), "pay.csv", heading))
    assert (result.exit_code, "does not have these columns: account_name" in result.stderr) == (3, True)
    hint = "'Employee Name' is a heading of the column profile payroll-english. Choose that profile."
    assert hint in result.stderr.replace("\n", " ")


def test_edited_heading_map_is_used_as_profile(program: Program) -> None:
    own = "Land,Zahlung,Betrag,Währung,Name,Konto,Telefon"
    sheet = program.sheet(["Pay of November,,,,,,", own, *kenyan_rows(2)], "pay.csv", "Muster GmbH,,,,,,")
    file = program.home / "own.toml"
    result = program.run("validate", sheet, "--map", file)
    assert (result.exit_code, "--map FILE.toml" in result.stderr.replace("\n", " ")) == (3, True)
    text = file.read_text()
    guessed = tomllib.loads(text)["columns"]  # inferred from the cells only, except for a name
    assert list(guessed.values()) == ["country", "", "", "currency", "account_name", "phone", ""]
    meant = ("country", "client_orderid", "amount", "currency", "account_name", "account_number", "phone")
    for (heading, guess), column in zip(guessed.items(), meant, strict=True):
        text = text.replace(f'"{heading}" = "{guess}"', f'"{heading}" = "{column}"')
    assert list(tomllib.loads(text)["columns"].values()) == list(meant)
    file.write_text(text)
    assert program.json("submit", sheet, "--column-profile", file)["states"] == {"paid": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[columns]\n"Zahl" = "amout"\n', "'Zahl' is mapped to 'amout', which is not a column. Did you mean amount?"),
        ('[columns]\n"Zahl" = 7\n', "which is not a column"),
        ('[column]\n"Zahl" = "amount"\n', "must contain [columns] and nothing else"),
        ("nonsense", "is not valid TOML"),
    ],
)
def test_invalid_column_profile_is_refused_with_message(program: Program, text: str, said: str) -> None:
    (program.home / "own.toml").write_text(text)
    result = program.run("validate", program.sheet(kenyan_rows(1)), "--column-profile", program.home / "own.toml")
    assert (result.exit_code, said in result.stderr.replace("\n", " ")) == (2, True)


def test_heading_map_never_replaces_unrelated_file(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    other = program.home / "notes.toml"
    other.write_text("mine\n")
    for path in (other, program.config, "headings.txt"):
        assert program.run("validate", sheet, "--map", path).exit_code == 2
    assert other.read_text() == "mine\n"
    for _ in range(2):  # the program may replace its own file
        assert program.run("validate", sheet, "--map", program.home / "own.toml").exit_code == 0
