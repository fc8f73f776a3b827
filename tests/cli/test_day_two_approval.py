"""Two pairs of eyes: who prepares a payment run does not approve it, and what was not approved is not sent."""

import json
import subprocess

import pytest

from tests.cli.sheets import BOTH_WAYS, COLLECTED, READ_BOTH_WAYS, customers
from tests.support.approving import edited, plan_of, policy, prepared, refused
from tests.support.program import Program, kenyan_rows, sandbox_toml


def test_approved_plan_is_paid_and_names_both_people(careful: Program) -> None:
    summary = careful.json("submit", prepared(careful, "cleo"))
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 3})
    said = [deed["said"] for deed in careful.json("status", summary["batch"], "--history")["history"]]
    assert said[1].startswith("prepared by ada at ")
    assert said[2].startswith("approved by cleo at ")
    assert careful.json("verify")["exit_code"] == 0


def test_sheet_without_approved_plan_is_not_sent(careful: Program) -> None:
    careful.sheet(kenyan_rows(3))
    assert "there is none at" in refused(careful)
    prepared(careful)
    assert "needs 1 valid approval and has 0" in refused(careful)


def plan_of_collections(program: Program) -> dict[str, object]:
    sheet = program.sheet(customers(2), "payroll.csv", COLLECTED)
    made = program.json("plan", sheet, "--collect", "--out", plan_of(program), "--key", program.home / "ada.pem")
    assert program.json("approve", plan_of(program), "--key", program.home / "cleo.pem")["exit_code"] == 0
    return made


def test_a_collection_is_planned_approved_and_sent(careful: Program) -> None:
    made = plan_of_collections(careful)
    assert (made["rows"], made["totals"]) == (2, {"KES": {"ready": "3001.00"}})
    looked_at = careful.run("approve", plan_of(careful))
    assert "2 rows, to collect from customers at sandbox/1000" in looked_at.stdout
    assert made["operation"] == "payin"
    summary = careful.json("collect", careful.home / "payroll.csv")
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 2})
    said = [deed["said"] for deed in careful.json("status", summary["batch"], "--history")["history"]]
    assert [sentence.split(" at ")[0] for sentence in said[1:]] == ["prepared by ada", "approved by cleo"]


def test_unapproved_or_changed_collection_is_not_sent(careful: Program) -> None:
    sheet = careful.sheet(customers(2), "payroll.csv", COLLECTED)
    assert careful.run("collect", sheet).exit_code == 8
    plan_of_collections(careful)
    careful.sheet(customers(2, amount="2500.50"), "payroll.csv", COLLECTED)
    result = careful.run("collect", sheet)
    assert (result.exit_code, careful.json("status")["batches"]) == (8, [])


def test_payout_approval_does_not_count_for_collection(careful: Program) -> None:
    """A sheet that can be read both ways: what was approved as a payout is not collected."""
    sheet = careful.sheet([READ_BOTH_WAYS], "payroll.csv", BOTH_WAYS)
    careful.json("plan", sheet, "--out", plan_of(careful), "--key", careful.home / "ada.pem")
    careful.json("approve", plan_of(careful), "--key", careful.home / "cleo.pem")
    assert careful.run("collect", sheet).exit_code == 8
    assert careful.json("submit", sheet)["states"] == {"paid": 1}


def test_a_small_batch_needs_no_approval(careful: Program) -> None:
    sheet = careful.sheet(kenyan_rows(3, amount="333"))
    assert careful.json("submit", sheet)["states"] == {"paid": 3}


def test_currency_without_limit_always_needs_approval(careful: Program) -> None:
    sheet = careful.home / "payroll.csv"
    sheet.write_text(
        "country,client_orderid,amount,currency,account_name,account_number,phone\n"
        "UG,U-1,1,UGX,Jane,256772123456,+256772123456\n"
    )
    refused(careful)


def test_the_maker_cannot_approve(careful: Program) -> None:
    prepared(careful)
    before = plan_of(careful).read_bytes()
    result = careful.run("approve", plan_of(careful), "--key", careful.home / "ada.pem")
    assert result.exit_code == 8
    assert "another person must approve" in result.stderr
    assert plan_of(careful).read_bytes() == before


def test_unlisted_key_cannot_prepare_or_approve(careful: Program) -> None:
    prepared(careful)
    stranger = careful.home / "stranger.pem"
    assert careful.run("approve", plan_of(careful), "--key", stranger).exit_code == 8
    sheet = careful.home / "payroll.csv"
    assert careful.run("plan", sheet, "--out", careful.home / "x.json", "--key", stranger).exit_code == 8
    assert (
        careful.run("plan", sheet, "--out", careful.home / "x.json", "--key", careful.home / "cleo.pem").exit_code == 8
    )
    assert not (careful.home / "x.json").exists()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (kenyan_rows(3, amount="1500.51"), "it pays KES 4,501.50, but KES 4,501.53 would be paid now"),
        ([row.replace("254712345003", "254712345999") for row in kenyan_rows(3)], "a row, a payee"),
        ([row.replace("Jane", "John") for row in kenyan_rows(3)], "a row, a payee"),
    ],
)
def test_approval_holds_only_for_approved_content(careful: Program, rows: list[str], why: str) -> None:
    prepared(careful, "cleo")
    careful.sheet(rows)
    assert why in refused(careful)


def test_an_approval_for_another_endpoint_does_not_count(careful: Program) -> None:
    prepared(careful, "cleo")
    text = careful.config.read_text().replace('endpoint_id = "1000"', 'endpoint_id = "1001"')
    careful.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    result = careful.run("submit", careful.home / "payroll.csv")
    assert result.exit_code == 8
    assert "it is for sandbox/1000, but this is sandbox/1001" in result.stderr


def test_plan_edited_after_signing_is_refused(careful: Program) -> None:
    prepared(careful, "cleo")
    edited(careful, {"findings": []})
    assert "changed after its maker signed it" in refused(careful)


def test_plan_with_replaced_maker_is_refused(careful: Program) -> None:
    prepared(careful, "ben")
    ben = json.loads(plan_of(careful).read_text())["approvals"][0]["key"]
    edited(careful, {"maker": ben})
    assert "changed after its maker signed it" in refused(careful)


def test_approval_copied_from_other_plan_is_refused(careful: Program) -> None:
    prepared(careful, "cleo")
    approvals = json.loads(plan_of(careful).read_text())["approvals"]
    prepared(careful, rows=2)
    edited(careful, {"approvals": approvals})
    assert "that of cleo is for different content, or was changed" in refused(careful)


def test_approval_time_cannot_be_altered(careful: Program) -> None:
    prepared(careful, "cleo")
    approvals = json.loads(plan_of(careful).read_text())["approvals"]
    edited(careful, {"approvals": [{**approvals[0], "approved_at": "2030-01-01T00:00:00.000Z"}]})
    assert "that of cleo is for different content, or was changed" in refused(careful)


def test_an_approval_expires(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, expires_h=0.000001))
    prepared(program, "cleo")
    assert "that of cleo expired at 20" in refused(program)


def test_two_approvals_are_those_of_two_people(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, needed=2))
    sheet = prepared(program, "cleo", "cleo")
    assert "needs 2 valid approvals and has 1" in refused(program)
    program.json("approve", plan_of(program), "--key", program.home / "ben.pem")
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_the_same_approval_listed_twice_counts_once(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, needed=2))
    prepared(program, "cleo")
    approvals = json.loads(plan_of(program).read_text())["approvals"]
    edited(program, {"approvals": approvals * 2})
    assert "needs 2 valid approvals and has 1" in refused(program)


def test_removed_approver_does_not_count(careful: Program) -> None:
    prepared(careful, "cleo")
    lines = [line for line in careful.config.read_text().splitlines() if not line.startswith("cleo")]
    careful.config.write_text("\n".join(lines))
    assert "by a key that does not belong to a listed approver" in refused(careful)


def test_approved_batch_continues_without_plan(careful: Program) -> None:
    sheet = prepared(careful, "cleo")
    careful.json("submit", sheet)
    plan_of(careful).unlink()
    assert careful.json("submit", sheet)["exit_code"] == 0


def test_approve_without_a_key_only_shows_the_plan(careful: Program) -> None:
    prepared(careful)
    before = plan_of(careful).read_bytes()
    result = careful.run("approve", plan_of(careful))
    assert result.exit_code == 0
    assert "4,501.50" in result.stdout
    assert "Prepared by ada" in result.stdout
    assert plan_of(careful).read_bytes() == before


def test_plan_shows_differences_from_last_run(careful: Program) -> None:
    gone = "KE,PAY-9,100,KES,Achieng Gone,254712345099,+254712345099"
    careful.json("submit", careful.sheet([*kenyan_rows(3, amount="100"), gone], name="before.csv"))
    rows = [
        "KE,NEW-1,100,KES,Jane Wanjiku,254712345001,+254712345001",
        "KE,NEW-2,130,KES,Jane Wanjiku,254712345002,+254712345002",
        "KE,NEW-3,100,KES,Jane Wanjiku,254712345777,+254712345777",
        "KE,NEW-4,100,KES,Otieno New,254712345888,+254712345888",
    ]
    summary = careful.json("plan", careful.sheet(rows), "--out", plan_of(careful), "--key", careful.home / "ada.pem")
    told = {(finding["row"], finding["code"]) for finding in summary["findings"]}
    assert (3, "payee.amount") in told
    assert (4, "payee.account") in told
    assert (5, "payee.new") in told
    assert (0, "payee.gone") in told
    assert not any(row == 2 and code.startswith("payee") for row, code in told)
    listed = [(one["row"], one["name"], one["account"], one["amount"], one["code"]) for one in summary["people"]]
    assert listed == [
        (4, "Jane Wanjiku", "254712345777", "100.00", "payee.account"),
        (3, "Jane Wanjiku", "254712345002", "130.00", "payee.amount"),
        (5, "Otieno New", "254712345888", "100.00", "payee.new"),
        (2, "Jane Wanjiku", "254712345001", "100.00", ""),
    ]


def test_plan_survives_payment_of_other_people(careful: Program) -> None:
    row = "KE,{name},1.00,KES,{name} Otieno,25471277{n},+25471277{n}"
    first, later = (
        careful.sheet([row.format(name=name, n=n)], f"{name}.csv") for name, n in (("FIRST", 7771), ("LATER", 7772))
    )
    assert careful.json("submit", first)["exit_code"] == 0
    sheet = prepared(careful, "ben")
    assert careful.json("submit", later)["exit_code"] == 0
    assert careful.json("submit", sheet)["states"] == {"paid": 3}


def test_plan_never_overwrites_sheet(careful: Program) -> None:
    sheet = careful.sheet(kenyan_rows(2))
    before = sheet.read_bytes()
    assert careful.run("plan", sheet, "--out", sheet, "--key", careful.home / "ada.pem").exit_code == 2
    assert sheet.read_bytes() == before


def test_a_sheet_with_defects_gets_no_plan(careful: Program) -> None:
    sheet = careful.sheet([*kenyan_rows(2), "KE,X,1e3,KES,Jane,254712345678,+254712345678"])
    summary = careful.json("plan", sheet, "--out", plan_of(careful), "--key", careful.home / "ada.pem")
    assert summary["exit_code"] == 3
    assert not plan_of(careful).exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"content": 1}'])
def test_unreadable_plan_is_refused(careful: Program, content: str) -> None:
    careful.sheet(kenyan_rows(3))
    plan_of(careful).write_text(content)
    assert "is not a valid plan" in refused(careful)


def test_world_readable_approval_key_is_refused(careful: Program) -> None:
    prepared(careful)
    (careful.home / "cleo.pem").chmod(0o644)
    result = careful.run("approve", plan_of(careful), "--key", careful.home / "cleo.pem")
    assert result.exit_code == 2
    assert "chmod 600" in result.stderr


def test_passphrase_from_environment_opens_encrypted_approval_key(careful: Program) -> None:
    prepared(careful)
    locked = careful.home / "locked.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", careful.home / "cleo.pem", "-aes256", "-passout", "pass:open", "-out", locked],
        check=True,
        capture_output=True,
    )
    locked.chmod(0o600)
    assert careful.run("approve", plan_of(careful), "--key", locked).exit_code == 2
    opened = careful.run("approve", plan_of(careful), "--key", locked, PAYGW_APPROVAL_PASSPHRASE="open")
    assert opened.exit_code == 0, opened.output


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("[approval]\nneeded = 1\n", "name at least one key under makers"),
        ('[approval.makers]\na = "x"\n[approval.approvers]\nb = "y"\n', "is not a person's public key"),
    ],
)
def test_a_policy_without_usable_keys_is_refused(program: Program, toml: str, why: str) -> None:
    program.config.write_text(f"{sandbox_toml()}\n{toml}")
    result = program.run("submit", program.sheet(kenyan_rows(3)))
    assert result.exit_code == 2
    assert why in result.stderr
    assert program.record() == []


def test_doctor_checks_approver_keys(careful: Program) -> None:
    checks = {one["check"]: one for one in careful.json("doctor")["checks"]}
    assert checks["approval"]["state"] == "ok"
    text = careful.config.read_text()
    careful.config.write_text(text.replace("needed = 1", "needed = 9"))
    summary = careful.json("doctor")
    checks = {one["check"]: one for one in summary["checks"]}
    assert (checks["approval"]["state"], summary["exit_code"]) == ("wrong", 2)
    assert "needed is 9" in checks["approval"]["found"]


def test_doctor_reports_unrequired_approval(program: Program) -> None:
    checks = {one["check"]: one for one in program.json("doctor")["checks"]}
    assert checks["approval"]["found"] == "not required"


# A plan that is named


@pytest.mark.parametrize("name", ["nope.json", "garbage.json", ".", "payroll.plan.json"])
def test_named_plan_without_policy_pays_nothing(careful: Program, name: str) -> None:
    prepared(careful, "cleo")
    careful.config.write_text(sandbox_toml())
    (careful.home / "garbage.json").write_text("{}")
    refused(careful, "--plan", careful.home / name)
    assert (
        careful.run("submit", careful.home / "payroll.csv", "--plan", careful.home / name, "--dry-run").exit_code == 8
    )


def test_named_plan_is_read_when_nothing_is_due(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    assert program.json("submit", sheet)["exit_code"] == 0
    for rows in (kenyan_rows(3), kenyan_rows(2)):  # the same batch again, and known rows alone
        sheet = program.sheet(rows)
        assert program.json("submit", sheet, "--plan", program.home / "nope.json")["exit_code"] == 8


def test_small_or_known_sheet_checks_named_plan(careful: Program) -> None:
    nope, plan = careful.home / "nope.json", plan_of(careful)
    sheet = prepared(careful, "cleo")
    small = careful.sheet(kenyan_rows(1, amount="10", prefix="SMALL"), "small.csv")
    for named in (nope, plan):
        assert careful.json("submit", small, "--plan", named)["exit_code"] == 8
    assert careful.record() == []
    assert careful.json("submit", sheet, "--plan", plan)["states"] == {"paid": 3}
    assert careful.json("submit", sheet, "--plan", plan)["exit_code"] == 0
    assert careful.json("submit", sheet, "--plan", nope)["exit_code"] == 8


def test_unreadable_named_plan_precedes_sheet_defects(careful: Program) -> None:
    careful.sheet([*kenyan_rows(2), "KE,BAD,1e3,KES,Jane,254712345678,+254712345678"])
    refused(careful, "--plan", careful.home / "nope.json")
