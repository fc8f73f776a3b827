"""Wrong usages of commands: each error explains the mistake correctly (wrong_usages.toml)."""

import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import HEADING, Program, kenyan_rows, sandbox_toml

USAGES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("wrong_usages.toml").read_text())["usage"]
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Set up a machine with one sheet paid, one rejected and one in doubt, and files that are not sheets."""
    home = tmp_path_factory.mktemp("desk")
    home.chmod(0o700)
    (home / "paygw.toml").write_text(sandbox_toml())
    program = Program(home, home / "paygw.toml")
    for name, amount in (("payroll", "1500.50"), ("rejected", "9001"), ("doubt", "9007")):
        rows = kenyan_rows(2 if name == "payroll" else 1, amount=amount, prefix=name.upper())
        program.run("submit", program.sheet(rows, f"{name}.csv"), "--repeats-meant")
    bad = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"
    program.sheet([*kenyan_rows(1, prefix="GOOD"), bad], "bad.csv")
    program.sheet(["KE,1,KES,Jane,254712345678,254712345678"], "noids.csv", HEADING.replace("client_orderid,", ""))
    program.sheet([], "head.csv")
    (home / "empty.csv").touch()
    (home / "folder").mkdir()
    (home / "password.xlsx").write_bytes(COMPOUND + "EncryptedPackage".encode("utf-16-le"))
    (home / "old.xls").write_bytes(COMPOUND)
    (home / "picture.xlsx").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    (home / "notoml.toml").write_text("[gateway\n")
    (home / "unknown.toml").write_text("[gatway]\nx = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        yield program


def test_wrong_usage_table_has_no_duplicates() -> None:
    words = [usage["words"] for usage in USAGES]
    assert len(set(words)) == len(words) >= 130


@pytest.mark.share(4)
@pytest.mark.parametrize("usage", USAGES, ids=[usage["words"] for usage in USAGES])
def test_error_about_wrong_usage_explains_cause(machine: Program, usage: dict[str, Any]) -> None:
    sent = machine.record()
    result = machine.run(*shlex.split(usage["words"]))
    output = " ".join(result.output.split())
    assert result.exit_code == usage["exit_code"], output
    assert [said for said in usage["says"] if said not in output] == [], output
    assert [said for said in usage.get("never", ()) if said in output] == [], output
    assert "Trace" not in output
    assert machine.record() == sent


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("words", ["submit", "status nosuch", "submit payroll.csv --nosuch", "backup payroll.csv"])
def test_program_options_work_before_and_after_command(machine: Program, words: str, place: str) -> None:
    arguments = shlex.split(words)
    result = machine.run(*(["--json", *arguments] if place == "before" else [*arguments, "--json"]))
    summary = json.loads(result.stdout)
    assert (summary["exit_code"], result.exit_code, bool(summary["message"])) == (2, 2, True)


def test_configuration_and_journal_may_follow_command(machine: Program) -> None:
    other = machine.home / "other.toml"
    other.write_text(sandbox_toml("elsewhere.sqlite3"))
    for words in (("--config", other), ("--journal", machine.home / "elsewhere.sqlite3")):
        refused = machine.run("status", "payroll.csv", *words)
        assert (refused.exit_code, "elsewhere.sqlite3" in refused.stderr) == (7, True), refused.output
