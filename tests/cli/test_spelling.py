"""One person in several spellings, one payroll under two references, one sheet under new ids: each paid once."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conversing import converse
from tests.support.approving import plan_file, policy
from tests.support.program import HEADING, KENYAN, Program, kenyan_rows, sandbox_toml

SPELLINGS = ["Zoe\u0301-Pay-1", "ZOÉ-PAY-1", "zoé-pay-1", "Zoé\u2011Pay\u20131", "\uff3aoé-Pay-1"]
"""Variants of Zoé-Pay-1 in Unicode form, case, hyphen and width."""
WITHOUT_IDS = HEADING.replace("client_orderid,", "")


def finding_codes(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["code"] for finding in findings]


def build_row(order_id: str, n: int = 1) -> str:
    return KENYAN.format(id=order_id, amount="1500.50", n=n)


def remove_ids(rows: list[str]) -> list[str]:
    return [",".join(cell for place, cell in enumerate(line.split(",")) if place != 1) for line in rows]


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [[], ["--amend"], ["--skip-invalid"], ["--repeats-meant"]], ids=str)
def test_later_sheet_cannot_change_spelling_of_order_id(program: Program, options: list[str]) -> None:
    first = program.json("submit", program.sheet([build_row("Zoé-Pay-1")]))
    assert first["exit_code"] == 0
    for n, order_id in enumerate(SPELLINGS):
        again = program.run("submit", program.sheet([build_row(order_id)], f"again-{n}.csv"), *options)
        assert again.exit_code == (4 if options == ["--skip-invalid"] else 3)
        assert "client_orderid.look_alike" in again.stdout
        assert "from Zoé-Pay-1, which was used on 20" in again.stdout
        assert first["batch"] in again.stdout
    assert [line["client_orderid"] for line in program.record()] == ["Zoé-Pay-1"]


def write_rewritten_sheet(program: Program) -> Path:
    """Pay 00001 to 00005. Return a list with three of them as a spreadsheet rewrites them, among five others."""
    paid = [build_row(f"{n:05}", n) for n in range(1, 6)]
    assert program.json("submit", program.sheet(paid))["exit_code"] == 0
    mixed = [*(build_row(str(n), n) for n in range(1, 4)), *(build_row(f"{n:05}", n) for n in range(6, 11))]
    return program.sheet(mixed, "next.csv")


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [[], ["--amend"], ["--repeats-meant"], ["--dry-run"]], ids=str)
def test_sheet_with_rewritten_order_ids_is_refused(program: Program, options: list[str]) -> None:
    refused = program.run("submit", write_rewritten_sheet(program), *options)
    assert (refused.exit_code, "client_orderid.rewritten" in refused.stdout) == (3, True)
    assert len(program.record()) == 5


@pytest.mark.parametrize("options", [[], ["--amend"]], ids=str)
def test_skip_invalid_leaves_out_rewritten_order_ids(program: Program, options: list[str]) -> None:
    summary = program.json("submit", write_rewritten_sheet(program), "--skip-invalid", *options)
    assert (summary["exit_code"], summary["sent_this_run"]) == (4, 5)
    assert [line["client_orderid"] for line in program.record()][5:] == [f"{n:05}" for n in range(6, 11)]


@pytest.mark.parametrize(("order_id", "after"), [("12.10", "12.1"), ("3-1", "3-Jan"), ("1E10", "10000000000")])
def test_order_id_converted_to_number_pays_nothing(program: Program, order_id: str, after: str) -> None:
    assert program.json("submit", program.sheet([build_row(order_id, 1), build_row("PAY-2", 2)]))["exit_code"] == 0
    sheet = program.sheet([build_row(after, 1), build_row("PAY-3", 3)], "next.csv")
    corrected = program.json("submit", sheet, "--skip-invalid")
    assert (corrected["exit_code"], corrected["sent_this_run"]) == (4, 1)
    assert [line["client_orderid"] for line in program.record()] == [order_id, "PAY-2", "PAY-3"]


def test_reference_in_another_spelling_pays_nothing_twice(program: Program) -> None:
    sheet = program.sheet(remove_ids(kenyan_rows(3)), heading=WITHOUT_IDS)
    first = program.json("submit", sheet, "--reference", "payroll-2026-11")
    assert first["states"] == {"paid": 3}
    corrected = program.sheet(remove_ids(kenyan_rows(4, amount="20")), "other.csv", WITHOUT_IDS)
    for path in (sheet, corrected):
        for options in ([], ["--skip-invalid"], ["--dry-run"], ["--amend", "--repeats-meant"]):
            again = program.json("submit", path, "--reference", "Payroll-2026-11", *options)
            assert (again["exit_code"], again["code"]) == (3, "client_orderid.look_alike")
            assert "payroll-2026-11" in again["message"]
            assert first["batch"] in again["message"]
    assert len(program.record()) == 3
    assert program.json("submit", sheet, "--reference", "payroll-2026-11")["sent_this_run"] == 0
    assert program.json("submit", corrected, "--reference", "payroll-2026-12")["sent_this_run"] == 4


def write_repeated_sheet(program: Program, *, new: int = 0) -> Path:
    """Pay a sheet of ten rows. Return the same sheet with new ids and `new` other rows at its end."""
    program.json("submit", program.sheet(kenyan_rows(10, prefix="OCT")))
    others = [build_row(f"NOV-{n}", n) for n in range(500, 500 + new)]
    return program.sheet([*kenyan_rows(10, prefix="NOV"), *others], "november.csv")


@pytest.mark.parametrize("options", [[], ["--skip-invalid"], ["--amend"], ["--dry-run"]], ids=str)
def test_repeated_sheet_with_new_ids_is_refused_unattended(program: Program, options: list[str]) -> None:
    summary = program.json("submit", write_repeated_sheet(program), *options)
    assert (summary["exit_code"], summary["code"]) == (3, "sheet.repeats_a_batch")
    assert finding_codes(summary["warning_list"]) == ["sheet.repeats_a_batch"]
    assert "10 of 10 rows" in summary["message"]
    assert "payroll.csv" in summary["message"]
    assert len(program.record()) == 10


def test_confirmed_repeat_is_paid_once(program: Program) -> None:
    sheet = write_repeated_sheet(program)
    assert program.json("submit", sheet, "--repeats-meant")["sent_this_run"] == 10
    again = program.json("submit", sheet)
    assert (again["exit_code"], again["sent_this_run"]) == (0, 0)
    assert len(program.record()) == 20


@pytest.mark.parametrize(("new", "exit_code"), [(9, 3), (10, 0)])
def test_sheet_with_few_repeats_is_paid(program: Program, new: int, exit_code: int) -> None:
    summary = program.json("submit", write_repeated_sheet(program, new=new))
    assert summary["exit_code"] == exit_code
    assert finding_codes(summary["warning_list"]) == (
        ["row.look_alike"] if exit_code == 0 else ["sheet.repeats_a_batch"]
    )


def test_corrected_sheet_is_not_a_repeat(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(10)))
    assert program.json("submit", program.sheet(kenyan_rows(12), "corrected.csv"))["sent_this_run"] == 2


def test_repeat_days_of_zero_disables_repeat_check(program: Program) -> None:
    program.config.write_text(f"{program.config.read_text()}\n[sheet]\nrepeat_days = 0\n")
    summary = program.json("submit", write_repeated_sheet(program))
    assert (summary["exit_code"], finding_codes(summary["warning_list"])) == (0, ["row.look_alike"])


@pytest.mark.share(3)
@pytest.mark.parametrize(("answer", "exit_code", "paid"), [("n", 3, 10), ("", 3, 10), ("\x04", 3, 10), ("y", 0, 20)])
def test_submit_asks_about_repeat_at_terminal(program: Program, answer: str, exit_code: int, paid: int) -> None:
    sheet = write_repeated_sheet(program)
    shown, code = converse(program, "submit", sheet, answers=[("[y/N]", answer)])
    assert "Do you want to repeat" in shown
    assert shown.count("sheet.repeats_a_batch") >= 1
    assert "row.look_alike" not in shown
    assert code == exit_code, shown
    assert len(program.record()) == paid


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
    assert finding_codes(plan["findings"])[0] == "sheet.repeats_a_batch"
    assert careful.json("approve", plan_file(careful), "--key", careful.home / "cleo.pem")["exit_code"] == 0
    assert careful.json("submit", sheet, "--plan", plan_file(careful))["sent_this_run"] == 18


def test_approved_plan_is_refused_after_new_question(careful: Program) -> None:
    rows = [*kenyan_rows(10, prefix="NOV"), *(build_row(f"NOV-{n}", n) for n in range(500, 508))]
    sheet = careful.sheet(rows, "november.csv")
    plan = plan_sheet(careful, sheet)
    assert plan["exit_code"] == 0
    assert careful.json("approve", plan_file(careful), "--key", careful.home / "cleo.pem")["exit_code"] == 0
    write_repeated_sheet(careful, new=8)
    refused = careful.json("submit", sheet, "--plan", plan_file(careful))
    assert (refused["exit_code"], refused["sent_this_run"]) == (8, 0)  # the plan does not mention the repeat
    assert len(careful.record()) == 10
