"""Fraud in a sheet with 30 dropped zeros: approvers see every change first, by name and amount."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.conftest import MachineCache
from tests.support.approving import edit_plan, plan_file, policy, re_sign_plan
from tests.support.months import NAMES, row
from tests.support.program import Program, sandbox_toml

SCREEN_LINES = 24


def prepare_october(program: Program) -> None:
    """Set up a company that paid 34 people last month, and requires one approval."""
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    rows = [row("OCT", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)]
    assert program.json("submit", program.sheet(rows, "october.csv"))["exit_code"] == 0


@pytest.fixture
def paid(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_october)


def november_rows() -> list[str]:
    """Return 30 rows without their zeros, a changed account, a fourfold amount and a ghost worker.

    One person is missing.
    """
    lost = [f"KE,NOV-{n},{1050 + n},KES,{name},712345{n:03},712345{n:03}" for n, name in enumerate(NAMES[:30], 1)]
    changed = row("NOV", 31, NAMES[30], "1031", account="0799000777")
    fourfold = row("NOV", 32, NAMES[31], "4128")
    ghost = row("NOV", 36, "Ghost Kamau", "1500")
    kept = row("NOV", 33, NAMES[32], "1033.5")
    return [*lost, changed, fourfold, ghost, kept]


def plan_sheet(month: Program, sheet: Path, *options: str | Path) -> str:
    """Plan a sheet by Ada, and return what is printed."""
    words = "plan", sheet, "--out", plan_file(month), "--key", month.home / "ada.pem"
    result = month.run(*words, *options)
    assert result.exit_code == 0, result.output
    return result.stdout


def plan_november(month: Program, *options: str | Path) -> str:
    return plan_sheet(month, month.sheet(november_rows()), *options)


def plan_json(month: Program, sheet: Path, *options: str | Path) -> dict[str, Any]:
    return month.json("plan", sheet, "--out", plan_file(month), "--key", month.home / "ada.pem", *options)


def approve(month: Program, *options: str | Path) -> Result:
    return month.run("approve", plan_file(month), "--key", month.home / "cleo.pem", *options)


def test_plan_and_approve_show_fraud_on_first_screen(paid: Program) -> None:
    for shown in (plan_november(paid), approve(paid).stdout):
        screen = shown.splitlines()[:SCREEN_LINES]
        other_phone, *found = [line for line in screen if line.startswith("- ")]
        warned = "- 0799000777 will be paid, but the row's phone number is different: +254712345031."
        assert other_phone.startswith(warned)
        assert found[0].startswith(f"- Row 32, {NAMES[30]}, KES 1,031.00: ")
        assert found[1].startswith(f"- Row 33, {NAMES[31]}, KES 4,128.00: KES 1,032.00 in october.csv")
        assert found[2].startswith("- Row 34, Ghost Kamau, KES 1,500.00: ")
        assert found[3].startswith(f"- {NAMES[33]}, KES 1,034.00: ")
        old, new, marks = screen[screen.index(found[0]) + 1 :][:3]
        assert (old.split()[-1], new.split()[-1]) == ("254712345031", "254799000777")
        at = new.index("254799000777")
        assert [new[place] for place, sign in enumerate(marks) if sign == "^"] == list("99000777")
        assert old.index("254712345031") == at, "one above the other"
        assert "Check this first: 1 changed account, 1 amount differs, 1 new person, 1 person missing." in screen
        assert "phone.zero_restored: 30" in shown
        assert shown.count("seems to have dropped a leading zero") == 6  # three examples of each finding


def test_signature_covers_plan_findings(paid: Program) -> None:
    plan_november(paid)
    document = json.loads(plan_file(paid).read_text())
    first = finding_with_code(document, "payee.account")
    expected = {"name": NAMES[30], "amount": "1031.00", "currency": "KES", "before": "1031.00"}
    expected |= {"account": "254799000777", "old_account": "254712345031", "before_sheet": "october.csv"}
    assert ({name: first[name] for name in expected}, "message" in first) == (expected, False)
    first["name"] = "Somebody Else"
    plan_file(paid).write_text(json.dumps(document))
    result = approve(paid)
    assert (result.exit_code, "changed after its maker signed it" in result.stderr) == (8, True)


def test_json_and_page_list_same_findings(paid: Program) -> None:
    page = paid.home / "plan.html"
    summary = plan_json(paid, paid.sheet(november_rows()), "--report", page)
    codes = [finding["code"] for finding in summary["findings"]]
    assert codes[:5] == ["payee.compared", "payee.account", "payee.amount", "payee.new", "payee.gone"]
    assert codes.count("phone.zero_restored") == 30
    people = [person["code"] for person in summary["people"]]
    assert people == ["payee.account", "payee.amount", "payee.new", *[""] * (len(people) - 3)]
    text = page.read_text()
    order = [text.index(sign) for sign in (NAMES[30], NAMES[31], "Ghost Kamau", NAMES[33], "phone.zero_restored: 30")]
    assert order == sorted(order)
    assert "Prepared by ada" in text
    assert page.stat().st_mode & 0o777 == 0o600
    assert approve(paid, "--report", page).exit_code == 0
    assert "Approved by cleo" in page.read_text()


def test_report_page_never_replaces_unrelated_file(paid: Program) -> None:
    plan_november(paid)
    (paid.home / "notes.html").write_text("<!doctype html><title>mine</title>")
    names = ("payroll.csv", "payroll.plan.json", "cleo.pem", "notes.html")
    for path in (paid.config, *(paid.home / name for name in names)):
        before = path.read_bytes()
        assert (approve(paid, "--report", path).exit_code, path.read_bytes()) == (2, before), path
    assert json.loads(plan_file(paid).read_text())["approvals"] == []


def test_look_alike_rows_share_one_warning_per_batch(paid: Program) -> None:
    rows = [row("AGAIN", n, NAMES[n - 1], f"{1000 + n}") for n in range(1, 11)]
    others = [row("OTHER", n, NAMES[n - 1], f"{1001 + n}") for n in range(11, 31)]
    sheet = paid.sheet([*rows, *others])
    warnings = paid.json("submit", sheet, "--dry-run")["warning_list"]
    assert [(warning["row"], warning["code"]) for warning in warnings] == [(0, "row.look_alike")]
    assert "10 rows have the same account and amount as rows of " in warnings[0]["message"]
    assert "rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11" in warnings[0]["message"]
    text = paid.config.read_text()
    paid.config.write_text(f"{text}\n[sheet]\nlook_alike_days = 0\n")
    assert paid.json("submit", sheet, "--dry-run").get("warning_list", []) == []


Change = Callable[[dict[str, Any]], object]


def finding_with_code(document: dict[str, Any], code: str) -> dict[str, Any]:
    found: dict[str, Any] = next(finding for finding in document["findings"] if finding["code"] == code)
    return found


def remove_finding(code: str) -> Change:
    return lambda document: document["findings"].remove(finding_with_code(document, code))


def replace_value(code: str, name: str, value: object) -> Change:
    return lambda document: finding_with_code(document, code).update({name: value})


def add_finding(**finding: object) -> Change:
    return lambda document: document["findings"].insert(0, {"row": 0, "message": "Checked by audit: ok.", **finding})


FORGERIES: dict[str, Change] = {
    "no finding at all": lambda document: document["findings"].clear(),
    "no changed account": remove_finding("payee.account"),
    "no amount off": remove_finding("payee.amount"),
    "no new person": remove_finding("payee.new"),
    "nobody missing": remove_finding("payee.gone"),
    "no comparison": remove_finding("payee.compared"),
    "fewer warnings of a kind": remove_finding("phone.zero_restored"),
    "another name": replace_value("payee.account", "name", "Jane Wanjiku"),
    "another amount": replace_value("payee.amount", "amount", "1032.00"),
    "another amount of before": replace_value("payee.amount", "before", "4128.00"),
    "another currency": replace_value("payee.amount", "currency", "UGX"),
    "another row": replace_value("payee.account", "row", 2),
    "another code": replace_value("payee.account", "code", "payee.new"),
    "another sentence": replace_value("payee.account", "message", "the account is as it was: checked by audit"),
    "another sentence of a warning": replace_value("phone.zero_restored", "message", "Row 2: checked by audit: ok."),
    "a word of comfort": add_finding(code="audit.checked"),
    "a correction that nobody made": add_finding(code="cell.mended"),
    "a row that nobody left out": add_finding(code="row.left_out", row=2),
    "one finding twice": lambda document: document["findings"].append(document["findings"][-1]),
    "another order": lambda document: document["findings"].reverse(),
    "a repeat that there is not": lambda document: document.update(answered=["sheet.repeats_a_batch " + "0" * 16]),
    "another language": lambda document: document.update(language="fr"),
    "a language that there is not": lambda document: document.update(language="../../etc/x"),
    "a batch that there is not": lambda document: document.update(against="0" * 16),
}


def prepare_november_plan(month: Program) -> None:
    prepare_october(month)
    plan_november(month)
    month.config.write_text(month.config.read_text().replace('KES = "100000000"', 'KES = "1000"'))


@pytest.fixture
def planned(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_november_plan)


def approve_and_submit(program: Program, *arguments: str) -> int:
    assert approve(program).exit_code == 0
    return program.run("submit", program.home / "payroll.csv", "--skip-invalid", *arguments).exit_code


@pytest.mark.share(4)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_plan_with_hidden_findings_is_refused(planned: Program, forgery: str) -> None:
    before, forged = (json.loads(plan_file(planned).read_text()) for _ in range(2))
    FORGERIES[forgery](forged)
    assert forged != before
    re_sign_plan(planned, FORGERIES[forgery])
    assert approve_and_submit(planned) == 8
    assert len(planned.record()) == 34, "October alone was paid"
    assert len(planned.json("status")["batches"]) == 1


def test_unaltered_plan_is_paid(planned: Program) -> None:
    re_sign_plan(planned, lambda _document: None)
    assert approve_and_submit(planned) == 0
    assert len(planned.record()) == 34 + 34


def test_plan_in_another_language_is_paid(planned: Program) -> None:
    french = ("--lang", "fr", "--force")
    plan_sheet(planned, planned.home / "payroll.csv", *french)
    assert json.loads(plan_file(planned).read_text())["language"] == "fr"
    re_sign_plan(planned, replace_value("phone.zero_restored", "message", "Ligne 2 : audit, rien \u00e0 signaler."))
    assert approve_and_submit(planned) == 8
    plan_sheet(planned, planned.home / "payroll.csv", *french)
    assert approve_and_submit(planned) == 0


def test_new_plan_cannot_hide_findings_of_new_bonus(planned: Program) -> None:
    bonus = [row("BONUS", 31, NAMES[30], "5", account="0799000777")]
    batch = planned.json("submit", planned.sheet(bonus, "bonus.csv"))["batch"]
    assert (approve_and_submit(planned), len(planned.record())) == (8, 35)
    october = next(entry["batch"] for entry in planned.json("status")["batches"] if entry["batch"] != batch)
    shown: list[set[tuple[object, ...]]] = []
    for against in ((), ("--against", batch), ("--against", october)):
        findings = plan_json(planned, planned.home / "payroll.csv", "--force", *against)["findings"]
        shown.append({tuple(finding[name] for name in ("row", "code", "name", "amount")) for finding in findings})
    assert shown[0] <= shown[1] & shown[2]
    assert approve_and_submit(planned) == 0


def test_plan_hiding_repeated_payroll_is_refused(planned: Program) -> None:
    again = planned.sheet([row("AGAIN", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)])
    plan_sheet(planned, again, "--force", "--repeats-meant")
    assert json.loads(plan_file(planned).read_text())["answered"] != []

    def hide(document: dict[str, Any]) -> None:
        remove_finding("sheet.repeats_a_batch")(document)
        document["answered"] = []

    re_sign_plan(planned, hide)
    assert approve_and_submit(planned, "--repeats-meant") == 8
    assert len(planned.record()) == 34


@pytest.mark.parametrize("forgery", ["no changed account", "another amount", "another sentence", "a word of comfort"])
def test_approver_with_sheet_refuses_forged_plan(planned: Program, forgery: str) -> None:
    other = planned.sheet([*november_rows()[:-1], row("NOV", 36, "Ghost Kamau", "1501")], "other.csv")
    assert approve(planned, "--sheet", other).exit_code == 8
    re_sign_plan(planned, FORGERIES[forgery])
    assert approve(planned, "--sheet", planned.home / "payroll.csv").exit_code == 8
    assert json.loads(plan_file(planned).read_text())["approvals"] == []


def test_approver_with_sheet_sees_findings_in_own_language(planned: Program) -> None:
    theirs = planned.run("approve", plan_file(planned))
    assert (theirs.exit_code, "as signed by ada, its maker" in theirs.stdout) == (0, True)
    sheet = planned.home / "payroll.csv"
    result = approve(planned, "--lang", "fr", "--sheet", sheet)
    assert (result.exit_code, NAMES[30] in result.stdout) == (0, True), result.output
    assert [part for part in ("as signed by", "the account ends in") if part in result.stdout] == []
    assert planned.run("submit", sheet).exit_code == 0


def test_left_out_rows_show_name_amount_and_reason(paid: Program) -> None:
    left_out = [row("NOV", 50, "Left Behind", "777").replace("0712345050", "12")]
    left_out += ["KE,NOV-51,1e3,KES,Wrong Amount,0712345051,0712345051"]
    summary = plan_json(paid, paid.sheet([*november_rows()[-3:], *left_out]), "--skip-invalid")
    out = [finding for finding in summary["findings"] if finding["code"] == "row.left_out"]
    shown = [(item["row"], item["name"], item["amount"]) for item in out]
    assert shown == [(5, "Left Behind", "777"), (6, "Wrong Amount", "1e3")]
    assert all(item["reasons"] and not item["by"] for item in out)
    output = paid.run("approve", plan_file(paid)).stdout
    assert "Left out: 2 rows (KES 777):" in output
    assert [person["name"] for person in summary["people"] if person["name"] in {"Left Behind", "Wrong Amount"}] == []


def test_forged_people_list_is_refused(paid: Program) -> None:
    paid.config.write_text(paid.config.read_text().replace('KES = "100000000"', 'KES = "1000"'))
    renamed = ("Ghost Kamau", "Grace Kamau")

    def rename_ghost(document: dict[str, Any]) -> None:
        document["people"] = document["people"].replace(*renamed)
        document["content"]["people_sha256"] = hashlib.sha256(document["people"].encode()).hexdigest()

    plan_november(paid)
    edit_plan(paid, {"people": json.loads(plan_file(paid).read_text())["people"].replace(*renamed)})
    assert approve(paid).exit_code == 8
    plan_november(paid)
    re_sign_plan(paid, rename_ghost)
    result = approve(paid)
    assert (result.exit_code, "Grace Kamau" in result.stdout) == (0, True)
    before = len(paid.record())
    assert paid.run("submit", paid.home / "payroll.csv").exit_code == 8
    assert len(paid.record()) == before


def test_findings_in_words_of_maker_are_ignored(paid: Program) -> None:
    plan_november(paid)

    def soothe(document: dict[str, Any]) -> None:
        kept = [finding for finding in document["findings"] if "payee." in finding["code"]]
        document["findings"] = [{**finding, "message": "all is well"} for finding in kept]

    re_sign_plan(paid, soothe)
    result = paid.run("approve", plan_file(paid), "--report", paid.home / "plan.html")
    assert "all is well" not in result.stdout + (paid.home / "plan.html").read_text()
    assert "254712345031" in result.stdout
