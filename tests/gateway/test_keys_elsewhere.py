"""Keys in a token (SoftHSM) and in AWS KMS (moto) sign like a key in a file, and fail with a clear message."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pkcs11
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from paygw_batch.custody import kms_key, token_key
from paygw_batch.custody.kms_key import load_kms_key
from paygw_batch.custody.token_key import TokenLocation, create_token_key, load_token_key
from paygw_batch.errors import ConfigurationError, SigningFailed
from paygw_batch.gateway.signing import signers
from paygw_batch.gateway.signing.key import (
    KeyProblem,
    KeyUnusable,
    SigningKey,
    parse_error_line,
    parse_kms_key_id,
    parse_token_address,
)
from paygw_batch.gateway.signing.signers import SigningProcesses, signers_for, signing_lookahead
from tests.gateway.vector_cases import VECTORS
from tests.support.kms import SIGN, Kms, running_kms
from tests.support.tokens import HOW_TO_GET_IT, LABEL, PIN, Token, find_softhsm

FILE: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
URI = f"pkcs11:token={LABEL};object=payouts"
VECTOR_TEXTS, SIGNATURES = ([vector[name] for vector in FILE["vectors"]] for name in ("base_string", "signature"))
TEXTS = [f"POST&https%3A%2F%2Fgateway.example&order%3D{number}" for number in range(40)]


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    if find_softhsm() is None:
        pytest.skip(HOW_TO_GET_IT)
    created = Token.create_in(tmp_path / "token")
    for name, value in created.environ.items():
        monkeypatch.setenv(name, value)
    return created


@pytest.fixture
def token_there(token: Token) -> TokenLocation:
    """Return the place of a key that the token has created."""
    create_token_key(token_location(token, sessions=2))
    return token_location(token, sessions=2)


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    with running_kms() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


def token_location(token: Token, uri: str = URI, *, pin: str | None = PIN, sessions: int = 1) -> TokenLocation:
    return TokenLocation(parse_token_address(uri), token.module, pin, sessions)


def published_key() -> RSAPrivateKey:
    key = load_pem_private_key(FILE["private_key_pem"].encode(), None)
    assert isinstance(key, RSAPrivateKey)
    return key


def import_into_token(token: Token, key: Any, name: str = "payouts", key_id: str = "01") -> None:
    pem = token.folder / "import.pem"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    token.import_key(pem, name, key_id)


@pytest.fixture(params=["token", "kms"])
def published(request: pytest.FixtureRequest) -> SigningKey:
    """Return the published key of the vectors, in a token and in KMS."""
    if request.param == "token":
        token = request.getfixturevalue("token")
        import_into_token(token, published_key())
        return load_token_key(token_location(token, sessions=2))
    return kms_key_in(request.getfixturevalue("kms"), published_key())


def kms_key_in(kms: Kms, private: RSAPrivateKey | None = None) -> SigningKey:
    kms.key("payouts", private)
    return load_kms_key("alias/payouts", 4)


def sign_in_processes(key: SigningKey, texts: list[str]) -> list[str]:
    async def sign() -> list[str]:
        async with SigningProcesses(key) as at_work:
            groups = await asyncio.gather(*(at_work.sign([text]) for text in texts))
            return [signature for group in groups for signature in group]

    return asyncio.run(sign())


def problem_of(call: Callable[..., object], *arguments: object) -> KeyUnusable:
    with pytest.raises(KeyUnusable) as refused:
        call(*arguments)
    return refused.value


def test_published_vectors_are_signed_identically(published: SigningKey, key: SigningKey) -> None:
    with published.open_signer() as sign:
        assert [sign(text) for text in VECTOR_TEXTS] == SIGNATURES
    assert published.public.fingerprint() == FILE["vectors"][0]["key_fingerprint"]
    assert isinstance(signers_for(published, 1), SigningProcesses)
    assert sign_in_processes(published, VECTOR_TEXTS) == SIGNATURES
    # A waiting signature gets old, so the run requests only enough ahead to keep the key busy.
    assert signing_lookahead(published) in {10, 20}
    assert signing_lookahead(key) is None


def key_bits(there: TokenLocation) -> int:
    return load_token_key(there).public.bits


@pytest.mark.long
def test_concurrent_processes_all_open_token(token_there: TokenLocation) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        assert set(pool.map(key_bits, [token_there] * 40)) == {3072}


async def test_pin_is_not_in_arguments_or_repr(token_there: TokenLocation) -> None:
    key = load_token_key(token_there)
    async with SigningProcesses(key) as at_work:
        await at_work.sign(TEXTS)
        for process in at_work.processes:
            about = Path(f"/proc/{process.pid}")
            assert PIN.encode() not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()
    assert PIN not in repr(key)


def test_imported_token_key_is_reported_as_copyable(token: Token, token_there: TokenLocation) -> None:
    import_into_token(token, published_key(), "imported", "02")
    created = load_token_key(token_there)
    imported = load_token_key(token_location(token, f"pkcs11:token={LABEL};object=imported"))
    assert created.public.bits == 3072
    assert (created.custody.is_exportable, created.custody.was_stored_elsewhere) == (False, False)
    assert imported.custody.was_stored_elsewhere


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("uri", "pin", "problem"),
    [
        *((URI, "000000", KeyProblem.PIN_WRONG), (URI, None, KeyProblem.PIN_MISSING)),
        ("pkcs11:token=other;object=payouts", PIN, KeyProblem.TOKEN_GONE),
        (f"pkcs11:token={LABEL};object=nobody", PIN, KeyProblem.KEY_MISSING),
        (f"pkcs11:token={LABEL};object=twin", PIN, KeyProblem.SEVERAL_KEYS),
        (f"pkcs11:token={LABEL};object=curve", PIN, KeyProblem.WRONG_KIND),
        (f"pkcs11:token={LABEL};object=short", PIN, KeyProblem.TOO_SHORT),
    ],
)
def test_token_problem_is_reported_with_hint(token: Token, uri: str, pin: str | None, problem: KeyProblem) -> None:
    import_into_token(token, published_key())
    import_into_token(token, published_key(), "twin", "07")
    import_into_token(token, published_key(), "twin", "08")
    import_into_token(token, generate_private_key(65537, 1024), "short", "03")  # noqa: S505 (it is refused)
    import_into_token(token, ec.generate_private_key(ec.SECP256R1()), "curve", "04")
    refused = problem_of(load_token_key, token_location(token, uri, pin=pin))
    assert refused.problem is problem
    assert isinstance(refused, ConfigurationError)
    assert refused.hint
    assert PIN not in str(refused)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (pkcs11.exceptions.PinLocked, KeyProblem.PIN_LOCKED),
        (pkcs11.exceptions.DeviceRemoved, KeyProblem.TOKEN_GONE),
        (pkcs11.exceptions.DeviceError, KeyProblem.BROKEN),
    ],
)
def test_device_errors_are_reported_as_token_problems(
    token_there: TokenLocation, monkeypatch: pytest.MonkeyPatch, error: type[Exception], problem: KeyProblem
) -> None:
    """The errors are simulated, because SoftHSM cannot be locked or unplugged."""
    monkeypatch.setattr(token_key, "_find_token", Mock(side_effect=error))
    assert problem_of(load_token_key, token_there).problem is problem


def test_broken_token_module_is_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "module.so"
    wrong.write_bytes(b"no library")
    assert str(wrong) in str(problem_of(load_token_key, TokenLocation(parse_token_address(URI), wrong, PIN)))


@pytest.mark.parametrize(
    "uri",
    [
        *("pkcs11:token=paygw", "pkcs11:object=payouts;object=twice", "pkcs11:object=payouts;colour=red"),
        *("pkcs11:object=payouts?pin-value=1234", "pkcs11:object=payouts?module-path=/usr/lib/x.so"),
        *("pkcs11:object=payouts;type=public", "pkcs11:object=payouts;slot-id=first", "pkcs11:object=%ff"),
    ],
)
def test_unsupported_token_address_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_token_address(uri)
    assert "1234" not in refused.value.message
    assert refused.value.hint


def test_token_address_is_parsed_per_rfc_7512() -> None:
    read = parse_token_address("pkcs11:token=The%20Software%20Token;object=pay%3Bouts;id=%01%ff;slot-id=3;type=private")
    assert (read.token, read.label, read.key_id, read.slot) == ("The Software Token", "pay;outs", b"\x01\xff", 3)


async def test_unplugged_token_ends_run_with_error(token: Token, token_there: TokenLocation) -> None:
    async with SigningProcesses(load_token_key(token_there)) as at_work:
        await at_work.sign(TEXTS[:2])
        token.slots.rename(token.folder / "pulled out")
        with pytest.raises(SigningFailed, match="The token for pkcs11:"):
            await asyncio.gather(*(at_work.sign([text]) for text in TEXTS))


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("ExpiredTokenException", KeyProblem.EXPIRED),
        ("AccessDeniedException", KeyProblem.FORBIDDEN),
        ("UnrecognizedClientException", KeyProblem.NO_CREDENTIALS),
        ("ThrottlingException", KeyProblem.THROTTLED),
        ("DisabledException", KeyProblem.DISABLED),
        ("SomethingNewException", KeyProblem.BROKEN),
    ],
)
def test_refusal_by_aws_is_reported_as_key_problem(
    kms: Kms, monkeypatch: pytest.MonkeyPatch, code: str, problem: KeyProblem
) -> None:
    key = kms_key_in(kms)
    kms.for_good = {SIGN: code}
    monkeypatch.setattr(kms_key, "MAX_RETRY_S", 1.0)
    refused = problem_of(key.sign, "text")
    assert refused.problem is problem
    assert (kms.calls[SIGN] >= 3) if code == "ThrottlingException" else (kms.calls[SIGN] == 1)
    assert parse_error_line(refused.to_error_line()).message == refused.message


def test_wrong_aws_key_region_or_credentials_are_explained(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(alias: str = "payouts") -> KeyProblem:
        return problem_of(load_kms_key, f"alias/{alias}", 1).problem

    for alias, options in (("curve", {"KeySpec": "ECC_NIST_P256"}), ("hidden", {"KeyUsage": "ENCRYPT_DECRYPT"})):
        kms.key(alias, None, **options)
        assert problem(alias) is KeyProblem.WRONG_KIND
    assert problem() is KeyProblem.KEY_MISSING
    key_id = kms.key("payouts")
    arn = kms.client.describe_key(KeyId=key_id)["KeyMetadata"]["Arn"]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("AWS_REGION", "us-east-1")  # the region in the ARN takes precedence
        assert load_kms_key(arn, 1).custody.location == f"awskms:{arn} ({arn})"
    kms.client.disable_key(KeyId=key_id)
    assert problem() is KeyProblem.DISABLED
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:9")
    assert problem() is KeyProblem.UNREACHABLE
    monkeypatch.delenv("AWS_REGION")
    assert problem() is KeyProblem.NO_REGION
    monkeypatch.setenv("AWS_REGION", "no region\n")
    assert problem() is KeyProblem.NO_REGION
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert problem() is KeyProblem.NO_CREDENTIALS
    with pytest.raises(ConfigurationError):
        parse_kms_key_id("awskms:")


def test_throttled_signing_is_retried(kms: Kms) -> None:
    key = kms_key_in(kms, published_key())
    kms.refusals = {SIGN: deque(["", "ThrottlingException"] * 12)}
    assert sign_in_processes(key, VECTOR_TEXTS) == SIGNATURES
    assert kms.calls[SIGN] == 12 + len(VECTOR_TEXTS) + 1  # and the trial signature


def test_unresponsive_key_service_ends_run_with_error(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    key = kms_key_in(kms)
    kms.for_good, kms.for_good_after = {SIGN: "hang"}, {SIGN: 1}
    monkeypatch.setattr(signers, "SIGNATURE_TIMEOUT_S", 1.5)
    monkeypatch.setattr(signers, "_CLOSE_TIMEOUT_S", 0.5)
    with pytest.raises(SigningFailed, match="did not sign within 2 seconds"):
        sign_in_processes(key, TEXTS[:4])


def test_wrong_signature_is_never_used(kms: Kms) -> None:
    key = kms_key_in(kms)
    kms.lies = True
    assert problem_of(key.sign, "text").problem is KeyProblem.WRONG_SIGNATURE
    with pytest.raises(SigningFailed, match="does not match its public key"):
        sign_in_processes(key, TEXTS[:4])


def test_aws_receives_only_digest(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    kms.key("payouts")
    asked: list[dict[str, Any]] = []
    client = kms_key._create_client("alias/payouts", 1)
    client.meta.events.register("provide-client-params.kms.Sign", lambda params, **_: asked.append(params))
    monkeypatch.setattr(kms_key, "_create_client", lambda *_: client)
    load_kms_key("alias/payouts", 1).sign("account_name=Wanjiru Mwangi")
    assert [(len(item["Message"]), item["MessageType"]) for item in asked] == [(32, "DIGEST")]
