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


def test_sandbox_configuration_is_complete_for_sending(settings: Settings) -> None:
    assert settings.uses_sandbox
    assert settings.missing_to_send() == []


def test_every_country_can_be_paid(settings: Settings) -> None:
    for code, rule in load_rules("payout", settings.terms("payout")).items():
        assert rule.missing_terms == (), code
        assert rule.form is not None, code
        assert (rule.purpose is None) == (code == "ZA")


def test_every_country_can_be_collected_from(settings: Settings) -> None:
    assert settings.missing_for("payin") == []
    for code, rule in load_rules("payin", settings.terms("payin")).items():
        assert rule.missing_terms == (), code
        assert (rule.purpose is None) == (code == "ZA")


def test_sandbox_codes_differ_from_real_codes(settings: Settings) -> None:
    all_terms = [terms for operation in ("payout", "payin") for terms in settings.terms(operation).values()]
    purposes = [terms.purpose for terms in all_terms if terms.purpose]

    assert purposes
    assert all(part.startswith("SANDBOX-") for purpose in purposes for part in purpose.split("/"))


def test_sandbox_statuses_map_to_documented_outcomes(settings: Settings) -> None:
    assert settings.words() == {
        "approved": OutcomeKind.PAID,
        "processing": OutcomeKind.ACCEPTED,
        "declined": OutcomeKind.REJECTED,
        "filtered": OutcomeKind.REJECTED,
        "error": OutcomeKind.REJECTED,
    }


def test_sandbox_configuration_has_no_key(settings: Settings) -> None:
    assert settings.gateway.private_key is None
    assert settings.journal_path().resolve() == FILE.parent.parent / "sandbox-state" / "journal.sqlite3"


@pytest.mark.parametrize("profile", VerifiedProfile)
def test_sandbox_accepts_every_signature_profile(profile: VerifiedProfile) -> None:
    assert load_settings(FILE, environ={"PAYGW_SIGNATURE_PROFILE": profile}).gateway.signature_profile == profile
