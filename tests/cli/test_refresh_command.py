"""`refresh` with the built-in gateway, which knows the orders it accepted."""

from tests.cli.asking import AMOUNTS, configure_enquiries
from tests.support.program import Program, kenyan_rows, read_csv


def test_refresh_reports_missing_profile(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    program.json("submit", sheet)
    refused = program.run("refresh", sheet)
    assert refused.exit_code == 2
    assert "status_enquiry.profile" in refused.stderr


def test_refresh_settles_rows_and_lists_unknown_orders(program: Program) -> None:
    configure_enquiries(
        program, '[status_enquiry]\nprofile = "paynet-v4"\nnot_found = ["not-found"]\nlimit_min = 0.05\n'
    )
    rows = [row.replace("1500.50", amount) for row, amount in zip(kenyan_rows(len(AMOUNTS)), AMOUNTS, strict=True)]
    sheet = program.sheet(rows)
    before = program.json("submit", sheet)
    assert before["states"] == {"in_doubt": 3, "accepted": 1, "paid": 1}
    orders = len(program.record())
    summary = program.json("refresh", sheet)
    assert summary["states"] == {"in_doubt": 1, "paid": 3, "rejected": 1}
    assert summary["exit_code"] == 5
    assert summary["findings"] == {"moved": 3, "not_found": 1}
    assert len(program.record()) == orders
    by_amount = {line["amount"]: line for line in read_csv(summary["reconciliation"])}
    assert {amount: by_amount[amount]["state"] for amount in AMOUNTS} == {
        "9002": "paid",
        "9007": "paid",
        "9008": "in_doubt",
        "9010": "rejected",
        "100": "paid",
    }
    assert by_amount["9002"]["message"].startswith("By the gateway's answer to an enquiry (fact ")
    status = program.json("status", sheet)
    assert [message["finding"] for message in status["evidence_waiting"]] == ["not_found"]
    assert "Messages from the gateway that need a person" in program.run("status", sheet).stdout
    assert program.json("verify")["checked"]["evidence"] == 4
    retried = program.json("refresh", sheet)
    assert retried["findings"] == {"not_found": 1}


def test_refresh_without_batch_enquires_about_every_batch(program: Program) -> None:
    configure_enquiries(program, '[status_enquiry]\nprofile = "paynet-v4"\nnot_found = ["not-found"]\n')
    for name, amount in (("one", "9002"), ("two", "9007"), ("three", "9008"), ("four", "100")):
        rows = [row.replace("1500.50", amount) for row in kenyan_rows(1, prefix=name)]
        program.json("submit", program.sheet(rows, f"{name}.csv"))
    summary = program.json("refresh")
    assert (summary["asked"], summary["findings"], summary["exit_code"]) == (3, {"moved": 2, "not_found": 1}, 5)
    assert program.json("status")["states"] == {"paid": 3, "in_doubt": 1}
    assert program.run("refresh", "--out", program.home / "r.csv").exit_code == 2
