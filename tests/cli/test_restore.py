"""docs/journals.md, followed step by step: a journal is restored from a copy, and nobody is paid twice."""

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cli.listening import AUTHENTIC, count_acknowledged, count_findings, merchant_and_gateway, start_process
from tests.support.patience import wait_until
from tests.support.ports import wait_for_server
from tests.support.program import ROOT, Program, kenyan_rows, read_csv

BEHAVIOUR = """
default = { status = "approved" }
rule = [
    # The second row after the copy: accepted, and its final word comes as a notification.
    { order_id = "PAY-4", status = "processing" },
    # Declined the first time, and paid under the order id of a retry.
    { order_id = "BEFORE-2", status = "declined", commits = false },
]
notification = [{ order_id = "PAY-4", status = "approved" }]
"""
ALL_OF_IT = ["BEFORE-1", "BEFORE-2-r2", "BONUS-1", "PAY-1", "PAY-2", "PAY-3", "PAY-4"]
"""The orders that were paid before the journal was lost. PAY-5 was never sent."""


@dataclass
class Office:
    """A program whose journal was lost, and the values of the page's placeholders."""

    program: Program
    words: dict[str, str] = field(default_factory=dict)

    def record(self) -> list[dict[str, str]]:
        record = read_csv(self.program.home / "gateway" / "sandbox-record.csv")
        return [line for line in record if line["committed"] == "yes"]

    def paid(self) -> list[str]:
        return sorted(line["client_orderid"] for line in self.record())

    def carry_out(self, lines: list[str]) -> str:
        """Run documented commands unchanged with the exit codes that they name. Return their output."""
        output = ""
        for line in lines:
            for word, value in self.words.items():
                line = line.replace(word, value)  # noqa: PLW2901 - the documented line, with this machine's names
            if not line.startswith("paygw-batch"):
                stub = "systemctl() { :; }; "  # this test runs no services
                subprocess.run(["sh", "-euc", stub + line], cwd=self.program.home, check=True)
                continue
            stated = re.search(r"# exit (\d)", line)
            expected = int(stated[1]) if stated else 0
            words = shlex.split(line, comments=True)[1:]
            if words[:2] == ["journal", "adopt"]:
                words.append("--yes")  # there is no terminal here
            result = self.program.run(*words)
            assert result.exit_code == expected, (line, result.stdout, result.stderr)
            output += result.stdout + result.stderr
        return output


def section_commands(heading: str) -> list[list[str]]:
    section = (ROOT / "docs" / "journals.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)]


@pytest.fixture
def office(program: Program) -> Iterator[Office]:
    """Copy the journal on Monday, pay more after that, and have the gateway send some notifications."""
    with merchant_and_gateway(program, behaviour=BEHAVIOUR, notifications=AUTHENTIC) as (port, callbacks):
        before = program.sheet(kenyan_rows(2, prefix="BEFORE", amount="900"), name="before.csv")
        program.json("submit", before)
        payroll = program.sheet(kenyan_rows(5))
        batch = program.json("submit", payroll, "--first", "2")["batch"]
        backup = program.home / "backup"
        backup.mkdir(mode=0o700)
        words = {"/var/lib/paygw": str(program.home), "/srv/backup": str(backup), "BATCH": batch}
        with start_process(program, "listen", config=program.config) as listener:
            wait_for_server(port, listener)
            Office(program, words).carry_out(section_commands("Making a backup")[0])
            program.json("submit", payroll, "--first", "2")
            program.json("retry", before)
            program.json("submit", program.sheet(kenyan_rows(1, prefix="BONUS", amount="50"), name="bonus.csv"))
            wait_until(lambda: count_acknowledged(callbacks)["approved"] == 1, "the gateway did not call")
        office = Office(program, words)
        assert office.paid() == ALL_OF_IT
        yield office


def write_statement(office: Office) -> None:
    """Write the orders that the gateway carried out, as its support would."""
    lines = [f"{one['client_orderid']},{one['amount']},{one['currency']},approved" for one in office.record()]
    statement = office.program.home / "statement.csv"
    statement.write_text("\n".join(["order_id,amount,currency,status", *lines, ""]))
    office.words["statement.csv"] = str(statement)


def finish_restoration(office: Office, go_on: list[str]) -> None:
    """Do the last steps of both restorations, and check the gateway's record."""
    program = office.program
    office.carry_out(go_on)
    assert office.paid() == sorted([*ALL_OF_IT, "PAY-5"])
    assert program.json("submit", program.home / "payroll.csv")["states"] == {"paid": 5}
    assert program.json("resume", program.home / "before.csv")["states"] == {"paid": 2}
    assert max(Counter(office.paid()).values()) == 1


def test_restore_on_same_host_never_pays_twice(office: Office) -> None:
    program = office.program
    replace, adopt, settle, held, go_on = section_commands("Restoring on the same host")
    office.words["SHEET"] = str(program.home / "before.csv")
    office.carry_out(replace)
    assert program.json("submit", program.home / "payroll.csv")["exit_code"] == 7
    assert "BEFORE-2-r2" in office.carry_out(adopt)
    assert program.json("status", office.words["BATCH"])["states"] == {"in_doubt": 2, "paid": 2, "ready": 1}
    write_statement(office)
    output = office.carry_out(settle)
    assert all(f"The journal has no order {order}" in output for order in ("BONUS-1", "BEFORE-2-r2"))
    assert program.json("status", office.words["BATCH"])["states"] == {"paid": 4, "ready": 1}
    assert "Ask the gateway what happened to order BEFORE-2-r2, then" in " ".join(office.carry_out(held).split())
    again = program.json("submit", program.home / "bonus.csv")
    assert (again["exit_code"], again["sent_this_run"], again["states"]) == (5, 0, {"ready": 1})
    assert "paygw-batch resume" not in again["message"]
    assert office.paid() == ALL_OF_IT
    bonus = program.home / "bonus.csv"
    assert program.run("resolve", "row", bonus, "2", "--as", "paid", "--evidence", "Statement").exit_code == 0
    finish_restoration(office, go_on)


def test_restore_on_another_host_never_pays_twice(office: Office) -> None:
    program = office.program
    for path in (*program.home.glob("*journal.sqlite3*"), program.home / "state"):
        path.rename(path.with_name(f"old-host-{path.name}"))
    copy, hold, settle = section_commands("Restoring on another host")
    *_, go_on = section_commands("Restoring on the same host")
    office.carry_out(copy)
    write_statement(office)
    output = office.carry_out(hold)
    expected = ("row 4 was never sent", "The journal has no order BONUS-1", "The journal has no order BEFORE-2-r2")
    assert [part for part in expected if part not in output] == []
    assert program.json("resume", office.words["BATCH"])["states"] == {"paid": 3, "ready": 2}
    assert office.paid() == sorted([*ALL_OF_IT, "PAY-5"])
    office.carry_out(settle)
    # In the copy BEFORE-2 is rejected, but it was paid since as BEFORE-2-r2, so the statement holds it.
    before = program.home / "before.csv"
    assert program.json("resume", before)["states"] == {"paid": 1, "rejected": 1}
    status = program.json("status", before)
    (row,) = status["needs_person"]
    assert (status["exit_code"], row["state"], row["held_orders"]) == (5, "rejected", ["BEFORE-2-r2"])
    assert "Do not pay this row in any other way" in row["next"]
    corrected = program.sheet(kenyan_rows(2, prefix="BEFORE", amount="901"), name="corrected.csv")
    assert "Settle it first" in " ".join(program.run("submit", corrected, "--amend").stdout.split())
    assert program.json("retry", before)["states"] == {"paid": 1, "ready": 1}
    assert program.json("resume", before)["exit_code"] == 5
    result = program.run("resolve", "row", before, "3", "--as", "paid", "--evidence", "Statement, as BEFORE-2-r2")
    assert result.exit_code == 0, result.stderr
    assert program.json("resume", before)["states"] == {"paid": 2}
    finish_restoration(office, go_on)
    assert count_findings(program)["contradicting"] == 3  # the notification was lost
