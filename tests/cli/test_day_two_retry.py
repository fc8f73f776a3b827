"""Rejected rows and their next attempts."""

from contextlib import closing

import pytest

from paygw_batch.journal.lock import RunLock, lock_path
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
def program(program: Program) -> Program:
    """Configure a gateway that declines 9001 under the first order id, and pays it under the next."""
    (program.home / "forgiving.toml").write_text(SECOND_TIME_LUCKY)
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "forgiving.toml"\n')
    return program


@pytest.fixture
def batch(program: Program) -> str:
    """Submit two good rows (2 and 3), two that are declined (4, 5) and one in doubt (6)."""
    rows = [
        *kenyan_rows(2, prefix="GOOD"),
        *kenyan_rows(2, amount="9001"),
        *kenyan_rows(1, amount="9008", prefix="LOST"),
    ]
    summary = program.json("submit", program.sheet(rows))
    assert summary["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
    return str(summary["batch"])


def test_retry_sends_rejected_rows_with_next_order_id(program: Program, batch: str) -> None:
    summary = program.json("retry", batch, "--row", "5", "--by", "Ada in finance")
    lines = read_csv(summary["reconciliation"])
    assert [line["state"] for line in lines] == ["paid", "paid", "rejected", "paid", "in_doubt"]
    opened, released = program.json("status", batch, "--history")["history"]
    assert (opened["what"], opened["row"], bool(opened["by"])) == ("opened", None, True)
    assert (released["what"], released["row"], released["attempt"]) == ("released", 5, 1)
    assert released["by"].startswith("Ada in finance (login ")
    assert released["said"] == "next attempt as PAY-2-r2"
    summary = program.json("retry", batch)
    assert (summary["released"], summary["sent_this_run"], summary["exit_code"]) == (1, 1, 5)
    lines = read_csv(summary["reconciliation"])
    assert [line["sent_orderid"] for line in lines[2:4]] == ["PAY-1-r2", "PAY-2-r2"]
    assert [line["attempts"] for line in lines] == ["1", "1", "2", "2", "1"]
    summary = program.json("retry", batch)
    assert (summary["released"], summary["sent_this_run"], summary["exit_code"]) == (0, 0, 5)
    assert "Nothing to retry" in summary["message"]


def test_retry_can_reuse_order_id(program: Program, batch: str) -> None:
    program.config.write_text(f'{program.config.read_text()}\n[retry]\norder_id = "same"\n')
    summary = program.json("retry", batch)
    assert summary["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
    assert {line["sent_orderid"] for line in read_csv(summary["reconciliation"])[2:4]} == {"PAY-1", "PAY-2"}


def test_retry_refuses_unrejected_row(program: Program, batch: str) -> None:
    before = program.record()
    for row, why in (("2", "is paid"), ("6", "is in doubt and may have been paid"), ("99", "The batch has no row 99")):
        result = program.run("retry", batch, "--row", "4", "--row", row)
        assert (result.exit_code, why in result.stderr) == (2, True)
    lock = RunLock(lock_path(program.journal), now="2026-11-22T00:00:00.000Z", command="submit")
    with closing(lock):
        result = program.run("retry", batch)
    assert (result.exit_code, "nother run is using this journal" in result.stderr) == (7, True)
    assert program.record() == before
    assert program.json("status", batch)["states"] == {"in_doubt": 1, "paid": 2, "rejected": 2}
