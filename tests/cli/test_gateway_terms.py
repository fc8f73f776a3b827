"""The operator's terms: how the configuration of the gateway's behaviour affects a run."""

import json

import pytest

from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

NAMES = """
[reply]
order_id = ["order.merchant-id"]
amount = ["order.sum"]
amount_unit = "minor"
reference = ["bank-reference"]
error_code = ["error.code"]
message = ["error.text"]
"""


def test_configured_reply_names_are_read(program: Program) -> None:
    program.config.write_text(sandbox_toml().replace("[submission]", '[submission]\nconnections = "reuse"') + NAMES)
    sheet = program.sheet([*kenyan_rows(3), *kenyan_rows(1, amount="9001.25", prefix="NO")])
    assert program.json("submit", sheet)["states"] == {"paid": 3, "rejected": 1}
    lines = read_csv(program.home / "payroll.reconciliation.csv")
    assert (lines[3]["error_code"], lines[3]["message"]) == ("9001", "Declined by the sandbox.")
    assert all(line["gateway_reference"] for line in lines)
    replies = {check["check"]: check["found"] for check in program.json("doctor")["checks"]}["replies"]
    expected = ("order id: order.merchant-id", "amount (in the smallest unit): order.sum", "currency: currency")
    assert [part for part in expected if part not in replies] == []


def test_repeated_identical_rejections_stop_run(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(3), *kenyan_rows(60, amount="9001.00", prefix="NO")])
    summary = program.json("submit", sheet, "--concurrency", "4")
    assert summary["exit_code"] == 6
    assert "consecutive rows were rejected for the same reason: 9001" in summary["message"]
    assert 10 <= summary["states"]["rejected"] <= 20  # a payout in flight can interrupt the first series
    # Groups of rows are signed concurrently, so the three payable rows are not always among the first to be sent.
    assert sum(summary["states"].values()) == 63
    assert summary["states"]["ready"] >= 40


def test_first_option_limits_paid_rows(program: Program) -> None:
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


TANZANIAN = "country,client_orderid,amount,receiver_first_name,receiver_last_name,receiver_phone"
ROW = "TZ,PAY-1,1500,Juma,Mushi,0712345678"


def configure_country(program: Program, terms: str, country: str = "TZ") -> None:
    table = f"[countries.{country}.payout]"
    program.config.write_text(sandbox_toml().replace(table, f"{table}\n{terms}"))


def test_person_without_optional_last_name_is_paid(program: Program) -> None:
    for heading, row in (
        (TANZANIAN, "TZ,PAY-1,1500,Juma,,0712345678"),
        (TANZANIAN.replace("receiver_last_name,", ""), "TZ,PAY-2,2500,Juma,0712345678"),
    ):
        sheet = program.sheet([row], heading=heading)
        configure_country(program, 'optional = ["receiver_email"]')
        assert program.run("submit", sheet).exit_code == 3
        configure_country(program, 'optional = ["receiver_email", "receiver_last_name"]')
        assert "receiver_last_name" not in program.run("sign", sheet, "--row", "2").output
        assert program.json("submit", sheet)["states"] == {"paid": 1}


def test_operator_terms_add_fields_and_defaults(program: Program) -> None:
    more = 'also = ["server_callback_url"]\ndefaults = { order_desc = "Salary" }'
    configure_country(program, f'optional = ["receiver_email"]\n{more}')
    sheet = program.sheet([ROW], heading=TANZANIAN)
    output = program.run("sign", sheet, "--row", "2").output
    assert '"server_callback_url":"' in output
    assert '"order_desc":"Salary"' in output
    assert "receiver_email" not in output
    assert program.json("submit", sheet)["states"] == {"paid": 1}


def test_doctor_and_validate_report_default_values(program: Program) -> None:
    checks = {check["check"]: check["found"] for check in program.json("doctor")["checks"]}
    assert checks["country TZ"] == 'values sent if the sheet has none: ipaddress = "127.0.0.1", order_desc = "Payout"'
    sheet = program.sheet([f"{ROW},a@example.com,Wages"], heading=f"{TANZANIAN},receiver_email,order_desc")
    output = " ".join(program.run("validate", sheet).output.split())
    assert 'TZ: these values are missing from the sheet and are filled in: ipaddress = "127.0.0.1".' in output
    assert 'TZ: empty cells are filled in: order_desc = "Payout".' in output


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ('optional = ["receiver_mail"]', "countries.TZ.payout.optional: the receiver form has no receiver_mail"),
        ('optional = ["account_name"]', "the gateway's interface requires account_name for Rwanda"),
        ('optional = ["amount"]', "every payment needs amount"),
        ('optional = ["receiver_phone"]', "every payment needs receiver_phone"),
        ('also = ["callback"]', "countries.TZ.payout.also: there is no field 'callback'"),
        ('defaults = { receiver_phone = "0712345678" }', "each row has its own receiver_phone"),
        ('defaults = { ipaddress = "here" }', "'here' is not an IPv4 address"),
        ('defaults = { receiver_email = "here" }', "'here' is not an e-mail address"),
        ('defaults = { order_desc = " " }', "this must be one non-empty line of text"),
        ('order_desc = "A"\ndefaults = { order_desc = "B" }', "also sets this value"),
        ('also_numbers = ["0712"]', "countries.TZ.payout.also_numbers: '0712' is not a valid prefix"),
        ("also_numbers = [71]", "countries.TZ.payout.also_numbers"),
        ("decimals = 3", "countries.TZ.payout.decimals: TZS amounts have at most 2 decimal places"),
        ("decimals = -1", "countries.TZ.payout.decimals"),
        ("former_numbers = true", "countries.TZ.payout.former_numbers: the numbers of Tanzania have not changed"),
        ('decimals = 0\nmin_amount = "0.50"', "countries.TZ.payout.min_amount: 0.50 is not a valid TZS amount"),
        ('option = ["receiver_email"]', "countries.TZ.payout.option is not a known key"),
    ],
)
def test_contradictory_terms_are_refused(program: Program, terms: str, sentence: str) -> None:
    configure_country(program, terms, "RW" if "Rwanda" in sentence else "TZ")
    result = program.run("doctor")
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


def test_raw_reply_to_rejected_row_is_stored(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(1), *kenyan_rows(1, amount="9001.00", prefix="NO")])
    batch = program.json("submit", sheet)["batch"]
    assert program.json("status", batch, "--row", "2")["replies"] == []
    (kept,) = program.json("status", batch, "--row", "3")["replies"]
    assert kept["attempt"] == 1
    assert kept["head"].startswith("HTTP/1.1 200\n")
    assert json.loads(kept["body"])["error-message"] == "Declined by the sandbox."
    output = program.run("status", batch, "--row", "3").output
    assert "Row 3 is rejected, after 1 attempt." in output
    assert '"error-code": "9001"' in output
    assert program.run("verify").exit_code == 0
    assert program.run("status", batch, "--row", "9").exit_code == 2
    assert program.run("status", "--row", "3").exit_code == 2
