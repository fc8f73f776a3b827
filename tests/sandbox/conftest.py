"""Fixtures for tests of the sandbox: a merchant with a throw-away key, and the rules."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.sandbox.reply import default_behaviour, parse_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation
from paygw_batch.sandbox.verifier import Verifier
from tests.sandbox import sandbox_merchant
from tests.sandbox.sandbox_merchant import CONSUMER_KEY, ENDPOINT_ID, MakeConfig, MakeVerifier, Merchant


@pytest.fixture(scope="session")
def merchant_key() -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def merchant(merchant_key: RSAPrivateKey) -> Merchant:
    return Merchant(merchant_key)


@pytest.fixture(scope="session")
def rules() -> Rules:
    return sandbox_merchant.payout_rules()


@pytest.fixture
def make_verifier(rules: Rules) -> MakeVerifier:
    return lambda merchant: sandbox_merchant.verifier_of(merchant, "payout", rules)


@pytest.fixture
def verifier(make_verifier: MakeVerifier, merchant: Merchant) -> Verifier:
    return make_verifier(merchant)


@pytest.fixture(scope="session")
def make_config(merchant_key: RSAPrivateKey, rules: Rules) -> MakeConfig:
    def make(record_path: Path, *, behaviour: str = "", profile: str = "json-params") -> SandboxConfig:
        return SandboxConfig(
            endpoint_id=ENDPOINT_ID,
            consumer_key=CONSUMER_KEY,
            public_key_pem=Merchant(merchant_key).public_key_pem(),
            profile=profile,
            operations=(ServedOperation(load_operation("payout"), rules, record_path),),
            behaviour=parse_behaviour(behaviour, name="behaviour.toml") if behaviour else default_behaviour(),
        )

    return make


@pytest.fixture(scope="session")
def one_sandbox_key() -> None:
    """Override the shared key, because these tests are about creating it."""
