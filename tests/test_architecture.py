"""The architecture holds: imports point one way, and each heavy library has its own room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "paygw_batch"

ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "processes": set(),
    "trusted_files": {"errors"},
    "core": {"errors"},
    "countries": {"core", "errors", "files"},
    "sheet": {"processes", "countries", "core", "errors", "files"},
    "gateway": {"processes", "countries", "core", "errors", "files"},
    "journal": {"core", "errors", "files"},
    "run": {"sheet", "gateway", "journal", "countries", "core", "errors", "files"},
    "sandbox": {"countries", "core", "errors", "files"},
    "listener": {"gateway", "journal", "core", "errors", "files"},
    "sections": {"core", "errors", "files"},
    "settings": {"processes", "trusted_files", "sections", "countries", "core", "errors", "files"},
    "compose": {
        *("trusted_files", "sections", "settings", "run", "sandbox", "sheet", "gateway", "journal", "countries"),
        *("core", "errors", "files"),
    },
    "cli": {
        *(
            "compose",
            "processes",
            "listener",
            "sections",
            "settings",
            "run",
            "sandbox",
            "sheet",
            "gateway",
            "journal",
            "countries",
            "core",
        ),
        "errors",
        "files",
    },
    "api": {"processes", "compose", "settings", "run", "sheet", "journal", "core", "errors", "files"},
    "__main__": {"cli"},
    "__init__": set(),
}
"""Which room may import which."""

ROOMS_OF_LIBRARIES = {
    "httpx": {"gateway/transport.py"},
    "httptools": {"gateway"},
    # Approvals are between people of one company, and not the gateway's: their keys have a module of their own.
    "cryptography": {"gateway/sign.py", "sandbox", "run/approval_keys.py"},
    "polars": {"sheet", "run", "compose", "cli", "api.py"},
    "pandera": {"sheet"},
    "openpyxl": {"sheet"},
    "xlsxwriter": {"sheet", "run/workbook.py"},
    "apsw": {"journal"},
    "click": {"cli"},
    "rich": {"cli"},
    "uvicorn": {"sandbox", "listener"},
    "pydantic": {"sections.py", "settings.py", "countries", "sandbox", "run/signed_document.py"},
    "platformdirs": {"settings.py"},
    "sqlite3": set(),
    "requests": set(),
}
"""Where a library may be imported: files or folders below the package."""

CORE_MAY_IMPORT = {
    *("abc", "collections", "dataclasses", "decimal", "enum", "hashlib", "ipaddress", "re", "types", "typing"),
    "unicodedata",
    "paygw_batch",
}
"""The standard library's parts that know no clock, chance, file, network or event loop."""

FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which way they point"
            yield node.module or ""


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "paygw_batch" and len(parts) > 1 and parts[1] != room(path):
            assert parts[1] in ALLOWED[room(path)], f"{room(path)} must not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_heavy_library_stays_in_its_room(path: Path) -> None:
    place = path.relative_to(PACKAGE)
    for name in imported(path):
        rooms = ROOMS_OF_LIBRARIES.get(name.split(".")[0])
        if rooms is not None:
            assert str(place) in rooms or place.parts[0] in rooms, f"{name} has no business in {place}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_is_pure(path: Path) -> None:
    assert {name.split(".")[0] for name in imported(path)} <= CORE_MAY_IMPORT


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_has_no_async(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in nodes)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_room_is_too_long_to_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 60, f"{node.name} is {lines} lines long"


def test_every_room_of_the_package_is_known_to_this_test() -> None:
    assert {room(path) for path in FILES} == set(ALLOWED)
