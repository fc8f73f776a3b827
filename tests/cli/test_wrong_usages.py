"""Wrong usages of the commands: each is answered with what is wrong, and with nothing untrue (wrong_usages.toml)."""

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
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A machine on which one sheet was paid, one rejected, and one is in doubt; and files that are no sheets."""
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


@pytest.mark.parametrize("usage", USAGES, ids=[usage["words"] for usage in USAGES])
def test_wrong_usage_is_explained(desk: Program, usage: dict[str, Any]) -> None:
    sent = desk.record()
    result = desk.run(*shlex.split(usage["words"]))
    told = " ".join(result.output.split())
    assert result.exit_code == usage["exit_code"], told
    assert [said for said in usage["says"] if said not in told] == [], told
    assert [said for said in usage.get("never", ()) if said in told] == [], told
    assert "Trace" not in told
    assert desk.record() == sent


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("words", ["submit", "status nosuch", "submit payroll.csv --nosuch", "backup payroll.csv"])
def test_program_options_work_before_and_after_command(desk: Program, words: str, place: str) -> None:
    given = shlex.split(words)
    result = desk.run(*(["--json", *given] if place == "before" else [*given, "--json"]))
    told = json.loads(result.stdout)
    assert (told["exit_code"], result.exit_code, bool(told["message"])) == (2, 2, True)


def test_language_and_configuration_work_after_command(desk: Program) -> None:
    assert "incertaine" not in desk.run("status").stdout
    assert "incertaine" in desk.run("status", "--lang", "fr").stdout
    other = desk.home / "other.toml"
    other.write_text(sandbox_toml("elsewhere.sqlite3"))
    assert desk.json("status", "payroll.csv")["exit_code"] == 0
    assert desk.run("status", "payroll.csv", "--config", other).exit_code in {2, 7}
    assert "payroll.csv" not in desk.run("status", "-q").stdout
