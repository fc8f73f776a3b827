"""Plays many seeds, and names failures."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.promise.simulation.corrections import play_corrections
from tests.promise.simulation.forging import play_forging
from tests.promise.simulation.judge import Violation
from tests.promise.simulation.planted import BUGS, CORRECTED, FORGED, RUNS
from tests.promise.simulation.story import play

PLAYS: Mapping[str, Callable[..., object]] = {RUNS: play, FORGED: play_forging, CORRECTED: play_corrections}
"""The function that plays a scenario of each kind: `(seed, plant)`."""


class Failure(NamedTuple):
    """A seed whose scenario failed, by an invariant or (`error`) by an error of the program."""

    seed: int
    invariant: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.what}"


def first_failure(
    seeds: Iterable[int], plant: Callable[[Any], None] | None = None, *, kind: str = RUNS
) -> tuple[int, Failure | None]:
    """Play seeds of one kind until one fails. Return the number played, and the failure."""
    played = 0
    for seed in seeds:
        played += 1
        try:
            PLAYS[kind](seed, plant)
        except Violation as violation:
            return played, Failure(seed, violation.invariant, str(violation))
        except Exception as error:  # noqa: BLE001 (whatever the program raises is a failure of this seed)
            return played, Failure(seed, "error", f"{type(error).__name__}: {error}")
    return played, None


def hunt(name: str, seeds: Iterable[int]) -> tuple[int, Failure | None]:
    """Switch on a planted bug, and play seeds until it is found."""
    return first_failure(seeds, BUGS[name].plant, kind=BUGS[name].kind)
