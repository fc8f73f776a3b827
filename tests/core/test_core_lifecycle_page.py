"""The page about the state machine matches the state machine."""

import runpy
from pathlib import Path

from paygw_batch.core.lifecycle import TRANSITIONS, State

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tooling/state_diagram.py"))


def test_lifecycle_page_is_up_to_date() -> None:
    assert (ROOT / "docs/lifecycle.md").read_text(encoding="utf-8") == TOOL["render_page"](), (
        "run python tooling/state_diagram.py"
    )
    assert TOOL["main"](["--check"]) == 0


def test_lifecycle_page_shows_all_moves_and_states() -> None:
    page = TOOL["render_page"]()
    for (origin, kind), target in TRANSITIONS.items():
        (arrow,) = [line for line in page.splitlines() if line.startswith(f"    {origin.value} --> {target.value}:")]
        assert kind.value in arrow.partition(": ")[2].split(", ")
    assert all(f"| `{state.value}` | " in page for state in State)
