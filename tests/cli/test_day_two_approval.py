"""Two-person approval: makers do not approve their own payment runs, and unapproved ones are not sent."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.sheets import BOTH_WAYS, COLLECTED, READ_BOTH_WAYS, customers
from tests.support.approving import edit_plan, plan_file, policy, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml

pytestmark = pytest.mark.usefixtures("approving_company")


def test_sheet_without_approved_plan_is_not_sent(program: Program) -> None:
    program.sheet(kenyan_rows(3))
    assert "there is none at" in submit_and_expect_refusal(program)
    prepare_sheet(program)
    assert "needs 1 valid approval but has 0" in submit_and_expect_refusal(program)


def plan_collections(program: Program) -> dict[str, object]:
    sheet = program.sheet(customers(2), "payroll.csv", COLLECTED)
    summary = program.json("plan", sheet, "--collect", "--out", plan_file(program), "--key", program.home / "ada.pem")
    assert program.json("approve", plan_file(program), "--key", program.home / "cleo.pem")["exit_code"] == 0
    return summary


def test_collection_is_planned_approved_and_sent(program: Program) -> None:
    plan = plan_collections(program)
    assert (plan["rows"], plan["totals"]) == (2, {"KES": {"ready": "3001.00"}})
    looked_at = program.run("approve", plan_file(program))
    assert "2 rows, to collect at sandbox/1000" in looked_at.stdout
    assert plan["operation"] == "payin"
    summary = program.json("collect", program.home / "payroll.csv")
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 2})
    statements = [deed["said"] for deed in program.json("status", summary["batch"], "--history")["history"]]
    assert [sentence.split(" at ")[0] for sentence in statements[1:]] == ["prepared by ada", "approved by cleo"]


def test_unapproved_or_changed_collection_is_not_sent(program: Program) -> None:
    sheet = program.sheet(customers(2), "payroll.csv", COLLECTED)
    assert program.run("collect", sheet).exit_code == 8
    plan_collections(program)
    program.sheet(customers(2, amount="2500.50"), "payroll.csv", COLLECTED)
    result = program.run("collect", sheet)
    assert (result.exit_code, program.json("status")["batches"]) == (8, [])


def test_payout_approval_does_not_count_for_collection(program: Program) -> None:
    """A sheet can be read both ways, but its approval as a payout does not allow collecting it."""
    sheet = program.sheet([READ_BOTH_WAYS], "payroll.csv", BOTH_WAYS)
    program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada.pem")
    program.json("approve", plan_file(program), "--key", program.home / "cleo.pem")
    assert program.run("collect", sheet).exit_code == 8
    assert program.json("submit", sheet)["states"] == {"paid": 1}


def test_currency_limit_determines_whether_approval_is_needed(program: Program) -> None:
    program.sheet(["UG,U-1,1,UGX,Jane,256772123456,+256772123456"])
    submit_and_expect_refusal(program)
    assert program.json("submit", program.sheet(kenyan_rows(3, amount="333"), "small.csv"))["states"] == {"paid": 3}


def test_unlisted_key_cannot_prepare_or_approve(program: Program) -> None:
    sheet, out = prepare_sheet(program), program.home / "x.json"
    assert program.run("approve", plan_file(program), "--key", program.home / "stranger.pem").exit_code == 8
    for name in ("stranger", "cleo"):
        assert program.run("plan", sheet, "--out", out, "--key", program.home / f"{name}.pem").exit_code == 8
    assert not out.exists()


def test_approval_for_another_endpoint_is_ignored(program: Program) -> None:
    prepare_sheet(program, "cleo")
    text = program.config.read_text().replace('endpoint_id = "1000"', 'endpoint_id = "1001"')
    program.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    result = program.run("submit", program.home / "payroll.csv")
    assert result.exit_code == 8
    assert "it is for sandbox/1000, not for sandbox/1001" in result.stderr


def test_manipulated_plan_is_refused(program: Program) -> None:
    prepare_sheet(program, "cleo")
    signed = plan_file(program).read_bytes()
    (approval,) = json.loads(signed)["approvals"]
    of_other = "the approval by cleo is for different content or has been changed"
    changes: tuple[tuple[dict[str, object], str], ...] = (
        ({"findings": []}, "changed after its maker signed it"),
        ({"maker": approval["key"]}, "changed after its maker signed it"),
        ({"approvals": [{**approval, "approved_at": "2030-01-01T00:00:00.000Z"}]}, of_other),
    )
    for change, why in changes:
        plan_file(program).write_bytes(signed)
        edit_plan(program, change)
        assert why in submit_and_expect_refusal(program)
        assert (program.run("approve", plan_file(program)).exit_code == 8) == ("approvals" not in change)
    prepare_sheet(program, rows=2)
    edit_plan(program, {"approvals": [approval]})
    assert of_other in submit_and_expect_refusal(program)


def test_approval_expires(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, expires_h=0.000001))
    prepare_sheet(program, "cleo")
    assert "the approval by cleo expired at 20" in submit_and_expect_refusal(program)


def test_two_approvals_must_come_from_two_people(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home, needed=2))
    sheet = prepare_sheet(program, "cleo", "cleo")
    assert "needs 2 valid approvals but has 1" in submit_and_expect_refusal(program)
    signed = plan_file(program).read_bytes()
    edit_plan(program, {"approvals": json.loads(signed)["approvals"] * 2})
    assert "needs 2 valid approvals but has 1" in submit_and_expect_refusal(program)
    plan_file(program).write_bytes(signed)
    program.json("approve", plan_file(program), "--key", program.home / "ben.pem")
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_removed_approver_does_not_count(program: Program) -> None:
    prepare_sheet(program, "cleo")
    lines = [line for line in program.config.read_text().splitlines() if not line.startswith("cleo")]
    program.config.write_text("\n".join(lines))
    assert "with a key that does not belong to a listed approver" in submit_and_expect_refusal(program)


def test_approve_without_key_only_shows_plan(program: Program) -> None:
    sheet = prepare_sheet(program)
    before = plan_file(program).read_bytes()
    result = program.run("approve", plan_file(program))
    assert (result.exit_code, "4,501.50" in result.stdout, "Prepared by ada" in result.stdout) == (0, True, True)
    assert plan_file(program).read_bytes() == before
    assert program.run("plan", sheet, "--out", sheet, "--key", program.home / "ada.pem").exit_code == 2
    assert len(sheet.read_text().splitlines()) == 4, "a plan never overwrites a sheet"


def test_approved_batch_continues_without_plan(program: Program) -> None:
    sheet = prepare_sheet(program, "cleo")
    program.json("submit", sheet)
    plan_file(program).unlink()
    assert program.json("submit", sheet)["exit_code"] == 0


def test_plan_shows_differences_from_last_run(program: Program) -> None:
    gone = "KE,PAY-9,100,KES,Achieng Gone,254712345099,+254712345099"
    program.json("submit", program.sheet([*kenyan_rows(3, amount="100"), gone], name="before.csv"))
    rows = [
        "KE,NEW-1,100,KES,Jane Wanjiku,254712345001,+254712345001",
        "KE,NEW-2,130,KES,Jane Wanjiku,254712345002,+254712345002",
        "KE,NEW-3,100,KES,Jane Wanjiku,254712345777,+254712345777",
        "KE,NEW-4,100,KES,Otieno New,254712345888,+254712345888",
    ]
    summary = program.json("plan", program.sheet(rows), "--out", plan_file(program), "--key", program.home / "ada.pem")
    findings = {(finding["row"], finding["code"]) for finding in summary["findings"]}
    assert {(3, "payee.amount"), (4, "payee.account"), (5, "payee.new"), (0, "payee.gone")} <= findings
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


def test_plan_stays_valid_when_other_people_are_paid(program: Program) -> None:
    row = "KE,{name},1.00,KES,{name} Otieno,25471277{n},+25471277{n}"
    first, later = (
        program.sheet([row.format(name=name, n=n)], f"{name}.csv") for name, n in (("FIRST", 7771), ("LATER", 7772))
    )
    assert program.json("submit", first)["exit_code"] == 0
    sheet = prepare_sheet(program, "ben")
    assert program.json("submit", later)["exit_code"] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_sheet_with_defects_cannot_be_planned(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(2), "KE,X,1e3,KES,Jane,254712345678,+254712345678"])
    summary = program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada.pem")
    assert summary["exit_code"] == 3
    assert not plan_file(program).exists()


def test_unreadable_plan_is_refused(program: Program) -> None:
    program.sheet(kenyan_rows(3))
    for content in ("", "{}", "[]", "not json", '{"content": 1}'):
        plan_file(program).write_text(content)
        assert "is not a valid plan" in submit_and_expect_refusal(program)


def test_readable_or_locked_approval_key_is_refused(program: Program) -> None:
    prepare_sheet(program)
    cleo, locked = program.home / "cleo.pem", program.home / "locked.pem"
    encrypt: list[str | Path] = ["openssl", "pkey", "-in", cleo, "-aes256", "-passout", "pass:open", "-out", locked]
    subprocess.run(encrypt, check=True, capture_output=True)
    locked.chmod(0o600)
    cleo.chmod(0o644)
    result = program.run("approve", plan_file(program), "--key", cleo)
    assert (result.exit_code, "chmod 600" in result.stderr) == (2, True)
    approve = ("approve", plan_file(program), "--key", locked)
    assert program.run(*approve).exit_code == 2
    assert program.run(*approve, PAYGW_APPROVAL_PASSPHRASE="open").exit_code == 0


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("[approval]\nneeded = 1\n", "list at least one key under makers"),
        ('[approval.makers]\na = "x"\n[approval.approvers]\nb = "y"\n', "is not a person's public key"),
    ],
)
def test_policy_without_usable_keys_is_refused(program: Program, toml: str, why: str) -> None:
    program.config.write_text(f"{sandbox_toml()}\n{toml}")
    result = program.run("submit", program.sheet(kenyan_rows(3)))
    assert result.exit_code == 2
    assert why in result.stderr
    assert program.record() == []


def test_doctor_checks_approver_keys(program: Program) -> None:
    text = program.config.read_text()
    for config, code, state, found in (
        (text, 0, "ok", "who can approve"),
        (text.replace("needed = 1", "needed = 9"), 2, "wrong", "needed is 9"),
        (sandbox_toml(), 0, "ok", "not required"),
    ):
        program.config.write_text(config)
        summary = program.json("doctor")
        (check,) = [check for check in summary["checks"] if check["check"] == "approval"]
        assert (check["state"], summary["exit_code"], found in check["found"]) == (state, code, True), check


# Plans named by --plan


@pytest.mark.parametrize("name", ["nope.json", "garbage.json", ".", "payroll.plan.json"])
def test_plan_option_without_policy_is_refused(program: Program, name: str) -> None:
    prepare_sheet(program, "cleo")
    program.config.write_text(sandbox_toml())
    (program.home / "garbage.json").write_text("{}")
    submit_and_expect_refusal(program, "--plan", program.home / name)
    assert (
        program.run("submit", program.home / "payroll.csv", "--plan", program.home / name, "--dry-run").exit_code == 8
    )


def test_plan_is_checked_even_for_small_sheet(program: Program) -> None:
    nope, plan = program.home / "nope.json", plan_file(program)
    sheet = prepare_sheet(program, "cleo")
    small = program.sheet(kenyan_rows(1, amount="10", prefix="SMALL"), "small.csv")
    for named in (nope, plan):
        assert program.json("submit", small, "--plan", named)["exit_code"] == 8
    assert program.record() == []
    assert program.json("submit", sheet, "--plan", plan)["states"] == {"paid": 3}
    assert program.json("submit", sheet, "--plan", plan)["exit_code"] == 0
    for known in (sheet, program.sheet(kenyan_rows(2), "fewer.csv")):
        assert program.json("submit", known, "--plan", nope)["exit_code"] == 8


def test_unreadable_plan_is_reported_before_defects(program: Program) -> None:
    program.sheet([*kenyan_rows(2), "KE,BAD,1e3,KES,Jane,254712345678,+254712345678"])
    submit_and_expect_refusal(program, "--plan", program.home / "nope.json")
