"""The gateway as it really answers: what the operator's configuration says of it decides how a run goes."""

from importlib.metadata import version

from tests.cli.program import Program, kenyan_rows, read_csv, sandbox_toml
from tests.cli.test_collect import HEADING as COLLECTING
from tests.cli.test_collect import customers

NAMES = """
[reply]
order_id = ["order.merchant-id"]
amount = ["order.sum"]
amount_unit = "minor"
reference = ["bank-reference"]
error_code = ["error.code"]
message = ["error.text"]
"""


def test_a_gateway_that_repeats_under_other_names_pays_and_gives_its_reasons(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", '[submission]\nconnections = "reuse"') + NAMES)
    sheet = program.sheet([*kenyan_rows(3), *kenyan_rows(1, amount="9001.25", prefix="NO")])
    assert program.json("submit", sheet)["states"] == {"paid": 3, "rejected": 1}
    lines = read_csv(program.home / "payroll.reconciliation.csv")
    assert (lines[3]["error_code"], lines[3]["message"]) == ("9001", "Declined by the sandbox.")
    assert all(line["gateway_reference"] for line in lines)


def test_doctor_shows_the_names_of_a_reply(program: Program) -> None:
    program.config.write_text(program.config.read_text() + NAMES)
    found = {check["check"]: check["found"] for check in program.json("doctor")["checks"]}["replies"]
    assert "order id: order.merchant-id" in found
    assert "amount, in the smallest unit: order.sum" in found
    assert "currency: currency" in found


def test_an_empty_balance_does_not_reject_a_payroll_row_by_row(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(3), *kenyan_rows(60, amount="9001.00", prefix="NO")])
    summary = program.json("submit", sheet, "--concurrency", "4")
    assert summary["exit_code"] == 6
    assert "rows in a row were rejected for the same reason: 9001" in summary["message"]
    assert 10 <= summary["states"]["rejected"] <= 14
    assert summary["states"]["ready"] == 60 - summary["states"]["rejected"]
    assert summary["states"]["paid"] == 3


def test_a_stop_after_rejected_of_zero_never_stops(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", "[submission]\nstop_after_rejected = 0"))
    sheet = program.sheet(kenyan_rows(30, amount="9001.00"))
    assert program.json("submit", sheet)["states"] == {"rejected": 30}


def test_the_first_rows_are_paid_and_running_again_continues(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(5))
    summary = program.json("submit", sheet, "--first", "1")
    assert (summary["exit_code"], summary["states"]) == (6, {"paid": 1, "ready": 4})
    assert [order["client_orderid"] for order in program.record()] == ["PAY-1"]
    assert "resume" in summary["message"]
    program.json("submit", sheet, "--first", "2")
    assert [order["client_orderid"] for order in program.record()] == ["PAY-1", "PAY-2", "PAY-3"]
    assert program.json("submit", sheet)["exit_code"] == 0
    assert len(program.record()) == 5
    assert program.run("submit", sheet, "--first", "0").exit_code == 2


def test_the_first_customers_are_collected_from(program: Program) -> None:
    sheet = program.sheet(customers(3), heading=COLLECTING)
    summary = program.json("collect", sheet, "--first", "2")
    assert (summary["exit_code"], summary["states"]) == (6, {"paid": 2, "ready": 1})


def test_a_version_is_stated(program: Program) -> None:
    result = program.run("--version", config=False)
    assert result.exit_code == 0
    assert result.stdout == f"paygw-batch, version {version('paygw-batch')}\n"
