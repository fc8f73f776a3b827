"""Sheets without order ids that people correct: after any correction, everyone is paid exactly once."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import MachineCache
from tests.cli.sheets import write_workbook
from tests.support.approving import plan_file, policy, re_sign_plan
from tests.support.program import Program, sandbox_toml

HEADING = "country,amount,currency,account_name,account_number,phone"
PEOPLE = ("Zo\u00e9 Wanjiru", "Brian O\u2019Kip", "Carol Njeri", "David Mutua", "Esther Akinyi", "Francis Ouma")
RUN = ("--reference", "october")


def build_row(n: int, name: str = "", amount: str = "", account: str = "") -> str:
    number = account or f"254712345{n:03}"
    return f"KE,{amount or f'{1000 + n}.00'},KES,{name or PEOPLE[n - 1]},{number},+{number}"


ROWS = [build_row(n) for n in range(1, 7)]


def write_sheet(program: Program, rows: list[str], name: str = "payroll.csv", heading: str = HEADING) -> Path:
    return program.sheet(rows, name, heading)


def pay_sheet(program: Program) -> None:
    assert program.json("submit", write_sheet(program, ROWS), *RUN)["states"] == {"paid": 6}


@pytest.fixture
def paid_program(machine_cache: MachineCache) -> Program:
    return machine_cache(pay_sheet)


def finding_codes(summary: dict[str, Any]) -> set[str]:
    return {line["code"] for name in ("defect_list", "warning_list") for line in summary.get(name, [])}


def change_row(line: int, **values: str) -> list[str]:
    return [*ROWS[: line - 1], build_row(line, **values), *ROWS[line:]]


CHANGED = {
    "amount": change_row(1, amount="2000.00"),
    "name in capitals": change_row(1, name="ZO\u00c9 WANJIRU"),
    "name with two blanks": change_row(3, name="Carol  Njeri"),
    "straight apostrophe": change_row(2, name="Brian O'Kip"),
    "second surname": change_row(1, name="Zo\u00e9 Wanjiru Kamau"),
}


@pytest.mark.share(5)
@pytest.mark.parametrize("options", [[], ["--amend"], ["--skip-invalid"], ["--repeats-meant"]], ids=str)
@pytest.mark.parametrize("rows", CHANGED.values(), ids=CHANGED)
def test_changed_row_of_paid_payee_is_conflict(paid_program: Program, rows: list[str], options: list[str]) -> None:
    summary = paid_program.json("submit", write_sheet(paid_program, rows, "corrected.csv"), *RUN, *options)
    assert summary["exit_code"] == (4 if options == ["--skip-invalid"] else 3)
    assert len(paid_program.record()) == 6


def test_conflict_shows_person_and_payment(paid_program: Program) -> None:
    result = paid_program.run("submit", write_sheet(paid_program, CHANGED["amount"], "corrected.csv"), *RUN)
    output = " ".join(result.stdout.split())
    (order,) = {line["client_orderid"] for line in paid_program.record() if line["amount"] == "1001.00"}
    for part in (
        "Row 2, amount",
        PEOPLE[0],
        "KES 1001.00",
        "254712345001",
        order,
        time.strftime("%Y-%m-%d", time.gmtime()),
    ):
        assert part in output, part


SAME = {
    "as it was": ROWS,
    "reordered": ROWS[::-1],
    "another form of Unicode": change_row(1, name="Zoe\u0301 Wanjiru"),
    "no-break blank": change_row(3, name="Carol\u00a0Njeri "),
    "fewer decimals": change_row(4, amount="1004"),
    "another spelling of numbers": [
        *ROWS[:-1],
        ROWS[-1].replace("254712345006,+254712345006", "0712 345 006,0712345006"),
    ],
}


@pytest.mark.share(3)
@pytest.mark.parametrize("rows", SAME.values(), ids=SAME)
def test_repeated_payments_are_not_sent(paid_program: Program, rows: list[str]) -> None:
    summary = paid_program.json("submit", write_sheet(paid_program, rows, "again.csv"), *RUN)
    assert (summary["exit_code"], summary["sent_this_run"], summary["known"]) == (0, 0, 6)
    quiet = paid_program.run("-q", "submit", write_sheet(paid_program, rows, "again.csv"), *RUN)
    assert "6" in quiet.stdout
    assert len(paid_program.record()) == 6


NEW = {
    "corrected account": change_row(1, account="254712345999"),
    "one more person": [*ROWS, build_row(7, name="Grace Atieno")],
    "one person instead of another": [*ROWS[:-1], build_row(7, name="Grace Atieno")],
}


@pytest.mark.share(3)
@pytest.mark.parametrize("rows", NEW.values(), ids=NEW)
def test_new_payee_under_used_reference_raises_question(paid_program: Program, rows: list[str]) -> None:
    path = write_sheet(paid_program, rows, "corrected.csv")
    (new,) = {line.split(",")[3] for line in rows if line not in ROWS}
    refused = paid_program.json("submit", path, *RUN)
    assert (refused["exit_code"], refused["code"]) == (3, "reference.used")
    assert new in refused["message"]
    assert paid_program.json("submit", path, *RUN, "--new-payee", "Somebody Else")["exit_code"] == 3
    assert paid_program.json("submit", path, *RUN, "--repeats-meant", "--skip-invalid", "--amend")["exit_code"] == 3
    assert len(paid_program.record()) == 6
    meant = paid_program.json("submit", path, *RUN, "--new-payee", new.upper())
    assert (meant["exit_code"], meant["sent_this_run"]) == (0, 1)


@pytest.mark.share(2)
@pytest.mark.parametrize("heading", ["staff_number", "Staff No"])
def test_corrected_account_of_staff_number_is_conflict(program: Program, heading: str) -> None:
    if heading != "staff_number":
        program.config.write_text(f'{program.config.read_text()}\n[sheet]\ncolumn_profile = "payroll-english"\n')
    rows = [f"{n:05},{build_row(n)}" for n in range(1, 4)]
    columns = f"{heading},{HEADING}"
    assert program.json("submit", write_sheet(program, rows, heading=columns), *RUN)["states"] == {"paid": 3}
    corrected = [f"00001,{build_row(1, account='254712345999')}", *rows[1:]]
    summary = program.json("submit", write_sheet(program, corrected, "corrected.csv", columns), *RUN, "--skip-invalid")
    assert (summary["exit_code"], summary["sent_this_run"]) == (4, 0)
    without = program.json("submit", write_sheet(program, ROWS[:3], "without.csv"), *RUN, "--skip-invalid")
    assert without["exit_code"] in {3, 4}
    assert len(program.record()) == 3


def test_reconciliation_contains_staff_number(program: Program) -> None:
    path = write_sheet(program, [f"00001,{ROWS[0]}"], heading=f"Staff Number,{HEADING}")
    summary = program.json("submit", path, *RUN)
    assert "00001" in Path(summary["reconciliation"]).read_text()


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "several", [ROWS * 2, [*ROWS, ROWS[2]], [*ROWS, build_row(3, amount="77.00")]], ids=["all", "one", "bonus"]
)
def test_payee_on_several_rows_raises_question(program: Program, several: list[str]) -> None:
    path = write_sheet(program, several)
    refused = program.json("submit", path, *RUN)
    assert (refused["exit_code"], refused["code"]) == (3, "payee.twice")
    assert PEOPLE[2] in refused["message"]
    assert program.record() == []
    assert program.json("submit", path, *RUN, "--repeats-meant")["sent_this_run"] == len(several)
    moved = program.json("submit", write_sheet(program, several[::-1], "moved.csv"), *RUN)
    assert (moved["exit_code"], moved["sent_this_run"]) == (0, 0)


def test_row_added_after_payment_raises_question(paid_program: Program) -> None:
    path = write_sheet(paid_program, [*ROWS, ROWS[0]], "pasted.csv")
    assert paid_program.json("submit", path, *RUN)["code"] in {"payee.twice", "reference.used"}
    assert paid_program.json("submit", path, *RUN, "--amend", "--skip-invalid")["exit_code"] == 3
    assert len(paid_program.record()) == 6


@pytest.mark.share(3)
@pytest.mark.parametrize("amounts", [("1001.00",), ("5.00", "1001.00"), ("1001.00", "7.00", "5.00")], ids=str)
def test_payee_with_several_payments_is_never_amended(program: Program, amounts: tuple[str, ...]) -> None:
    """One of two payments is rejected and the other paid; a changed row must not replace the paid one."""
    first = write_sheet(program, [build_row(1, amount="9001.00"), build_row(1)])
    assert program.json("submit", first, *RUN, "--repeats-meant")["states"] == {"paid": 1, "rejected": 1}
    again = write_sheet(program, [build_row(1, amount=amount) for amount in amounts], "again.csv")
    program.json("submit", again, *RUN, "--amend", "--skip-invalid", "--repeats-meant")
    assert Counter(line["amount"] for line in program.record())["1001.00"] == 1


@pytest.mark.parametrize("rows", [ROWS[:4], [f"{line},May" for line in ROWS]], ids=["fewer", "other month"])
def test_reference_used_for_different_file_is_refused(paid_program: Program, rows: list[str]) -> None:
    heading = HEADING if rows == ROWS[:4] else f"{HEADING},month"
    summary = paid_program.json("submit", write_sheet(paid_program, rows, "november.csv", heading), *RUN)
    assert (summary["exit_code"], summary["code"], summary["sent_this_run"]) == (3, "reference.used", 0)


def test_payment_to_rejected_payee_is_amended(program: Program) -> None:
    assert program.json("submit", write_sheet(program, change_row(1, amount="9001.00")), *RUN)["exit_code"] == 4
    corrected = write_sheet(program, ROWS, "corrected.csv")
    assert program.json("submit", corrected, *RUN)["exit_code"] == 3
    assert program.json("submit", corrected, *RUN, "--amend")["sent_this_run"] == 1


def test_payee_repeated_on_second_worksheet_stops_submission(program: Program) -> None:
    path = write_workbook(program.home / "pay.xlsx", HEADING, May=ROWS[:3], June=[ROWS[0], *ROWS[3:]])
    first = program.json("submit", path, "--worksheet", "May", *RUN)
    assert (first["exit_code"], first["sent_this_run"]) == (0, 3)
    names = [option for name in PEOPLE[3:] for option in ("--new-payee", name)]
    second = program.json("submit", path, "--worksheet", "June", *RUN, *names)
    assert (second["exit_code"], second["sent_this_run"]) == (3, 0)
    assert len(program.record()) == 3


# The drop folder


def run_dropped_sheet(
    program: Program, folder: Path, rows: list[str], name: str, note: str = 'reference = "october"\n'
) -> dict[str, Any]:
    path = write_sheet(program, rows, f"drop/{name}")
    Path(f"{path}.toml").write_text(note)
    for dropped_file in (path, Path(f"{path}.toml")):
        os.utime(dropped_file, (time.time() - 3600,) * 2)
    summary = program.json("run-folder", folder)
    (only,) = summary["sheets"]
    return {**only, "exit_code": summary["exit_code"]}


def test_folder_refuses_sheets_with_unanswered_questions(program: Program, folder: Path) -> None:
    assert run_dropped_sheet(program, folder, ROWS, "october.csv")["exit_code"] == 0
    for name, rows in {**CHANGED, **NEW, "twice": [*ROWS, *ROWS]}.items():
        assert run_dropped_sheet(program, folder, rows, "corrected.csv")["exit_code"] == 3, name
    assert len(program.record()) == 6
    note = 'reference = "october"\nnew_payees = ["Grace Atieno"]\n'
    assert run_dropped_sheet(program, folder, NEW["one more person"], "corrected.csv", note)["exit_code"] == 0
    assert len(program.record()) == 7


def test_quiet_run_folder_reports_nothing_sent(program: Program, folder: Path) -> None:
    run_dropped_sheet(program, folder, ROWS, "october.csv")
    path = write_sheet(program, ROWS, "drop/again.csv")
    Path(f"{path}.toml").write_text('reference = "october"\n')
    for dropped_file in (path, Path(f"{path}.toml")):
        os.utime(dropped_file, (time.time() - 3600,) * 2)
    result = program.run("-q", "run-folder", folder)
    assert result.exit_code == 0
    assert "6" in result.stdout


# Two-person approval


@pytest.fixture
def company_with_approval(program: Program) -> Program:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "1"'))
    return program


def make_plan(program: Program, path: Path, *options: str) -> dict[str, Any]:
    return program.json(
        "plan", path, "--out", plan_file(program), "--force", "--key", program.home / "ada.pem", *options
    )


def approve_and_submit(program: Program, path: Path, *options: str) -> dict[str, Any]:
    approved = program.json("approve", plan_file(program), "--key", program.home / "cleo.pem")
    assert approved["exit_code"] == 0
    return program.json("submit", path, "--plan", plan_file(program), *options)


def add_ids(rows: list[str]) -> list[str]:
    return [f"ID-{n},{line}" for n, line in enumerate(rows, 1)]


def test_plan_counts_only_unsent_rows(company_with_approval: Program) -> None:
    heading = f"client_orderid,{HEADING}"
    path = write_sheet(company_with_approval, add_ids(ROWS[:4]), heading=heading)
    make_plan(company_with_approval, path)
    assert approve_and_submit(company_with_approval, path)["sent_this_run"] == 4
    longer = write_sheet(company_with_approval, add_ids(ROWS), "longer.csv", heading)
    plan = make_plan(company_with_approval, longer)
    assert (plan["rows"], plan["known"], plan["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert len(plan["people"]) == 2
    known = [finding for finding in plan["findings"] if finding["code"] == "payee.sent_before"]
    assert [one["row"] for one in known] == [2, 3, 4, 5]
    approved = company_with_approval.json("approve", plan_file(company_with_approval))
    assert (approved["rows"], approved["totals"]) == (2, {"KES": {"ready": "2011.00"}})
    output = company_with_approval.run("approve", plan_file(company_with_approval)).stdout
    assert "2 payments in all" in output
    dry = company_with_approval.json("submit", longer, "--dry-run")
    assert (dry["rows"], dry["known"], dry["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert approve_and_submit(company_with_approval, longer)["sent_this_run"] == 2


def test_approval_threshold_counts_only_unsent_rows(company_with_approval: Program) -> None:
    heading = f"client_orderid,{HEADING}"
    path = write_sheet(company_with_approval, add_ids(ROWS[:4]), heading=heading)
    make_plan(company_with_approval, path)
    approve_and_submit(company_with_approval, path)
    text = company_with_approval.config.read_text().replace('KES = "1"', 'KES = "2000"')
    company_with_approval.config.write_text(text)
    small = write_sheet(company_with_approval, add_ids(ROWS[:5]), "small.csv", heading)
    assert company_with_approval.json("submit", small)["sent_this_run"] == 1
    large = write_sheet(
        company_with_approval, [*add_ids(ROWS), f"ID-7,{build_row(7, 'Grace Atieno')}"], "large.csv", heading
    )
    assert company_with_approval.json("submit", large)["exit_code"] == 8


def test_plan_is_outdated_after_some_rows_were_sent(company_with_approval: Program) -> None:
    heading = f"client_orderid,{HEADING}"
    path = write_sheet(company_with_approval, add_ids(ROWS), heading=heading)
    make_plan(company_with_approval, path)
    kept = plan_file(company_with_approval).read_bytes()
    some = write_sheet(company_with_approval, add_ids(ROWS)[:2], "some.csv", heading)
    make_plan(company_with_approval, some)
    assert approve_and_submit(company_with_approval, some)["sent_this_run"] == 2
    plan_file(company_with_approval).write_bytes(kept)
    assert approve_and_submit(company_with_approval, path)["exit_code"] == 8
    assert len(company_with_approval.record()) == 2


@pytest.mark.share(3)
@pytest.mark.parametrize("rows", [*NEW.values(), [*ROWS, ROWS[0]]], ids=[*NEW, "pasted"])
def test_approver_sees_answered_questions_first(company_with_approval: Program, rows: list[str]) -> None:
    path = write_sheet(company_with_approval, ROWS)
    make_plan(company_with_approval, path, *RUN)
    approve_and_submit(company_with_approval, path, *RUN)
    corrected = write_sheet(company_with_approval, rows, "corrected.csv")
    assert make_plan(company_with_approval, corrected, *RUN)["exit_code"] == 3
    names = [option for line in rows if line not in ROWS for option in ("--new-payee", line.split(",")[3])]
    plan = make_plan(company_with_approval, corrected, *RUN, *names, "--repeats-meant")
    assert plan["exit_code"] == 0
    assert plan["rows"] == 1
    assert plan["findings"][0]["code"] in {"reference.used", "payee.twice"}
    output = company_with_approval.run("approve", plan_file(company_with_approval)).stdout
    assert output.index("Could somebody be paid twice?") < output.index("payment in all")
    assert approve_and_submit(company_with_approval, corrected, *RUN)["sent_this_run"] == 1


def test_plan_with_forged_answers_is_refused(company_with_approval: Program) -> None:
    """A plan is useless if its maker signs an answer to no question, or hides one."""
    path = write_sheet(company_with_approval, ROWS)
    make_plan(company_with_approval, path, *RUN)
    re_sign_plan(company_with_approval, lambda document: document.update(answered=["payee.twice 0"]))
    assert (
        company_with_approval.json("submit", path, *RUN, "--plan", plan_file(company_with_approval))["exit_code"] == 8
    )
    assert company_with_approval.record() == []


@pytest.mark.parametrize("count", [30])
def test_all_warnings_about_double_payment_are_shown(company_with_approval: Program, count: int) -> None:
    rows = [build_row(1, name=f"Person {n}") for n in range(count)]
    path = write_sheet(
        company_with_approval, [f"ID-{n},{line}" for n, line in enumerate(rows)], heading=f"client_orderid,{HEADING}"
    )
    make_plan(company_with_approval, path)
    output = company_with_approval.run("approve", plan_file(company_with_approval)).stdout
    assert all(f"Person {n}," in output for n in range(count))


# A whole story


def test_payroll_of_forty_is_corrected_five_times(company_with_approval: Program) -> None:
    people = [f"Person Number{n}" for n in range(1, 41)]
    rows = [build_row(n, name=people[n - 1]) for n in range(1, 41)]
    one_more = build_row(50, name="Grace Atieno")
    path = write_sheet(company_with_approval, rows)
    make_plan(company_with_approval, path, *RUN)
    assert approve_and_submit(company_with_approval, path, *RUN)["sent_this_run"] == 40
    corrections = {
        "amount": [build_row(1, name=people[0], amount="9999.00"), *rows[1:]],
        "account": [build_row(1, name=people[0], account="254712345999"), *rows[1:]],
        "name": [build_row(1, name="Person Number One"), *rows[1:]],
        "a row less": rows[:-1],
    }
    for name, corrected in corrections.items():
        assert (
            make_plan(company_with_approval, write_sheet(company_with_approval, corrected, f"{name}.csv"), *RUN)[
                "exit_code"
            ]
            == 3
        ), name
    more = write_sheet(company_with_approval, [*rows, one_more], "more.csv")
    plan = make_plan(company_with_approval, more, *RUN, "--new-payee", "Grace Atieno")
    assert (plan["rows"], plan["known"], plan["totals"]) == (1, 40, {"KES": {"ready": "1050.00"}})
    assert approve_and_submit(company_with_approval, more, *RUN)["sent_this_run"] == 1
    paid = Counter(line["account_number"] for line in company_with_approval.record())
    assert set(paid.values()) == {1}
    assert len(paid) == 41
    assert json.loads(plan_file(company_with_approval).read_text())["content"]["known"] == 40
