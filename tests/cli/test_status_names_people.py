"""`status` names the people in doubt, and the sender of a running batch, whose rows are in flight."""

from pathlib import Path

import pytest

from tests.cli.paying import block_first_reply, run_gateway
from tests.support.program import Program, kenyan_rows


def test_status_lists_payees_in_doubt_together(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3, amount="9007"))
    batch = program.json("submit", sheet)["batch"]
    lines = program.run("status", sheet).stdout.splitlines()
    named = [line for line in lines if line.startswith("- Row ")]
    assert len(named) == 3
    assert "KES 9,007 to Jane Wanjiku (...001), order PAY-1, since 20" in named[0]
    output = " ".join(lines)
    assert output.count("do not pay them by other means") == 1
    assert f"paygw-batch resolve row {batch} 2 --as paid --evidence TEXT" in output


def test_status_shows_sender_of_rows_in_flight(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    with run_gateway(program) as gateway, block_first_reply(program, gateway, "submit", sheet):
        summary = program.json("status", sheet)
        assert summary["states"].get("in_flight", 0) > 0
        assert (summary["states"].get("in_doubt", 0), summary["needs_person"]) == (0, [])
        result = program.run("status", sheet)
        assert "`paygw-batch submit` (process " in result.stdout
        assert "0 of 3 rows have an answer" in result.stdout


@pytest.mark.parametrize("name", ["payroll.csv"])
def test_status_shows_replaced_row_as_replaced(program: Program, name: str) -> None:
    program.json("submit", program.sheet(kenyan_rows(1, amount="9001"), name))
    first = program.json("status")["batches"][0]["batch"]
    amended: Path = program.sheet(kenyan_rows(1, amount="10"), name)
    assert program.json("submit", amended, "--amend")["states"] == {"paid": 1}
    (line,) = [line for line in program.run("status", first).stdout.splitlines() if "9,001.00" in line]
    assert line.split()[:4] == ["KE", "KES", "replaced", "1"]
