"""Two-person approval requires two people, even if one has several keys or spells names and keys differently."""

import base64
import json
import shutil
from collections.abc import Callable

import pytest

from tests.support.approving import edit_plan, key, plan_file, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml


@pytest.fixture
def public_keys(program: Program) -> dict[str, str]:
    """Return the public keys of Ada, who has a second one, and of Ben and Cleo."""
    return {name: key(program.home, name) for name in ("ada", "ada2", "ben", "cleo")}


def configure(program: Program, makers: dict[str, str], approvers: dict[str, str], *, needed: int = 1) -> Program:
    """Write the policy. `makers` and `approvers` map names to values, both as TOML."""
    sections = {"makers": makers, "approvers": approvers}
    lines = [f"[approval]\nneeded = {needed}"]
    for section, people in sections.items():
        lines += [f"[approval.{section}]", *(f"{name} = {value}" for name, value in people.items())]
    program.config.write_text("\n".join([sandbox_toml(), *lines, ""]))
    return program


def format_keys(*public: str) -> str:
    return json.dumps(list(public) if len(public) > 1 else public[0])


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
    assert result.exit_code == 2, result.output
    assert program.record() == []
    return " ".join(result.stderr.split())


def approve(program: Program, name: str) -> tuple[int, str]:
    result = program.run("approve", plan_file(program), "--key", program.home / f"{name}.pem")
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


# Makers never approve their own plans


def test_maker_cannot_approve_own_plan_with_second_key(program: Program, public_keys: dict[str, str]) -> None:
    ada, second = format_keys(public_keys["ada"]), format_keys(public_keys["ada2"])
    configure(program, {"ada": ada}, {"ada": second, "cleo": format_keys(public_keys["cleo"])})
    prepare_sheet(program)
    code, told = approve(program, "ada2")
    assert (code, "ada made this plan, so another person must approve it" in told) == (8, True)
    assert "has 0" in submit_and_expect_refusal(program)


def test_look_alike_name_cannot_approve_own_plan(program: Program, public_keys: dict[str, str]) -> None:
    look_alike = '"\\uFF21d\\u200ba "'
    configure(
        program,
        {"ada": format_keys(public_keys["ada"])},
        {look_alike: format_keys(public_keys["ada2"]), "cleo": format_keys(public_keys["cleo"])},
    )
    prepare_sheet(program)
    assert approve(program, "ada2")[0] == 8


def test_earlier_approval_by_second_maker_key_is_invalid(program: Program, public_keys: dict[str, str]) -> None:
    """The second key was another person's when it approved, and is the maker's when the plan is submitted."""
    ada, second, cleo = (
        format_keys(public_keys["ada"]),
        format_keys(public_keys["ada2"]),
        format_keys(public_keys["cleo"]),
    )
    configure(program, {"ada": ada}, {"eve": second, "cleo": cleo})
    prepare_sheet(program, "ada2")
    configure(program, {"ada": ada}, {"ada": second, "cleo": cleo})
    assert "that of ada is by the maker of the plan" in submit_and_expect_refusal(program)


@pytest.mark.parametrize("spell", [respell_key, lambda public: public[:20] + "\n" + public[20:].rstrip("=")])
def test_same_key_in_other_encoding_counts_once(
    program: Program, public_keys: dict[str, str], spell: Callable[[str], str]
) -> None:
    again = format_keys(spell(public_keys["ada"]))
    configure(
        program, {"ada": format_keys(public_keys["ada"])}, {"eve": again, "cleo": format_keys(public_keys["cleo"])}
    )
    message = refusal_message(program)
    assert "under two names, ada and eve" in message


def test_approval_by_reencoded_maker_key_does_not_count(program: Program, public_keys: dict[str, str]) -> None:
    both = {"ada": format_keys(public_keys["ada"]), "cleo": format_keys(public_keys["cleo"])}
    configure(program, both, both)
    prepare_sheet(program, "cleo")
    approvals = json.loads(plan_file(program).read_text())["approvals"]
    for public in (public_keys["ada"], respell_key(public_keys["ada"]), respell_key(public_keys["cleo"])):
        edit_plan(program, {"approvals": [{**approvals[0], "key": public}]})
        assert "has 0" in submit_and_expect_refusal(program)


# A person counts once


def test_maker_with_two_keys_counts_once(program: Program, public_keys: dict[str, str]) -> None:
    makers, second = {"ben": format_keys(public_keys["ben"])}, format_keys(public_keys["ada"], public_keys["ada2"])
    configure(program, makers, {"ada": second, "cleo": format_keys(public_keys["cleo"])}, needed=2)
    sheet = program.sheet(kenyan_rows(3))
    program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ben.pem")
    first = program.json("approve", plan_file(program), "--key", program.home / "ada.pem")
    again = program.json("approve", plan_file(program), "--key", program.home / "ada2.pem")
    assert (first["approvals"], again["approvals"]) == (1, 1)
    assert "Approved by ada. The plan has 1 of 2 approvals" in str(again["message"])
    assert "needs 2 valid approvals and has 1" in submit_and_expect_refusal(program)
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_person_approving_with_two_keys_counts_once(program: Program, public_keys: dict[str, str]) -> None:
    makers, both = {"ben": format_keys(public_keys["ben"])}, format_keys(public_keys["ada"], public_keys["ada2"])
    configure(program, makers, {"ada": both, "cleo": format_keys(public_keys["cleo"])}, needed=2)
    program.json("plan", program.sheet(kenyan_rows(3)), "--out", plan_file(program), "--key", program.home / "ben.pem")
    approvals = []
    for name in ("ada", "ada2"):
        assert approve(program, name)[0] == 0
        approvals += json.loads(plan_file(program).read_text())["approvals"]
    edit_plan(program, {"approvals": approvals})
    assert "needs 2 valid approvals and has 1" in submit_and_expect_refusal(program)


def test_each_key_of_person_makes_and_approves(program: Program, public_keys: dict[str, str]) -> None:
    ada = format_keys(public_keys["ada"], public_keys["ada2"])
    configure(
        program,
        {"ada": ada, "ben": format_keys(public_keys["ben"])},
        {"ada": ada, "ben": format_keys(public_keys["ben"])},
    )
    sheet = program.sheet(kenyan_rows(3))
    program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada2.pem")
    assert approve(program, "ada")[0] == 8
    assert approve(program, "ben")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_maker_may_approve_plan_of_another_maker(program: Program, public_keys: dict[str, str]) -> None:
    both = {"ada": format_keys(public_keys["ada"]), "ben": format_keys(public_keys["ben"])}
    configure(program, both, both)
    sheet = program.sheet(kenyan_rows(3))
    program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ben.pem")
    assert approve(program, "ben")[0] == 8
    assert approve(program, "ada")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


# Configuration of people


def test_key_under_two_names_is_refused(program: Program, public_keys: dict[str, str]) -> None:
    configure(
        program,
        {"ada": format_keys(public_keys["ada"])},
        {"ben": format_keys(public_keys["ben"]), "eve": format_keys(public_keys["ben"])},
    )
    assert "under two names, ben and eve" in refusal_message(program)


def test_unmeetable_approval_policy_is_refused(program: Program, public_keys: dict[str, str]) -> None:
    ada = format_keys(public_keys["ada"])
    configure(program, {"ada": ada}, {"ada": format_keys(public_keys["ada"], public_keys["ada2"])})
    assert "at most 0 other people may approve" in refusal_message(program)
    configure(program, {"ada": ada}, {"cleo": format_keys(public_keys["cleo"], public_keys["ben"])}, needed=2)
    assert "needed is 2, but at most 1 other person may approve" in refusal_message(program)


def test_invisible_name_is_refused(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {'"\\u200b"': format_keys(public_keys["ada"])}, {"ben": format_keys(public_keys["ben"])})
    assert "A name in [approval.makers] is empty" in refusal_message(program)


def test_doctor_lists_rights_and_keys_of_people(program: Program, public_keys: dict[str, str]) -> None:
    ada, ben = format_keys(public_keys["ada"], public_keys["ada2"]), format_keys(public_keys["ben"])
    configure(program, {"ada": ada, "cleo": format_keys(public_keys["cleo"])}, {"ada": ada, "ben": ben}, needed=2)
    checks = {check["check"]: (check["state"], check["found"]) for check in program.json("doctor")["checks"]}
    assert checks["approval"] == ("ok", "2 needed; 2 may prepare and 2 may approve")
    state, found = checks["approval ada"]
    assert state == "look"
    assert "too few others may approve" in found
    assert found.count(",") == 2
    assert checks["approval cleo"][0] == "ok"
    assert checks["approval ben"][1].startswith("may approve with ")


# One journal and one use for each plan


def test_plan_for_other_journal_is_refused(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {"ada": format_keys(public_keys["ada"])}, {"cleo": format_keys(public_keys["cleo"])})
    sheet = prepare_sheet(program, "cleo")
    program.json("submit", sheet)
    program.config.write_text(program.config.read_text().replace('"journal.sqlite3"', '"other.sqlite3"'))
    result = program.run("submit", sheet)
    assert result.exit_code == 8
    assert "it is for the journal " in result.stderr
    assert len(program.record()) == 3


def test_used_plan_is_refused_with_time_of_use(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {"ada": format_keys(public_keys["ada"])}, {"cleo": format_keys(public_keys["cleo"])})
    sheet = prepare_sheet(program, "cleo")
    batch = program.json("submit", sheet)["batch"]
    more = program.sheet(kenyan_rows(4))
    result = program.run("submit", more)
    error_output = " ".join(result.stderr.split())
    assert result.exit_code == 8
    assert "The plan was already used at 20" in error_output
    assert f"for batch {batch} (payroll.csv)" in error_output
    assert len(program.record()) == 3


def test_resubmitted_approved_plan_continues_same_batch(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {"ada": format_keys(public_keys["ada"])}, {"cleo": format_keys(public_keys["cleo"])})
    sheet = prepare_sheet(program, "cleo")
    program.json("submit", sheet)
    for options in ([], ["--skip-invalid"], ["--amend"]):
        again = program.json("submit", sheet, *options)
        assert (again["exit_code"], again["sent_this_run"]) == (0, 0)
    assert len(program.json("status")["batches"]) == 1
    assert len(program.record()) == 3


def test_amended_sheet_needs_new_plan(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {"ada": format_keys(public_keys["ada"])}, {"cleo": format_keys(public_keys["cleo"])})
    rows = [*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="9001")]
    sheet = program.sheet(rows)
    ada = program.home / "ada.pem"
    program.json("plan", sheet, "--out", plan_file(program), "--key", ada)
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 2, "rejected": 1}
    used = shutil.copy(plan_file(program), program.home / "used.plan.json")
    program.sheet([*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="1500")])
    assert "The plan was already used" in program.run("submit", sheet, "--amend", "--plan", used).stderr
    program.json("plan", sheet, "--amend", "--out", plan_file(program), "--key", ada)
    assert program.run("submit", sheet, "--amend").exit_code == 8
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet, "--amend")["states"] == {"paid": 3}
    assert program.json("verify")["exit_code"] == 0


def test_viewing_changed_plan_is_refused(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {"ada": format_keys(public_keys["ada"])}, {"cleo": format_keys(public_keys["cleo"])})
    prepare_sheet(program)
    edit_plan(program, {"findings": []})
    text = plan_file(program).read_text().replace("4501.50", "4501.51")
    plan_file(program).write_text(text)
    result = program.run("approve", plan_file(program))
    assert result.exit_code == 8
    assert "changed after its maker signed it" in result.stderr


def test_approve_shows_owner_of_key(program: Program, public_keys: dict[str, str]) -> None:
    configure(program, {"ada": format_keys(public_keys["ada"])}, {"cleo": format_keys(public_keys["cleo"])})
    prepare_sheet(program)
    code, told = approve(program, "cleo")
    assert code == 0
    assert "Prepared by ada at " in told
    assert "Approved by cleo at " in told
    assert "Approved by cleo. The plan has 1 of 1 approval." in told
    assert public_keys["cleo"] not in told
