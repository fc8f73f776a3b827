"""A week in a finance office with real processes: 500 rows, some declined or in doubt, and how people handle them.

At the end the sandbox's own record shows that nobody was paid twice, and nobody was lost.
"""

import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stopped import stop_process, wait_for_first_payment
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

ROWS = 500

GATEWAY = """
[default]
status = "approved"

# Declined the first time, and paid under the order id of a retry.
[[rule]]
order_id = "PAY-[0-9]+"
amount_whole = 9001
status = "declined"
error_code = "9001"
commits = false

[[rule]]
amount_whole = 9007
fault = "drop_after"

[[rule]]
amount_whole = 9008
fault = "drop_before"
"""


@dataclass
class Office:
    """People at one machine, each with a key, who run the program as a process."""

    program: Program

    @property
    def home(self) -> Path:
        return self.program.home

    def do(self, *arguments: str | Path, expect: int) -> dict[str, Any]:
        """Run one command as a process, and return its summary."""
        process = self.program.start("--json", *arguments)
        said, errors = process.communicate()
        assert process.returncode == expect, errors + said
        summary: dict[str, Any] = json.loads(said)
        return summary

    def person(self, name: str) -> str:
        """Create a key for a person, and return its public half."""
        key = self.home / f"{name}.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
        key.chmod(0o600)
        result = subprocess.run(["openssl", "pkey", "-in", key, "-pubout"], check=True, capture_output=True, text=True)
        return result.stdout.splitlines()[1]

    def configure(self, *, quarantine_h: float, people: dict[str, str]) -> None:
        submission = f"[submission]\nquarantine_h = {quarantine_h}\nstop_after_in_doubt = 0"
        self.program.config.write_text(
            sandbox_toml().replace("[submission]", submission)
            + '\n[sandbox]\nbehaviour = "gateway.toml"\n[reporting]\nlog = "run.log"\n'
            + f'[approval.from_amount]\nKES = "100000"\n[approval.makers]\nada = "{people["ada"]}"\n'
            + f'[approval.approvers]\nben = "{people["ben"]}"\nada = "{people["ada"]}"\n'
        )


def payroll(program: Program) -> Path:
    """Return a sheet of 500 rows.

    Every 25th is declined at first, and almost every 50th is accepted without a reply.
    """
    amounts = dict.fromkeys(range(25, ROWS, 25), "9001") | dict.fromkeys(range(50, ROWS, 50), "9007") | {500: "9008"}
    rows = [row.replace("1500.50", amounts.get(n, "1500.50")) for n, row in enumerate(kenyan_rows(ROWS), start=1)]
    return program.sheet(rows)


@pytest.mark.long
def test_finance_week_leaves_every_row_paid_once(program: Program) -> None:
    office = Office(program)
    (program.home / "gateway.toml").write_text(GATEWAY)
    people = {name: office.person(name) for name in ("ada", "ben")}
    office.configure(quarantine_h=24, people=people)
    sheet = payroll(program)

    # Monday: the plan is not approved, then Ada tries to approve her own plan, then Ben approves it.
    plan = program.home / "payroll.plan.json"
    assert "needs an approved plan" in office.do("submit", sheet, expect=8)["message"]
    office.do("plan", sheet, "--out", plan, "--key", program.home / "ada.pem", expect=0)
    office.do("approve", plan, "--key", program.home / "ada.pem", expect=8)
    office.do("submit", sheet, expect=8)
    assert program.record() == []
    office.do("approve", plan, "--key", program.home / "ben.pem", expect=0)
    first = office.do("submit", sheet, expect=5)
    assert first["states"] == {"in_doubt": 10, "paid": 480, "rejected": 10}
    batch = first["batch"]

    # Tuesday: declined rows get another attempt. Rows in doubt do not.
    retried = office.do("retry", batch, "--by", "ada", expect=5)
    assert (retried["released"], retried["sent_this_run"]) == (10, 10)
    assert retried["states"] == {"in_doubt": 10, "paid": 490}

    # Wednesday: a statement arrives. One line is wrong, so nothing is changed. Then it is corrected.
    questions = program.home / "questions.csv"
    assert len(office.do("status", batch, "--in-doubt", "--out", questions, expect=5)["in_doubt"]) == 10
    asked = [line["order_id"] for line in read_csv(questions)]
    lines = [f"PAY-{n},9007,KES,approved" for n in range(50, ROWS, 50)]
    statement = program.home / "statement.csv"
    statement.write_text("\n".join(["order id,amount,currency,status", *lines[:-1], "PAY-450,907,KES,approved", ""]))
    refused = office.do("resolve", "statement", batch, statement, "--yes", expect=3)
    assert [difference["order_id"] for difference in refused["differences"]] == ["PAY-450"]
    assert office.do("status", batch, expect=5)["states"] == retried["states"]
    statement.write_text("\n".join(["order id,amount,currency,status", *lines, ""]))
    settled = office.do("resolve", "statement", batch, statement, "--yes", "--by", "ben", expect=5)
    assert (settled["resolved"], settled["still_in_doubt"]) == (9, [501])
    assert set(asked) == {f"PAY-{n}" for n in range(50, ROWS + 1, 50)}

    # Thursday: support says that the last order never arrived. That counts only after the quarantine, on Friday.
    by_hand = ["resolve", "row", batch, "501", "--as", "not-received", "--evidence", "Ticket 4711", "--by", "ada"]
    assert "settle it as not received from" in office.do(*by_hand, expect=2)["message"]
    office.configure(quarantine_h=0, people=people)
    assert "two people must agree" in office.do(*by_hand, expect=8)["message"]
    order = program.home / "order.json"
    written = ("--out", order, "--key", program.home / "ada.pem")
    office.do("order", "settle", *by_hand[2:-2], *written, expect=0)
    office.do("approve", order, "--key", program.home / "ada.pem", expect=8)
    office.do("carry-out", order, expect=8)
    office.do("approve", order, "--key", program.home / "ben.pem", expect=0)
    assert office.do("carry-out", order, "--by", "ada", expect=6)["states"] == {"ready": 1, "paid": 499}
    assert "is not sent yet after attempt 1" in office.do("carry-out", order, expect=8)["message"]
    (program.home / "gateway.toml").write_text('[default]\nstatus = "approved"\n')
    resumed = office.do("resume", batch, expect=0)
    assert (resumed["sent_this_run"], resumed["states"]) == (1, {"paid": 500})

    # Friday: the timer fires, and someone also starts it by hand. The dropped sheet is too small to need approval.
    run_folder_twice(office)

    check_record(office, batch)


def run_folder_twice(office: Office) -> None:
    program = office.program
    (program.home / "gateway.toml").write_text('[default]\nstatus = "approved"\ndelay_s = 0.2\n')
    folder = program.home / "drop"
    folder.mkdir()
    dropped = program.sheet(kenyan_rows(40, prefix="DROP", amount="77"), name="drop/bonus.csv")
    hour_ago = time.time() - 3600
    os.utime(dropped, (hour_ago, hour_ago))
    timer = program.start("--json", "run-folder", folder)
    wait_for_first_payment(program, timer, "DROP")
    with stop_process(timer):
        assert "nother run is using this journal" in office.do("run-folder", folder, expect=7)["message"]
    output, _ = timer.communicate()
    assert json.loads(output)["states"] == {"paid": 40}
    assert office.do("run-folder", folder, expect=0)["sheets"] == []


def check_record(office: Office, batch: str) -> None:
    program = office.program
    out = program.home / "final.csv"
    summary = office.do("reconcile", batch, "--out", out, expect=0)
    lines = read_csv(out)
    assert [line["client_orderid"] for line in lines] == [f"PAY-{n}" for n in range(1, ROWS + 1)]
    assert Counter(line["state"] for line in lines) == {"paid": ROWS}
    in_sheet = sum(Decimal(line["amount"]) for line in read_csv(program.home / "payroll.csv"))
    assert Decimal(summary["totals"]["KES"]["paid"]) == in_sheet
    committed = Counter(line["client_orderid"] for line in program.record() if line["committed"] == "yes")
    assert max(committed.values()) == 1
    assert {line["sent_orderid"] for line in lines} == {name for name in committed if name.startswith("PAY")}
    assert sum(name.startswith("DROP") for name in committed) == 40
    assert "possible duplicate of attempt 1" in lines[-1]["message"]
    assert office.do("verify", expect=0)["checked"]["contradictions"] == 0
    summarize_history(office.do("status", batch, "--history", expect=0)["history"])
    log = [json.loads(line) for line in (program.home / "run.log").read_text().splitlines()]
    assert [line["exit_code"] for line in log if line["event"] == "run_ended"].count(
        8
    ) == 5  # two from submit, three from resolve
    assert "Wanjiku" not in (program.home / "run.log").read_text()


def summarize_history(history: list[dict[str, Any]]) -> None:
    counts = Counter((deed["what"], deed["by"].split(" ")[0]) for deed in history)
    assert counts[("released", "ada")] == 10
    assert counts[("resolved_paid", "ben")] == 9
    assert counts[("resolved_not_received", "ada")] == 1
    approvals = [deed["said"] for deed in history if deed["what"] == "approved"]
    assert approvals[0].startswith("prepared by ada")
    assert approvals[1].startswith("approved by ben")
    assert [deed["at"] for deed in history] == sorted(deed["at"] for deed in history)
