"""People around the program: whatever they do with accounts, copies and sheets, no row is paid twice."""

import pytest

from tests.promise.campaign.machine import GatewayProcess, Machine
from tests.promise.campaign.people import PEOPLE, play_people
from tests.support.long_part import share


@pytest.mark.parametrize("name", share(PEOPLE, every=2))
def test_human_mistakes_pay_no_row_twice(machine: Machine, slow_gateway: GatewayProcess, name: str) -> None:
    play_people(machine, slow_gateway, PEOPLE[name])
