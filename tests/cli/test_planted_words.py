"""No code depends on sentences for people: with all of them reworded, the program behaves the same."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from paygw_batch.language import say
from paygw_batch.show.outputs import OutputKind, _is_own_output
from tests.cli.sheets import write_note, write_workbook
from tests.support.approving import plan_file, policy
from tests.support.planted_words import reword, reworded_catalogue
from tests.support.program import SAMPLES, Program, kenyan_rows, read_csv, sandbox_toml


def run_checks(program: Program) -> object:
    """Check sheets with every defect, and mark a workbook twice: the second copy replaces the first."""
    corrected, headings = program.home / "mended.xlsx", program.home / "headings.toml"
    checks = [
        program.json("validate", SAMPLES / "every-defect.csv"),
        program.json("validate", SAMPLES / "to-mend.xlsx", "--rejects", corrected),
        program.json("validate", SAMPLES / "to-mend.xlsx", "--rejects", corrected),
        program.json("validate", corrected),
        program.json("validate", SAMPLES / "payroll-mixed.csv", "--map", headings),
        program.json("validate", SAMPLES / "payroll-mixed.csv", "--map", headings),
    ]
    names = ("row", "column", "value", "code")
    defects = [[tuple(map(defect.get, names)) for defect in check.get("defect_list", ())] for check in checks]
    return defects, [(check["exit_code"], check["defects"]) for check in checks]


def run_payout(program: Program) -> object:
    """Pay a sheet with a plan, then settle, retry and reconcile. Each file is written twice."""
    home, codes = program.home, list[object]()
    rejected, doubtful = kenyan_rows(1, amount="9001", prefix="NO"), kenyan_rows(2, amount="9007", prefix="LOST")
    sheet, plan = program.sheet([*kenyan_rows(2), *rejected, *doubtful]), plan_file(program)

    def run(*arguments: str | Path) -> dict[str, Any]:
        summary = program.json(*arguments)
        codes.append((arguments[0], summary["exit_code"], summary["states"], summary["totals"]))
        return summary

    for _ in range(2):
        run("plan", sheet, "--out", plan, "--key", home / "ada.pem", "--report", home / "plan.html")
    run("approve", plan, "--key", home / "ben.pem")
    batch = run("submit", sheet)["batch"]
    run("resolve", "row", batch, "5", "--as", "paid", "--evidence", "ticket 7")
    run("resolve", "row", batch, "6", "--as", "not-received", "--evidence", "ticket 8")
    run("retry", batch, "--row", "4")
    for _ in range(2):
        run("reconcile", batch, "--out", home / "of.csv", "--report", home / "of.html")
        codes.append(program.run("find", "254712345001", "--advice", home / "advice.html").exit_code)
        codes.append(program.run("status", batch, "--in-doubt", "--out", home / "questions.csv").exit_code)
    deeds = [(deed["what"], deed["row"], deed["attempt"]) for deed in run("status", batch, "--history")["history"]]
    columns = ("row", "client_orderid", "state", "attempts", "sent_orderid", "http_status", "error_code")
    rows = [[line[name] for name in columns] for line in read_csv(home / "of.csv")]
    return codes, deeds, rows, len(program.record())


def run_folder(program: Program) -> object:
    """Process a good sheet, an unapproved one, one that needs a worksheet name, and a file that is not a sheet."""
    folder = program.home / "drop"
    folder.mkdir()
    write_note(write_workbook(folder / "two.xlsx", October=kenyan_rows(2), November=kenyan_rows(3)), None)
    write_note(program.sheet(kenyan_rows(1, amount="10.00", prefix="A"), "drop/good.csv"), None)
    write_note(program.sheet(kenyan_rows(1, prefix="B"), "drop/unapproved.csv"), None)
    write_note(program.sheet(["1,2"], "drop/none.csv", "what,ever"), "expect_rows = 1\n")
    summary = program.json("run-folder", folder)
    answers = sorted((folder / "refused").glob("*.refused.txt"), key=lambda path: path.name.partition("-")[2])
    return (
        summary["exit_code"],
        summary["states"],
        [(sheet["sheet"], sheet["exit_code"]) for sheet in summary["sheets"]],
        [(path.name.partition("-")[2], len(path.read_text().split("\n\n"))) for path in answers],
        sorted(path.name.partition("-")[2] for path in folder.glob("*/*")),
    )


@pytest.fixture
def offices(tmp_path: Path) -> list[Program]:
    machines = []
    for name in ("plain", "planted"):
        home = tmp_path / name
        home.mkdir(mode=0o700)
        machines.append(Program(home, home / "paygw.toml"))
        machines[-1].config.write_text(sandbox_toml() + policy(home))
    return machines


@pytest.mark.share(3)
@pytest.mark.parametrize("day", [run_checks, run_payout, run_folder])
def test_reworded_sentences_do_not_change_results(offices: list[Program], day: Callable[[Program], object]) -> None:
    plain = day(offices[0])
    with reworded_catalogue():
        assert say("Nothing was sent.") == reword("Nothing was sent.")
        assert day(offices[1]) == plain


@pytest.mark.parametrize("first", [nullcontext, reworded_catalogue])
def test_own_files_are_recognised_after_rewording(
    offices: list[Program], first: Callable[[], AbstractContextManager[None]]
) -> None:
    """Files written in one language are replaced in another, and a marked copy is marked only once."""
    program = offices[0]
    home, sheet = program.home, program.sheet(kenyan_rows(1))
    writers: list[list[str | Path]] = [
        ["validate", SAMPLES / "to-mend.xlsx", "--rejects", home / "mended.xlsx"],
        ["validate", home / "mended.xlsx", "--rejects", home / "again.xlsx"],
        ["validate", sheet, "--map", home / "headings.toml"],
        ["plan", sheet, "--out", plan_file(program), "--key", home / "ada.pem", "--report", home / "plan.html"],
        ["approve", plan_file(program), "--key", home / "ben.pem"],
        ["submit", sheet],
        ["reconcile", sheet, "--out", home / "of.csv", "--report", home / "of.html"],
        ["find", "254712345001", "--advice", home / "advice.html"],
    ]
    second = reworded_catalogue if first is nullcontext else nullcontext
    with first():
        codes = [program.run(*writer).exit_code for writer in writers]
    assert codes == [3, 3, 0, 0, 0, 0, 0, 0]
    with second():
        for writer in (*writers[:3], *writers[6:]):
            result = program.run(*writer)
            assert result.exit_code == codes[writers.index(writer)], result.stderr
        # A plan that opened its batch is not rewritten.
        assert _is_own_output(OutputKind.PLAN_PAGE, home / "plan.html")
    book = openpyxl.load_workbook(home / "again.xlsx")
    assert len(book.sheetnames) == 1 + len(openpyxl.load_workbook(SAMPLES / "to-mend.xlsx").sheetnames)
