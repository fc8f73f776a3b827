"""Stories that only a guard makes safe: each has the guard's name and why the story pays twice without it.

`is_on` says whether the program has the guard. A story that is off is not played; nothing is skipped elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """What makes a story safe. `is_on`: the program has it."""

    reason: str
    is_on: bool


GUARDS: Mapping[str, Guard] = {
    "a statement is carried out again": Guard(
        "a line of an older statement settles a later attempt under the same order id: lines must speak of an attempt, "
        "and a file must be carried out once",
        is_on=False,
    ),
    "rejected within the quarantine": Guard(
        "a row in doubt that a person calls rejected is released at once, while the gateway may still execute it",
        is_on=False,
    ),
}


def is_on(story: str) -> bool:
    """Whether the program has what makes a story safe."""
    return GUARDS[story].is_on
