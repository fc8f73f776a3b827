"""A sandbox with people, once a test."""

from pathlib import Path

import pytest

from tests.console.people import House, set_up


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(set_up(tmp_path))
