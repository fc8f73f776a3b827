"""Rejected rows and their next attempts."""

import pytest

from tests.cli.stopped import stop_process, wait_for_first_payment
from tests.support.program import Program, kenyan_rows, read_csv

SECOND_TIME_LUCKY = """
[default]
status = "approved"

[[rule]]
order_id = "PAY-[0-9]+"
amount_whole = 9001
status = "declined"
commits = false

[[rule]]
amount_whole = 9008
fault = "drop_before"
"""


@pytest.fixture
def forgiving_gateway(program: Program) -> Program:
    """Configure a gateway that declines 9001 under the first order id, and pays it under the next."""
    (program.home / "forgiving.toml").write_text(SECOND_TIME_LUCKY)
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "forgiving.toml"\n')
    return program


def submit_mixed_sheet(program: Program) -> str:
    """Submit two good rows (2 and 3), two that are declined (4, 5) and one in doubt (6). Return the batch."""
    rows = [
        *kenyan_rows(2, prefix="GOOD"),
        *kenyan_rows(2, amount="9001"),
        *kenyan_rows(1, amount="9008", prefix="LOST"),
    ]
    summary = program.json("submit", program.sheet(rows))
    assert summary["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
    return str(summary["batch"])


def read_states(program: Program) -> list[str]:
    return [line["state"] for line in read_csv(program.home / "payroll.reconciliation.csv")]


def test_retry_sends_rejected_rows_with_next_order_id(forgiving_gateway: Program) -> None:
    batch = submit_mixed_sheet(forgiving_gateway)
    summary = forgiving_gateway.json("retry", batch)
    assert (summary["released"], summary["sent_this_run"], summary["exit_code"]) == (2, 2, 5)
    assert summary["states"] == {"in_doubt": 1, "paid": 4}
    lines = read_csv(summary["reconciliation"])
    assert [line["sent_orderid"] for line in lines[2:4]] == ["PAY-1-r2", "PAY-2-r2"]
    assert [line["attempts"] for line in lines] == ["1", "1", "2", "2", "1"]


def test_retry_of_one_row_keeps_other_row_rejected(forgiving_gateway: Program) -> None:
    batch = submit_mixed_sheet(forgiving_gateway)
    assert forgiving_gateway.json("retry", batch, "--row", "5")["released"] == 1
    assert read_states(forgiving_gateway) == ["paid", "paid", "rejected", "paid", "in_doubt"]


def test_retry_can_reuse_order_id(forgiving_gateway: Program) -> None:
    forgiving_gateway.config.write_text(f'{forgiving_gateway.config.read_text()}\n[retry]\norder_id = "same"\n')
    batch = submit_mixed_sheet(forgiving_gateway)
    summary = forgiving_gateway.json("retry", batch)
    assert summary["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
    assert {line["sent_orderid"] for line in read_csv(summary["reconciliation"])[2:4]} == {"PAY-1", "PAY-2"}


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("row", "why"), [("2", "is paid"), ("6", "is in doubt and may have been paid"), ("99", "has no such row")]
)
def test_retry_refuses_row_not_rejected(forgiving_gateway: Program, row: str, why: str) -> None:
    batch = submit_mixed_sheet(forgiving_gateway)
    before = forgiving_gateway.record()
    result = forgiving_gateway.run("retry", batch, "--row", "4", "--row", row)
    assert result.exit_code == 2
    assert why in result.stderr
    assert forgiving_gateway.record() == before
    assert forgiving_gateway.json("status", batch)["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}


def test_retry_without_rejected_rows_sends_nothing(program: Program) -> None:
    batch = program.json("submit", program.sheet(kenyan_rows(2)))["batch"]
    summary = program.json("retry", batch)
    assert (summary["released"], summary["sent_this_run"], summary["exit_code"]) == (0, 0, 0)
    assert "Nothing to retry" in summary["message"]


def test_retry_records_person_in_journal(program: Program) -> None:
    batch = program.json("submit", program.sheet(kenyan_rows(1, amount="9001")))["batch"]
    program.json("retry", batch, "--by", "Ada in finance")
    opened, released = program.json("status", batch, "--history")["history"]
    assert (opened["what"], opened["row"]) == ("opened", None)
    assert opened["by"]
    assert (released["what"], released["row"], released["attempt"]) == ("released", 2, 1)
    assert released["by"].startswith("Ada in finance (login ")
    assert released["said"] == "next attempt as PAY-1-r2"


def test_running_batch_is_not_retried(forgiving_gateway: Program) -> None:
    (forgiving_gateway.home / "forgiving.toml").write_text("[default]\ndelay_s = 0.2\n")
    sheet = forgiving_gateway.sheet(kenyan_rows(40))
    process = forgiving_gateway.start("submit", sheet)
    wait_for_first_payment(forgiving_gateway, process)
    with stop_process(process):
        result = forgiving_gateway.run("retry", sheet)
    process.communicate()
    assert result.exit_code == 7
    assert "nother run is using this journal" in result.stderr
