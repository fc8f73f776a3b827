"""Draw the rooms of the package from its imports, as a Mermaid flow chart, and write it into docs/architecture.md.

python tooling/architecture_picture.py            # prints the picture
python tooling/architecture_picture.py --write    # puts it between the marks in docs/architecture.md
python tooling/architecture_picture.py --check    # exit 1 where the page shows another picture
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
"""What nearly every room imports: drawn as one, so that the other arrows can be followed."""
GROUND_NAME = "ground"
UNDRAWN = frozenset({"__init__", "__main__"})


def room_of(path: Path) -> str:
    """Return the room of a file: its folder below the package, or the file's own name."""
    return path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports from; a type that is only named loads nothing, and is no arrow."""
    found = set()
    loaded = (part for part in ast.parse(path.read_text(encoding="utf-8")).body if not isinstance(part, ast.If))
    for node in chain.from_iterable(map(ast.walk, loaded)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            parts = (node.module or "").split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
    return found


def graph() -> dict[str, set[str]]:
    """Return which room imports which; the ground is one of them."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        room = _drawn(room_of(path))
        targets = {_drawn(target) for target in imported_rooms(path)}
        found.setdefault(room, set()).update(targets - {room})
    return {room: targets - UNDRAWN for room, targets in found.items() if room not in UNDRAWN}


def _drawn(room: str) -> str:
    return GROUND_NAME if room in GROUND else room


def without_detours(rooms: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Leave out each arrow whose end is also reached through another room: the order stays the same."""
    below = {room: _below(rooms, room) for room in rooms}
    return {
        room: {target for target in targets if not any(target in below[other] for other in targets - {target})}
        for room, targets in rooms.items()
    }


def _below(rooms: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        further = rooms[waiting.pop()] - seen
        seen |= further
        waiting.extend(further)
    return seen


def picture() -> str:
    """Return the flow chart: an arrow says "imports"."""
    rooms = without_detours(graph())
    present = sorted(room_of(path) for path in (ROOT / PACKAGE).iterdir() if room_of(path) in GROUND)
    lines = ["```mermaid", "flowchart TD", f'    {GROUND_NAME}["{", ".join(present)}"]']
    lines += [f"    {room} --> {target}" for room in sorted(rooms) for target in sorted(rooms[room])]
    return "\n".join([*lines, "```"]) + "\n"


def page_with(text: str, drawn: str) -> str:
    """Return a page with the picture between its marks. Raises `ValueError` where it has no marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{PAGE.name} has no place for the picture: {START.strip()} ... {END.strip()}")
    return before + start + drawn + end + after


def main(arguments: list[str] | None = None) -> int:
    """Print the picture, write it into the page, or say whether the page shows it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    told = parser.parse_args(arguments)
    if not told.write and not told.check:
        print(picture(), end="")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    wanted = page_with(text, picture())
    if told.check:
        return 0 if text == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
