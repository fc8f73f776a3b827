"""Sheets without order ids that people correct: whatever they change, everybody is paid once."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.sheets import workbook
from tests.support.approving import plan_of, policy, signed_again
from tests.support.program import Program, sandbox_toml

HEADING = "country,amount,currency,account_name,account_number,phone"
PEOPLE = ("Zo\u00e9 Wanjiru", "Brian O\u2019Kip", "Carol Njeri", "David Mutua", "Esther Akinyi", "Francis Ouma")
RUN = ("--reference", "october")


def row(n: int, name: str = "", amount: str = "", account: str = "") -> str:
    number = account or f"254712345{n:03}"
    return f"KE,{amount or f'{1000 + n}.00'},KES,{name or PEOPLE[n - 1]},{number},+{number}"


ROWS = [row(n) for n in range(1, 7)]


def sheet(program: Program, rows: list[str], name: str = "payroll.csv", heading: str = HEADING) -> Path:
    return program.sheet(rows, name, heading)


@pytest.fixture
def paid(program: Program) -> Program:
    assert program.json("submit", sheet(program, ROWS), *RUN)["states"] == {"paid": 6}
    return program


def codes(summary: dict[str, Any]) -> set[str]:
    return {line["code"] for name in ("defect_list", "warning_list") for line in summary.get(name, [])}


def changed(line: int, **values: str) -> list[str]:
    return [*ROWS[: line - 1], row(line, **values), *ROWS[line:]]


CHANGED = {
    "amount": changed(1, amount="2000.00"),
    "name in capitals": changed(1, name="ZO\u00c9 WANJIRU"),
    "name with two blanks": changed(3, name="Carol  Njeri"),
    "straight apostrophe": changed(2, name="Brian O'Kip"),
    "second surname": changed(1, name="Zo\u00e9 Wanjiru Kamau"),
}


@pytest.mark.parametrize("options", [[], ["--amend"], ["--skip-invalid"], ["--repeats-meant"]], ids=str)
@pytest.mark.parametrize("rows", CHANGED.values(), ids=CHANGED)
def test_changed_row_of_paid_payee_is_conflict(paid: Program, rows: list[str], options: list[str]) -> None:
    summary = paid.json("submit", sheet(paid, rows, "corrected.csv"), *RUN, *options)
    assert summary["exit_code"] == (4 if options == ["--skip-invalid"] else 3)
    assert len(paid.record()) == 6


def test_conflict_names_person_and_payment(paid: Program) -> None:
    result = paid.run("submit", sheet(paid, CHANGED["amount"], "corrected.csv"), *RUN)
    told = " ".join(result.stdout.split())
    (order,) = {one["client_orderid"] for one in paid.record() if one["amount"] == "1001.00"}
    for part in (
        "Row 2, amount",
        PEOPLE[0],
        "KES 1001.00",
        "254712345001",
        order,
        time.strftime("%Y-%m-%d", time.gmtime()),
    ):
        assert part in told, part


SAME = {
    "as it was": ROWS,
    "reordered": ROWS[::-1],
    "another form of Unicode": changed(1, name="Zoe\u0301 Wanjiru"),
    "no-break blank": changed(3, name="Carol\u00a0Njeri "),
    "fewer decimals": changed(4, amount="1004"),
    "another spelling of numbers": [
        *ROWS[:-1],
        ROWS[-1].replace("254712345006,+254712345006", "0712 345 006,0712345006"),
    ],
}


@pytest.mark.parametrize("rows", SAME.values(), ids=SAME)
def test_repeated_payments_send_nothing(paid: Program, rows: list[str]) -> None:
    summary = paid.json("submit", sheet(paid, rows, "again.csv"), *RUN)
    assert (summary["exit_code"], summary["sent_this_run"], summary["known"]) == (0, 0, 6)
    quiet = paid.run("-q", "submit", sheet(paid, rows, "again.csv"), *RUN)
    assert "6" in quiet.stdout
    assert len(paid.record()) == 6


NEW = {
    "corrected account": changed(1, account="254712345999"),
    "one more person": [*ROWS, row(7, name="Grace Atieno")],
    "one person instead of another": [*ROWS[:-1], row(7, name="Grace Atieno")],
}


@pytest.mark.parametrize("rows", NEW.values(), ids=NEW)
def test_new_payee_of_used_reference_is_asked_about(paid: Program, rows: list[str]) -> None:
    path = sheet(paid, rows, "corrected.csv")
    (new,) = {line.split(",")[3] for line in rows if line not in ROWS}
    refused = paid.json("submit", path, *RUN)
    assert (refused["exit_code"], refused["code"]) == (3, "reference.used")
    assert new in refused["message"]
    assert paid.json("submit", path, *RUN, "--new-payee", "Somebody Else")["exit_code"] == 3
    assert paid.json("submit", path, *RUN, "--repeats-meant", "--skip-invalid", "--amend")["exit_code"] == 3
    assert len(paid.record()) == 6
    meant = paid.json("submit", path, *RUN, "--new-payee", new.upper())
    assert (meant["exit_code"], meant["sent_this_run"]) == (0, 1)


@pytest.mark.parametrize("heading", ["staff_number", "Staff No"])
def test_corrected_account_of_staff_number_is_conflict(program: Program, heading: str) -> None:
    if heading != "staff_number":
        program.config.write_text(f'{program.config.read_text()}\n[sheet]\ncolumn_profile = "payroll-english"\n')
    rows = [f"{n:05},{row(n)}" for n in range(1, 4)]
    columns = f"{heading},{HEADING}"
    assert program.json("submit", sheet(program, rows, heading=columns), *RUN)["states"] == {"paid": 3}
    corrected = [f"00001,{row(1, account='254712345999')}", *rows[1:]]
    summary = program.json("submit", sheet(program, corrected, "corrected.csv", columns), *RUN, "--skip-invalid")
    assert (summary["exit_code"], summary["sent_this_run"]) == (4, 0)
    without = program.json("submit", sheet(program, ROWS[:3], "without.csv"), *RUN, "--skip-invalid")
    assert without["exit_code"] in {3, 4}
    assert len(program.record()) == 3


def test_reconciliation_contains_staff_number(program: Program) -> None:
    path = sheet(program, [f"00001,{ROWS[0]}"], heading=f"Staff Number,{HEADING}")
    summary = program.json("submit", path, *RUN)
    assert "00001" in Path(summary["reconciliation"]).read_text()


@pytest.mark.parametrize(
    "several", [ROWS * 2, [*ROWS, ROWS[2]], [*ROWS, row(3, amount="77.00")]], ids=["all", "one", "bonus"]
)
def test_payee_on_several_rows_is_asked_about(program: Program, several: list[str]) -> None:
    path = sheet(program, several)
    refused = program.json("submit", path, *RUN)
    assert (refused["exit_code"], refused["code"]) == (3, "payee.twice")
    assert PEOPLE[2] in refused["message"]
    assert program.record() == []
    assert program.json("submit", path, *RUN, "--repeats-meant")["sent_this_run"] == len(several)
    moved = program.json("submit", sheet(program, several[::-1], "moved.csv"), *RUN)
    assert (moved["exit_code"], moved["sent_this_run"]) == (0, 0)


def test_row_pasted_after_payment_is_asked_about(paid: Program) -> None:
    path = sheet(paid, [*ROWS, ROWS[0]], "pasted.csv")
    assert paid.json("submit", path, *RUN)["code"] in {"payee.twice", "reference.used"}
    assert paid.json("submit", path, *RUN, "--amend", "--skip-invalid")["exit_code"] == 3
    assert len(paid.record()) == 6


@pytest.mark.parametrize("amounts", [("1001.00",), ("5.00", "1001.00"), ("1001.00", "7.00", "5.00")], ids=str)
def test_payee_with_several_payments_is_never_amended(program: Program, amounts: tuple[str, ...]) -> None:
    """One of two payments is rejected, the other is paid: the paid one never takes its place."""
    first = sheet(program, [row(1, amount="9001.00"), row(1)])
    assert program.json("submit", first, *RUN, "--repeats-meant")["states"] == {"paid": 1, "rejected": 1}
    again = sheet(program, [row(1, amount=amount) for amount in amounts], "again.csv")
    program.json("submit", again, *RUN, "--amend", "--skip-invalid", "--repeats-meant")
    assert Counter(line["amount"] for line in program.record())["1001.00"] == 1


@pytest.mark.parametrize("rows", [ROWS[:4], [f"{line},May" for line in ROWS]], ids=["fewer", "other month"])
def test_reference_used_for_different_file_is_refused(paid: Program, rows: list[str]) -> None:
    heading = HEADING if rows == ROWS[:4] else f"{HEADING},month"
    summary = paid.json("submit", sheet(paid, rows, "november.csv", heading), *RUN)
    assert (summary["exit_code"], summary["code"], summary["sent_this_run"]) == (3, "reference.used", 0)


def test_rejected_payee_is_amended(program: Program) -> None:
    assert program.json("submit", sheet(program, changed(1, amount="9001.00")), *RUN)["exit_code"] == 4
    corrected = sheet(program, ROWS, "corrected.csv")
    assert program.json("submit", corrected, *RUN)["exit_code"] == 3
    assert program.json("submit", corrected, *RUN, "--amend")["sent_this_run"] == 1


def test_payee_repeated_on_second_worksheet_stops_submission(program: Program) -> None:
    path = workbook(program.home / "pay.xlsx", HEADING, May=ROWS[:3], June=[ROWS[0], *ROWS[3:]])
    first = program.json("submit", path, "--worksheet", "May", *RUN)
    assert (first["exit_code"], first["sent_this_run"]) == (0, 3)
    names = [option for name in PEOPLE[3:] for option in ("--new-payee", name)]
    second = program.json("submit", path, "--worksheet", "June", *RUN, *names)
    assert (second["exit_code"], second["sent_this_run"]) == (3, 0)
    assert len(program.record()) == 3


# The drop folder


def dropped(
    program: Program, folder: Path, rows: list[str], name: str, note: str = 'reference = "october"\n'
) -> dict[str, Any]:
    path = sheet(program, rows, f"drop/{name}")
    Path(f"{path}.toml").write_text(note)
    for one in (path, Path(f"{path}.toml")):
        os.utime(one, (time.time() - 3600,) * 2)
    summary = program.json("run-folder", folder)
    (only,) = summary["sheets"]
    return {**only, "exit_code": summary["exit_code"]}


def test_folder_refuses_sheets_with_unanswered_questions(program: Program, folder: Path) -> None:
    assert dropped(program, folder, ROWS, "october.csv")["exit_code"] == 0
    for name, rows in {**CHANGED, **NEW, "twice": [*ROWS, *ROWS]}.items():
        assert dropped(program, folder, rows, "corrected.csv")["exit_code"] == 3, name
    assert len(program.record()) == 6
    note = 'reference = "october"\nnew_payees = ["Grace Atieno"]\n'
    assert dropped(program, folder, NEW["one more person"], "corrected.csv", note)["exit_code"] == 0
    assert len(program.record()) == 7


def test_quiet_folder_says_nothing_was_sent(program: Program, folder: Path) -> None:
    dropped(program, folder, ROWS, "october.csv")
    path = sheet(program, ROWS, "drop/again.csv")
    Path(f"{path}.toml").write_text('reference = "october"\n')
    for one in (path, Path(f"{path}.toml")):
        os.utime(one, (time.time() - 3600,) * 2)
    result = program.run("-q", "run-folder", folder)
    assert result.exit_code == 0
    assert "6" in result.stdout


# Two people


@pytest.fixture
def careful(program: Program) -> Program:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "1"'))
    return program


def plan(program: Program, path: Path, *options: str) -> dict[str, Any]:
    return program.json("plan", path, "--out", plan_of(program), "--force", "--key", program.home / "ada.pem", *options)


def approve_and_submit(program: Program, path: Path, *options: str) -> dict[str, Any]:
    approved = program.json("approve", plan_of(program), "--key", program.home / "cleo.pem")
    assert approved["exit_code"] == 0
    return program.json("submit", path, "--plan", plan_of(program), *options)


def with_ids(rows: list[str]) -> list[str]:
    return [f"ID-{n},{line}" for n, line in enumerate(rows, 1)]


def test_plan_counts_only_unsent_rows(careful: Program) -> None:
    heading = f"client_orderid,{HEADING}"
    path = sheet(careful, with_ids(ROWS[:4]), heading=heading)
    plan(careful, path)
    assert approve_and_submit(careful, path)["sent_this_run"] == 4
    longer = sheet(careful, with_ids(ROWS), "longer.csv", heading)
    made = plan(careful, longer)
    assert (made["rows"], made["known"], made["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert len(made["people"]) == 2
    known = [one for one in made["findings"] if one["code"] == "payee.sent_before"]
    assert [one["row"] for one in known] == [2, 3, 4, 5]
    approved = careful.json("approve", plan_of(careful))
    assert (approved["rows"], approved["totals"]) == (2, {"KES": {"ready": "2011.00"}})
    shown = careful.run("approve", plan_of(careful)).stdout
    assert "2 payments in all" in shown
    dry = careful.json("submit", longer, "--dry-run")
    assert (dry["rows"], dry["known"], dry["totals"]) == (2, 4, {"KES": {"ready": "2011.00"}})
    assert approve_and_submit(careful, longer)["sent_this_run"] == 2


def test_approval_threshold_counts_only_unsent_rows(careful: Program) -> None:
    heading = f"client_orderid,{HEADING}"
    path = sheet(careful, with_ids(ROWS[:4]), heading=heading)
    plan(careful, path)
    approve_and_submit(careful, path)
    text = careful.config.read_text().replace('KES = "1"', 'KES = "2000"')
    careful.config.write_text(text)
    small = sheet(careful, with_ids(ROWS[:5]), "small.csv", heading)
    assert careful.json("submit", small)["sent_this_run"] == 1
    large = sheet(careful, [*with_ids(ROWS), f"ID-7,{row(7, 'Grace Atieno')}"], "large.csv", heading)
    assert careful.json("submit", large)["exit_code"] == 8


def test_plan_is_outdated_after_some_rows_were_sent(careful: Program) -> None:
    heading = f"client_orderid,{HEADING}"
    path = sheet(careful, with_ids(ROWS), heading=heading)
    plan(careful, path)
    kept = plan_of(careful).read_bytes()
    some = sheet(careful, with_ids(ROWS)[:2], "some.csv", heading)
    plan(careful, some)
    assert approve_and_submit(careful, some)["sent_this_run"] == 2
    plan_of(careful).write_bytes(kept)
    assert approve_and_submit(careful, path)["exit_code"] == 8
    assert len(careful.record()) == 2


@pytest.mark.parametrize("rows", [*NEW.values(), [*ROWS, ROWS[0]]], ids=[*NEW, "pasted"])
def test_approver_sees_answered_questions_first(careful: Program, rows: list[str]) -> None:
    path = sheet(careful, ROWS)
    plan(careful, path, *RUN)
    approve_and_submit(careful, path, *RUN)
    corrected = sheet(careful, rows, "corrected.csv")
    assert plan(careful, corrected, *RUN)["exit_code"] == 3
    names = [option for line in rows if line not in ROWS for option in ("--new-payee", line.split(",")[3])]
    made = plan(careful, corrected, *RUN, *names, "--repeats-meant")
    assert made["exit_code"] == 0
    assert made["rows"] == 1
    assert made["findings"][0]["code"] in {"reference.used", "payee.twice"}
    shown = careful.run("approve", plan_of(careful)).stdout
    assert shown.index("Could somebody be paid twice?") < shown.index("payment in all")
    assert approve_and_submit(careful, corrected, *RUN)["sent_this_run"] == 1


def test_plan_with_forged_answers_is_refused(careful: Program) -> None:
    """A plan whose maker signs an answer that no question asks for, or hides one, opens nothing."""
    path = sheet(careful, ROWS)
    plan(careful, path, *RUN)
    signed_again(careful, lambda document: document.update(answered=["payee.twice 0"]))
    assert careful.json("submit", path, *RUN, "--plan", plan_of(careful))["exit_code"] == 8
    assert careful.record() == []


@pytest.mark.parametrize("count", [30])
def test_all_warnings_about_double_payment_are_shown(careful: Program, count: int) -> None:
    rows = [row(1, name=f"Person {n}") for n in range(count)]
    path = sheet(careful, [f"ID-{n},{line}" for n, line in enumerate(rows)], heading=f"client_orderid,{HEADING}")
    plan(careful, path)
    shown = careful.run("approve", plan_of(careful)).stdout
    assert all(f"Person {n}," in shown for n in range(count))


# The story


def test_payroll_of_forty_is_corrected_five_times(careful: Program) -> None:
    people = [f"Person Number{n}" for n in range(1, 41)]
    rows = [row(n, name=people[n - 1]) for n in range(1, 41)]
    one_more = row(50, name="Grace Atieno")
    path = sheet(careful, rows)
    plan(careful, path, *RUN)
    assert approve_and_submit(careful, path, *RUN)["sent_this_run"] == 40
    corrections = {
        "amount": [row(1, name=people[0], amount="9999.00"), *rows[1:]],
        "account": [row(1, name=people[0], account="254712345999"), *rows[1:]],
        "name": [row(1, name="Person Number One"), *rows[1:]],
        "a row less": rows[:-1],
    }
    for name, corrected in corrections.items():
        assert plan(careful, sheet(careful, corrected, f"{name}.csv"), *RUN)["exit_code"] == 3, name
    more = sheet(careful, [*rows, one_more], "more.csv")
    made = plan(careful, more, *RUN, "--new-payee", "Grace Atieno")
    assert (made["rows"], made["known"], made["totals"]) == (1, 40, {"KES": {"ready": "1050.00"}})
    assert approve_and_submit(careful, more, *RUN)["sent_this_run"] == 1
    paid = Counter(line["account_number"] for line in careful.record())
    assert set(paid.values()) == {1}
    assert len(paid) == 41
    assert json.loads(plan_of(careful).read_text())["content"]["known"] == 40
