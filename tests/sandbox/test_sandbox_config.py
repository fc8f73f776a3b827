"""The shipped configuration for runs with the sandbox, and its throw-away keys."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from paygw_batch.core.evidence import Proof
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.message import IncomingRequest
from paygw_batch.gateway.notification import HeaderEncoding, HeaderSignature, SignedHeader
from paygw_batch.gateway.signing.key import SignatureAlgorithm, load_private_key, parse_gateway_key
from paygw_batch.sandbox.callback import NotificationHeader, rsa_signer
from paygw_batch.sandbox.throw_away_key import ensure_gateway_key, ensure_sandbox_key
from paygw_batch.sandbox.verifier import VerifiedProfile
from paygw_batch.settings.configuration import Settings, load_settings
from tests.support.patience import PATIENCE_S

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
    for profile in VerifiedProfile:
        assert load_settings(FILE, environ={"PAYGW_SIGNATURE_PROFILE": profile}).gateway.signature_profile == profile


def test_sandbox_keys_are_created_once_and_private(tmp_path: Path) -> None:
    directory = tmp_path / "sandbox-state"
    path = ensure_sandbox_key(directory)
    content = path.read_bytes()
    assert ensure_sandbox_key(directory) == path
    assert path.read_bytes() == content
    assert list(directory.iterdir()) == [path]
    key = load_pem_private_key(content, password=None)
    assert isinstance(key, RSAPrivateKey)
    assert key.key_size == load_private_key(path).public.bits == 2048
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(directory.stat().st_mode)) == (0o600, 0o700)
    first = ensure_gateway_key(tmp_path).private_numbers()
    assert ensure_gateway_key(tmp_path).private_numbers() == first
    for name in ("sandbox-gateway.pem", "sandbox-gateway-public.pem"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("algorithm", list(SignatureAlgorithm))
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_published_key_verifies_notifications(tmp_path: Path, algorithm: SignatureAlgorithm, encoding: str) -> None:
    proof = NotificationHeader("X-Signature", encoding, "v1=", rsa_signer(algorithm, ensure_gateway_key(tmp_path)))
    public = (tmp_path / "sandbox-gateway-public.pem").read_bytes()
    header = SignedHeader("X-Signature", HeaderEncoding(encoding), "v1=")
    check = HeaderSignature(header, parse_gateway_key(public, algorithm, name="it"))
    for body, forged, expected in ((b"{}", False, Proof.PROVEN), (b"{}", True, Proof.FORGED)):
        name, value = proof.header(body, forged=forged)
        received = IncomingRequest("POST", "application/json", "", body, ((name.lower(), value),))
        assert check.proof(received, {}) is expected


def test_concurrent_processes_create_one_sandbox_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from paygw_batch.sandbox.throw_away_key import ensure_sandbox_key\n"
        "sys.stdin.readline(); sys.stdout.write(ensure_sandbox_key(Path(sys.argv[1])).read_text())\n"
    )
    command, pipe = [sys.executable, "-c", program, str(tmp_path / "state")], subprocess.PIPE
    makers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for maker in makers:  # all have started, and none may continue before the last
        assert maker.stdin is not None
        maker.stdin.write("\n")
        maker.stdin.flush()
    keys = [maker.communicate(timeout=PATIENCE_S)[0] for maker in makers]
    assert len(set(keys)) == 1
    assert keys[0].startswith("-----BEGIN PRIVATE KEY-----")
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["sandbox-merchant.pem"]


def test_unwritable_key_directory_is_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError) as refused:
        ensure_sandbox_key(tmp_path / "file" / "state")
    assert "private_key" in refused.value.hint
