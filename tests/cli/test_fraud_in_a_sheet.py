"""Fraud in a sheet with 30 dropped zeros: whoever approves sees it first, by name and amount, and all of it."""

import json
from pathlib import Path

import pytest

from tests.cli.approving import plan_of, policy
from tests.cli.program import Program, sandbox_toml

SCREEN_LINES = 24
NAMES = [f"Payee{letter} Otieno" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"] + [
    f"Payee{letter} Wanjiku" for letter in "ABCDEFGHIJ"
]


def row(order: str, n: int, name: str, amount: str, *, account: str = "") -> str:
    return f"KE,{order}-{n},{amount},KES,{name},{account or f'0712345{n:03}'},0712345{n:03}"


@pytest.fixture
def month(program: Program) -> Program:
    """A company that paid 34 people last month, and asks for one approval."""
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    october = [row("OCT", n, name, f"{1000 + n}") for n, name in enumerate(NAMES[:34], 1)]
    assert program.json("submit", program.sheet(october, "october.csv"))["exit_code"] == 0
    return program


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


def test_all_three_are_on_the_first_screen_of_plan_and_of_approve(month: Program) -> None:
    for shown in (planned(month), month.run("approve", plan_of(month), "--key", month.home / "cleo.pem").stdout):
        screen = shown.splitlines()[:SCREEN_LINES]
        found = [line for line in screen if line.startswith("- ")]
        assert found[0].startswith(f"- Row 32, {NAMES[30]}, KES 1,031.00: the account ends in 777")
        assert found[1] == f"- Row 33, {NAMES[31]}, KES 4,128.00: KES 1,032.00 in the last run"
        assert found[2] == "- Row 34, Ghost Kamau, KES 1,500.00: not in the last run"
        assert found[3] == f"- {NAMES[33]}, KES 1,034.00: in the last run, and not in this sheet"
        assert len(found) == 4
        assert "Look at this first: 1 changed account, 1 amount off, 1 new person, 1 person missing." in screen
        assert "phone.zero_restored: 30" in shown
        assert shown.count("seems to have dropped a zero") == 6  # three examples of each kind


def test_what_the_plan_names_is_under_its_signature(month: Program) -> None:
    planned(month)
    document = json.loads(plan_of(month).read_text())
    first = next(one for one in document["findings"] if one["code"] == "payee.account")
    assert (first["name"], first["amount"], first["currency"], first["before"]) == (
        *(NAMES[30], "1031.00", "KES", "1031.00"),
    )
    first["name"] = "Somebody Else"
    plan_of(month).write_text(json.dumps(document))
    result = month.run("approve", plan_of(month), "--key", month.home / "cleo.pem")
    assert (result.exit_code, "changed after its maker signed it" in result.stderr) == (8, True)


def test_json_and_the_page_have_the_same(month: Program) -> None:
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
def test_the_page_never_replaces_what_it_should_not(month: Program, victim: str) -> None:
    planned(month)
    (month.home / "notes.html").write_text("<!doctype html><title>mine</title>")
    path = month.config if victim == "config.toml" else month.home / victim
    before = path.read_bytes()
    result = month.run("approve", plan_of(month), "--key", month.home / "cleo.pem", "--report", path)
    assert result.exit_code == 2, result.output
    assert path.read_bytes() == before
    assert json.loads(plan_of(month).read_text())["approvals"] == []


def test_every_difference_is_shown_however_many_there_are(month: Program) -> None:
    sheet = month.sheet([row("NEW", 100 + n, f"Ghost Number{n}", f"{2000 + n}") for n in range(60)])
    shown = month.run("plan", sheet, "--out", plan_of(month), "--key", month.home / "ada.pem").stdout.splitlines()
    ghosts = [line for line in shown if "Ghost Number" in line]
    assert len(ghosts) == 60
    assert "KES 2,059.00" in ghosts[0], "the largest sum first"
    assert sum("and not in this sheet" in line for line in shown) == 34


def test_look_alikes_are_told_once_a_batch_and_their_days_are_a_setting(month: Program) -> None:
    rows = [row("AGAIN", n, NAMES[n - 1], f"{1000 + n}") for n in range(1, 11)]
    others = [row("OTHER", n, NAMES[n - 1], f"{1001 + n}") for n in range(11, 31)]
    sheet = month.sheet([*rows, *others])
    told = month.json("submit", sheet, "--dry-run")["warning_list"]
    assert [(one["row"], one["code"]) for one in told] == [(0, "row.look_alike")]
    assert "10 rows have the same account and amount as rows of batch" in told[0]["message"]
    assert "rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11" in told[0]["message"]
    text = month.config.read_text()
    month.config.write_text(f"{text}\n[sheet]\nlook_alike_days = 0\n")
    assert month.json("submit", sheet, "--dry-run").get("warning_list", []) == []
