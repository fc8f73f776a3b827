"""People's mistakes with accounts, copies and sheets pay no row twice."""

import pytest

from tests.promise.campaign.machine import GatewayProcess, Machine
from tests.promise.campaign.people import PEOPLE, play_people_story
from tests.support.long_part import share


@pytest.mark.parametrize("name", share(PEOPLE, every=2))
def test_human_mistakes_pay_no_row_twice(machine: Machine, slow_gateway: GatewayProcess, name: str) -> None:
    play_people_story(machine, slow_gateway, PEOPLE[name])
