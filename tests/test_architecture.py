"""Imports point one way, each heavy library is imported in one place, and each name has one meaning."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from paygw_batch.extras import COMMANDS

PACKAGE = Path(__file__).resolve().parents[1] / "paygw_batch"

BASE = {"core", "clock", "extras", "files", "processes", "trusted_files", "errors", "language"}
GROUND = {"sheet", "gateway", "journal", "countries", "settings", *BASE}
"""What the rooms of a batch's way stand on. Each of those knows the ones before it."""
OPENING = {"engine", "opening", *GROUND}
APPROVAL = {"approval", *OPENING}
SETTLE = {"settle", *APPROVAL}
SHOW = {"show", *SETTLE}
SUBMIT = {"submit", *SHOW}
WHOLE = {"unattended", "forget_people", *SUBMIT}
ALLOWED = {
    "errors": {"language"},
    "language": set(),
    "clock": set(),
    "extras": {"errors", "language"},
    "files": {"errors", "extras", "language"},
    "processes": set(),
    "trusted_files": {"errors", "files", "language"},
    "web_server": {"errors", "language"},
    "core": {"errors", "language"},
    "countries": BASE,
    "sheet": {"countries", *BASE},
    "gateway": {"countries", *BASE},
    "journal": BASE,
    "engine": {"gateway", "journal", *BASE},
    "settings": {"countries", *BASE},
    "listener": {"gateway", "journal", "web_server", *BASE},
    "opening": OPENING - {"opening"},
    "approval": GROUND - {"countries"},
    "settle": SETTLE - {"settle"},
    "show": SHOW - {"show", "gateway"},
    "submit": SUBMIT - {"submit"},
    "unattended": WHOLE - {"unattended", "forget_people", "gateway", "countries"},
    "forget_people": SHOW - {"gateway", "countries"},
    "cli": {"listener", "web_server", *WHOLE},
    "api": WHOLE - {"gateway", "countries"},
    "sandbox": {"cli", "web_server", *WHOLE},
    "custody": {"gateway", *BASE},
    "notices": {"cli", *WHOLE},
    "cluster": {"cli", *WHOLE},
    "console": {"cli", "web_server", *WHOLE},
    "__main__": {"cli"},
    "__init__": set(),
}
"""Which room may import which."""

FLOORS = {
    "sheet": ("columns findings model amounts clean formats", "read", "instructions", "check", "write"),
    "gateway": ("signing", "*", "http"),
    "journal": (
        "values lock port audit facts sent_log new_batch outbox tables",
        *("states forget evidence replay lost", "journal", "sqlite postgres", "known_journals location"),
        *("file_location database_location", "adopt"),
    ),
    "console": (
        "permissions passkey_access web_guard payout_counts payout_folder start_run",
        *("rendering visits check_payout sheet_process", "pages", "console_app", "console_command invite_command"),
    ),
    "cli": ("invocation options signals", "screen", "help_texts send_batch sheet_questions", "commands", "main start"),
}
"""Rooms with floors: folders, or modules of the room itself, from the ground up. None imports from a floor above it."""

ROOMS_OF_LIBRARIES = {
    "httpx": {"gateway/http/enquiry_client.py"},
    "httptools": {"gateway/http"},
    # Approvals are between people of one company, so their keys are in a separate module from the gateway's.
    "cryptography": {"gateway/signing/key.py", "sandbox", "approval/approval_keys.py"},
    "pkcs11": {"custody/token_key.py"},
    "boto3": {"custody/kms_key.py"},
    "botocore": {"custody/kms_key.py"},
    "polars": {
        *("sheet", "submit", "show", "cli", "api.py", "approval/plan_document.py", "opening/given_sheet.py"),
        *("console/check_payout.py", "console/pages/check_page.py"),
    },
    "pandera": {"sheet/check"},
    "openpyxl": {"sheet/write"},
    "xlsxwriter": {"sheet/formats.py", "sheet/write", "show/workbook.py"},
    "apsw": {
        *("journal/sqlite", "journal/file_location.py", "journal/adopt.py", "journal/known_journals.py"),
        "cluster/move.py",
    },
    "psycopg": {"journal/postgres", "cluster"},
    "procrastinate": {"journal/postgres/schema.py", "cluster"},
    "croniter": {"settings/sections.py", "cluster"},
    "click": {"cli", *(f"{module.replace('.', '/')}.py" for module in COMMANDS.values())},
    "rich": {"cli"},
    "uvicorn": {"web_server.py", "sandbox/server.py", "listener.py"},
    "starlette": {"console", "sandbox", "listener.py"},
    "jinja2": {"show/page.py", "console", "settings/new_configuration.py"},
    "pydantic": {
        *("settings", "countries", "sandbox", "settle/kept_documents.py"),
        *("approval/signed_document.py", "approval/approval_keys.py"),
    },
    "platformdirs": {"settings"},
    "sqlite3": set(),
    "requests": set(),
}
"""Where a library may be imported: files or folders below the package."""

PURE = {
    *("abc", "collections", "dataclasses", "decimal", "enum", "hashlib", "ipaddress", "itertools", "json", "re"),
    *("types", "typing", "unicodedata"),
    "paygw_batch",
}
"""The standard library's parts that know no clock, chance, file, network or event loop."""
PURE_FACTS = PURE | {"functools", "hmac"}
"""What the facts of a journal need beside them."""

FILES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(path: Path, *, types_too: bool = True) -> Iterator[str]:
    for node in chain.from_iterable(
        ast.walk(part)
        for part in parse_file(path).body
        if types_too or not (isinstance(part, ast.If) and "TYPE_" in ast.unparse(part.test))
    ):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which way they point"
            for alias in node.names:
                whole = PACKAGE.parent / (node.module or "").replace(".", "/") / alias.name
                is_module = whole.with_suffix(".py").exists() or (whole / "__init__.py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module or ""


def own_imports(path: Path, *, types_too: bool = True) -> Iterator[tuple[str, ...]]:
    """Yield the package's modules that a file imports, as parts of their dotted names."""
    for name in imported_modules(path, types_too=types_too):
        first, *parts = name.split(".")
        if first == "paygw_batch" and parts:
            yield tuple(parts)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor_of(parts: tuple[str, ...]) -> int | None:
    """Return the floor of a module in its room, by room name and own name. Returns None for a room without floors."""
    floors = [names.split() for names in FLOORS.get(parts[0], ())] if len(parts) > 1 else []
    own = [number for number, names in enumerate(floors) if parts[1] in names]
    return next(iter(own or [number for number, names in enumerate(floors) if names == ["*"]]), None)


def is_within(module: Path, folder: str) -> bool:
    return str(module) == folder or str(module).startswith(f"{folder}/")


def check_each_file(holds: Callable[[Path], None]) -> Callable[[], None]:
    """Turn a check of one file into a single test.

    One case for each file would be two thousand cases, collected by every worker.
    """

    def rule() -> None:
        broken = []
        for path in FILES:
            try:
                holds(path)
            except AssertionError as error:
                broken.append(f"{path.relative_to(PACKAGE)}: {error}")
        assert not broken, "\n".join(broken)

    rule.__doc__ = holds.__doc__
    return rule


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@check_each_file
def test_packages_import_only_allowed_packages(path: Path) -> None:
    for parts in own_imports(path, types_too=False):  # the type of an extra may be named: nothing is loaded for it
        if parts[0] != room_of(path):
            assert parts[0] in ALLOWED[room_of(path)], f"{room_of(path)} must not import {'.'.join(parts)}"


RULES = {
    *("approval/approval_keys.py", "approval/order.py", "approval/plan_document.py", "approval/signed_document.py"),
    *("settle/kept_documents.py", "settle/match_statement.py", "settle/refresh.py", "settle/resolve.py"),
    *("settle/row_order.py", "submit/compare_sheet.py", "submit/open_questions.py", "submit/plan.py"),
}
"""What decides about money: from values alone."""


@check_each_file
def test_rule_modules_import_no_settings(path: Path) -> None:
    if str(path.relative_to(PACKAGE)) in RULES:
        assert not {parts[0] for parts in own_imports(path)} & {"settings", "opening", "show"}


@check_each_file
def test_sandbox_imports_no_client_parsing_code(path: Path) -> None:
    """The sandbox is a second implementation. Only its start-up code may use the settings and the first one."""
    if room_of(path) == "sandbox" and path.stem not in {"sandbox_command", "configured"}:
        assert {parts[0] for parts in own_imports(path)} <= {"sandbox", "countries", "web_server", *BASE}


@check_each_file
def test_modules_import_only_lower_layers_of_package(path: Path) -> None:
    own = path.relative_to(PACKAGE).with_suffix("").parts
    if own[0] not in FLOORS or own[1:] == ("__init__",):
        return
    here = floor_of(own)
    assert here is not None, f"{'.'.join(own)} has no floor in FLOORS"
    for parts in own_imports(path):
        there = floor_of(parts) if parts[0] == own[0] else None
        assert there is None or there <= here, f"{'.'.join(own)} climbs to {'.'.join(parts)}"


@check_each_file
def test_each_heavy_library_is_imported_only_where_allowed(path: Path) -> None:
    module = path.relative_to(PACKAGE)
    for name in imported_modules(path):
        rooms = ROOMS_OF_LIBRARIES.get(name.split(".")[0])
        if rooms is not None:
            assert any(is_within(module, folder) for folder in rooms), f"{name} has no business in {module}"


DOORS_OF_THE_JOURNAL = {"location", "file_location", "known_journals", "adopt", "sqlite.connect"}
"""What others import of the journal beside its values, which load no library: its places, and the files beside it."""


@check_each_file
def test_journal_is_imported_only_through_public_modules(path: Path) -> None:
    """Stores are independent, so that another one can be added; `cluster` is a part of its store."""
    if room_of(path) in {"journal", "cluster"}:
        return
    for parts in own_imports(path):
        is_door = len(parts) == 1 or not DOORS_OF_THE_JOURNAL.isdisjoint({parts[1], ".".join(parts[1:3])})
        assert parts[0] != "journal" or is_door, f"import {parts[-1]} from paygw_batch.journal"


def test_journal_stores_and_facts_are_independent() -> None:
    for store, other in (("sqlite", "postgres"), ("postgres", "sqlite")):
        for path in sorted((PACKAGE / "journal" / store).rglob("*.py")):
            assert not any(parts[:2] == ("journal", other) for parts in own_imports(path)), path
    for path in (PACKAGE / "journal" / "facts.py", PACKAGE / "journal" / "audit.py"):
        assert {name.split(".")[0] for name in imported_modules(path)} <= PURE_FACTS, path
        for parts in own_imports(path):
            is_ours = parts[:2] == ("journal", "values")
            assert is_ours or parts[0] in {"core", "errors", "language"}, f"{path.name} imports {'.'.join(parts)}"


@check_each_file
def test_core_imports_pure_modules_and_never_awaits(path: Path) -> None:
    if room_of(path) == "core":
        assert {name.split(".")[0] for name in imported_modules(path)} <= PURE
        assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(parse_file(path)))


@check_each_file
def test_functions_have_at_most_sixty_lines(path: Path) -> None:
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 60, f"{node.name} is {lines} lines long"


def test_import_rules_name_exactly_existing_packages() -> None:
    assert {room_of(path) for path in FILES} == set(ALLOWED)
    assert set(chain.from_iterable(ALLOWED.values())) <= set(ALLOWED)


NODES = [node for path in sorted(Path(__file__).parent.rglob("*.py")) for node in ast.walk(parse_file(path))]
"""Every part of every module of the tests."""


def test_test_modules_do_not_import_each_other() -> None:
    imported = [node for node in NODES if isinstance(node, ast.ImportFrom)]
    assert [node.module for node in imported if re.search(r"^tests\..*\btest_\w+$", node.module or "")] == []


def test_test_names_have_at_most_eight_words() -> None:
    functions = [node for node in NODES if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    words = {node.name: node.name.split("_")[1:] for node in functions if node.name.startswith("test_")}
    relative = {"what", "that", "who", "which", "whose", "whoever"}
    assert [name for name, used in words.items() if len(used) > 8 or relative & set(used)] == []
