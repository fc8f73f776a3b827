"""Compares digests of outputs with those in `pins.json`."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.pins.outputs import GROUPS, LONG_ROWS, generated

PINS = Path(__file__).with_name("pins.json")
HOW_TO_SEE = """\
To see it, write the outputs of both commits and compare them:
    python -m tests.pins --save /tmp/after
    git worktree add /tmp/before-tree COMMIT && cd /tmp/before-tree && python -m tests.pins --save /tmp/before
    diff -r /tmp/before /tmp/after
If the change is meant: `python -m tests.pins --write`, and say in the commit why."""


def collect_outputs(groups: Sequence[str], *, long: bool = False) -> Iterator[tuple[str, str]]:
    """Yield every output of some groups, with its group before its name."""
    for group in groups:
        for name, text in GROUPS[group]():
            yield f"{group}:{name}", text
    if long:
        for name, text in generated(LONG_ROWS):
            yield f"long:{name}", text


def build_pin(text: str) -> dict[str, str | int]:
    """Return the pin of an output: its digest, its length, and its beginning."""
    extract = " ".join(text.split())[:160]  # how many characters of an output are kept in readable form
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "lines": text.count("\n"), "begins": extract}


def load_pins() -> dict[str, dict[str, str | int]]:
    return json.loads(PINS.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def write_pins(found: Mapping[str, str], *, is_all: bool) -> None:
    """Write the pins of these outputs, keeping those of other groups unless all were made."""
    kept = load_pins()
    groups = {name.partition(":")[0] for name in found} | ({*GROUPS} if is_all else set())
    pins = {name: pin for name, pin in kept.items() if name.partition(":")[0] not in groups}
    pins |= {name: build_pin(text) for name, text in found.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(pins[name], ensure_ascii=False)}" for name in sorted(pins)]
    PINS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def save_outputs(found: Mapping[str, str], directory: Path) -> None:
    for name, text in found.items():
        path = directory / f"{name.replace(':', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def find_differences(found: Mapping[str, str], groups: Sequence[str], *, long: bool = False) -> list[str]:
    """Return a sentence for every output that differs from its pin, with a hint on how to see the difference."""
    of = {*groups, *(["long"] if long else [])}
    pins = {name: pin for name, pin in load_pins().items() if name.partition(":")[0] in of}
    wrong = [f"{name}: is pinned, and is not made any more" for name in sorted(pins.keys() - found.keys())]
    wrong += [f"{name}: is made, and is not pinned" for name in sorted(found.keys() - pins.keys())]
    for name in sorted(found.keys() & pins.keys()):
        now, then = build_pin(found[name]), pins[name]
        if now["sha256"] != then["sha256"]:
            wrong.append(f"{name}: changed\n    was ({then['lines']} lines): {then['begins']}")
            wrong.append(f"    is  ({now['lines']} lines): {now['begins']}")
    return [*wrong, HOW_TO_SEE] if wrong else []
