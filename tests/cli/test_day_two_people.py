"""Two-person approval requires two people, even if one has several keys or spells names and keys differently."""

import base64
import json
import shutil

import pytest

from tests.support.approving import edit_plan, key, plan_file, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml


@pytest.fixture
def keys(program: Program) -> dict[str, str]:
    """Return the public keys of Ada, who has a second one, and of Ben and Cleo."""
    return {name: key(program.home, name) for name in ("ada", "ada2", "ben", "cleo")}


@pytest.fixture
def pair(program: Program, keys: dict[str, str]) -> Program:
    """Configure that Ada prepares and Cleo approves."""
    configure(program, {"ada": [keys["ada"]]}, {"cleo": [keys["cleo"]]})
    return program


def configure(
    program: Program, makers: dict[str, list[str]], approvers: dict[str, list[str]], *, needed: int = 1
) -> None:
    """Write the policy. `makers` and `approvers` map names to keys."""
    lines = [f"[approval]\nneeded = {needed}"]
    for section, people in (("makers", makers), ("approvers", approvers)):
        lines += [f"[approval.{section}]", *(f"{json.dumps(name)} = {json.dumps(own)}" for name, own in people.items())]
    program.config.write_text("\n".join([sandbox_toml(), *lines, ""]))


def respell_key(public: str) -> str:
    """Return the same key with other unused bits before its padding, which a decoder ignores."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = public.rstrip("=")[-1]
    spelled = public.rstrip("=")[:-1] + alphabet[alphabet.index(last) + 1] + "="
    assert base64.b64decode(spelled) == base64.b64decode(public)
    assert spelled != public
    return spelled


def refusal_message(program: Program) -> str:
    """Return the error for which the configuration is refused before anything is sent."""
    result = program.run("submit", program.sheet(kenyan_rows(3)))
    assert (result.exit_code, program.record()) == (2, [])
    return " ".join(result.stderr.split())


def approve(program: Program, name: str) -> tuple[int, str]:
    result = program.run("approve", plan_file(program), "--key", program.home / f"{name}.pem")
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def plan(program: Program, name: str, *options: str) -> None:
    by = ("--out", plan_file(program), "--key", program.home / f"{name}.pem")
    assert program.json("plan", program.home / "payroll.csv", *by, *options)["exit_code"] == 0


# Makers never approve their own plans


@pytest.mark.parametrize("name", ["ada", "\uff21d\u200ba "], ids=["same name", "look-alike"])
def test_maker_cannot_approve_own_plan_with_second_key(program: Program, keys: dict[str, str], name: str) -> None:
    configure(program, {"ada": [keys["ada"]]}, {name: [keys["ada2"]], "cleo": [keys["cleo"]]})
    prepare_sheet(program)
    code, told = approve(program, "ada2")
    assert (code, "ada made this plan, so another person must approve it" in told) == (8, True)
    assert "has 0" in submit_and_expect_refusal(program)


def test_earlier_approval_by_second_maker_key_is_invalid(program: Program, keys: dict[str, str]) -> None:
    """The second key was another person's when it approved, and is the maker's when the plan is submitted."""
    for name in ("eve", "ada"):
        configure(program, {"ada": [keys["ada"]]}, {name: [keys["ada2"]], "cleo": [keys["cleo"]]})
        if name == "eve":
            prepare_sheet(program, "ada2")
    assert "the approval by ada is from the maker of the plan" in submit_and_expect_refusal(program)


def test_reencoded_key_counts_as_same_key(program: Program, keys: dict[str, str]) -> None:
    public = keys["ada"]
    for spelled in (respell_key(public), public[:20] + "\n" + public[20:].rstrip("=")):
        configure(program, {"ada": [public]}, {"eve": [spelled], "cleo": [keys["cleo"]]})
        assert "under two names, ada and eve" in refusal_message(program)


def test_approval_by_reencoded_maker_key_does_not_count(program: Program, keys: dict[str, str]) -> None:
    both = {name: [keys[name]] for name in ("ada", "cleo")}
    configure(program, both, both)
    prepare_sheet(program, "cleo")
    approvals = json.loads(plan_file(program).read_text())["approvals"]
    for public in (keys["ada"], respell_key(keys["ada"]), respell_key(keys["cleo"])):
        edit_plan(program, {"approvals": [{**approvals[0], "key": public}]})
        assert "has 0" in submit_and_expect_refusal(program)


# A person counts once


def test_person_with_two_keys_counts_once(program: Program, keys: dict[str, str]) -> None:
    approvers = {"ada": [keys["ada"], keys["ada2"]], "cleo": [keys["cleo"]]}
    configure(program, {"ben": [keys["ben"]]}, approvers, needed=2)
    sheet = program.sheet(kenyan_rows(3))
    approvals = []
    for name in ("ada", "ada2"):
        plan(program, "ben", "--force")
        assert "Approved by ada. The plan has 1 of 2 required approvals" in approve(program, name)[1]
        approvals += json.loads(plan_file(program).read_text())["approvals"]
    assert "Approved by ada. The plan has 1 of 2 required approvals" in approve(program, "ada")[1]
    assert "needs 2 valid approvals but has 1" in submit_and_expect_refusal(program)
    kept = plan_file(program).read_bytes()
    edit_plan(program, {"approvals": approvals})
    assert "needs 2 valid approvals but has 1" in submit_and_expect_refusal(program)
    plan_file(program).write_bytes(kept)
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_person_can_make_plan_with_any_key(program: Program, keys: dict[str, str]) -> None:
    people = {"ada": [keys["ada"], keys["ada2"]], "ben": [keys["ben"]]}
    configure(program, people, people)
    sheet = program.sheet(kenyan_rows(3))
    plan(program, "ada2")
    assert [approve(program, name)[0] for name in ("ada", "ben")] == [8, 0]
    assert program.json("submit", sheet)["states"] == {"paid": 3}


# Configuration of people


def test_unusable_approval_policy_is_refused(program: Program, keys: dict[str, str]) -> None:
    ada, ben, cleo = [keys["ada"]], [keys["ben"]], [keys["cleo"]]
    for makers, approvers, needed, why in (
        ({"ada": ada}, {"ben": ben, "eve": ben}, 1, "under two names, ben and eve"),
        ({"ada": ada}, {"ada": [*ada, keys["ada2"]]}, 1, "at most 0 other people can approve"),
        ({"ada": ada}, {"cleo": [*cleo, *ben]}, 2, "needed is 2, but at most 1 other person can approve"),
        ({"\u200b": ada}, {"ben": ben}, 1, "A name in [approval.makers] is empty"),
    ):
        configure(program, makers, approvers, needed=needed)
        assert why in refusal_message(program)


def test_doctor_lists_permissions_and_keys_by_person(program: Program, keys: dict[str, str]) -> None:
    ada = [keys["ada"], keys["ada2"]]
    configure(program, {"ada": ada, "cleo": [keys["cleo"]]}, {"ada": ada, "ben": [keys["ben"]]}, needed=2)
    checks = {check["check"]: (check["state"], check["found"]) for check in program.json("doctor")["checks"]}
    assert checks["approval"] == ("ok", "approvals needed: 2; people who can prepare: 2; people who can approve: 2")
    state, found = checks["approval ada"]
    assert (state, "not enough other people can approve" in found, found.count(",")) == ("warning", True, 2)
    assert checks["approval cleo"][0] == "ok"
    assert checks["approval ben"][1].startswith("can approve with ")


# One journal and one use for each plan


def test_plan_for_another_journal_is_refused(pair: Program) -> None:
    sheet = prepare_sheet(pair, "cleo")
    pair.json("submit", sheet)
    pair.config.write_text(pair.config.read_text().replace('"journal.sqlite3"', '"other.sqlite3"'))
    result = pair.run("submit", sheet)
    assert (result.exit_code, "it is for the journal " in result.stderr) == (8, True)
    assert len(pair.record()) == 3


def test_used_plan_can_only_continue_its_batch(pair: Program) -> None:
    sheet = prepare_sheet(pair, "cleo")
    batch = pair.json("submit", sheet)["batch"]
    for options in ([], ["--skip-invalid"], ["--amend"]):
        again = pair.json("submit", sheet, *options)
        assert (again["exit_code"], again["sent_this_run"]) == (0, 0)
    assert len(pair.json("status")["batches"]) == 1
    result = pair.run("submit", pair.sheet(kenyan_rows(4)))
    error_output = " ".join(result.stderr.split())
    assert (result.exit_code, "The plan was already used for batch" in error_output) == (8, True)
    assert f"for batch {batch} (payroll.csv)" in error_output
    assert len(pair.record()) == 3


def test_amended_sheet_needs_new_plan(pair: Program) -> None:
    sheet = pair.sheet([*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="9001")])
    plan(pair, "ada")
    assert approve(pair, "cleo")[0] == 0
    assert pair.json("submit", sheet)["states"] == {"paid": 2, "rejected": 1}
    used = shutil.copy(plan_file(pair), pair.home / "used.plan.json")
    pair.sheet([*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="1500")])
    assert "The plan was already used" in pair.run("submit", sheet, "--amend", "--plan", used).stderr
    plan(pair, "ada", "--amend")
    assert pair.run("submit", sheet, "--amend").exit_code == 8
    assert approve(pair, "cleo")[0] == 0
    assert pair.json("submit", sheet, "--amend")["states"] == {"paid": 3}
    assert pair.json("verify")["exit_code"] == 0


def test_approve_shows_key_owner(pair: Program, keys: dict[str, str]) -> None:
    prepare_sheet(pair)
    code, told = approve(pair, "cleo")
    assert code == 0
    for part in (
        "Prepared by ada at ",
        "Approved by cleo at ",
        "Approved by cleo. The plan has 1 of 1 required approval.",
    ):
        assert part in told
    assert keys["cleo"] not in told
