"""The shipped configuration for runs with the sandbox."""

import pytest

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_rules
from paygw_batch.sandbox.verifier import VerifiedProfile
from paygw_batch.settings.configuration import Settings, load_settings

FILE = config_dir() / "sandbox.toml"


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(FILE, environ={})


@pytest.mark.parametrize("operation", ["payout", "payin"])
def test_sandbox_configuration_is_complete_without_real_credentials(settings: Settings, operation: str) -> None:
    assert settings.uses_sandbox
    assert settings.missing_for_sending() == settings.missing_for(operation) == []
    for code, rule in load_rules(operation, settings.terms(operation)).items():
        assert (rule.missing_terms, rule.form is None, rule.purpose is None) == ((), False, code == "ZA"), code
        assert all(part.startswith("SANDBOX-") for part in (rule.purpose or "SANDBOX-").split("/"))


def test_sandbox_maps_statuses_and_has_no_key(settings: Settings) -> None:
    assert settings.words() == {
        "approved": OutcomeKind.PAID,
        "processing": OutcomeKind.ACCEPTED,
        "declined": OutcomeKind.REJECTED,
        "filtered": OutcomeKind.REJECTED,
        "error": OutcomeKind.REJECTED,
    }
    assert settings.gateway.private_key is None
    assert settings.journal_path().resolve() == FILE.parent.parent / "sandbox-state" / "journal.sqlite3"


@pytest.mark.parametrize("profile", VerifiedProfile)
def test_sandbox_accepts_every_signature_profile(profile: VerifiedProfile) -> None:
    assert load_settings(FILE, environ={"PAYGW_SIGNATURE_PROFILE": profile}).gateway.signature_profile == profile
