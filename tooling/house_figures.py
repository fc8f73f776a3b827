"""Figures of the source: how large it is, how it hangs together, and what a command loads.

python tooling/house_figures.py             # a table
python tooling/house_figures.py --json      # the same, for a program
python tooling/house_figures.py --static    # without starting the program (which takes some seconds)
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "paygw_batch"
RUNS = 5
"""How often a command is started: the quickest counts."""
LARGEST = 8
BANNED = re.compile(
    r"\b(stands?|stood|comes? to|came to|whoever|whatever|however|told|tells|of its own|what)\b",
    re.IGNORECASE,
)
"""Words that a first line of a docstring does without (docs/glossary.md)."""
COMMANDS: Mapping[str, Sequence[str]] = {
    "--help": ("--help",),
    "validate": ("validate", "samples/payroll-mixed.csv"),
    "status": ("status",),
}
HEAVY = ("apsw", "cryptography", "httpx", "openpyxl", "pandera", "polars", "pydantic", "rich", "uvicorn", "xlsxwriter")

_TRACER = """
import collections, json, sys, threading
STARTS = ("engine.py", "committer.py", "group_commit.py")
found = collections.Counter()
def look(frame, event, arg):
    if event != "c_call" or not arg.__name__.startswith("execute") or "apsw" not in type(arg.__self__).__module__:
        return
    path = []
    while frame is not None:
        name = frame.f_code.co_filename
        if "/paygw_batch/" in name:
            path.append(name.split("/paygw_batch/")[1] + ":" + frame.f_code.co_qualname)
        frame = frame.f_back
    path.reverse()
    starts = [at for at, one in enumerate(path) if one.split(":")[0].split("/")[-1] in STARTS]
    if starts:
        found[tuple(path[starts[-1] + 1:])] += 1
threading.setprofile(look)
sys.setprofile(look)
sys.argv = ["paygw-batch", *json.loads(sys.argv[1])]
sys.path.insert(0, "")
try:
    import runpy
    runpy.run_module("paygw_batch", run_name="__main__", alter_sys=True)
except SystemExit:
    pass
sys.setprofile(None)
print(json.dumps([[list(path), count] for path, count in found.most_common()]))
"""
"""Runs the program, and prints the ways from the engine to a statement of SQLite: functions, and how often."""

_LOADED = """
import atexit, json, runpy, sys
def say():
    ours = sum(name.partition(".")[0] == "paygw_batch" for name in sys.modules)
    print("LOADED " + json.dumps([ours, len(sys.modules), sorted(set(sys.modules) & set(%r))]), file=sys.stderr)
atexit.register(say)
sys.argv = ["paygw-batch", *json.loads(sys.argv[1])]
sys.path.insert(0, "")
runpy.run_module("paygw_batch", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Module:
    """A module of the package: its dotted name below it, its text, and its syntax tree."""

    name: str
    text: str
    is_folder: bool

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @property
    def folder(self) -> str:
        """The folder that it is in, dotted; empty for the package's own modules."""
        return self.name.rpartition(".")[0]

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return self.text.count("\n")


def modules_of(directory: Path) -> dict[str, Module]:
    """Return every module below a directory by its dotted name; a folder's own is called as the folder."""
    found = {}
    for path in sorted(directory.rglob("*.py")):
        name = ".".join(path.relative_to(directory).with_suffix("").parts)
        name = name.removesuffix("__init__").rstrip(".") if path.name == "__init__.py" else name
        found[name] = Module(name, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    return found


def imports_of(module: Module, known: Mapping[str, Module]) -> set[str]:
    """Return the modules of the package that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix(f"{PACKAGE}.") for alias in node.names if alias.name.startswith(PACKAGE)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            base = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                found.add(full if full in known else base)
    return {name for name in found if name in known and name != module.name}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of more than one node that all reach each other."""
    reached = {node: _reached(graph, node) for node in graph}
    found = {frozenset({node} | {other for other in reached[node] if node in reached[other]}) for node in graph}
    return sorted(sorted(group) for group in found if len(group) > 1)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the longest way through a graph without circles; where there are some, each is walked once."""
    best: dict[str, list[str]] = {}

    def chain(node: str, above: frozenset[str]) -> list[str]:
        if node not in best:
            further = [chain(target, above | {node}) for target in sorted(graph[node]) if target not in above]
            best[node] = [node, *max(further, key=len, default=[])]
        return best[node]

    return max((chain(node, frozenset()) for node in sorted(graph)), key=len, default=[])


def within(graph: Mapping[str, set[str]], names: Iterable[str]) -> dict[str, set[str]]:
    """Return the part of a graph between some of its nodes."""
    kept = set(names)
    return {name: graph[name] & kept for name in kept}


def functions_of(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every function with its length."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def first_lines(module: Module) -> Iterator[tuple[str, str]]:
    """Yield the first line of every docstring, and whose it is; of constants as well."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield getattr(node, "name", "module"), text.splitlines()[0]
            for before, after in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(before, ast.Assign | ast.AnnAssign)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                    and isinstance(after.value.value, str)
                ):
                    yield ast.unparse(before).partition(" =")[0], after.value.value.splitlines()[0]


def twice(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that stand for more than one thing, and where."""
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: sorted(where) for name, where in sorted(places.items()) if len(where) > 1}


def static_figures() -> dict[str, Any]:
    """Return what the source alone says."""
    modules = modules_of(ROOT / PACKAGE)
    tests = modules_of(ROOT / "tests")
    graph = {name: imports_of(module, modules) for name, module in modules.items()}
    files = {name: module for name, module in modules.items() if not module.is_folder}
    lines = sorted(length for module in modules.values() for _, length in functions_of(module))
    rooms: dict[str, list[str]] = defaultdict(list)
    folders: dict[str, list[str]] = defaultdict(list)
    for name in files:
        rooms[name.split(".")[0] if "." in name else "(top)"].append(name)
        folders[modules[name].folder or "(top)"].append(name)
    fan_in = Counter(target for targets in graph.values() for target in targets)
    banned = [
        f"{module.name}: {whose}: {line}"
        for module in modules.values()
        for whose, line in first_lines(module)
        if BANNED.search(line)
    ]
    classes = [
        (node.name, name)
        for name, module in modules.items()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    ]
    return {
        "product_lines": sum(module.lines for module in modules.values()),
        "test_lines": sum(module.lines for module in tests.values()),
        "lines_by_room": {
            room: sum(module.lines for name, module in modules.items() if (name.split(".")[0] if name else "") == room)
            for room in sorted({name.split(".")[0] for name in modules if name})
        },
        "modules": len(files),
        "modules_by_folder": {folder: len(names) for folder, names in sorted(folders.items())},
        "module_lines": {
            "median": median(module.lines for module in files.values()),
            "largest": dict(Counter({name: module.lines for name, module in files.items()}).most_common(LARGEST)),
        },
        "functions": {
            "count": len(lines),
            "median": median(lines),
            "percentile_95": lines[len(lines) * 95 // 100],
            "max": lines[-1],
        },
        "fan_in": dict(fan_in.most_common(LARGEST)),
        "fan_out": dict(Counter({name: len(targets) for name, targets in graph.items()}).most_common(LARGEST)),
        "longest_chain": longest_chain(graph),
        "floors_by_room": {
            room: len(longest_chain(within(graph, names))) for room, names in sorted(rooms.items()) if len(names) > 1
        },
        "circles": circles(graph),
        "class_names_twice": twice(classes),
        "module_names_twice": twice(
            (name.rpartition(".")[2], name) for name in files if "." in name and ".commands." not in f".{name}"
        ),
        "banned_first_lines": len(banned),
        "banned_examples": banned[:LARGEST],
    }


def _started(words: Sequence[str], home: Path, *before: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, *before, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


def loaded_figures(home: Path, options: Sequence[str]) -> dict[str, Any]:
    """Return what commands load: modules of ours, modules in all, heavy libraries, and milliseconds of importing."""
    found = {}
    for name, words in COMMANDS.items():
        arguments = json.dumps([*options, *words])
        done = _started([arguments], home, "-c", _LOADED % (HEAVY,))
        told = next(line for line in done.stderr.splitlines() if line.startswith("LOADED "))
        ours, in_all, heavy = json.loads(told.removeprefix("LOADED "))
        times = []
        for _ in range(RUNS):
            done = _started([*options, *words], home, "-X", "importtime", "-m", PACKAGE)
            lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
            times.append(sum(int(line.split("|")[0].split(":")[1]) for line in lines[1:]) / 1000)
        found[name] = {"modules": ours, "modules_in_all": in_all, "heavy": heavy, "import_ms": round(min(times))}
    return found


def hops(home: Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the ways that a run takes from the engine to SQL: the longest one, and the one taken most often.

    A way begins with what the engine, or the task of its group commit, calls, and ends with what calls SQLite.
    """
    sheet = ROOT / "samples/payroll-mixed.csv"
    arguments = json.dumps([*options, "-q", "submit", str(sheet), "--out", str(home / "out.csv")])
    done = _started([arguments], home, "-c", _TRACER)
    ways = json.loads(done.stdout.splitlines()[-1])
    if not ways:
        return {"longest": 0, "ways": []}
    return {
        "longest": max(len(way) for way, _ in ways),
        "most_often": len(ways[0][0]),
        "ways": [{"hops": len(way), "times": times, "through": way} for way, times in ways[:LARGEST]],
    }


def running_figures() -> dict[str, Any]:
    """Return what only a run shows, at the sandbox, in a home of its own."""
    with TemporaryDirectory(prefix="paygw-figures-") as directory:
        home = Path(directory).resolve()
        options = ["--config", "config/sandbox.toml", "--journal", str(home / "journal.sqlite3")]
        found = {"hops_to_sql": hops(home, options)}
        return found | {"commands": loaded_figures(home, options)}


def table(figures: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the figures as lines to read."""
    for name, value in figures.items():
        match value:
            case dict():
                yield f"{indent}{name}"
                yield from table(value, indent + "  ")
            case list() if value and isinstance(value[0], dict):
                yield f"{indent}{name}"
                for one in value:
                    yield f"{indent}  {one['hops']} hops, {one['times']} times: {' > '.join(one['through'])}"
            case list() if name == "longest_chain":
                yield f"{indent}{name}: {len(value)}: {' > '.join(value)}"
            case list() if len(value) > LARGEST // 2 or any(len(str(one)) > LARGEST * 5 for one in value):
                yield f"{indent}{name}: {len(value)}"
                yield from (f"{indent}  {one}" for one in value)
            case list():
                yield f"{indent}{name}: {', '.join(map(str, value)) or '-'}"
            case _:
                yield f"{indent}{name}: {value:,}" if isinstance(value, int) else f"{indent}{name}: {value}"


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--static", action="store_true")
    told = parser.parse_args()
    figures = static_figures() | ({} if told.static else running_figures())
    print(json.dumps(figures, indent=1) if told.json else "\n".join(table(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
