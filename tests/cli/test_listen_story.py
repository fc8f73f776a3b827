"""The listener in use: real processes, and a sandbox that notifies late, twice, out of order and forged."""

import json
import signal
from collections import Counter

import pytest

from tests.cli.listening import (
    AUTHENTIC,
    TOKEN,
    count_acknowledged,
    count_findings,
    merchant_and_gateway,
    start_process,
)
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.ports import wait_for_server
from tests.support.program import Program, kenyan_rows, read_csv

ROWS = 300
BEHAVIOUR = """
[default]
status = "processing"
delay_s = 0.01

[[notification]]
status = "approved"
jitter_s = 2.0
times = 2

[[notification]]
status = "processing"
jitter_s = 2.0
method = "GET"

[[notification]]
status = "declined"
jitter_s = 1.5
forged = true
format = "form"
order_id = "PAY-.*5"

[[notification]]
status = "declined"
delay_s = 4.0
order_id = "PAY-77"

[[notification]]
status = "approved"
amount = "1.00"
jitter_s = 1.0
order_id = "PAY-88"

[[notification]]
status = "sandbox-limbo"
order_id = "PAY-99"
"""


@pytest.mark.long
def test_disordered_and_forged_notifications_settle_300_payouts_correctly(program: Program) -> None:
    with (
        merchant_and_gateway(program, behaviour=BEHAVIOUR, notifications=AUTHENTIC) as (port, callbacks),
        start_process(program, "listen", config=program.config) as listener,
    ):
        wait_for_server(port, listener)
        sheet = program.sheet(kenyan_rows(ROWS))
        submitted = program.json("submit", sheet)
        assert submitted["exit_code"] in {0, 5}, submitted["message"]
        expected = {"approved": 2 * ROWS + 1, "processing": ROWS, "declined": 31, "sandbox-limbo": 1}
        wait_until(lambda: count_acknowledged(callbacks) == expected, f"heard: {count_acknowledged(callbacks)}")
        wait_until(lambda: count_findings(program).total() == sum(expected.values()), "not all was taken in")
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(PATIENCE_S) == 0
    findings = count_findings(program)
    assert findings["moved"] == ROWS
    assert findings["forged"] == 30
    assert findings["contradicting"] == 1
    assert findings["unmatched"] == 1
    assert findings["unlisted"] == 1
    assert findings["repeated"] + findings["late"] == 2 * ROWS

    status = program.json("status", sheet)
    assert status["states"] == {"paid": ROWS}
    assert status["exit_code"] == 5
    assert status["contradictions"] == 1
    reconciled = program.json("reconcile", sheet, "--out", str(program.home / "again.csv"))
    assert reconciled["totals"] == {"KES": {"paid": f"{ROWS * 150050 // 100}.00"}}
    lines = read_csv(program.home / "again.csv")
    assert Counter(line["state"] for line in lines) == {"paid": ROWS}
    assert {line["gateway_status"] for line in lines} == {"approved"}
    verified = program.json("verify")
    assert verified["checked"]["evidence"] == findings.total()
    assert verified["checked"]["paid"] == ROWS
    text = "".join(path.read_text() for path in program.home.rglob("*.log"))
    assert TOKEN not in text
    assert "254712" not in text
    assert TOKEN not in json.dumps(status)
