"""An authority that servers of a test have their certificates from."""

import pytest

from tests.support.receivers import Trust, trust_at


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return trust_at(tmp_path_factory.mktemp("trust_of_notices"))
