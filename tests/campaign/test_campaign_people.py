"""People around the program: no row is paid twice, or the story names what the program still lacks."""

import pytest

from tests.campaign.judge import Broken
from tests.campaign.machine import GatewayProcess, Machine
from tests.campaign.people import PEOPLE, play_people


@pytest.mark.parametrize("name", [name for name, story in PEOPLE.items() if not story.waits_for])
def test_nobody_is_paid_twice_by_what_people_do(machine: Machine, slow_gateway: GatewayProcess, name: str) -> None:
    play_people(machine, slow_gateway, PEOPLE[name])


@pytest.mark.parametrize("name", [name for name, story in PEOPLE.items() if story.waits_for])
def test_a_story_that_waits_for_a_guard_needs_it(machine: Machine, slow_gateway: GatewayProcess, name: str) -> None:
    """When this fails the guard is there: empty `waits_for`, and the story is held like the others."""
    with pytest.raises(Broken, match="paid twice"):
        play_people(machine, slow_gateway, PEOPLE[name])
