"""`refresh` with the built-in gateway, which knows the orders it accepted."""

from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

BEHAVIOUR = """
enquiry = { later = { processing = "approved", sandbox-limbo = "declined" } }
rule = [
    { amount_whole = 9002, status = "processing" },
    { amount_whole = 9007, fault = "drop_after" },
    { amount_whole = 9008, fault = "drop_before" },
    { amount_whole = 9010, status = "sandbox-limbo" },
]
"""


def configure_enquiries(program: Program, more: str = "") -> None:
    (program.home / "behaviour.toml").write_text(BEHAVIOUR)
    section = f'[status_enquiry]\nprofile = "paynet-v4"\nnot_found = ["not-found"]\n{more}'
    program.config.write_text(f'{sandbox_toml()}\n[sandbox]\nbehaviour = "behaviour.toml"\n{section}')


def test_refresh_settles_rows_and_lists_unknown_orders(program: Program) -> None:
    amounts = ("9002", "9007", "9008", "9010", "100")
    sheet = program.sheet([kenyan_rows(1, amount=amount, prefix=f"OF-{amount}")[0] for amount in amounts])
    refused = program.run("refresh", sheet)
    assert (refused.exit_code, "status_enquiry.profile" in refused.stderr) == (2, True)
    configure_enquiries(program, "limit_min = 0.05\n")
    before = program.json("submit", sheet)
    assert before["states"] == {"in_doubt": 3, "accepted": 1, "paid": 1}
    orders = len(program.record())
    summary = program.json("refresh", sheet)
    assert (summary["states"], summary["exit_code"]) == ({"in_doubt": 1, "paid": 3, "rejected": 1}, 5)
    assert summary["findings"] == {"moved": 3, "not_found": 1}
    assert len(program.record()) == orders
    by_amount = {line["amount"]: line for line in read_csv(summary["reconciliation"])}
    assert [by_amount[amount]["state"] for amount in amounts] == ["paid", "paid", "in_doubt", "rejected", "paid"]
    assert by_amount["9002"]["message"].startswith("Reported by the gateway's answer to an enquiry (fact ")
    status = program.json("status", sheet)
    assert [message["finding"] for message in status["evidence_waiting"]] == ["not_found"]
    assert "Messages from the gateway that need a decision" in program.run("status", sheet).stdout
    assert program.json("verify")["checked"]["evidence"] == 4
    assert program.json("refresh", sheet)["findings"] == {"not_found": 1}


def test_refresh_without_batch_enquires_about_every_batch(program: Program) -> None:
    configure_enquiries(program)
    for name, amount in (("one", "9002"), ("two", "9007"), ("three", "9008"), ("four", "100")):
        program.json("submit", program.sheet(kenyan_rows(1, amount=amount, prefix=name), f"{name}.csv"))
    summary = program.json("refresh")
    assert (summary["asked"], summary["findings"], summary["exit_code"]) == (3, {"moved": 2, "not_found": 1}, 5)
    assert program.json("status")["states"] == {"paid": 3, "in_doubt": 1}
    assert program.run("refresh", "--out", program.home / "r.csv").exit_code == 2
