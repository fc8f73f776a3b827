"""Fixtures of the gateway's tests."""

import pytest
from gateway_cases import throw_away_key

from paygw_batch.gateway.sign import PrivateKey


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return throw_away_key(tmp_path_factory.mktemp("keys"))
