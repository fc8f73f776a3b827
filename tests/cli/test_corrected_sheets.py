"""Sheets without order ids that people correct: after any correction, everyone is paid exactly once."""

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
def paid(machine_cache: MachineCache) -> Program:
    return machine_cache(pay_sheet)


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
def test_changed_row_of_paid_payee_is_conflict(paid: Program, rows: list[str], options: list[str]) -> None:
    summary = paid.json("submit", write_sheet(paid, rows, "corrected.csv"), *RUN, *options)
    assert summary["exit_code"] == (4 if options == ["--skip-invalid"] else 3)
    assert len(paid.record()) == 6


def test_sheet_of_conflicts_alone_raises_no_question(paid: Program) -> None:
    rows = [build_row(n, amount="77.00") for n in range(1, 7)]
    refused = paid.json("submit", write_sheet(paid, rows, "corrected.csv"), *RUN)
    assert (refused["exit_code"], refused["defects"], "code" in refused) == (3, 6, False)


def test_conflict_shows_person_and_payment(paid: Program) -> None:
    result = paid.run("submit", write_sheet(paid, CHANGED["amount"], "corrected.csv"), *RUN)
    output = " ".join(result.stdout.split())
    (order,) = {line["client_orderid"] for line in paid.record() if line["amount"] == "1001.00"}
    sent_on = time.strftime("%Y-%m-%d", time.gmtime())
    for part in ("Row 2, amount", PEOPLE[0], "KES 1001.00", "254712345001", order, sent_on):
        assert part in output, part
    assert "paygw-batch validate" not in output  # it would find no defect


SAME = {
    "as it was": ROWS,
    "reordered": ROWS[::-1],
    "another form of Unicode": change_row(1, name="Zoe\u0301 Wanjiru"),
    "no-break blank": change_row(3, name="Carol\u00a0Njeri "),
    "fewer decimals": change_row(4, amount="1004"),
    "another spelling": [*ROWS[:-1], ROWS[-1].replace("254712345006,+254712345006", "0712 345 006,0712345006")],
}


@pytest.mark.share(3)
@pytest.mark.parametrize("rows", SAME.values(), ids=SAME)
def test_repeated_payments_are_not_sent(paid: Program, rows: list[str]) -> None:
    summary = paid.json("submit", write_sheet(paid, rows, "again.csv"), *RUN)
    assert (summary["exit_code"], summary["sent_this_run"], summary["known"]) == (0, 0, 6)
    quiet = paid.run("-q", "submit", write_sheet(paid, rows, "again.csv"), *RUN)
    assert "6" in quiet.stdout
    assert len(paid.record()) == 6


NEW = {
    "corrected account": change_row(1, account="254712345999"),
    "one more person": [*ROWS, build_row(7, name="Grace Atieno")],
    "one person instead of another": [*ROWS[:-1], build_row(7, name="Grace Atieno")],
}


@pytest.mark.share(3)
@pytest.mark.parametrize("rows", NEW.values(), ids=NEW)
def test_new_payee_under_used_reference_raises_question(paid: Program, rows: list[str]) -> None:
    path = write_sheet(paid, rows, "corrected.csv")
    (new,) = {line.split(",")[3] for line in rows if line not in ROWS}
    refused = paid.json("submit", path, *RUN)
    assert (refused["exit_code"], refused["code"]) == (3, "reference.used")
    assert new in refused["message"]
    assert paid.json("submit", path, *RUN, "--new-payee", "Somebody Else")["exit_code"] == 3
    assert paid.json("submit", path, *RUN, "--repeats-meant", "--skip-invalid", "--amend")["exit_code"] == 3
    assert len(paid.record()) == 6
    meant = paid.json("submit", path, *RUN, "--new-payee", new.upper())
    assert (meant["exit_code"], meant["sent_this_run"]) == (0, 1)


def test_namesake_under_used_reference_is_named(paid: Program) -> None:
    rows = [*ROWS, build_row(7, name=PEOPLE[0].upper())]
    message = paid.json("submit", write_sheet(paid, rows, "corrected.csv"), *RUN)["message"]
    assert f"{PEOPLE[0]} (254712345001, KES 1001.00" in message
    assert "is already in it. Are they the same person?" in message


@pytest.mark.parametrize("options", [[], ["--new-payee", PEOPLE[1]], ["--repeats-meant"], ["--amend"]], ids=str)
def test_new_account_waits_for_unfinished_earlier_payment(program: Program, options: list[str]) -> None:
    program.run("submit", write_sheet(program, ROWS), *RUN, "--first", "1")
    corrected = write_sheet(program, change_row(2, account="254712345999"), "corrected.csv")
    refused = program.json("submit", corrected, *RUN, *options)
    assert (refused["exit_code"], refused["code"]) == (3, "reference.used")
    assert ") is now missing" in refused["message"]
    assert f"The earlier payments to {PEOPLE[1]} may still be made." in refused["message"]
    assert len(program.record()) == 1


@pytest.mark.parametrize("state", ["resolved as rejected", "amended", "one of two"])
def test_new_account_waits_for_earlier_payment_in_doubt(program: Program, state: str) -> None:
    first = change_row(2, amount="9001" if state == "amended" else "9006")
    path = write_sheet(program, first if state != "one of two" else [*first[:2], build_row(3, PEOPLE[1])])
    program.json("submit", path, *RUN)
    if state == "amended":
        again = write_sheet(program, change_row(2, amount="9006"), "second.csv")
        assert program.json("submit", again, *RUN, "--amend", "--repeats-meant")["states"]["in_doubt"] == 1
    elif state == "resolved as rejected":
        program.json("resolve", "row", path, "3", "--as", "rejected", "--evidence", "Ticket 1")
    third = write_sheet(program, [ROWS[0], build_row(8, PEOPLE[1])], "third.csv")
    refused = program.json("submit", third, *RUN, "--new-payee", PEOPLE[1])
    assert (refused["exit_code"], "may still be made" in refused["message"]) == (3, True)


def test_amended_row_with_swapped_id_is_conflict(program: Program) -> None:
    program.json("submit", write_with_ids(program, [build_row(1, amount="9001"), ROWS[1]]))
    swapped = write_with_ids(program, [ROWS[1], build_row(1, amount="9001"), *ROWS[2:]], "swapped.csv")
    summary = program.json("submit", swapped, "--amend", "--skip-invalid")
    assert (summary["states"], len(program.record())) == ({"invalid": 2, "paid": 4}, 6)


@pytest.mark.parametrize("name", [PEOPLE[1], "Brian O Kip"])
def test_rejected_row_in_later_sheet_is_not_retried(program: Program, name: str) -> None:
    batch = program.json("submit", write_sheet(program, change_row(2, amount="9001")), *RUN)["batch"]
    corrected = write_sheet(program, change_row(2, name=name, account="254712345999"), "corrected.csv")
    refused = program.json("submit", corrected, *RUN)
    assert ", rejected) is now missing" in refused["message"]
    assert program.json("submit", corrected, *RUN, "--new-payee", name)["sent_this_run"] == 1
    retried = program.json("retry", batch)
    assert (retried["released"], retried["waiting"], retried["sent_this_run"]) == (0, 1, 0)
    named = program.json("retry", batch, "--row", "3")
    assert (named["exit_code"], "has a new row with the same name" in named["message"]) == (2, True)
    assert len(program.record()) == 7


def test_one_option_answers_only_questions_shown_together(paid: Program) -> None:
    path = write_sheet(paid, [*ROWS, ROWS[1]], "december.csv")
    message = paid.json("submit", path, "--reference", "DEC")["message"]
    assert "have the same account and amount as rows of" in message
    assert f"{PEOPLE[1]} is in rows" in message


def test_repeats_meant_sends_amended_row_with_note(program: Program) -> None:
    """Rejected, corrected and noted in a column of the sender's own: the sheet differs, and nobody is new."""
    heading = f"{HEADING},Notes"
    program.run(
        "submit", write_sheet(program, [f"{build_row(1, amount='9001')},", f"{ROWS[1]},"], heading=heading), *RUN
    )
    path = write_sheet(program, [f"{ROWS[0]},corrected", f"{ROWS[1]},"], "corrected.csv", heading)
    refused = program.json("submit", path, *RUN, "--amend")
    assert (refused["code"], "--repeats-meant" in refused["message"]) == ("reference.used", True)
    assert program.json("submit", path, *RUN, "--amend", "--repeats-meant")["sent_this_run"] == 1


@pytest.mark.share(2)
@pytest.mark.parametrize("heading", ["staff_number", "Staff No"])
def test_changed_account_for_staff_number_is_conflict(program: Program, heading: str) -> None:
    if heading != "staff_number":
        program.config.write_text(f'{program.config.read_text()}\n[sheet]\ncolumn_profile = "payroll-english"\n')
    rows = [f"{n:05},{build_row(n)}" for n in range(1, 4)]
    columns = f"{heading},{HEADING}"
    paid = program.json("submit", write_sheet(program, rows, heading=columns), *RUN)
    assert (paid["states"], "00001" in Path(paid["reconciliation"]).read_text()) == ({"paid": 3}, True)
    corrected = [f"00001,{build_row(1, account='254712345999')}", *rows[1:]]
    summary = program.json("submit", write_sheet(program, corrected, "corrected.csv", columns), *RUN, "--skip-invalid")
    assert (summary["exit_code"], summary["sent_this_run"]) == (4, 0)
    without = program.json("submit", write_sheet(program, ROWS[:3], "without.csv"), *RUN, "--skip-invalid")
    assert without["exit_code"] in {3, 4}
    assert len(program.record()) == 3


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


@pytest.mark.share(3)
@pytest.mark.parametrize("amounts", [("1001.00",), ("5.00", "1001.00"), ("1001.00", "7.00", "5.00")], ids=str)
def test_payee_with_several_payments_is_never_amended(program: Program, amounts: tuple[str, ...]) -> None:
    """One of two payments is rejected and the other paid; a changed row must not replace the paid one."""
    first = write_sheet(program, [build_row(1, amount="9001.00"), build_row(1)])
    assert program.json("submit", first, *RUN, "--repeats-meant")["states"] == {"paid": 1, "rejected": 1}
    again = write_sheet(program, [build_row(1, amount=amount) for amount in amounts], "again.csv")
    program.json("submit", again, *RUN, "--amend", "--skip-invalid", "--repeats-meant")
    assert Counter(line["amount"] for line in program.record())["1001.00"] == 1


def test_reference_used_for_different_file_is_refused(paid: Program) -> None:
    for rows, heading in ((ROWS[:4], HEADING), ([f"{line},May" for line in ROWS], f"{HEADING},month")):
        summary = paid.json("submit", write_sheet(paid, rows, "november.csv", heading), *RUN)
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


def test_refused_rows_without_ids_are_corrected_in_sheet(program: Program) -> None:
    path = write_sheet(program, change_row(1, amount="x"))
    message = program.json("validate", path, *RUN, "--rejects", program.home / "rejects.csv")["message"]
    assert message.endswith("Correct them in the sheet, and submit the whole sheet.")


# The drop folder


def drop(program: Program, rows: list[str], name: str, note: str = "") -> None:
    path = write_sheet(program, rows, f"drop/{name}")
    Path(f"{path}.toml").write_text(f'reference = "october"\n{note}')
    for dropped_file in (path, Path(f"{path}.toml")):
        os.utime(dropped_file, (time.time() - 3600,) * 2)


def test_folder_refuses_sheets_with_unanswered_questions(program: Program, folder: Path) -> None:
    drop(program, ROWS, "october.csv")
    assert program.json("run-folder", folder)["exit_code"] == 0
    for name, rows in {**CHANGED, **NEW, "twice": [*ROWS, *ROWS], "pasted": [*ROWS, ROWS[0]]}.items():
        drop(program, rows, "corrected.csv")
        assert program.json("run-folder", folder)["exit_code"] == 3, name
    assert len(program.record()) == 6
    drop(program, NEW["one more person"], "corrected.csv", 'new_payees = ["Grace Atieno"]\n')
    assert program.json("run-folder", folder)["exit_code"] == 0
    assert len(program.record()) == 7
    drop(program, ROWS, "again.csv")
    result = program.run("-q", "run-folder", folder)
    assert (result.exit_code, "6" in result.stdout) == (0, True), "what was known is said"


# Two-person approval


@pytest.fixture
def company(program: Program) -> Program:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "1"'))
    return program


def make_plan(program: Program, path: Path, *options: str) -> dict[str, Any]:
    written = ("--out", plan_file(program), "--force", "--key", program.home / "ada.pem")
    return program.json("plan", path, *written, *options)


def approve_and_submit(program: Program, path: Path, *options: str) -> dict[str, Any]:
    approved = program.json("approve", plan_file(program), "--key", program.home / "cleo.pem")
    assert approved["exit_code"] == 0
    return program.json("submit", path, "--plan", plan_file(program), *options)


def write_with_ids(program: Program, rows: list[str], name: str = "payroll.csv") -> Path:
    return write_sheet(program, [f"ID-{n},{line}" for n, line in enumerate(rows, 1)], name, f"client_orderid,{HEADING}")


def test_plan_says_state_of_sent_rows(company: Program) -> None:
    amounts = ("9001", "9006", "9002", "700")
    path = write_with_ids(company, [build_row(n, amount=amount) for n, amount in enumerate(amounts, 1)])
    make_plan(company, path)
    states = approve_and_submit(company, path)["states"]
    assert states == {"rejected": 1, "in_doubt": 1, "accepted": 1, "paid": 1}
    page = company.home / "plan.html"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, f"ID-5,{ROWS[4]}"]))
    plan = make_plan(company, path, "--report", str(page))
    assert [(one["code"], one["row"]) for one in plan["findings"] if one["code"] == "payee.new"] == [("payee.new", 6)]
    shown = company.run("approve", plan_file(company)).stdout
    for heading, names in (
        ("In doubt (may have been paid), not sent now (1)", PEOPLE[1:2]),
        ("Rejected before, not sent again (1)", PEOPLE[:1]),
        ("Already paid or with the gateway, not sent again (2)", PEOPLE[2:4]),
    ):
        assert heading in page.read_text()
        after = shown.partition(f"{heading}:\n")[2].splitlines()
        assert all(name in line for name, line in zip(names, after, strict=False))


def test_plan_and_threshold_count_only_unsent_rows(company: Program) -> None:
    path = write_with_ids(company, ROWS[:4])
    make_plan(company, path)
    assert approve_and_submit(company, path)["sent_this_run"] == 4
    longer = write_with_ids(company, ROWS, "longer.csv")
    plan = make_plan(company, longer)
    assert (plan["rows"], plan["known"], plan["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert len(plan["people"]) == 2
    assert [one["row"] for one in plan["findings"] if one["code"] == "payee.sent_before"] == [2, 3, 4, 5]
    approved = company.json("approve", plan_file(company))
    assert (approved["rows"], approved["known"], approved["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert "2 payments in all" in company.run("approve", plan_file(company)).stdout
    dry = company.json("submit", longer, "--dry-run")
    assert (dry["rows"], dry["known"], dry["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert approve_and_submit(company, longer)["sent_this_run"] == 2
    company.config.write_text(company.config.read_text().replace('KES = "1"', 'KES = "2000"'))
    grace, more = build_row(7, "Grace Atieno"), build_row(8, "Otieno Odera")
    assert company.json("submit", write_with_ids(company, [*ROWS, grace, more], "large.csv"))["exit_code"] == 8
    assert company.json("submit", write_with_ids(company, [*ROWS, grace], "small.csv"))["sent_this_run"] == 1


def test_held_row_is_in_no_sum(program: Program) -> None:
    path = write_with_ids(program, ROWS[:4])
    program.json("submit", path, "--first", "1")
    statement = program.home / "statement.csv"
    statement.write_text("order_id,amount,currency,status\nID-2,1002.00,KES,approved\n")
    assert program.json("resolve", "statement", path, statement, "--yes")["held"] == 1
    dry = program.json("submit", path, "--dry-run")
    assert (dry["rows"], dry["known"], dry["totals"]) == (2, 2, {"KES": {"ready": "2007.00"}})
    assert (dry["exit_code"], dry["states"]) == (5, {"ready": 2, "paid": 1, "held": 1})
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "1"'))
    longer = write_with_ids(program, ROWS[:5], "longer.csv")
    plan = make_plan(program, longer)
    dry = program.json("submit", longer, "--dry-run")
    for summary in (plan, dry):
        assert (summary["rows"], summary["known"], summary["totals"]) == (3, 2, {"KES": {"ready": "3012.00"}})
    assert [one["row"] for one in plan["findings"] if one["code"] == "payee.new"] == [6, 5, 4]
    shown = program.run("approve", plan_file(program)).stdout
    assert f"Held (may have been paid), not sent now (1):\n- Row 3, {PEOPLE[1]}" in shown
    assert approve_and_submit(program, longer)["sent_this_run"] == 3


def test_plan_is_outdated_after_some_rows_were_sent(company: Program) -> None:
    path = write_with_ids(company, ROWS)
    make_plan(company, path)
    kept = plan_file(company).read_bytes()
    some = write_with_ids(company, ROWS[:2], "some.csv")
    make_plan(company, some)
    assert approve_and_submit(company, some)["sent_this_run"] == 2
    plan_file(company).write_bytes(kept)
    assert approve_and_submit(company, path)["exit_code"] == 8
    assert len(company.record()) == 2


@pytest.mark.share(3)
@pytest.mark.parametrize("rows", [*NEW.values(), [*ROWS, ROWS[0]]], ids=[*NEW, "pasted"])
def test_approver_sees_answered_questions_first(company: Program, rows: list[str]) -> None:
    path = write_sheet(company, ROWS)
    make_plan(company, path, *RUN)
    re_sign_plan(company, lambda document: document.update(answered=["payee.twice 0"]))
    assert company.json("submit", path, *RUN, "--plan", plan_file(company))["exit_code"] == 8, "a forged answer"
    assert company.record() == []
    make_plan(company, path, *RUN)
    approve_and_submit(company, path, *RUN)
    corrected = write_sheet(company, rows, "corrected.csv")
    assert make_plan(company, corrected, *RUN)["exit_code"] == 3
    names = [option for line in rows if line not in ROWS for option in ("--new-payee", line.split(",")[3])]
    plan = make_plan(company, corrected, *RUN, *names, "--repeats-meant")
    assert (plan["exit_code"], plan["rows"]) == (0, 1)
    assert plan["findings"][0]["code"] in {"reference.used", "payee.twice"}
    output = company.run("approve", plan_file(company)).stdout
    assert output.index("Could someone be paid twice?") < output.index("payment in all")
    assert approve_and_submit(company, corrected, *RUN)["sent_this_run"] == 1


def test_all_warnings_about_double_payment_are_shown(company: Program) -> None:
    make_plan(company, write_with_ids(company, [build_row(1, name=f"Person {n}") for n in range(30)]))
    output = company.run("approve", plan_file(company)).stdout
    assert all(f"Person {n}," in output for n in range(30))
