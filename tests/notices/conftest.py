"""A certificate authority for the servers of tests."""

import pytest

from tests.support.receivers import Trust, create_authority


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return create_authority(tmp_path_factory.mktemp("trust_of_notices"))
