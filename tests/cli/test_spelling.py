"""One person in several spellings, one payroll under two references, one sheet under new ids: each paid once."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conversing import converse
from tests.support.approving import plan_file, policy
from tests.support.program import HEADING, KENYAN, Program, kenyan_rows, sandbox_toml

WITHOUT_IDS = HEADING.replace("client_orderid,", "")


def build_row(order_id: str, n: int = 1) -> str:
    return KENYAN.format(id=order_id, amount="1500.50", n=n)


def remove_ids(rows: list[str]) -> list[str]:
    return [",".join(cell for place, cell in enumerate(line.split(",")) if place != 1) for line in rows]


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [[], ["--amend"], ["--skip-invalid"], ["--repeats-meant"]], ids=str)
def test_later_sheet_cannot_change_spelling_of_order_id(program: Program, options: list[str]) -> None:
    first = program.json("submit", program.sheet([build_row("Zoé-Pay-1")]))
    assert first["exit_code"] == 0
    spellings = ["Zoe\u0301-Pay-1", "ZOÉ-PAY-1", "zoé-pay-1", "Zoé\u2011Pay\u20131", "\uff3aoé-Pay-1"]
    for n, order_id in enumerate(spellings):  # in another Unicode form, case, hyphen or width
        again = program.run("submit", program.sheet([build_row(order_id)], f"again-{n}.csv"), *options)
        assert again.exit_code == (4 if options == ["--skip-invalid"] else 3)
        said = ("client_orderid.look_alike", "from Zoé-Pay-1, which was used on 20", first["batch"])
        assert all(part in again.stdout for part in said)
    assert [line["client_orderid"] for line in program.record()] == ["Zoé-Pay-1"]


def test_rewritten_order_ids_are_never_paid(program: Program) -> None:
    """A spreadsheet rewrites 00001 to 00003 of a list that was paid, among five others."""
    paid = [build_row(f"{n:05}", n) for n in range(1, 6)]
    assert program.json("submit", program.sheet(paid))["exit_code"] == 0
    mixed = [*(build_row(str(n), n) for n in range(1, 4)), *(build_row(f"{n:05}", n) for n in range(6, 11))]
    sheet = program.sheet(mixed, "next.csv")
    for options in ([], ["--amend"], ["--repeats-meant"], ["--dry-run"]):
        refused = program.run("submit", sheet, *options)
        assert (refused.exit_code, "client_orderid.rewritten" in refused.stdout) == (3, True), options
    assert len(program.record()) == 5
    for options, sent in ([], 5), (["--amend"], 0):
        summary = program.json("submit", sheet, "--skip-invalid", *options)
        assert (summary["exit_code"], summary["sent_this_run"]) == (4, sent)
    assert [line["client_orderid"] for line in program.record()][5:] == [f"{n:05}" for n in range(6, 11)]


def test_respelled_reference_does_not_pay_twice(program: Program) -> None:
    rows = remove_ids([*kenyan_rows(3), *kenyan_rows(1)])
    sheet = program.sheet(rows, heading=WITHOUT_IDS)
    first = program.json("submit", sheet, "--reference", "payroll-2026-11", "--repeats-meant")
    assert first["states"] == {"paid": 4}
    corrected = program.sheet(remove_ids(kenyan_rows(4, amount="20")), "other.csv", WITHOUT_IDS)
    for path in (sheet, corrected):
        for options in ([], ["--skip-invalid"], ["--dry-run"], ["--amend", "--repeats-meant"]):
            again = program.json("submit", path, "--reference", "Payroll-2026-11", *options)
            assert (again["exit_code"], again["code"]) == (3, "client_orderid.look_alike")
            assert all(known in again["message"] for known in ("payroll-2026-11", first["batch"]))
    assert len(program.record()) == 4
    shuffled = program.sheet(rows[::-1], "shuffled.csv", WITHOUT_IDS)
    for path in (sheet, shuffled):
        assert program.json("submit", path, "--reference", "payroll-2026-11")["sent_this_run"] == 0
    assert program.json("submit", corrected, "--reference", "payroll-2026-12")["sent_this_run"] == 4


def write_repeated_sheet(program: Program, *, new: int = 0) -> Path:
    """Pay a sheet of ten rows. Return the same sheet with new ids and `new` other rows at its end."""
    program.json("submit", program.sheet(kenyan_rows(10, prefix="OCT")))
    others = [build_row(f"NOV-{n}", n) for n in range(500, 500 + new)]
    return program.sheet([*kenyan_rows(10, prefix="NOV"), *others], "november.csv")


def test_repeated_sheet_with_new_ids_needs_confirmation(program: Program) -> None:
    sheet = write_repeated_sheet(program)
    for options in ([], ["--skip-invalid"], ["--amend"], ["--dry-run"]):
        summary = program.json("submit", sheet, *options)
        assert (summary["exit_code"], summary["code"]) == (3, "sheet.repeats_a_batch")
        assert [finding["code"] for finding in summary["warning_list"]] == ["sheet.repeats_a_batch"]
        assert all(part in summary["message"] for part in ("10 of 10 rows", "payroll.csv"))
    assert len(program.record()) == 10
    assert program.json("submit", sheet, "--repeats-meant")["sent_this_run"] == 10
    again = program.json("submit", sheet)
    assert (again["exit_code"], again["sent_this_run"], len(program.record())) == (0, 0, 20)


@pytest.mark.parametrize(("new", "days", "code"), [(9, 5, 3), (10, 5, 0), (0, 0, 0)])
def test_repeat_of_most_rows_raises_question(program: Program, new: int, days: int, code: int) -> None:
    program.config.write_text(f"{program.config.read_text()}\n[sheet]\nrepeat_days = {days}\n")
    summary = program.json("submit", write_repeated_sheet(program, new=new))
    found = "sheet.repeats_a_batch" if code else "row.look_alike"
    assert (summary["exit_code"], [finding["code"] for finding in summary["warning_list"]]) == (code, [found])


@pytest.mark.share(3)
@pytest.mark.parametrize(("answer", "exit_code", "paid"), [("n", 3, 10), ("", 3, 10), ("\x04", 3, 10), ("y", 0, 20)])
def test_submit_asks_about_repeat_at_terminal(program: Program, answer: str, exit_code: int, paid: int) -> None:
    sheet = write_repeated_sheet(program)
    shown, code = converse(program, "submit", sheet, answers=[("[y/N]", answer)])
    assert (code, len(program.record())) == (exit_code, paid), shown
    assert all(part in shown for part in ("Do you want to repeat", "sheet.repeats_a_batch"))
    assert "row.look_alike" not in shown


@pytest.fixture
def careful(program: Program) -> Program:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "20000"'))
    return program


def plan_sheet(careful: Program, sheet: Path, *options: str) -> dict[str, Any]:
    return careful.json("plan", sheet, "--out", plan_file(careful), "--key", careful.home / "ada.pem", *options)


def test_answered_question_is_not_repeated(careful: Program) -> None:
    sheet = write_repeated_sheet(careful, new=8)
    refused = plan_sheet(careful, sheet)
    assert (refused["exit_code"], refused["code"]) == (3, "sheet.repeats_a_batch")
    assert not plan_file(careful).exists()
    plan = plan_sheet(careful, sheet, "--repeats-meant")
    assert plan["findings"][0]["code"] == "sheet.repeats_a_batch"
    assert careful.json("approve", plan_file(careful), "--key", careful.home / "cleo.pem")["exit_code"] == 0
    assert careful.json("submit", sheet, "--plan", plan_file(careful))["sent_this_run"] == 18


def test_approved_plan_is_refused_after_new_question(careful: Program) -> None:
    rows = [*kenyan_rows(10, prefix="NOV"), *(build_row(f"NOV-{n}", n) for n in range(500, 508))]
    sheet = careful.sheet(rows, "november.csv")
    assert plan_sheet(careful, sheet)["exit_code"] == 0
    assert careful.json("approve", plan_file(careful), "--key", careful.home / "cleo.pem")["exit_code"] == 0
    write_repeated_sheet(careful, new=8)
    refused = careful.json("submit", sheet, "--plan", plan_file(careful))
    assert (refused["exit_code"], refused["sent_this_run"]) == (8, 0)  # the plan does not mention the repeat
    assert len(careful.record()) == 10
