"""List the tests that run a line of the package (`tooling/tests-of FILE:LINE [TESTS...]`).

In a copy of the tree, the line records the current test, in the test's process and in its child processes. Without
TESTS, only the tests of the same room run; `tests` runs all.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tooling.core_alone import ROOT, copy_tree

NOTE = "with open({seen!r}, 'a') as _: _.write(__import__('os').environ.get('PYTEST_CURRENT_TEST', '') + '\\n')"


def instrument_line(source: str, line: int, seen: Path) -> str:
    """Return a module that records in `seen` each test that runs its statement at `line`. Raises `LookupError`."""
    tree = ast.parse(source)
    around = [
        (body, at)
        for body in _statement_lists(tree)
        for at, item in enumerate(body)
        if item.lineno <= line <= _last_line(item)
    ]
    if not around:
        raise LookupError(f"line {line} is no statement")
    body, at = max(around, key=lambda found: found[0][found[1]].lineno)
    body.insert(at, ast.parse(NOTE.format(seen=str(seen))).body[0])
    return ast.unparse(tree)


def _statement_lists(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def main(arguments: list[str]) -> int:
    """Print one test per line. Return 1 if there are none."""
    place, *asked = arguments
    name, _, line = place.rpartition(":")
    file = Path(name).resolve().relative_to(ROOT)
    room = ROOT / "tests" / file.parts[1].removesuffix(".py")
    with TemporaryDirectory() as folder:
        copy, seen = Path(folder) / "tree", Path(folder) / "seen"
        copy_tree(copy)
        (copy / file).write_text(
            instrument_line((ROOT / file).read_text(encoding="utf-8"), int(line), seen), encoding="utf-8"
        )
        seen.touch()
        tests = asked or [str(room.relative_to(ROOT)) if room.is_dir() else "tests"]
        command = [sys.executable, "-m", "pytest", "-qq", "-m", "not long", "-n", "2", *tests]
        environ = {**os.environ, "PYTHONPATH": str(copy)}
        subprocess.run(command, cwd=copy, env=environ, stdout=sys.stderr, check=False)  # noqa: S603 (our own tests)
        found = {note.rpartition(" (")[0] for note in seen.read_text(encoding="utf-8").splitlines()} - {""}
    print(*sorted(found), sep="\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
