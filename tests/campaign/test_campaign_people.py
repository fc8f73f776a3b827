"""People around the program: whatever they do with accounts, copies and sheets, no row is paid twice."""

import pytest

from tests.campaign.machine import GatewayProcess, Machine
from tests.campaign.people import PEOPLE, play_people
from tests.long_part import share


@pytest.mark.parametrize("name", share(PEOPLE, every=2))
def test_nobody_is_paid_twice_by_what_people_do(machine: Machine, slow_gateway: GatewayProcess, name: str) -> None:
    play_people(machine, slow_gateway, PEOPLE[name])
