"""Two pairs of eyes are two people: whoever has several keys, and however names and keys are spelled."""

import base64
import json
import shutil
from collections.abc import Callable

import pytest

from tests.support.approving import edited, key, plan_of, prepared, refused
from tests.support.program import Program, kenyan_rows, sandbox_toml


@pytest.fixture
def keys(program: Program) -> dict[str, str]:
    """The public keys of ada, with a second one, of ben and of cleo."""
    return {name: key(program.home, name) for name in ("ada", "ada2", "ben", "cleo")}


def configure(program: Program, makers: dict[str, str], approvers: dict[str, str], *, needed: int = 1) -> Program:
    """Write the policy; `makers` and `approvers` map a name as TOML has it to a value as TOML has it."""
    sections = {"makers": makers, "approvers": approvers}
    lines = [f"[approval]\nneeded = {needed}"]
    for section, people in sections.items():
        lines += [f"[approval.{section}]", *(f"{name} = {value}" for name, value in people.items())]
    program.config.write_text("\n".join([sandbox_toml(), *lines, ""]))
    return program


def quoted(*public: str) -> str:
    return json.dumps(list(public) if len(public) > 1 else public[0])


def other_spelling(public: str) -> str:
    """Return the same key with other unused bits before its padding, as a decoder reads it."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = public.rstrip("=")[-1]
    spelled = public.rstrip("=")[:-1] + alphabet[alphabet.index(last) + 1] + "="
    assert base64.b64decode(spelled) == base64.b64decode(public)
    assert spelled != public
    return spelled


def refusal(program: Program) -> str:
    """Return why the configuration is refused before anything is sent."""
    result = program.run("submit", program.sheet(kenyan_rows(3)))
    assert result.exit_code == 2, result.output
    assert program.record() == []
    return " ".join(result.stderr.split())


def approve(program: Program, name: str) -> tuple[int, str]:
    result = program.run("approve", plan_of(program), "--key", program.home / f"{name}.pem")
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


# The maker is never an approver


def test_maker_cannot_approve_own_plan_with_second_key(program: Program, keys: dict[str, str]) -> None:
    ada, second = quoted(keys["ada"]), quoted(keys["ada2"])
    configure(program, {"ada": ada}, {"ada": second, "cleo": quoted(keys["cleo"])})
    prepared(program)
    code, told = approve(program, "ada2")
    assert (code, "ada made this plan, so another person must approve it" in told) == (8, True)
    assert "has 0" in refused(program)


def test_maker_cannot_approve_under_look_alike_name(program: Program, keys: dict[str, str]) -> None:
    look_alike = '"\\uFF21d\\u200ba "'
    configure(program, {"ada": quoted(keys["ada"])}, {look_alike: quoted(keys["ada2"]), "cleo": quoted(keys["cleo"])})
    prepared(program)
    assert approve(program, "ada2")[0] == 8


def test_earlier_approval_by_second_maker_key_is_invalid(program: Program, keys: dict[str, str]) -> None:
    """Made where the second key was another person's, and submitted where it is the maker's."""
    ada, second, cleo = quoted(keys["ada"]), quoted(keys["ada2"]), quoted(keys["cleo"])
    configure(program, {"ada": ada}, {"eve": second, "cleo": cleo})
    prepared(program, "ada2")
    configure(program, {"ada": ada}, {"ada": second, "cleo": cleo})
    assert "that of ada is by the maker of the plan" in refused(program)


@pytest.mark.parametrize("spell", [other_spelling, lambda public: public[:20] + "\n" + public[20:].rstrip("=")])
def test_respelled_key_counts_as_same_key(program: Program, keys: dict[str, str], spell: Callable[[str], str]) -> None:
    again = quoted(spell(keys["ada"]))
    configure(program, {"ada": quoted(keys["ada"])}, {"eve": again, "cleo": quoted(keys["cleo"])})
    told = refusal(program)
    assert "under two names, ada and eve" in told


def test_approval_by_respelled_maker_key_does_not_count(program: Program, keys: dict[str, str]) -> None:
    both = {"ada": quoted(keys["ada"]), "cleo": quoted(keys["cleo"])}
    configure(program, both, both)
    prepared(program, "cleo")
    approvals = json.loads(plan_of(program).read_text())["approvals"]
    for public in (keys["ada"], other_spelling(keys["ada"]), other_spelling(keys["cleo"])):
        edited(program, {"approvals": [{**approvals[0], "key": public}]})
        assert "has 0" in refused(program)


# A person counts once


def test_a_person_with_two_keys_counts_once(program: Program, keys: dict[str, str]) -> None:
    makers, second = {"ben": quoted(keys["ben"])}, quoted(keys["ada"], keys["ada2"])
    configure(program, makers, {"ada": second, "cleo": quoted(keys["cleo"])}, needed=2)
    sheet = program.sheet(kenyan_rows(3))
    program.json("plan", sheet, "--out", plan_of(program), "--key", program.home / "ben.pem")
    first = program.json("approve", plan_of(program), "--key", program.home / "ada.pem")
    again = program.json("approve", plan_of(program), "--key", program.home / "ada2.pem")
    assert (first["approvals"], again["approvals"]) == (1, 1)
    assert "Approved by ada. The plan has 1 of 2 approvals" in str(again["message"])
    assert "needs 2 valid approvals and has 1" in refused(program)
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_person_approving_with_two_keys_counts_once(program: Program, keys: dict[str, str]) -> None:
    makers, both = {"ben": quoted(keys["ben"])}, quoted(keys["ada"], keys["ada2"])
    configure(program, makers, {"ada": both, "cleo": quoted(keys["cleo"])}, needed=2)
    program.json("plan", program.sheet(kenyan_rows(3)), "--out", plan_of(program), "--key", program.home / "ben.pem")
    approvals = []
    for name in ("ada", "ada2"):
        assert approve(program, name)[0] == 0
        approvals += json.loads(plan_of(program).read_text())["approvals"]
    edited(program, {"approvals": approvals})
    assert "needs 2 valid approvals and has 1" in refused(program)


def test_each_key_of_a_person_makes_and_approves(program: Program, keys: dict[str, str]) -> None:
    ada = quoted(keys["ada"], keys["ada2"])
    configure(program, {"ada": ada, "ben": quoted(keys["ben"])}, {"ada": ada, "ben": quoted(keys["ben"])})
    sheet = program.sheet(kenyan_rows(3))
    program.json("plan", sheet, "--out", plan_of(program), "--key", program.home / "ada2.pem")
    assert approve(program, "ada")[0] == 8
    assert approve(program, "ben")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


def test_maker_may_approve_plan_of_another_maker(program: Program, keys: dict[str, str]) -> None:
    both = {"ada": quoted(keys["ada"]), "ben": quoted(keys["ben"])}
    configure(program, both, both)
    sheet = program.sheet(kenyan_rows(3))
    program.json("plan", sheet, "--out", plan_of(program), "--key", program.home / "ben.pem")
    assert approve(program, "ben")[0] == 8
    assert approve(program, "ada")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 3}


# Who is configured


def test_key_under_two_names_is_refused(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"ben": quoted(keys["ben"]), "eve": quoted(keys["ben"])})
    assert "under two names, ben and eve" in refusal(program)


def test_unmeetable_approval_policy_is_refused(program: Program, keys: dict[str, str]) -> None:
    ada = quoted(keys["ada"])
    configure(program, {"ada": ada}, {"ada": quoted(keys["ada"], keys["ada2"])})
    assert "at most 0 other people may approve" in refusal(program)
    configure(program, {"ada": ada}, {"cleo": quoted(keys["cleo"], keys["ben"])}, needed=2)
    assert "needed is 2, but at most 1 other person may approve" in refusal(program)


def test_invisible_name_is_refused(program: Program, keys: dict[str, str]) -> None:
    configure(program, {'"\\u200b"': quoted(keys["ada"])}, {"ben": quoted(keys["ben"])})
    assert "A name in [approval.makers] is empty" in refusal(program)


def test_doctor_lists_rights_and_keys_of_people(program: Program, keys: dict[str, str]) -> None:
    ada, ben = quoted(keys["ada"], keys["ada2"]), quoted(keys["ben"])
    configure(program, {"ada": ada, "cleo": quoted(keys["cleo"])}, {"ada": ada, "ben": ben}, needed=2)
    checks = {one["check"]: (one["state"], one["found"]) for one in program.json("doctor")["checks"]}
    assert checks["approval"] == ("ok", "2 needed; 2 may prepare and 2 may approve")
    state, found = checks["approval ada"]
    assert state == "look"
    assert "too few others may approve" in found
    assert found.count(",") == 2
    assert checks["approval cleo"][0] == "ok"
    assert checks["approval ben"][1].startswith("may approve with ")


# A plan is for one journal, and used once


def test_a_plan_made_against_another_journal_is_refused(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"cleo": quoted(keys["cleo"])})
    sheet = prepared(program, "cleo")
    program.json("submit", sheet)
    program.config.write_text(program.config.read_text().replace('"journal.sqlite3"', '"other.sqlite3"'))
    result = program.run("submit", sheet)
    assert result.exit_code == 8
    assert "it is for the journal " in result.stderr
    assert len(program.record()) == 3


def test_used_plan_is_refused_with_time_of_use(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"cleo": quoted(keys["cleo"])})
    sheet = prepared(program, "cleo")
    batch = program.json("submit", sheet)["batch"]
    more = program.sheet(kenyan_rows(4))
    result = program.run("submit", more)
    told = " ".join(result.stderr.split())
    assert result.exit_code == 8
    assert "The plan was used at 20" in told
    assert f"to open batch {batch} (payroll.csv)" in told
    assert len(program.record()) == 3


def test_resubmitted_approved_plan_continues_same_batch(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"cleo": quoted(keys["cleo"])})
    sheet = prepared(program, "cleo")
    program.json("submit", sheet)
    for options in ([], ["--skip-invalid"], ["--amend"]):
        again = program.json("submit", sheet, *options)
        assert (again["exit_code"], again["sent_this_run"]) == (0, 0)
    assert len(program.json("status")["batches"]) == 1
    assert len(program.record()) == 3


def test_amended_sheet_needs_new_plan(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"cleo": quoted(keys["cleo"])})
    rows = [*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="9001")]
    sheet = program.sheet(rows)
    ada = program.home / "ada.pem"
    program.json("plan", sheet, "--out", plan_of(program), "--key", ada)
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet)["states"] == {"paid": 2, "rejected": 1}
    used = shutil.copy(plan_of(program), program.home / "used.plan.json")
    program.sheet([*kenyan_rows(2), *kenyan_rows(1, prefix="NO", amount="1500")])
    assert "The plan was used" in program.run("submit", sheet, "--amend", "--plan", used).stderr
    program.json("plan", sheet, "--amend", "--out", plan_of(program), "--key", ada)
    assert program.run("submit", sheet, "--amend").exit_code == 8
    assert approve(program, "cleo")[0] == 0
    assert program.json("submit", sheet, "--amend")["states"] == {"paid": 3}
    assert program.json("verify")["exit_code"] == 0


def test_viewing_changed_plan_is_refused(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"cleo": quoted(keys["cleo"])})
    prepared(program)
    edited(program, {"findings": []})
    text = plan_of(program).read_text().replace("4501.50", "4501.51")
    plan_of(program).write_text(text)
    result = program.run("approve", plan_of(program))
    assert result.exit_code == 8
    assert "changed after its maker signed it" in result.stderr


def test_approve_names_owner_of_key(program: Program, keys: dict[str, str]) -> None:
    configure(program, {"ada": quoted(keys["ada"])}, {"cleo": quoted(keys["cleo"])})
    prepared(program)
    code, told = approve(program, "cleo")
    assert code == 0
    assert "Prepared by ada at " in told
    assert "Approved by cleo at " in told
    assert "Approved by cleo. The plan has 1 of 1 approval." in told
    assert keys["cleo"] not in told
