"""The outputs for sheets and journals stay byte-identical when modules are rearranged."""

import pytest

from tests.pins import compare
from tests.pins.outputs import GROUPS
from tests.support.long_part import long


@pytest.mark.parametrize(
    "group", [long(group) if group in {"hostile", "requests", "submitted"} else group for group in GROUPS]
)
def test_outputs_match_pins(group: str) -> None:
    wrong = compare.find_differences(dict(compare.collect_outputs([group])), [group])
    assert not wrong, "\n".join(wrong)


def test_changed_output_is_reported_by_name() -> None:
    outputs = dict(compare.collect_outputs(["words"]))
    assert not compare.find_differences(outputs, ["words"])
    changed = {**outputs, "words:help": outputs["words:help"] + "."}
    assert compare.find_differences(changed, ["words"])[0].startswith("words:help: changed")
    further = {**outputs, "words:new": "x"}
    assert compare.find_differences(further, ["words"])[0] == "words:new: is made, and is not pinned"
    del changed["words:help"]
    assert compare.find_differences(changed, ["words"])[0] == "words:help: is pinned, and is not made any more"
