"""Two-person approval: makers do not approve their own payment runs, a person counts once, and plans are used once."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.sheets import BOTH_WAYS, COLLECTED, READ_BOTH_WAYS, customers
from tests.support.approving import key, plan_file, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml

BAD = "KE,BAD,1e3,KES,Jane,254712345678,+254712345678"

company = pytest.mark.usefixtures("approving_company")


def plan(program: Program, *options: str | Path, by: str = "ada") -> int:
    words = ("--out", plan_file(program), "--key", program.home / f"{by}.pem", *options)
    return program.run("plan", program.home / "payroll.csv", *words).exit_code


def approve(program: Program, name: str) -> tuple[int, str]:
    result = program.run("approve", plan_file(program), "--key", program.home / f"{name}.pem")
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


# Who may prepare and approve


@pytest.fixture
def keys(program: Program) -> dict[str, str]:
    """Return the public keys of Ada, who has a second one, and of Ben and Cleo."""
    return {name: key(program.home, name) for name in ("ada", "ada2", "ben", "cleo")}


def configure(
    program: Program, makers: dict[str, list[str]], approvers: dict[str, list[str]], *, needed: int = 1
) -> None:
    """Write the policy. `makers` and `approvers` map names to keys."""
    lines = [f"[approval]\nneeded = {needed}"]
    for section, people in (("makers", makers), ("approvers", approvers)):
        lines += [f"[approval.{section}]", *(f"{json.dumps(name)} = {json.dumps(own)}" for name, own in people.items())]
    program.config.write_text("\n".join([sandbox_toml(), *lines, ""]))


def test_unusable_approval_policy_is_refused(program: Program, keys: dict[str, str]) -> None:
    ada, ben, cleo = [keys["ada"]], [keys["ben"]], [keys["cleo"]]
    for makers, approvers, needed, why in (
        ({"ada": ada}, {"ben": ben, "eve": ben}, 1, "under two names, ben and eve"),
        ({"ada": ada}, {"ada": [*ada, keys["ada2"]]}, 1, "at most 0 other people can approve"),
        ({"ada": ada}, {"cleo": [*cleo, *ben]}, 2, "needed is 2, but at most 1 other person can approve"),
        ({"\u200b": ada}, {"ben": ben}, 1, "A name in [approval.makers] is empty"),
        ({"ada": ["x"]}, {"ben": ben}, 1, "is not a person's public key"),
        ({}, {}, 1, "list at least one key under makers"),
    ):
        configure(program, makers, approvers, needed=needed)
        result = program.run("submit", program.sheet(kenyan_rows(3)))
        assert (result.exit_code, why in " ".join(result.stderr.split()), program.record()) == (2, True, []), why


def test_doctor_lists_permissions_and_keys_by_person(program: Program, keys: dict[str, str]) -> None:
    ada = [keys["ada"], keys["ada2"]]
    people = {"ada": ada, "cleo": [keys["cleo"]]}, {"ada": ada, "ben": [keys["ben"]]}
    configure(program, *people, needed=2)
    checks = {check["check"]: (check["state"], check["found"]) for check in program.json("doctor")["checks"]}
    assert checks["approval"] == ("ok", "approvals needed: 2; people who can prepare: 2; people who can approve: 2")
    state, found = checks["approval ada"]
    assert (state, "not enough other people can approve" in found, found.count(",")) == ("warning", True, 2)
    assert (checks["approval cleo"][0], checks["approval ben"][1].startswith("can approve with ")) == ("ok", True)
    configure(program, *people, needed=9)
    summary = program.json("doctor")
    (check,) = [check for check in summary["checks"] if check["check"] == "approval"]
    assert (summary["exit_code"], check["state"], "needed is 9" in check["found"]) == (2, "wrong", True)


@company
def test_unlisted_key_cannot_prepare_or_approve(program: Program) -> None:
    prepare_sheet(program)
    assert approve(program, "stranger")[0] == 8
    plan_file(program).unlink()
    assert [plan(program, by=name) for name in ("stranger", "cleo")] == [8, 8]
    assert not plan_file(program).exists()


@company
def test_readable_or_locked_approval_key_is_refused(program: Program) -> None:
    prepare_sheet(program)
    cleo, locked = program.home / "cleo.pem", program.home / "locked.pem"
    encrypt: list[str | Path] = ["openssl", "pkey", "-in", cleo, "-aes256", "-passout", "pass:open", "-out", locked]
    subprocess.run(encrypt, check=True, capture_output=True)
    locked.chmod(0o600)
    cleo.chmod(0o644)
    code, told = approve(program, "cleo")
    assert (code, "chmod 600" in told) == (2, True)
    assert approve(program, "locked")[0] == 2
    words = ("approve", plan_file(program), "--key", locked)
    assert program.run(*words, PAYGW_APPROVAL_PASSPHRASE="open").exit_code == 0


# What a plan approves


@company
def test_sheet_without_approved_plan_is_not_sent(program: Program) -> None:
    program.sheet(kenyan_rows(3))
    assert "there is none at" in submit_and_expect_refusal(program)
    for content in ("", "{}", "[]", "not json", '{"content": 1}'):
        plan_file(program).write_text(content)
        assert "is not a valid plan" in submit_and_expect_refusal(program)
    plan_file(program).unlink()
    prepare_sheet(program)
    assert "needs 1 valid approval but has 0" in submit_and_expect_refusal(program)
    program.sheet([*kenyan_rows(2), BAD])
    submit_and_expect_refusal(program, "--plan", program.home / "nope.json")
    plan_file(program).unlink()
    assert (plan(program), plan_file(program).exists()) == (3, False)


@company
def test_approve_without_key_only_shows_plan(program: Program) -> None:
    sheet = prepare_sheet(program)
    before = plan_file(program).read_bytes()
    result = program.run("approve", plan_file(program))
    assert (result.exit_code, "4,501.50" in result.stdout, "Prepared by ada" in result.stdout) == (0, True, True)
    assert plan_file(program).read_bytes() == before
    told = approve(program, "cleo")[1]
    assert "Approved by cleo. The plan has 1 of 1 required approval." in told
    assert key(program.home, "cleo") not in told
    assert program.run("plan", sheet, "--out", sheet, "--key", program.home / "ada.pem").exit_code == 2
    assert len(sheet.read_text().splitlines()) == 4, "a plan never overwrites a sheet"


@company
def test_approved_plan_must_match_current_configuration(program: Program) -> None:
    sheet, text = prepare_sheet(program, "cleo"), program.config.read_text()
    elsewhere = ('"journal.sqlite3"', '"other.sqlite3"')
    for changes, why in (
        ([("expires_h = 72", "expires_h = 0.000001")], "the approval by cleo expired at 20"),
        ([("\ncleo = ", "\n# ")], "with a key that does not belong to a listed approver"),
        ([('endpoint_id = "1000"', 'endpoint_id = "1001"'), elsewhere], "for sandbox/1000, not for sandbox/1001"),
    ):
        changed = text
        for old, new in changes:
            changed = changed.replace(old, new)
        program.config.write_text(changed)
        result = program.run("submit", sheet)
        assert (result.exit_code, why in result.stderr, program.record()) == (8, True, []), why
    program.config.write_text(text)
    assert program.json("submit", sheet)["states"] == {"paid": 3}
    program.config.write_text(text.replace(*elsewhere))
    result = program.run("submit", sheet)
    assert (result.exit_code, "it is for the journal " in result.stderr, len(program.record())) == (8, True, 3)


@company
def test_plan_stays_valid_when_other_people_are_paid(program: Program) -> None:
    row = "KE,{name},1.00,KES,{name} Otieno,25471277{n},+25471277{n}"
    first, later = (
        program.sheet([row.format(name=name, n=n)], f"{name}.csv") for name, n in (("FIRST", 7771), ("LATER", 7772))
    )
    assert program.json("submit", first)["exit_code"] == 0
    sheet = prepare_sheet(program, "ben")
    assert program.json("submit", later)["exit_code"] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


# One use for each plan


@company
def test_used_plan_can_only_continue_its_batch(program: Program) -> None:
    sheet = prepare_sheet(program, "cleo")
    batch = program.json("submit", sheet)["batch"]
    used = plan_file(program).rename(program.home / "used.plan.json")
    assert program.json("submit", sheet)["exit_code"] == 0
    used.rename(plan_file(program))
    for options in ([], ["--skip-invalid"], ["--amend"]):
        again = program.json("submit", sheet, *options)
        assert (again["exit_code"], again["sent_this_run"]) == (0, 0)
    assert len(program.json("status")["batches"]) == 1
    result = program.run("submit", program.sheet(kenyan_rows(4)))
    error_output = " ".join(result.stderr.split())
    assert (result.exit_code, f"already used for batch {batch} (payroll.csv)" in error_output) == (8, True)
    assert len(program.record()) == 3


@company
def test_amended_sheet_needs_new_plan(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="9001")])
    assert (plan(program), approve(program, "cleo")[0]) == (0, 0)
    assert program.json("submit", sheet)["states"] == {"paid": 2, "rejected": 1}
    used = shutil.copy(plan_file(program), program.home / "used.plan.json")
    program.sheet([*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="1500")])
    assert "The plan was already used" in program.run("submit", sheet, "--amend", "--plan", used).stderr
    assert plan(program, "--amend") == 0
    assert program.run("submit", sheet, "--amend").exit_code == 8
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet, "--amend")["states"] == {"paid": 3}
    assert program.json("verify")["exit_code"] == 0


# Collections


@company
def test_collection_is_planned_approved_and_sent(program: Program) -> None:
    sheet = program.sheet(customers(2), "payroll.csv", COLLECTED)
    assert program.run("collect", sheet).exit_code == 8
    assert plan(program, "--collect") == 0
    assert "2 rows, to collect at sandbox/1000" in program.run("approve", plan_file(program)).stdout
    assert approve(program, "cleo")[0] == 0
    program.sheet(customers(2, amount="2500.50"), "payroll.csv", COLLECTED)
    assert (program.run("collect", sheet).exit_code, program.json("status")["batches"]) == (8, [])
    program.sheet(customers(2), "payroll.csv", COLLECTED)
    summary = program.json("collect", sheet)
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 2})
    statements = [deed["said"] for deed in program.json("status", summary["batch"], "--history")["history"]]
    assert [sentence.split(" at ")[0] for sentence in statements[1:]] == ["prepared by ada", "approved by cleo"]


@company
def test_payout_approval_does_not_count_for_collection(program: Program) -> None:
    """A sheet can be read both ways, but its approval as a payout does not allow collecting it."""
    sheet = program.sheet([READ_BOTH_WAYS], "payroll.csv", BOTH_WAYS)
    assert (plan(program), approve(program, "cleo")[0]) == (0, 0)
    assert program.run("collect", sheet).exit_code == 8
    assert program.json("submit", sheet)["states"] == {"paid": 1}


# Plans named by --plan


@company
def test_plan_option_without_policy_is_refused(program: Program) -> None:
    prepare_sheet(program, "cleo")
    program.config.write_text(sandbox_toml())
    (program.home / "garbage.json").write_text("{}")
    for name in ("nope.json", "garbage.json", ".", "payroll.plan.json"):
        named = ("--plan", program.home / name)
        submit_and_expect_refusal(program, *named)
        assert program.run("submit", program.home / "payroll.csv", *named, "--dry-run").exit_code == 8


@company
def test_plan_is_checked_even_for_small_sheet(program: Program) -> None:
    nope, named = program.home / "nope.json", plan_file(program)
    sheet = prepare_sheet(program, "cleo")
    small = program.sheet(kenyan_rows(1, amount="10", prefix="SMALL"), "small.csv")
    for path in (nope, named):
        assert program.json("submit", small, "--plan", path)["exit_code"] == 8
    assert program.record() == []
    assert program.json("submit", sheet, "--plan", named)["states"] == {"paid": 3}
    assert program.json("submit", sheet, "--plan", named)["exit_code"] == 0
    for known in (sheet, program.sheet(kenyan_rows(2), "fewer.csv")):
        assert program.json("submit", known, "--plan", nope)["exit_code"] == 8
