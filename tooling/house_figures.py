"""Measure the source: its size, its dependencies, and the modules that a command loads.

python tooling/house_figures.py             # print a table
python tooling/house_figures.py --json      # print JSON
python tooling/house_figures.py --static    # do not start the program, which takes some seconds
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
"""How often a command is started. The fastest run counts."""
LARGEST = 8
BANNED = re.compile(
    r"\b(stands?|stood|comes? to|came to|whoever|whatever|however|told|tells|of its own|what)\b", re.IGNORECASE
)
"""Words that the first line of a docstring must not contain (docs/glossary.md)."""
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
"""Runs the program, and prints the call paths from the engine to an SQLite statement, with their counts."""

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
        """The dotted name of its folder, or empty for the package's top-level modules."""
        return self.name.rpartition(".")[0]

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.text.count("\n")


def modules_of(directory: Path) -> dict[str, Module]:
    """Return every module below a directory by its dotted name. A package has the name of its folder."""
    result = {}
    for path in sorted(directory.rglob("*.py")):
        name = ".".join(path.relative_to(directory).with_suffix("").parts)
        name = name.removesuffix("__init__").rstrip(".") if path.name == "__init__.py" else name
        result[name] = Module(name, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    return result


def imports_of(module: Module, known: Mapping[str, Module]) -> set[str]:
    """Return the package's modules that a module imports anywhere."""
    result = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            result |= {alias.name.removeprefix(f"{PACKAGE}.") for alias in node.names if alias.name.startswith(PACKAGE)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            base = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                result.add(full if full in known else base)
    return {name for name in result if name in known and name != module.name}


def find_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that form a cycle."""
    reached = {node: _reachable_nodes(graph, node) for node in graph}
    result = {frozenset({node} | {other for other in reached[node] if node in reached[other]}) for node in graph}
    return sorted(sorted(group) for group in result if len(group) > 1)


def _reachable_nodes(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the longest path through a graph. In a graph with cycles, each cycle is followed once."""
    best: dict[str, list[str]] = {}

    def chain(node: str, above: frozenset[str]) -> list[str]:
        if node not in best:
            further = [chain(target, above | {node}) for target in sorted(graph[node]) if target not in above]
            best[node] = [node, *max(further, key=len, default=[])]
        return best[node]

    return max((chain(node, frozenset()) for node in sorted(graph)), key=len, default=[])


def subgraph(graph: Mapping[str, set[str]], names: Iterable[str]) -> dict[str, set[str]]:
    """Return the part of a graph between the named nodes."""
    kept = set(names)
    return {name: graph[name] & kept for name in kept}


def functions_of(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every function with its length."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def first_lines(module: Module) -> Iterator[tuple[str, str]]:
    """Yield the first line of every docstring, also of constants, with its owner."""
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


def duplicate_names(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names with more than one definition, and their locations."""
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: sorted(where) for name, where in sorted(places.items()) if len(where) > 1}


def measure_source() -> dict[str, Any]:
    """Return the figures of the source alone."""
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
            room: len(longest_chain(subgraph(graph, names))) for room, names in sorted(rooms.items()) if len(names) > 1
        },
        "circles": find_cycles(graph),
        "class_names_twice": duplicate_names(classes),
        "module_names_twice": duplicate_names(
            (name.rpartition(".")[2], name) for name in files if "." in name and ".commands." not in f".{name}"
        ),
        "banned_first_lines": len(banned),
        "banned_examples": banned[:LARGEST],
    }


def _start_program(words: Sequence[str], home: Path, *before: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, *before, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )


def measure_loading(home: Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the number of modules that commands load, their heavy libraries, and their import time in ms."""
    result = {}
    for name, words in COMMANDS.items():
        arguments = json.dumps([*options, *words])
        completed = _start_program([arguments], home, "-c", _LOADED % (HEAVY,))
        loaded = next(line for line in completed.stderr.splitlines() if line.startswith("LOADED "))
        ours, in_all, heavy = json.loads(loaded.removeprefix("LOADED "))
        times = []
        for _ in range(RUNS):
            completed = _start_program([*options, *words], home, "-X", "importtime", "-m", PACKAGE)
            lines = [line for line in completed.stderr.splitlines() if line.startswith("import time:")]
            times.append(sum(int(line.split("|")[0].split(":")[1]) for line in lines[1:]) / 1000)
        result[name] = {"modules": ours, "modules_in_all": in_all, "heavy": heavy, "import_ms": round(min(times))}
    return result


def measure_call_paths(home: Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the longest and the most frequent call path from the engine to SQL during a run.

    A path begins with a call by the engine, or by the task of its group commit, and ends with a call of SQLite.
    """
    sheet = ROOT / "samples/payroll-mixed.csv"
    arguments = json.dumps([*options, "-q", "submit", str(sheet), "--out", str(home / "out.csv")])
    completed = _start_program([arguments], home, "-c", _TRACER)
    ways = json.loads(completed.stdout.splitlines()[-1])
    if not ways:
        return {"longest": 0, "ways": []}
    return {
        "longest": max(len(way) for way, _ in ways),
        "most_often": len(ways[0][0]),
        "ways": [{"hops": len(way), "times": times, "through": way} for way, times in ways[:LARGEST]],
    }


def measure_run() -> dict[str, Any]:
    """Return the figures of a run in the sandbox, in a temporary home."""
    with TemporaryDirectory(prefix="paygw-figures-") as directory:
        home = Path(directory).resolve()
        options = ["--config", "config/sandbox.toml", "--journal", str(home / "journal.sqlite3")]
        result = {"hops_to_sql": measure_call_paths(home, options)}
        return result | {"commands": measure_loading(home, options)}


def format_figures(figures: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the figures as lines of text."""
    for name, value in figures.items():
        match value:
            case dict():
                yield f"{indent}{name}"
                yield from format_figures(value, indent + "  ")
            case list() if value and isinstance(value[0], dict):
                yield f"{indent}{name}"
                for item in value:
                    yield f"{indent}  {item['hops']} hops, {item['times']} times: {' > '.join(item['through'])}"
            case list() if name == "longest_chain":
                yield f"{indent}{name}: {len(value)}: {' > '.join(value)}"
            case list() if len(value) > LARGEST // 2 or any(len(str(item)) > LARGEST * 5 for item in value):
                yield f"{indent}{name}: {len(value)}"
                yield from (f"{indent}  {item}" for item in value)
            case list():
                yield f"{indent}{name}: {', '.join(map(str, value)) or '-'}"
            case _:
                yield f"{indent}{name}: {value:,}" if isinstance(value, int) else f"{indent}{name}: {value}"


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--static", action="store_true")
    options = parser.parse_args()
    figures = measure_source() | ({} if options.static else measure_run())
    print(json.dumps(figures, indent=1) if options.json else "\n".join(format_figures(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
