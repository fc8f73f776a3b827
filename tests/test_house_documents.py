"""The documents about the source are correct: paths exist, the picture is current, names follow the glossary."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, versioned_files

PACKAGE = ROOT / "paygw_batch"
ARCHITECTURE = ROOT / "docs/architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
CORE_ROOMS = ("core/", "sheet/", "engine/", "journal/", "approval/", "settle/")
GLOSSARY = ROOT / "docs/glossary.md"
DOCUMENTS = [ROOT / "README.md", CONTRIBUTING, *versioned_files("docs", "*.md")]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))
WHOLE_PATH = re.compile(r"(?<![\w./-])(?:paygw_batch|tests|tooling|samples|benchmarks|config)(?:/[\w.-]+)+")
SHORT_PATH = re.compile(r"`([\w/-]+(?:\.py|/))`")
PLACE_HOLDERS = re.compile(r"\b(XX|MW|NAME|FORM|OP|PROFILE|FILE)\b")
MADE_WHEN_RUN = re.compile(r"\.reconciliation\.|^samples/(payroll|out|results)|rejects|\.plan$")

QUESTIONS = {
    "a country": ("config/countries/KE.toml", "currency"),
    "a phone prefix": ("config/mobile-numbers.toml", "pattern"),
    "a word of the gateway's replies": ("paygw_batch/gateway/classify.py", "def classify"),
    "the first-byte witness": ("paygw_batch/gateway/http/connection.py", "_send_request"),
    "the commit before a request leaves": ("paygw_batch/engine/engine.py", "class GroupCommit"),
    "the signature of an approval": ("paygw_batch/approval/approval_keys.py", "def sign"),
    "the red cell in a workbook": ("paygw_batch/sheet/write/marked_workbook.py", "red cell"),
    "the exit code": ("paygw_batch/show/summary.py", "class ExitCode"),
}
"""What a newcomer looks for, the file that the page must name for it, and a text in that file."""


def section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def path_exists(short: str) -> bool:
    """Return whether a path exists: from the root, below the package, or (a bare name) anywhere in the package."""
    if (ROOT / short).exists() or (PACKAGE / short).exists():
        return True
    return "/" not in short and any(path.name == short for path in MODULES)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_documents_exist(document: Path) -> None:
    for line in document.read_text(encoding="utf-8").splitlines():
        for result in WHOLE_PATH.findall(line):
            path = result.rstrip(".")
            if not PLACE_HOLDERS.search(path) and not MADE_WHEN_RUN.search(path):
                assert (ROOT / path).exists(), f"{document.name} names {path}, which is gone"


@pytest.mark.parametrize("document", [ARCHITECTURE, CONTRIBUTING], ids=lambda path: path.name)
def test_modules_in_guides_exist(document: Path) -> None:
    named = [one for one in SHORT_PATH.findall(document.read_text(encoding="utf-8")) if not PLACE_HOLDERS.search(one)]
    assert len(named) > 10
    assert [path for path in named if not path_exists(path)] == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_architecture_page_links_file_for_each_question(question: str) -> None:
    table = section(ARCHITECTURE.read_text(encoding="utf-8"), "Where is ...")
    answer = next(line.split("|")[2] for line in table.splitlines() if line.startswith(f"| {question} |"))
    expected, text = QUESTIONS[question]
    named = {path if path.startswith("config/") else f"paygw_batch/{path}" for path in re.findall(r"`([^`]+)`", answer)}
    assert expected in {path.replace("XX", "KE") for path in named}
    assert text in (ROOT / expected).read_text(encoding="utf-8")


def test_architecture_tree_matches_package() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    tree = next(one for one in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if one.startswith("paygw_batch/"))
    drawn, above = set(), [""]
    for indent, name in re.findall(r"^( +)([\w.]+/?) +\S", tree, re.MULTILINE):
        depth = len(indent) // 2
        above = [*above[:depth], f"{above[depth - 1]}{name}"]
        drawn.add(above[depth])
    folders = {f"{one.parent.relative_to(PACKAGE)}/" for one in PACKAGE.rglob("__init__.py") if one.parent != PACKAGE}
    assert drawn == folders | {path.name for path in MODULES if path.parent == PACKAGE}


def test_architecture_diagram_matches_imports() -> None:
    tool = runpy.run_path(str(ROOT / "tooling/architecture_picture.py"))
    text = ARCHITECTURE.read_text(encoding="utf-8")
    hint = "run `python tooling/architecture_picture.py --write`"
    assert text == tool["replace_picture"](text, tool["render_picture"]()), hint


def excluded_words() -> set[str]:
    """Return the words that names must not contain: the first column of the glossary's table."""
    rows = re.findall(r"^\| (.*?) \|", section(GLOSSARY.read_text(encoding="utf-8"), "Not in names"), re.MULTILINE)
    return set(re.findall(r"[a-z]+", " ".join(rows[2:]).lower()))


def names() -> Iterator[tuple[str, list[str]]]:
    """Yield every module and every public class of the package, with the words of its name."""
    for path in MODULES:
        yield str(path.relative_to(PACKAGE)), path.stem.split("_")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]+|\d+", node.name)
                yield f"{path.relative_to(PACKAGE)}: {node.name}", [word.lower() for word in words]


def test_names_avoid_words_banned_by_glossary() -> None:
    ruled_out = excluded_words()
    assert {"utils", "spool"} <= ruled_out
    result = {name: word for name, words in names() for word in words if not ruled_out.isdisjoint({word, f"{word}s"})}
    assert result == {}


def test_core_introduces_twelve_nouns() -> None:
    rows = re.findall(r"^\| (.*?) \|", section(GLOSSARY.read_text(encoding="utf-8"), "The twelve nouns"), re.MULTILINE)
    nouns = rows[2:]
    introduced = section(ARCHITECTURE.read_text(encoding="utf-8"), "The nouns, in the order in which you need them")
    in_core = {word for name, words in names() if name.startswith(CORE_ROOMS) for word in words}
    assert len(nouns) == 12
    assert [noun for noun in nouns if not re.search(rf"\*\*{noun}(e?s)?\*\*", introduced)] == []
    assert set(nouns) <= in_core | {word.removesuffix("s") for word in in_core}
