"""Two-person approval: makers do not approve their own payment runs, and unapproved ones are not sent."""

import json
import subprocess

import pytest

from tests.cli.sheets import BOTH_WAYS, COLLECTED, READ_BOTH_WAYS, customers
from tests.support.approving import edit_plan, plan_file, policy, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml


def test_approved_plan_is_paid_with_both_people_recorded(approving_company: Program) -> None:
    summary = approving_company.json("submit", prepare_sheet(approving_company, "cleo"))
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 3})
    statements = [deed["said"] for deed in approving_company.json("status", summary["batch"], "--history")["history"]]
    assert statements[1].startswith("prepared by ada at ")
    assert statements[2].startswith("approved by cleo at ")
    assert approving_company.json("verify")["exit_code"] == 0


def test_sheet_without_approved_plan_is_not_sent(approving_company: Program) -> None:
    approving_company.sheet(kenyan_rows(3))
    assert "there is none at" in submit_and_expect_refusal(approving_company)
    prepare_sheet(approving_company)
    assert "needs 1 valid approval and has 0" in submit_and_expect_refusal(approving_company)


def plan_collections(program: Program) -> dict[str, object]:
    sheet = program.sheet(customers(2), "payroll.csv", COLLECTED)
    summary = program.json("plan", sheet, "--collect", "--out", plan_file(program), "--key", program.home / "ada.pem")
    assert program.json("approve", plan_file(program), "--key", program.home / "cleo.pem")["exit_code"] == 0
    return summary


def test_collection_is_planned_approved_and_sent(approving_company: Program) -> None:
    plan = plan_collections(approving_company)
    assert (plan["rows"], plan["totals"]) == (2, {"KES": {"ready": "3001.00"}})
    looked_at = approving_company.run("approve", plan_file(approving_company))
    assert "2 rows, to collect from customers at sandbox/1000" in looked_at.stdout
    assert plan["operation"] == "payin"
    summary = approving_company.json("collect", approving_company.home / "payroll.csv")
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 2})
    statements = [deed["said"] for deed in approving_company.json("status", summary["batch"], "--history")["history"]]
    assert [sentence.split(" at ")[0] for sentence in statements[1:]] == ["prepared by ada", "approved by cleo"]


def test_unapproved_or_changed_collection_is_not_sent(approving_company: Program) -> None:
    sheet = approving_company.sheet(customers(2), "payroll.csv", COLLECTED)
    assert approving_company.run("collect", sheet).exit_code == 8
    plan_collections(approving_company)
    approving_company.sheet(customers(2, amount="2500.50"), "payroll.csv", COLLECTED)
    result = approving_company.run("collect", sheet)
    assert (result.exit_code, approving_company.json("status")["batches"]) == (8, [])


def test_payout_approval_does_not_count_for_collection(approving_company: Program) -> None:
    """A sheet can be read both ways, but its approval as a payout does not allow collecting it."""
    sheet = approving_company.sheet([READ_BOTH_WAYS], "payroll.csv", BOTH_WAYS)
    approving_company.json(
        "plan", sheet, "--out", plan_file(approving_company), "--key", approving_company.home / "ada.pem"
    )
    approving_company.json("approve", plan_file(approving_company), "--key", approving_company.home / "cleo.pem")
    assert approving_company.run("collect", sheet).exit_code == 8
    assert approving_company.json("submit", sheet)["states"] == {"paid": 1}


def test_small_batch_does_not_need_approval(approving_company: Program) -> None:
    sheet = approving_company.sheet(kenyan_rows(3, amount="333"))
    assert approving_company.json("submit", sheet)["states"] == {"paid": 3}


def test_currency_without_limit_always_needs_approval(approving_company: Program) -> None:
    sheet = approving_company.home / "payroll.csv"
    sheet.write_text(
        "country,client_orderid,amount,currency,account_name,account_number,phone\n"
        "UG,U-1,1,UGX,Jane,256772123456,+256772123456\n"
    )
    submit_and_expect_refusal(approving_company)


def test_maker_cannot_approve(approving_company: Program) -> None:
    prepare_sheet(approving_company)
    before = plan_file(approving_company).read_bytes()
    result = approving_company.run("approve", plan_file(approving_company), "--key", approving_company.home / "ada.pem")
    assert result.exit_code == 8
    assert "another person must approve" in result.stderr
    assert plan_file(approving_company).read_bytes() == before


def test_unlisted_key_cannot_prepare_or_approve(approving_company: Program) -> None:
    prepare_sheet(approving_company)
    stranger = approving_company.home / "stranger.pem"
    assert approving_company.run("approve", plan_file(approving_company), "--key", stranger).exit_code == 8
    sheet = approving_company.home / "payroll.csv"
    assert (
        approving_company.run("plan", sheet, "--out", approving_company.home / "x.json", "--key", stranger).exit_code
        == 8
    )
    assert (
        approving_company.run(
            "plan", sheet, "--out", approving_company.home / "x.json", "--key", approving_company.home / "cleo.pem"
        ).exit_code
        == 8
    )
    assert not (approving_company.home / "x.json").exists()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (kenyan_rows(3, amount="1500.51"), "it pays KES 4,501.50, but KES 4,501.53 would be paid now"),
        ([row.replace("254712345003", "254712345999") for row in kenyan_rows(3)], "a row, a payee"),
        ([row.replace("Jane", "John") for row in kenyan_rows(3)], "a row, a payee"),
    ],
)
def test_approval_holds_only_for_approved_content(approving_company: Program, rows: list[str], why: str) -> None:
    prepare_sheet(approving_company, "cleo")
    approving_company.sheet(rows)
    assert why in submit_and_expect_refusal(approving_company)


def test_approval_for_other_endpoint_is_ignored(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    text = approving_company.config.read_text().replace('endpoint_id = "1000"', 'endpoint_id = "1001"')
    approving_company.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    result = approving_company.run("submit", approving_company.home / "payroll.csv")
    assert result.exit_code == 8
    assert "it is for sandbox/1000, but this is sandbox/1001" in result.stderr


def test_plan_edited_after_signing_is_refused(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    edit_plan(approving_company, {"findings": []})
    assert "changed after its maker signed it" in submit_and_expect_refusal(approving_company)


def test_plan_with_replaced_maker_is_refused(approving_company: Program) -> None:
    prepare_sheet(approving_company, "ben")
    ben = json.loads(plan_file(approving_company).read_text())["approvals"][0]["key"]
    edit_plan(approving_company, {"maker": ben})
    assert "changed after its maker signed it" in submit_and_expect_refusal(approving_company)


def test_approval_copied_from_other_plan_is_refused(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    approvals = json.loads(plan_file(approving_company).read_text())["approvals"]
    prepare_sheet(approving_company, rows=2)
    edit_plan(approving_company, {"approvals": approvals})
    assert "that of cleo is for different content, or was changed" in submit_and_expect_refusal(approving_company)


def test_approval_time_cannot_be_altered(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    approvals = json.loads(plan_file(approving_company).read_text())["approvals"]
    edit_plan(approving_company, {"approvals": [{**approvals[0], "approved_at": "2030-01-01T00:00:00.000Z"}]})
    assert "that of cleo is for different content, or was changed" in submit_and_expect_refusal(approving_company)


def test_approval_expires(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, expires_h=0.000001))
    prepare_sheet(program, "cleo")
    assert "that of cleo expired at 20" in submit_and_expect_refusal(program)


def test_two_approvals_must_come_from_two_people(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, needed=2))
    sheet = prepare_sheet(program, "cleo", "cleo")
    assert "needs 2 valid approvals and has 1" in submit_and_expect_refusal(program)
    program.json("approve", plan_file(program), "--key", program.home / "ben.pem")
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_same_approval_listed_twice_counts_once(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, needed=2))
    prepare_sheet(program, "cleo")
    approvals = json.loads(plan_file(program).read_text())["approvals"]
    edit_plan(program, {"approvals": approvals * 2})
    assert "needs 2 valid approvals and has 1" in submit_and_expect_refusal(program)


def test_removed_approver_does_not_count(approving_company: Program) -> None:
    prepare_sheet(approving_company, "cleo")
    lines = [line for line in approving_company.config.read_text().splitlines() if not line.startswith("cleo")]
    approving_company.config.write_text("\n".join(lines))
    assert "by a key that does not belong to a listed approver" in submit_and_expect_refusal(approving_company)


def test_approved_batch_continues_without_plan(approving_company: Program) -> None:
    sheet = prepare_sheet(approving_company, "cleo")
    approving_company.json("submit", sheet)
    plan_file(approving_company).unlink()
    assert approving_company.json("submit", sheet)["exit_code"] == 0


def test_approve_without_key_only_shows_plan(approving_company: Program) -> None:
    prepare_sheet(approving_company)
    before = plan_file(approving_company).read_bytes()
    result = approving_company.run("approve", plan_file(approving_company))
    assert result.exit_code == 0
    assert "4,501.50" in result.stdout
    assert "Prepared by ada" in result.stdout
    assert plan_file(approving_company).read_bytes() == before


def test_plan_shows_differences_from_last_run(approving_company: Program) -> None:
    gone = "KE,PAY-9,100,KES,Achieng Gone,254712345099,+254712345099"
    approving_company.json("submit", approving_company.sheet([*kenyan_rows(3, amount="100"), gone], name="before.csv"))
    rows = [
        "KE,NEW-1,100,KES,Jane Wanjiku,254712345001,+254712345001",
        "KE,NEW-2,130,KES,Jane Wanjiku,254712345002,+254712345002",
        "KE,NEW-3,100,KES,Jane Wanjiku,254712345777,+254712345777",
        "KE,NEW-4,100,KES,Otieno New,254712345888,+254712345888",
    ]
    summary = approving_company.json(
        "plan",
        approving_company.sheet(rows),
        "--out",
        plan_file(approving_company),
        "--key",
        approving_company.home / "ada.pem",
    )
    findings = {(finding["row"], finding["code"]) for finding in summary["findings"]}
    assert (3, "payee.amount") in findings
    assert (4, "payee.account") in findings
    assert (5, "payee.new") in findings
    assert (0, "payee.gone") in findings
    assert not any(row == 2 and code.startswith("payee") for row, code in findings)
    listed = [
        (person["row"], person["name"], person["account"], person["amount"], person["code"])
        for person in summary["people"]
    ]
    assert listed == [
        (4, "Jane Wanjiku", "254712345777", "100.00", "payee.account"),
        (3, "Jane Wanjiku", "254712345002", "130.00", "payee.amount"),
        (5, "Otieno New", "254712345888", "100.00", "payee.new"),
        (2, "Jane Wanjiku", "254712345001", "100.00", ""),
    ]


def test_plan_survives_payment_of_other_people(approving_company: Program) -> None:
    row = "KE,{name},1.00,KES,{name} Otieno,25471277{n},+25471277{n}"
    first, later = (
        approving_company.sheet([row.format(name=name, n=n)], f"{name}.csv")
        for name, n in (("FIRST", 7771), ("LATER", 7772))
    )
    assert approving_company.json("submit", first)["exit_code"] == 0
    sheet = prepare_sheet(approving_company, "ben")
    assert approving_company.json("submit", later)["exit_code"] == 0
    assert approving_company.json("submit", sheet)["states"] == {"paid": 3}


def test_plan_never_overwrites_sheet(approving_company: Program) -> None:
    sheet = approving_company.sheet(kenyan_rows(2))
    before = sheet.read_bytes()
    assert (
        approving_company.run("plan", sheet, "--out", sheet, "--key", approving_company.home / "ada.pem").exit_code == 2
    )
    assert sheet.read_bytes() == before


def test_sheet_with_defects_cannot_be_planned(approving_company: Program) -> None:
    sheet = approving_company.sheet([*kenyan_rows(2), "KE,X,1e3,KES,Jane,254712345678,+254712345678"])
    summary = approving_company.json(
        "plan", sheet, "--out", plan_file(approving_company), "--key", approving_company.home / "ada.pem"
    )
    assert summary["exit_code"] == 3
    assert not plan_file(approving_company).exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"content": 1}'])
def test_unreadable_plan_is_refused(approving_company: Program, content: str) -> None:
    approving_company.sheet(kenyan_rows(3))
    plan_file(approving_company).write_text(content)
    assert "is not a valid plan" in submit_and_expect_refusal(approving_company)


def test_world_readable_approval_key_is_refused(approving_company: Program) -> None:
    prepare_sheet(approving_company)
    (approving_company.home / "cleo.pem").chmod(0o644)
    result = approving_company.run(
        "approve", plan_file(approving_company), "--key", approving_company.home / "cleo.pem"
    )
    assert result.exit_code == 2
    assert "chmod 600" in result.stderr


def test_passphrase_from_environment_opens_encrypted_approval_key(approving_company: Program) -> None:
    prepare_sheet(approving_company)
    locked = approving_company.home / "locked.pem"
    subprocess.run(
        [
            "openssl",
            "pkey",
            "-in",
            approving_company.home / "cleo.pem",
            "-aes256",
            "-passout",
            "pass:open",
            "-out",
            locked,
        ],
        check=True,
        capture_output=True,
    )
    locked.chmod(0o600)
    assert approving_company.run("approve", plan_file(approving_company), "--key", locked).exit_code == 2
    opened = approving_company.run(
        "approve", plan_file(approving_company), "--key", locked, PAYGW_APPROVAL_PASSPHRASE="open"
    )
    assert opened.exit_code == 0, opened.output


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("[approval]\nneeded = 1\n", "name at least one key under makers"),
        ('[approval.makers]\na = "x"\n[approval.approvers]\nb = "y"\n', "is not a person's public key"),
    ],
)
def test_policy_without_usable_keys_is_refused(program: Program, toml: str, why: str) -> None:
    program.config.write_text(f"{sandbox_toml()}\n{toml}")
    result = program.run("submit", program.sheet(kenyan_rows(3)))
    assert result.exit_code == 2
    assert why in result.stderr
    assert program.record() == []


def test_doctor_checks_approver_keys(approving_company: Program) -> None:
    checks = {check["check"]: check for check in approving_company.json("doctor")["checks"]}
    assert checks["approval"]["state"] == "ok"
    text = approving_company.config.read_text()
    approving_company.config.write_text(text.replace("needed = 1", "needed = 9"))
    summary = approving_company.json("doctor")
    checks = {check["check"]: check for check in summary["checks"]}
    assert (checks["approval"]["state"], summary["exit_code"]) == ("wrong", 2)
    assert "needed is 9" in checks["approval"]["found"]


def test_doctor_reports_unrequired_approval(program: Program) -> None:
    checks = {check["check"]: check for check in program.json("doctor")["checks"]}
    assert checks["approval"]["found"] == "not required"


# Plans named by --plan


@pytest.mark.parametrize("name", ["nope.json", "garbage.json", ".", "payroll.plan.json"])
def test_plan_option_without_policy_is_refused(approving_company: Program, name: str) -> None:
    prepare_sheet(approving_company, "cleo")
    approving_company.config.write_text(sandbox_toml())
    (approving_company.home / "garbage.json").write_text("{}")
    submit_and_expect_refusal(approving_company, "--plan", approving_company.home / name)
    assert (
        approving_company.run(
            "submit", approving_company.home / "payroll.csv", "--plan", approving_company.home / name, "--dry-run"
        ).exit_code
        == 8
    )


def test_plan_option_is_read_when_nothing_is_due(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    assert program.json("submit", sheet)["exit_code"] == 0
    for rows in (kenyan_rows(3), kenyan_rows(2)):  # the same batch again, and only known rows
        sheet = program.sheet(rows)
        assert program.json("submit", sheet, "--plan", program.home / "nope.json")["exit_code"] == 8


def test_small_or_known_sheet_still_checks_plan(approving_company: Program) -> None:
    nope, plan = approving_company.home / "nope.json", plan_file(approving_company)
    sheet = prepare_sheet(approving_company, "cleo")
    small = approving_company.sheet(kenyan_rows(1, amount="10", prefix="SMALL"), "small.csv")
    for named in (nope, plan):
        assert approving_company.json("submit", small, "--plan", named)["exit_code"] == 8
    assert approving_company.record() == []
    assert approving_company.json("submit", sheet, "--plan", plan)["states"] == {"paid": 3}
    assert approving_company.json("submit", sheet, "--plan", plan)["exit_code"] == 0
    assert approving_company.json("submit", sheet, "--plan", nope)["exit_code"] == 8


def test_unreadable_plan_is_reported_before_defects(approving_company: Program) -> None:
    approving_company.sheet([*kenyan_rows(2), "KE,BAD,1e3,KES,Jane,254712345678,+254712345678"])
    submit_and_expect_refusal(approving_company, "--plan", approving_company.home / "nope.json")
