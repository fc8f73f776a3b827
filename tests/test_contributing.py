"""The recipes of CONTRIBUTING.md: each is followed in a copy of the tree, and its result is used there."""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT, copy_versioned

RECIPE = re.compile(r"^## ([^\n]+)\n\n(?:(?!^## ).)*?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = dict(RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Tree:
    """A copy of the tree that a test changes."""

    root: Path

    def run(self, *words: str | Path, code: int = 0) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = {"HOME": str(self.root.parent), "PATH": path, "PYTHONPATH": str(self.root)}
        environ["PYTEST_ADDOPTS"] = "-x -p no:cacheprovider"
        completed = subprocess.run(words, cwd=self.root, env=environ, capture_output=True, text=True, check=False)
        assert completed.returncode == code, completed.stdout + completed.stderr
        return completed.stdout + completed.stderr

    def paygw(self, *words: str | Path, code: int = 0) -> str:
        return self.run(sys.executable, "-m", "paygw_batch", "--config", "config/sandbox.toml", *words, code=code)

    def json(self, *words: str | Path, code: int = 0) -> Any:
        return json.loads(self.paygw("-q", "--json", *words, code=code))

    def sheet(self, *lines: str) -> str:
        (self.root / "sheet.csv").write_text("\n".join(lines) + "\n")
        return "sheet.csv"


def use_country(tree: Tree) -> None:
    assert tree.json("submit", "samples/countries/MW.csv")["states"] == {"paid": 5}
    assert tree.json("collect", "samples/collections/MW.csv")["states"] == {"paid": 5}
    for name in ("payroll-mixed.csv", "collections-mixed.csv"):
        assert (tree.root / "samples" / name).read_bytes() == (ROOT / "samples" / name).read_bytes()


def use_payout_country(tree: Tree) -> None:
    assert tree.json("submit", "samples/countries/MW.csv")["states"] == {"paid": 5}
    assert "MW is not a known country" in tree.paygw("template", "MW", "--collect", "--out", "new.csv", code=2)


def use_form(tree: Tree) -> None:
    heading = "country,client_orderid,amount,account_name,account_number,phone,branch"
    row = "UG,B-{n},1500,Kato Mukasa,25677234567{n},+25677234567{n},{branch}"
    sheet = tree.sheet(heading, row.format(n=1, branch="Westlands"), row.format(n=2, branch=""))
    tree.paygw("submit", sheet, "--out", "out.csv")
    with (tree.root / "out.csv").open(newline="") as file:
        assert [line["branch"] for line in csv.DictReader(file)] == ["Westlands", ""]
    (defect,) = tree.json("validate", tree.sheet(heading, row.format(n=3, branch="x" * 36)), code=3)["defect_list"]
    assert "at most 35 characters" in defect["message"]


def use_format(tree: Tree) -> None:
    for _ in range(2):
        tree.paygw("submit", "samples/countries/KE.csv", "--out", "out.jsonl")
    lines = [json.loads(line) for line in (tree.root / "out.jsonl").read_text().splitlines()]
    assert [line["state"] for line in lines] == ["paid"] * 5
    refused = tree.paygw("validate", "samples/every-defect.csv", "--rejects", "new.jsonl", code=2)
    assert "must have one of these extensions: .csv, .parquet, .xlsx" in refused


def use_check(tree: Tree) -> None:
    refused = tree.paygw("submit", "samples/countries/KE.csv", "--max-rows", "4", code=3)
    assert "The sheet has more than 4 rows." in refused
    assert tree.json("submit", "samples/countries/KE.csv", "--max-rows", "5")["states"] == {"paid": 5}


def use_role(tree: Tree) -> None:
    with (tree.root / "config/sandbox.toml").open("a") as config:
        config.write('\n[console.treasurers]\n"Mary Njeri" = "key"\n')
    program = (
        "from pathlib import Path; from paygw_batch.console.permissions import Action, Member, may, role_lists\n"
        "from paygw_batch.settings.configuration import load_settings\n"
        "(role, people), *_ = role_lists(load_settings(Path('config/sandbox.toml'), environ={}))[1:]\n"
        "print(*people, *(action for action in Action if may(Member('Mary Njeri', frozenset({role})), action)))"
    )
    assert tree.run(sys.executable, "-c", program) == "Mary Njeri look stay check\n"


USES: list[tuple[str, str, Callable[[Tree], None]]] = [
    *(("A country", "", use_country), ("A country", "# collects", use_payout_country), ("A field", "", use_form)),
    *(("A format of tables", "", use_format), ("An option of `submit`", "", use_check), ("A role", "", use_role)),
]
SLOW = re.compile("^pytest|catalogue.py|man_pages.py", re.MULTILINE)
"""Files that no recipe needs: tests and documents."""


def follow_recipe(tree: Tree, name: str, left_out: re.Pattern[str]) -> None:
    lines = [line for line in RECIPES[name].splitlines() if not left_out.search(line)]
    tree.run("bash", "-euc", "\n".join(lines))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(copy_versioned(tmp_path / "tree", ""))


def test_all_recipes_work_together(tree: Tree) -> None:
    assert {name for name, _, _ in USES} == RECIPES.keys()
    for name in RECIPES:
        follow_recipe(tree, name, SLOW)
    tree.paygw("journal", "new")
    for _, without, uses in USES:
        if not without:
            uses(tree)


@pytest.mark.long
@pytest.mark.parametrize(("name", "without", "uses"), USES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_recipe_passes_its_tests(tree: Tree, name: str, without: str, uses: Callable[[Tree], None]) -> None:
    follow_recipe(tree, name, re.compile(without or "$^"))
    tree.paygw("journal", "new")
    uses(tree)
