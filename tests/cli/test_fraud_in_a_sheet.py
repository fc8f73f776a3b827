"""Fraud in a sheet with 30 dropped zeros: approvers see every change first, by name and amount."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.plan_document import PlanDocument, read_plan
from paygw_batch.approval.signed_document import sign_document, write_document
from tests.cli.conftest import MachineCache
from tests.support.approving import plan_file, policy, re_sign_plan
from tests.support.months import NAMES, prepare_next_month, row
from tests.support.program import Program, sandbox_toml

SCREEN_LINES = 24


def prepare_october(program: Program) -> None:
    """Set up a company that paid 34 people last month, and requires one approval."""
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    rows = [row("OCT", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)]
    assert program.json("submit", program.sheet(rows, "october.csv"))["exit_code"] == 0


@pytest.fixture
def october_paid(machine_cache: MachineCache) -> Program:
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


def plan_november(month: Program, *arguments: str | Path, as_json: bool = False) -> str:
    sheet = month.sheet(november_rows())
    result = month.run(
        *(["--json"] if as_json else []),
        *("plan", sheet, "--out", plan_file(month), "--key", month.home / "ada.pem", *arguments),
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_plan_and_approve_show_frauds_on_first_screen(october_paid: Program) -> None:
    for shown in (
        plan_november(october_paid),
        october_paid.run("approve", plan_file(october_paid), "--key", october_paid.home / "cleo.pem").stdout,
    ):
        screen = shown.splitlines()[:SCREEN_LINES]
        other_phone, *found = [line for line in screen if line.startswith("- ")]
        assert other_phone.startswith(
            "- 0799000777 will be paid, but the phone of the row is a different number, +254712345031."
        )
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
        assert shown.count("seems to have dropped a zero") == 6  # three examples of each finding


def test_signature_covers_findings_of_plan(october_paid: Program) -> None:
    plan_november(october_paid)
    document = json.loads(plan_file(october_paid).read_text())
    first = next(finding for finding in document["findings"] if finding["code"] == "payee.account")
    assert (first["name"], first["amount"], first["currency"], first["before"]) == (
        *(NAMES[30], "1031.00", "KES", "1031.00"),
    )
    assert (first["account"], first["old_account"]) == ("254799000777", "254712345031")
    assert (first["before_sheet"], "message" in first) == ("october.csv", False)
    first["name"] = "Somebody Else"
    plan_file(october_paid).write_text(json.dumps(document))
    result = october_paid.run("approve", plan_file(october_paid), "--key", october_paid.home / "cleo.pem")
    assert (result.exit_code, "changed after its maker signed it" in result.stderr) == (8, True)


def test_json_and_page_list_same_findings(october_paid: Program) -> None:
    page = october_paid.home / "plan.html"
    summary = json.loads(plan_november(october_paid, "--report", page, as_json=True))
    codes = [finding["code"] for finding in summary["findings"]]
    assert codes[:5] == ["payee.compared", "payee.account", "payee.amount", "payee.new", "payee.gone"]
    assert codes.count("phone.zero_restored") == 30
    text = page.read_text()
    order = [text.index(sign) for sign in (NAMES[30], NAMES[31], "Ghost Kamau", NAMES[33], "phone.zero_restored: 30")]
    assert order == sorted(order)
    assert "Prepared by ada" in text
    assert page.stat().st_mode & 0o777 == 0o600
    again = october_paid.run(
        "approve", plan_file(october_paid), "--key", october_paid.home / "cleo.pem", "--report", page
    )
    assert again.exit_code == 0, again.output
    assert "Approved by cleo" in page.read_text()


@pytest.mark.parametrize("victim", ["payroll.csv", "payroll.plan.json", "config.toml", "cleo.pem", "notes.html"])
def test_report_page_never_replaces_other_file(october_paid: Program, victim: str) -> None:
    plan_november(october_paid)
    (october_paid.home / "notes.html").write_text("<!doctype html><title>mine</title>")
    path = october_paid.config if victim == "config.toml" else october_paid.home / victim
    before = path.read_bytes()
    result = october_paid.run(
        "approve", plan_file(october_paid), "--key", october_paid.home / "cleo.pem", "--report", path
    )
    assert result.exit_code == 2, result.output
    assert path.read_bytes() == before
    assert json.loads(plan_file(october_paid).read_text())["approvals"] == []


def test_approve_shows_every_difference(october_paid: Program) -> None:
    sheet = october_paid.sheet([row("NEW", 100 + n, f"Ghost Number{n}", f"{2000 + n}") for n in range(60)])
    output = october_paid.run(
        "plan", sheet, "--out", plan_file(october_paid), "--key", october_paid.home / "ada.pem"
    ).stdout.splitlines()
    ghosts = [line for line in output if "Ghost Number" in line]
    assert len(ghosts) == 60
    assert "KES 2,059.00" in ghosts[0], "the largest sum first"
    alone = october_paid.sheet([row("NEW", 1, NAMES[0], "1002")])
    planned = october_paid.run(
        "plan", alone, "--out", plan_file(october_paid), "--key", october_paid.home / "ada.pem", "--force"
    )
    assert planned.stdout.count("and not in this sheet") == 33


def test_look_alike_rows_share_one_warning_per_batch(october_paid: Program) -> None:
    rows = [row("AGAIN", n, NAMES[n - 1], f"{1000 + n}") for n in range(1, 11)]
    others = [row("OTHER", n, NAMES[n - 1], f"{1001 + n}") for n in range(11, 31)]
    sheet = october_paid.sheet([*rows, *others])
    warnings = october_paid.json("submit", sheet, "--dry-run")["warning_list"]
    assert [(warning["row"], warning["code"]) for warning in warnings] == [(0, "row.look_alike")]
    assert "10 rows have the same account and amount as rows of " in warnings[0]["message"]
    assert "rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11" in warnings[0]["message"]
    text = october_paid.config.read_text()
    october_paid.config.write_text(f"{text}\n[sheet]\nlook_alike_days = 0\n")
    assert october_paid.json("submit", sheet, "--dry-run").get("warning_list", []) == []


Findings = list[dict[str, Any]]
Change = Callable[[dict[str, Any]], object]


def _findings_with_code(document: dict[str, Any], code: str) -> dict[str, Any]:
    found: dict[str, Any] = next(finding for finding in document["findings"] if finding["code"] == code)
    return found


def remove_finding(code: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        kept = [finding for finding in document["findings"] if finding["code"] != code]
        assert len(kept) < len(document["findings"])
        document["findings"] = kept

    return change


def replace_value(code: str, name: str, value: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        assert _findings_with_code(document, code).get(name) != value
        _findings_with_code(document, code)[name] = value

    return change


def add_finding(**finding: object) -> Change:
    return lambda document: document["findings"].insert(0, {"row": 0, "message": "Checked by audit: ok.", **finding})


FORGERIES: dict[str, Change] = {
    "no finding at all": lambda document: document["findings"].clear(),
    "no changed account": remove_finding("payee.account"),
    "no amount off": remove_finding("payee.amount"),
    "no new person": remove_finding("payee.new"),
    "nobody missing": remove_finding("payee.gone"),
    "no comparison": remove_finding("payee.compared"),
    "fewer warnings of a kind": lambda document: document["findings"].remove(
        _findings_with_code(document, "phone.zero_restored")
    ),
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
    """Plan November, and require approval from KES 1,000."""
    prepare_october(month)
    plan_november(month)
    month.config.write_text(month.config.read_text().replace('KES = "100000000"', 'KES = "1000"'))


@pytest.fixture
def november_plan(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_november_plan)


def approve_and_submit(program: Program, *arguments: str) -> int:
    approved = program.run("approve", plan_file(program), "--key", program.home / "cleo.pem")
    assert approved.exit_code == 0, approved.output
    return program.run("submit", program.home / "payroll.csv", "--skip-invalid", *arguments).exit_code


@pytest.mark.share(4)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_plan_with_hidden_findings_is_refused(november_plan: Program, forgery: str) -> None:
    re_sign_plan(november_plan, FORGERIES[forgery])
    assert approve_and_submit(november_plan) == 8
    assert len(november_plan.record()) == 34, "October alone was paid"
    assert len(november_plan.json("status")["batches"]) == 1


def test_unaltered_plan_is_paid(november_plan: Program) -> None:
    re_sign_plan(november_plan, lambda _document: None)
    assert approve_and_submit(november_plan) == 0
    assert len(november_plan.record()) == 34 + 34


def test_plan_in_other_language_is_paid(november_plan: Program) -> None:
    sheet, plan, key = november_plan.home / "payroll.csv", plan_file(november_plan), november_plan.home / "ada.pem"
    result = november_plan.run("--lang", "fr", "plan", sheet, "--out", plan, "--key", key, "--force")
    assert result.exit_code == 0, result.output
    assert json.loads(plan.read_text())["language"] == "fr"
    re_sign_plan(
        november_plan, replace_value("phone.zero_restored", "message", "Ligne 2 : audit, rien \u00e0 signaler.")
    )
    assert approve_and_submit(november_plan) == 8
    november_plan.run("--lang", "fr", "plan", sheet, "--out", plan, "--key", key, "--force")
    assert approve_and_submit(november_plan) == 0


def test_bonus_to_payee_outdates_plan(november_plan: Program) -> None:
    bonus = [row("BONUS", 31, NAMES[30], "5", account="0799000777")]
    assert november_plan.json("submit", november_plan.sheet(bonus, "bonus.csv"))["exit_code"] == 0
    assert approve_and_submit(november_plan) == 8
    assert len(november_plan.record()) == 35


def test_comparison_batch_chosen_by_maker_hides_nothing(november_plan: Program) -> None:
    bonus = [row("BONUS", 31, NAMES[30], "5", account="0799000777")]
    batch = november_plan.json("submit", november_plan.sheet(bonus, "bonus.csv"))["batch"]
    october = next(entry["batch"] for entry in november_plan.json("status")["batches"] if entry["batch"] != batch)
    shown: dict[str, set[tuple[object, ...]]] = {}
    for against in ("", batch, october):
        more = ("--against", against) if against else ()
        summary = november_plan.json(
            *(
                "plan",
                november_plan.home / "payroll.csv",
                "--out",
                plan_file(november_plan),
                "--key",
                november_plan.home / "ada.pem",
            ),
            *("--force", *more),
        )
        shown[against] = {
            (finding["row"], finding["code"], finding["name"], finding["amount"]) for finding in summary["findings"]
        }
    assert shown[""] <= shown[batch]
    assert shown[""] <= shown[october]
    assert approve_and_submit(november_plan) == 0


def test_plan_hiding_repeated_payroll_is_refused(november_plan: Program) -> None:
    again = [row("AGAIN", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)]
    november_plan.sheet(again)
    november_plan.run(
        *(
            "plan",
            november_plan.home / "payroll.csv",
            "--out",
            plan_file(november_plan),
            "--key",
            november_plan.home / "ada.pem",
        ),
        *("--force", "--repeats-meant"),
    )
    assert json.loads(plan_file(november_plan).read_text())["answered"] != []

    def hide(document: dict[str, Any]) -> None:
        remove_finding("sheet.repeats_a_batch")(document)
        document["answered"] = []

    re_sign_plan(november_plan, hide)
    assert approve_and_submit(november_plan, "--repeats-meant") == 8
    assert len(november_plan.record()) == 34


@pytest.mark.parametrize("forgery", ["no changed account", "another amount", "another sentence", "a word of comfort"])
def test_approver_with_sheet_cannot_sign_forged_plan(november_plan: Program, forgery: str) -> None:
    re_sign_plan(november_plan, FORGERIES[forgery])
    key = november_plan.home / "cleo.pem"
    assert (
        november_plan.run(
            "approve", plan_file(november_plan), "--sheet", november_plan.home / "payroll.csv", "--key", key
        ).exit_code
        == 8
    )
    assert json.loads(plan_file(november_plan).read_text())["approvals"] == []


def test_approver_with_different_sheet_cannot_sign(november_plan: Program) -> None:
    other = november_plan.sheet([*november_rows()[:-1], row("NOV", 36, "Ghost Kamau", "1501")], "other.csv")
    key = november_plan.home / "cleo.pem"
    assert november_plan.run("approve", plan_file(november_plan), "--sheet", other, "--key", key).exit_code == 8
    assert json.loads(plan_file(november_plan).read_text())["approvals"] == []


def test_approver_with_sheet_sees_findings_in_own_language(november_plan: Program) -> None:
    theirs = november_plan.run("approve", plan_file(november_plan))
    assert (theirs.exit_code, "how its maker, ada, signed it" in theirs.stdout) == (0, True)
    sheet, key = november_plan.home / "payroll.csv", november_plan.home / "cleo.pem"
    result = november_plan.run("--lang", "fr", "approve", plan_file(november_plan), "--sheet", sheet, "--key", key)
    assert result.exit_code == 0, result.output
    assert "how its maker" not in result.stdout
    assert "the account ends in" not in result.stdout
    assert NAMES[30] in result.stdout
    assert november_plan.run("submit", sheet).exit_code == 0


def test_findings_stay_visible_after_three_other_batches(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    sheet = program.sheet(prepare_next_month(program))
    summary = program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada.pem")
    findings = {finding["code"]: finding for finding in summary["findings"] if finding["code"].startswith("payee.")}
    overlap = findings["payee.compared"]
    assert (overlap["before_sheet"], overlap["found"], overlap["people"]) == ("sep.csv", 29, 30)
    assert sum(finding["code"].startswith("payee.") for finding in summary["findings"]) == 5
    changed = findings["payee.account"]
    assert (changed["name"], changed["account"], changed["old_account"]) == (NAMES[3], "254712999004", "254712345004")
    assert (changed["before_sheet"], changed["first_sheet"], changed["first_amount"]) == (
        "sep.csv",
        "tiny.csv",
        "10.00",
    )
    assert (findings["payee.amount"]["name"], findings["payee.amount"]["before"]) == (NAMES[4], "20000.00")
    assert (findings["payee.new"]["name"], findings["payee.gone"]["name"]) == ("Ghost Kamau", NAMES[5])
    page = program.home / "plan.html"
    output = program.run("approve", plan_file(program), "--report", page).stdout
    for name, account in ((NAMES[3], "254712999004"), (NAMES[4], "254712345005"), ("Ghost Kamau", "254799000777")):
        assert any(name in line and account in line for line in output.splitlines())
    assert all(f"254712345{n:03}" in output for n in (1, 2, 3, *range(7, 31)))
    html = page.read_text()
    assert "254712<mark>345</mark>004<br>254712<mark>999</mark>004" in html
    people = html[html.index("<h2>All people</h2>") :]
    assert people.count("<tr>") == 31
    first = [people.index(name) for name in (NAMES[3], NAMES[4], "Ghost Kamau", NAMES[0])]
    assert first == sorted(first)


def test_left_out_rows_show_name_amount_and_reason(october_paid: Program) -> None:
    rows = [
        *november_rows()[-3:],
        row("NOV", 50, "Left Behind", "777"),
        "KE,NOV-51,1e3,KES,Wrong Amount,0712345051,0712345051",
    ]
    rows[3] = rows[3].replace("0712345050", "12")
    sheet = october_paid.sheet(rows)
    summary = october_paid.json(
        "plan", sheet, "--skip-invalid", "--out", plan_file(october_paid), "--key", october_paid.home / "ada.pem"
    )
    out = [finding for finding in summary["findings"] if finding["code"] == "row.left_out"]
    assert [(left_out_row["row"], left_out_row["name"], left_out_row["amount"]) for left_out_row in out] == [
        (5, "Left Behind", "777"),
        (6, "Wrong Amount", "1e3"),
    ]
    assert all(left_out_row["reasons"] and not left_out_row["by"] for left_out_row in out)
    output = october_paid.run("approve", plan_file(october_paid)).stdout
    assert "Left out: 2 rows (KES 777):" in output
    assert [person["name"] for person in summary["people"] if person["name"] in {"Left Behind", "Wrong Amount"}] == []


def sign_again(month: Program, change: Callable[[PlanDocument], PlanDocument]) -> None:
    """Change a plan and sign it again with its maker's own key."""
    key = load_approval_key(month.home / "ada.pem", None)
    write_document(sign_document(change(read_plan(plan_file(month))), key), plan_file(month))


def rename_ghost(document: PlanDocument) -> str:
    return document.people.replace("Ghost Kamau", "Grace Kamau")


def test_forged_people_list_fails_approve_or_submit(october_paid: Program) -> None:
    october_paid.config.write_text(october_paid.config.read_text().replace('KES = "100000000"', 'KES = "1000"'))
    plan_november(october_paid)
    sign_again(october_paid, lambda plan: plan.model_copy(update={"people": rename_ghost(plan)}))
    assert october_paid.run("approve", plan_file(october_paid), "--key", october_paid.home / "cleo.pem").exit_code == 8
    plan_november(october_paid)

    def forged(plan: PlanDocument) -> PlanDocument:
        people = rename_ghost(plan)
        digest = hashlib.sha256(people.encode()).hexdigest()
        return plan.model_copy(
            update={"people": people, "content": plan.content.model_copy(update={"people_sha256": digest})}
        )

    sign_again(october_paid, forged)
    result = october_paid.run("approve", plan_file(october_paid), "--key", october_paid.home / "cleo.pem")
    assert (result.exit_code, "Grace Kamau" in result.stdout) == (0, True)
    before = len(october_paid.record())
    assert october_paid.run("submit", october_paid.home / "payroll.csv").exit_code == 8
    assert len(october_paid.record()) == before


def test_findings_message_written_by_maker_is_ignored(october_paid: Program) -> None:
    plan_november(october_paid)

    def soothing(plan: PlanDocument) -> PlanDocument:
        findings = [
            finding.model_copy(update={"message": "all is well"})
            for finding in plan.findings
            if "payee." in finding.code
        ]
        return plan.model_copy(update={"findings": findings})

    sign_again(october_paid, soothing)
    result = october_paid.run("approve", plan_file(october_paid), "--report", october_paid.home / "plan.html")
    assert "all is well" not in result.stdout
    assert "all is well" not in (october_paid.home / "plan.html").read_text()
    assert "254712345031" in result.stdout
