"""Questions about a sheet: the name of its run, its encoding and its worksheet. Unattended, they are refusals."""

from pathlib import Path

import pytest

from tests.cli.conversing import converse
from tests.cli.sheets import write_workbook
from tests.support.approving import plan_file, policy
from tests.support.program import HEADING, Program, kenyan_rows, sandbox_toml

NO_IDS = HEADING.replace("client_orderid,", "")


def rows_without_ids(count: int) -> list[str]:
    return [",".join(row.split(",")[:1] + row.split(",")[2:]) for row in kenyan_rows(count)]


@pytest.fixture
def nameless(program: Program) -> Path:
    """Write a sheet without order ids, as HR systems do."""
    return program.sheet(rows_without_ids(2), heading=NO_IDS)


@pytest.fixture
def french(program: Program) -> Path:
    """Write a CSV file like French Excel, with semicolons and cp1252."""
    names = ("Aïcha Traoré", "Hélène N'Dri", "Zoë Müller")
    rows = [row.replace("Jane Wanjiku", name) for row, name in zip(kenyan_rows(3), names, strict=True)]
    path = program.home / "paie.csv"
    path.write_bytes("\r\n".join(row.replace(",", ";") for row in (HEADING, *rows)).encode("cp1252"))
    return path


def test_submit_asks_name_of_sheet_without_ids(program: Program, nameless: Path) -> None:
    shown, code = converse(program, "submit", nameless, answers=[("payroll-", "payroll-2026-11")])
    assert code == 0, shown
    assert "Your sheet has no order ids. What is this payment run called? [payroll-" in shown
    assert "--reference payroll-2026-11" in shown
    again = program.json("submit", nameless, "--reference", "payroll-2026-11")
    assert (again["known"], again["sent_this_run"], len(program.record())) == (2, 0, 2)


def test_unattended_sheet_without_ids_is_refused(program: Program, nameless: Path) -> None:
    for command in ("validate", "submit"):
        result = program.run(command, nameless)
        assert (result.exit_code, "no order ids" in result.stderr) == (3, True)
        assert "--reference payroll-2026-11" in result.stderr
    assert not program.record()


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


def test_worksheet_is_chosen_by_name_or_number(program: Program) -> None:
    book = write_workbook(program.home / "pay.xlsx", October=kenyan_rows(1), November=kenyan_rows(2, prefix="NOV"))
    shown, code = converse(program, "validate", book, answers=[("Which worksheet", "2")])
    assert (code, "2 rows, no defect" in shown, "--worksheet November" in shown) == (0, True, True), shown
    shown, code = converse(program, "validate", book, answers=[("Which worksheet", "October")])
    assert (code, "1 row, no defect" in shown) == (0, True), shown


def test_signed_plan_contains_encoding(program: Program, french: Path) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    ada, cleo = program.home / "ada.pem", program.home / "cleo.pem"
    plan = plan_file(program)
    summary = program.json("plan", french, "--out", plan, "--key", ada, "--encoding", "cp1252")
    assert [finding["value"] for finding in summary["findings"] if finding["code"] == "sheet.encoding"] == ["cp1252"]
    result = program.run("approve", plan, "--sheet", french, "--encoding", "cp1252", "--key", cleo)
    assert (result.exit_code, "the file was read as cp1252" in result.stdout) == (0, True), result.stderr
    other = program.run("submit", french, "--encoding", "cp1250", "--plan", plan)
    assert (other.exit_code, program.record()) == (8, []), other.stderr
    assert program.json("submit", french, "--encoding", "cp1252", "--plan", plan)["states"] == {"paid": 3}


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
    read = [
        (finding["column"], finding["value"], finding["becomes"], finding["rows"])
        for finding in summary["findings"]
        if finding["code"] == "sheet.spelling"
    ]
    assert read == [("country", "kenya", "KE", "2-4"), ("amount", "1.100,50", "1100.50", "2-4")]
    result = program.run("approve", plan, "--sheet", spelled, *said, "--key", program.home / "cleo.pem")
    assert (result.exit_code, "amount: 1.100,50 was read as 1100.50" in result.stdout) == (0, True), result.stderr
    plain = program.sheet(kenyan_rows(3, amount="1100.50"), name="plain.csv")
    assert program.run("submit", plain, "--plan", plan).exit_code == 8
    assert program.json("submit", spelled, *said, "--plan", plan)["states"] == {"paid": 3}
