"""What the program makes of sheets and journals stays the same to the byte, however its modules are arranged."""

import pytest

from tests.pins import compare
from tests.pins.outputs import GROUPS
from tests.support.long_part import long


@pytest.mark.parametrize(
    "group", [long(group) if group in {"hostile", "requests", "submitted"} else group for group in GROUPS]
)
def test_outputs_match_pins(group: str) -> None:
    wrong = compare.differences(dict(compare.outputs_of([group])), [group])
    assert not wrong, "\n".join(wrong)


def test_changed_output_is_detected_and_named() -> None:
    found = dict(compare.outputs_of(["words"]))
    assert not compare.differences(found, ["words"])
    changed = {**found, "words:help": found["words:help"] + "."}
    assert compare.differences(changed, ["words"])[0].startswith("words:help: changed")
    assert compare.differences({**found, "words:new": "x"}, ["words"])[0] == "words:new: is made, and is not pinned"
    del changed["words:help"]
    assert compare.differences(changed, ["words"])[0] == "words:help: is pinned, and is not made any more"
