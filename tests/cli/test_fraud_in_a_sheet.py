"""Fraud in a sheet with 30 dropped zeros: whoever approves sees it first, by name and amount, and all of it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.plan_document import PlanDocument, read_plan
from paygw_batch.approval.signed_document import signed, write_document
from tests.cli.conftest import Kept
from tests.support.approving import plan_of, policy, signed_again
from tests.support.months import NAMES, after_three_other_batches, row
from tests.support.program import Program, sandbox_toml

SCREEN_LINES = 24


def october(program: Program) -> None:
    """A company that paid 34 people last month, and asks for one approval."""
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    rows = [row("OCT", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)]
    assert program.json("submit", program.sheet(rows, "october.csv"))["exit_code"] == 0


@pytest.fixture
def month(kept: Kept) -> Program:
    return kept(october)


def november() -> list[str]:
    """30 rows whose zeros are gone, a changed account, a fourfold amount, a ghost worker; one is missing."""
    lost = [f"KE,NOV-{n},{1050 + n},KES,{name},712345{n:03},712345{n:03}" for n, name in enumerate(NAMES[:30], 1)]
    changed = row("NOV", 31, NAMES[30], "1031", account="0799000777")
    fourfold = row("NOV", 32, NAMES[31], "4128")
    ghost = row("NOV", 36, "Ghost Kamau", "1500")
    kept = row("NOV", 33, NAMES[32], "1033.5")
    return [*lost, changed, fourfold, ghost, kept]


def planned(month: Program, *arguments: str | Path, as_json: bool = False) -> str:
    sheet = month.sheet(november())
    result = month.run(
        *(["--json"] if as_json else []),
        *("plan", sheet, "--out", plan_of(month), "--key", month.home / "ada.pem", *arguments),
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_plan_and_approve_show_frauds_on_first_screen(month: Program) -> None:
    for shown in (planned(month), month.run("approve", plan_of(month), "--key", month.home / "cleo.pem").stdout):
        screen = shown.splitlines()[:SCREEN_LINES]
        other_phone, *found = [line for line in screen if line.startswith("- ")]
        assert other_phone.startswith("- 0799000777 is paid. The phone of the row is another number, +254712345031.")
        assert found[0].startswith(f"- Row 32, {NAMES[30]}, KES 1,031.00: ")
        assert found[1].startswith(f"- Row 33, {NAMES[31]}, KES 4,128.00: KES 1,032.00 in october.csv")
        assert found[2].startswith("- Row 34, Ghost Kamau, KES 1,500.00: ")
        assert found[3].startswith(f"- {NAMES[33]}, KES 1,034.00: ")
        old, new, marks = screen[screen.index(found[0]) + 1 :][:3]
        assert (old.split()[-1], new.split()[-1]) == ("254712345031", "254799000777")
        at = new.index("254799000777")
        assert [new[place] for place, sign in enumerate(marks) if sign == "^"] == list("99000777")
        assert old.index("254712345031") == at, "one above the other"
        assert "Look at this first: 1 changed account, 1 amount differs, 1 new person, 1 person missing." in screen
        assert "phone.zero_restored: 30" in shown
        assert shown.count("seems to have dropped a zero") == 6  # three examples of each kind


def test_signature_covers_findings_of_plan(month: Program) -> None:
    planned(month)
    document = json.loads(plan_of(month).read_text())
    first = next(one for one in document["findings"] if one["code"] == "payee.account")
    assert (first["name"], first["amount"], first["currency"], first["before"]) == (
        *(NAMES[30], "1031.00", "KES", "1031.00"),
    )
    assert (first["account"], first["old_account"]) == ("254799000777", "254712345031")
    assert (first["before_sheet"], "message" in first) == ("october.csv", False)
    first["name"] = "Somebody Else"
    plan_of(month).write_text(json.dumps(document))
    result = month.run("approve", plan_of(month), "--key", month.home / "cleo.pem")
    assert (result.exit_code, "changed after its maker signed it" in result.stderr) == (8, True)


def test_json_and_page_list_same_findings(month: Program) -> None:
    page = month.home / "plan.html"
    told = json.loads(planned(month, "--report", page, as_json=True))
    codes = [one["code"] for one in told["findings"]]
    assert codes[:5] == ["payee.compared", "payee.account", "payee.amount", "payee.new", "payee.gone"]
    assert codes.count("phone.zero_restored") == 30
    text = page.read_text()
    order = [text.index(sign) for sign in (NAMES[30], NAMES[31], "Ghost Kamau", NAMES[33], "phone.zero_restored: 30")]
    assert order == sorted(order)
    assert "Prepared by ada" in text
    assert page.stat().st_mode & 0o777 == 0o600
    again = month.run("approve", plan_of(month), "--key", month.home / "cleo.pem", "--report", page)
    assert again.exit_code == 0, again.output
    assert "Approved by cleo" in page.read_text()


@pytest.mark.parametrize("victim", ["payroll.csv", "payroll.plan.json", "config.toml", "cleo.pem", "notes.html"])
def test_report_page_never_replaces_other_file(month: Program, victim: str) -> None:
    planned(month)
    (month.home / "notes.html").write_text("<!doctype html><title>mine</title>")
    path = month.config if victim == "config.toml" else month.home / victim
    before = path.read_bytes()
    result = month.run("approve", plan_of(month), "--key", month.home / "cleo.pem", "--report", path)
    assert result.exit_code == 2, result.output
    assert path.read_bytes() == before
    assert json.loads(plan_of(month).read_text())["approvals"] == []


def test_approve_shows_every_difference(month: Program) -> None:
    sheet = month.sheet([row("NEW", 100 + n, f"Ghost Number{n}", f"{2000 + n}") for n in range(60)])
    shown = month.run("plan", sheet, "--out", plan_of(month), "--key", month.home / "ada.pem").stdout.splitlines()
    ghosts = [line for line in shown if "Ghost Number" in line]
    assert len(ghosts) == 60
    assert "KES 2,059.00" in ghosts[0], "the largest sum first"
    alone = month.sheet([row("NEW", 1, NAMES[0], "1002")])
    planned = month.run("plan", alone, "--out", plan_of(month), "--key", month.home / "ada.pem", "--force")
    assert planned.stdout.count("and not in this sheet") == 33


def test_look_alike_rows_share_one_warning_per_batch(month: Program) -> None:
    rows = [row("AGAIN", n, NAMES[n - 1], f"{1000 + n}") for n in range(1, 11)]
    others = [row("OTHER", n, NAMES[n - 1], f"{1001 + n}") for n in range(11, 31)]
    sheet = month.sheet([*rows, *others])
    told = month.json("submit", sheet, "--dry-run")["warning_list"]
    assert [(one["row"], one["code"]) for one in told] == [(0, "row.look_alike")]
    assert "10 rows have the same account and amount as rows of " in told[0]["message"]
    assert "rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11" in told[0]["message"]
    text = month.config.read_text()
    month.config.write_text(f"{text}\n[sheet]\nlook_alike_days = 0\n")
    assert month.json("submit", sheet, "--dry-run").get("warning_list", []) == []


Findings = list[dict[str, Any]]
Change = Callable[[dict[str, Any]], object]


def _found(document: dict[str, Any], code: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in document["findings"] if one["code"] == code)
    return found


def without(code: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        kept = [one for one in document["findings"] if one["code"] != code]
        assert len(kept) < len(document["findings"])
        document["findings"] = kept

    return change


def with_value(code: str, name: str, value: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        assert _found(document, code).get(name) != value
        _found(document, code)[name] = value

    return change


def with_more(**finding: object) -> Change:
    return lambda document: document["findings"].insert(0, {"row": 0, "message": "Checked by audit: ok.", **finding})


FORGERIES: dict[str, Change] = {
    "no finding at all": lambda document: document["findings"].clear(),
    "no changed account": without("payee.account"),
    "no amount off": without("payee.amount"),
    "no new person": without("payee.new"),
    "nobody missing": without("payee.gone"),
    "no comparison": without("payee.compared"),
    "fewer warnings of a kind": lambda document: document["findings"].remove(_found(document, "phone.zero_restored")),
    "another name": with_value("payee.account", "name", "Jane Wanjiku"),
    "another amount": with_value("payee.amount", "amount", "1032.00"),
    "another amount of before": with_value("payee.amount", "before", "4128.00"),
    "another currency": with_value("payee.amount", "currency", "UGX"),
    "another row": with_value("payee.account", "row", 2),
    "another code": with_value("payee.account", "code", "payee.new"),
    "another sentence": with_value("payee.account", "message", "the account is as it was: checked by audit"),
    "another sentence of a warning": with_value("phone.zero_restored", "message", "Row 2: checked by audit: ok."),
    "a word of comfort": with_more(code="audit.checked"),
    "a correction that nobody made": with_more(code="cell.mended"),
    "a row that nobody left out": with_more(code="row.left_out", row=2),
    "one finding twice": lambda document: document["findings"].append(document["findings"][-1]),
    "another order": lambda document: document["findings"].reverse(),
    "a repeat that there is not": lambda document: document.update(answered=["sheet.repeats_a_batch " + "0" * 16]),
    "another language": lambda document: document.update(language="fr"),
    "a language that there is not": lambda document: document.update(language="../../etc/x"),
    "a batch that there is not": lambda document: document.update(against="0" * 16),
}


def november_planned(month: Program) -> None:
    """The company of `month` with a plan of November; from now on KES 1,000 and more need approval."""
    october(month)
    planned(month)
    month.config.write_text(month.config.read_text().replace('KES = "100000000"', 'KES = "1000"'))


@pytest.fixture
def asking(kept: Kept) -> Program:
    return kept(november_planned)


def approved_and_submitted(program: Program, *arguments: str) -> int:
    approved = program.run("approve", plan_of(program), "--key", program.home / "cleo.pem")
    assert approved.exit_code == 0, approved.output
    return program.run("submit", program.home / "payroll.csv", "--skip-invalid", *arguments).exit_code


@pytest.mark.share(4)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_plan_with_hidden_findings_is_refused(asking: Program, forgery: str) -> None:
    signed_again(asking, FORGERIES[forgery])
    assert approved_and_submitted(asking) == 8
    assert len(asking.record()) == 34, "October alone was paid"
    assert len(asking.json("status")["batches"]) == 1


def test_unaltered_plan_is_paid(asking: Program) -> None:
    signed_again(asking, lambda _document: None)
    assert approved_and_submitted(asking) == 0
    assert len(asking.record()) == 34 + 34


def test_plan_in_other_language_is_paid(asking: Program) -> None:
    sheet, plan, key = asking.home / "payroll.csv", plan_of(asking), asking.home / "ada.pem"
    made = asking.run("--lang", "fr", "plan", sheet, "--out", plan, "--key", key, "--force")
    assert made.exit_code == 0, made.output
    assert json.loads(plan.read_text())["language"] == "fr"
    signed_again(asking, with_value("phone.zero_restored", "message", "Ligne 2 : audit, rien \u00e0 signaler."))
    assert approved_and_submitted(asking) == 8
    asking.run("--lang", "fr", "plan", sheet, "--out", plan, "--key", key, "--force")
    assert approved_and_submitted(asking) == 0


def test_plan_is_outdated_after_bonus_to_payee(asking: Program) -> None:
    bonus = [row("BONUS", 31, NAMES[30], "5", account="0799000777")]
    assert asking.json("submit", asking.sheet(bonus, "bonus.csv"))["exit_code"] == 0
    assert approved_and_submitted(asking) == 8
    assert len(asking.record()) == 35


def test_comparison_batch_named_by_maker_hides_nothing(asking: Program) -> None:
    bonus = [row("BONUS", 31, NAMES[30], "5", account="0799000777")]
    batch = asking.json("submit", asking.sheet(bonus, "bonus.csv"))["batch"]
    october = next(one["batch"] for one in asking.json("status")["batches"] if one["batch"] != batch)
    shown: dict[str, set[tuple[object, ...]]] = {}
    for against in ("", batch, october):
        more = ("--against", against) if against else ()
        told = asking.json(
            *("plan", asking.home / "payroll.csv", "--out", plan_of(asking), "--key", asking.home / "ada.pem"),
            *("--force", *more),
        )
        shown[against] = {(one["row"], one["code"], one["name"], one["amount"]) for one in told["findings"]}
    assert shown[""] <= shown[batch]
    assert shown[""] <= shown[october]
    assert approved_and_submitted(asking) == 0


def test_plan_hiding_repeated_payroll_is_refused(asking: Program) -> None:
    again = [row("AGAIN", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)]
    asking.sheet(again)
    asking.run(
        *("plan", asking.home / "payroll.csv", "--out", plan_of(asking), "--key", asking.home / "ada.pem"),
        *("--force", "--repeats-meant"),
    )
    assert json.loads(plan_of(asking).read_text())["answered"] != []

    def hide(document: dict[str, Any]) -> None:
        without("sheet.repeats_a_batch")(document)
        document["answered"] = []

    signed_again(asking, hide)
    assert approved_and_submitted(asking, "--repeats-meant") == 8
    assert len(asking.record()) == 34


@pytest.mark.parametrize("forgery", ["no changed account", "another amount", "another sentence", "a word of comfort"])
def test_approver_with_sheet_cannot_sign_forged_plan(asking: Program, forgery: str) -> None:
    signed_again(asking, FORGERIES[forgery])
    key = asking.home / "cleo.pem"
    assert asking.run("approve", plan_of(asking), "--sheet", asking.home / "payroll.csv", "--key", key).exit_code == 8
    assert json.loads(plan_of(asking).read_text())["approvals"] == []


def test_approver_with_different_sheet_cannot_sign(asking: Program) -> None:
    other = asking.sheet([*november()[:-1], row("NOV", 36, "Ghost Kamau", "1501")], "other.csv")
    key = asking.home / "cleo.pem"
    assert asking.run("approve", plan_of(asking), "--sheet", other, "--key", key).exit_code == 8
    assert json.loads(plan_of(asking).read_text())["approvals"] == []


def test_approver_with_sheet_sees_findings_in_own_language(asking: Program) -> None:
    theirs = asking.run("approve", plan_of(asking))
    assert (theirs.exit_code, "as its maker ada signed it" in theirs.stdout) == (0, True)
    sheet, key = asking.home / "payroll.csv", asking.home / "cleo.pem"
    own = asking.run("--lang", "fr", "approve", plan_of(asking), "--sheet", sheet, "--key", key)
    assert own.exit_code == 0, own.output
    assert "as its maker" not in own.stdout
    assert "the account ends in" not in own.stdout
    assert NAMES[30] in own.stdout
    assert asking.run("submit", sheet).exit_code == 0


def test_findings_stay_visible_after_three_other_batches(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    sheet = program.sheet(after_three_other_batches(program))
    made = program.json("plan", sheet, "--out", plan_of(program), "--key", program.home / "ada.pem")
    found = {one["code"]: one for one in made["findings"] if one["code"].startswith("payee.")}
    overlap = found["payee.compared"]
    assert (overlap["before_sheet"], overlap["found"], overlap["people"]) == ("sep.csv", 29, 30)
    assert sum(one["code"].startswith("payee.") for one in made["findings"]) == 5
    changed = found["payee.account"]
    assert (changed["name"], changed["account"], changed["old_account"]) == (NAMES[3], "254712999004", "254712345004")
    assert (changed["before_sheet"], changed["first_sheet"], changed["first_amount"]) == (
        "sep.csv",
        "tiny.csv",
        "10.00",
    )
    assert (found["payee.amount"]["name"], found["payee.amount"]["before"]) == (NAMES[4], "20000.00")
    assert (found["payee.new"]["name"], found["payee.gone"]["name"]) == ("Ghost Kamau", NAMES[5])
    page = program.home / "plan.html"
    shown = program.run("approve", plan_of(program), "--report", page).stdout
    for name, account in ((NAMES[3], "254712999004"), (NAMES[4], "254712345005"), ("Ghost Kamau", "254799000777")):
        assert any(name in line and account in line for line in shown.splitlines())
    assert all(f"254712345{n:03}" in shown for n in (1, 2, 3, *range(7, 31)))
    html = page.read_text()
    assert "254712<mark>345</mark>004<br>254712<mark>999</mark>004" in html
    people = html[html.index("<h2>All people</h2>") :]
    assert people.count("<tr>") == 31
    first = [people.index(name) for name in (NAMES[3], NAMES[4], "Ghost Kamau", NAMES[0])]
    assert first == sorted(first)


def test_left_out_rows_show_name_amount_and_reason(month: Program) -> None:
    rows = [
        *november()[-3:],
        row("NOV", 50, "Left Behind", "777"),
        "KE,NOV-51,1e3,KES,Wrong Amount,0712345051,0712345051",
    ]
    rows[3] = rows[3].replace("0712345050", "12")
    sheet = month.sheet(rows)
    made = month.json("plan", sheet, "--skip-invalid", "--out", plan_of(month), "--key", month.home / "ada.pem")
    out = [one for one in made["findings"] if one["code"] == "row.left_out"]
    assert [(one["row"], one["name"], one["amount"]) for one in out] == [
        (5, "Left Behind", "777"),
        (6, "Wrong Amount", "1e3"),
    ]
    assert all(one["reasons"] and not one["by"] for one in out)
    shown = month.run("approve", plan_of(month)).stdout
    assert "Left out: 2 rows (KES 777):" in shown
    assert [one["name"] for one in made["people"] if one["name"] in {"Left Behind", "Wrong Amount"}] == []


def resigned(month: Program, change: Callable[[PlanDocument], PlanDocument]) -> None:
    """Change a plan as its maker could, with the maker's own key."""
    key = load_approval_key(month.home / "ada.pem", None)
    write_document(signed(change(read_plan(plan_of(month))), key), plan_of(month))


def other_people(document: PlanDocument) -> str:
    return document.people.replace("Ghost Kamau", "Grace Kamau")


def test_forged_people_list_fails_approve_or_submit(month: Program) -> None:
    month.config.write_text(month.config.read_text().replace('KES = "100000000"', 'KES = "1000"'))
    planned(month)
    resigned(month, lambda plan: plan.model_copy(update={"people": other_people(plan)}))
    assert month.run("approve", plan_of(month), "--key", month.home / "cleo.pem").exit_code == 8
    planned(month)

    def forged(plan: PlanDocument) -> PlanDocument:
        people = other_people(plan)
        digest = hashlib.sha256(people.encode()).hexdigest()
        return plan.model_copy(
            update={"people": people, "content": plan.content.model_copy(update={"people_sha256": digest})}
        )

    resigned(month, forged)
    shown = month.run("approve", plan_of(month), "--key", month.home / "cleo.pem")
    assert (shown.exit_code, "Grace Kamau" in shown.stdout) == (0, True)
    before = len(month.record())
    assert month.run("submit", month.home / "payroll.csv").exit_code == 8
    assert len(month.record()) == before


def test_findings_message_written_by_maker_is_ignored(month: Program) -> None:
    planned(month)

    def soothing(plan: PlanDocument) -> PlanDocument:
        findings = [one.model_copy(update={"message": "all is well"}) for one in plan.findings if "payee." in one.code]
        return plan.model_copy(update={"findings": findings})

    resigned(month, soothing)
    shown = month.run("approve", plan_of(month), "--report", month.home / "plan.html")
    assert "all is well" not in shown.stdout
    assert "all is well" not in (month.home / "plan.html").read_text()
    assert "254712345031" in shown.stdout
