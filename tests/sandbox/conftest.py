"""Fixtures for tests of the sandbox: a merchant with a throw-away key, and the rules."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.sandbox.reply import parse_behaviour, shipped_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation
from paygw_batch.sandbox.verifier import Authenticator, VerifiedProfile, Verifier
from tests.sandbox.sandbox_merchant import (
    CONSUMER_KEY,
    ENDPOINT_ID,
    NOW_S,
    MakeConfig,
    MakeVerifier,
    Merchant,
    payout_rules,
)


@pytest.fixture(scope="session")
def merchant_key() -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def merchant(merchant_key: RSAPrivateKey) -> Merchant:
    return Merchant(merchant_key)


@pytest.fixture(scope="session")
def rules() -> Rules:
    return payout_rules()


@pytest.fixture
def make_verifier(rules: Rules) -> MakeVerifier:
    def make(merchant: Merchant, clock: Callable[[], float] = lambda: NOW_S) -> Verifier:
        return Verifier(
            endpoint_id=ENDPOINT_ID,
            operation=load_operation("payout"),
            rules=rules,
            authenticator=Authenticator(
                consumer_key=CONSUMER_KEY,
                public_key_pem=merchant.public_key_pem(),
                profile=VerifiedProfile(merchant.profile),
            ),
            clock=clock,
        )

    return make


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
            behaviour=parse_behaviour(behaviour, name="behaviour.toml") if behaviour else shipped_behaviour(),
        )

    return make


@pytest.fixture(scope="session")
def one_sandbox_key() -> None:
    """Override the shared key, because these tests are about creating it."""
