"""Draw the packages and their imports as a Mermaid flow chart, and write it into docs/architecture.md.

python tooling/architecture_picture.py            # print the picture
python tooling/architecture_picture.py --write    # write it between the marks in docs/architecture.md
python tooling/architecture_picture.py --check    # exit 1 if the page shows another picture
"""

import argparse
import ast
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "paygw_batch"
PAGE = ROOT / "docs/architecture.md"
START = "<!-- picture: written by tooling/architecture_picture.py -->\n"
END = "<!-- end of picture -->\n"
GROUND = frozenset(
    {"errors", "language", "clock", "extras", "files", "processes", "trusted_files", "web_server", "core", "countries"}
)
"""Modules that nearly every room imports. They are drawn as one, so that the other arrows stay readable."""
GROUND_NAME = "ground"
UNDRAWN = frozenset({"__init__", "__main__"})


def room_of(path: Path) -> str:
    """Return the room of a file: its folder below the package, or the file's own name."""
    return path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports from. A type that is only named is not an import."""
    result = set()
    loaded = (part for part in ast.parse(path.read_text(encoding="utf-8")).body if not isinstance(part, ast.If))
    for node in chain.from_iterable(map(ast.walk, loaded)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            parts = (node.module or "").split(".")[1:]
            result |= {parts[0]} if parts else {alias.name for alias in node.names}
    return result


def import_graph() -> dict[str, set[str]]:
    """Return the imports of each room. The ground is one of the rooms."""
    result: dict[str, set[str]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        room = _label(room_of(path))
        targets = {_label(target) for target in imported_rooms(path)}
        result.setdefault(room, set()).update(targets - {room})
    return {room: targets - UNDRAWN for room, targets in result.items() if room not in UNDRAWN}


def _label(room: str) -> str:
    return GROUND_NAME if room in GROUND else room


def transitive_reduction(rooms: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Remove each arrow whose target is also reached through another room. The order stays the same."""
    below = {room: _reachable_rooms(rooms, room) for room in rooms}
    return {
        room: {target for target in targets if not any(target in below[other] for other in targets - {target})}
        for room, targets in rooms.items()
    }


def _reachable_rooms(rooms: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        further = rooms[waiting.pop()] - seen
        seen |= further
        waiting.extend(further)
    return seen


def render_picture() -> str:
    """Return the flow chart, in which an arrow means "imports"."""
    rooms = transitive_reduction(import_graph())
    present = sorted(room_of(path) for path in (ROOT / PACKAGE).iterdir() if room_of(path) in GROUND)
    lines = ["```mermaid", "flowchart TD", f'    {GROUND_NAME}["{", ".join(present)}"]']
    lines += [f"    {room} --> {target}" for room in sorted(rooms) for target in sorted(rooms[room])]
    return "\n".join([*lines, "```"]) + "\n"


def replace_picture(text: str, drawn: str) -> str:
    """Return a page with the picture between its marks. Raises `ValueError` if it has no marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{PAGE.name} has no place for the picture: {START.strip()} ... {END.strip()}")
    return before + start + drawn + end + after


def main(arguments: list[str] | None = None) -> int:
    """Print the picture, write it into the page, or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if not options.write and not options.check:
        print(render_picture(), end="")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    expected = replace_picture(text, render_picture())
    if options.check:
        return 0 if text == expected else 1
    PAGE.write_text(expected, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
