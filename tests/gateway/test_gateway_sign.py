"""The signed text, and the key that signs it."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from oauthlib.oauth1.rfc5849.utils import escape

from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.encode import EncodedBody
from paygw_batch.gateway.sign import SignatureProfile, authorization, base_string, explain, oauth_parameters
from paygw_batch.gateway.signing.key import PrivateKey, load_private_key
from tests.support.gateway_cases import (
    KEY_FILE,
    NONCE,
    RULES,
    TIMESTAMP_S,
    URL,
    instruction_for,
    oauthlib_base_string,
    parse_oauth,
    prepare_golden_request,
    signer,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=8)
OAUTH = oauth_parameters(consumer_key="key", nonce="nonce", timestamp_s=1)


# The base string.
@given(PAIRS)
def test_base_string_of_json_params_matches_oauthlib(params: list[tuple[str, str]]) -> None:
    expected = oauthlib_base_string([*params, *OAUTH])
    assert base_string(SignatureProfile.JSON_PARAMS, URL, EncodedBody(b"", tuple(params)), OAUTH) == expected


@given(PAIRS, TEXTS)
def test_base_string_of_raw_body_matches_oauthlib(params: list[tuple[str, str]], body: str) -> None:
    expected = oauthlib_base_string(OAUTH) + "&" + escape(body)
    assert base_string(SignatureProfile.RAW_BODY, URL, EncodedBody(body.encode(), tuple(params)), OAUTH) == expected


def test_five_signed_parameters_are_sorted() -> None:
    encoded = EncodedBody(b"", (("a", "~"), ("a", "é"), ("a", "z")))
    text = base_string(SignatureProfile.JSON_PARAMS, "https://h/", encoded, ())
    assert text == "POST&https%3A%2F%2Fh%2F&a%3D%25C3%25A9%26a%3Dz%26a%3D~"
    assert oauth_parameters(consumer_key="me", nonce="n", timestamp_s=12) == (
        ("oauth_consumer_key", "me"),
        ("oauth_nonce", "n"),
        ("oauth_signature_method", "RSA-SHA256"),
        ("oauth_timestamp", "12"),
        ("oauth_version", "1.0"),
    )


@given(consumer_key=TEXTS.filter(bool), nonce=TEXTS.filter(bool))
def test_authorization_header_encodes_any_value(consumer_key: str, nonce: str) -> None:
    oauth = oauth_parameters(consumer_key=consumer_key, nonce=nonce, timestamp_s=1)
    header = authorization(oauth, "si+gn/=")
    assert header.isascii()
    assert header.isprintable()
    assert dict(parse_oauth(header)) == {**dict(oauth), "oauth_signature": "si+gn/="}


@pytest.mark.parametrize("profile", SignatureProfile)
def test_explained_base_string_matches_signature(key: PrivateKey, profile: SignatureProfile) -> None:
    instruction = instruction_for("KE")
    created = signer(key, profile)
    displayed = explain(created, RULES["KE"], instruction, order_id="PAY-KE-0001", nonce=NONCE, timestamp_s=TIMESTAMP_S)
    sent = prepare_golden_request(key, profile, "KE")
    assert (displayed.authorization, displayed.body) == (sent.authorization, sent.body)
    signature = dict(parse_oauth(sent.authorization))["oauth_signature"]
    assert key.sign(displayed.base_string) == displayed.signature == signature


# The key.
@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


KeyFile = Callable[..., Path]


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    def write(content: bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "merchant key.pem"
        path.write_bytes(content)
        path.chmod(mode)
        return path

    return write


def pem(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    form: PrivateFormat = PrivateFormat.PKCS8,
    encryption: KeySerializationEncryption | None = None,
) -> bytes:
    return key.private_bytes(Encoding.PEM, form, encryption or NoEncryption())


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_key_loads_from_either_pem_form(key_file: KeyFile, rsa_key: rsa.RSAPrivateKey, form: PrivateFormat) -> None:
    protected = pem(rsa_key, form, BestAvailableEncryption(b"open sesame"))
    plain = pem(rsa_key, form)
    for content, passphrase in ((protected, b"open sesame"), (plain, None), (plain, b""), (plain, b"not needed")):
        loaded = load_private_key(key_file(content), passphrase)
        signature = base64.b64decode(loaded.sign("text é"))
        rsa_key.public_key().verify(signature, "text é".encode(), padding.PKCS1v15(), SHA256())
        assert loaded.public.bits == 2048
    with pytest.raises(ConfigurationError, match="no passphrase"):
        load_private_key(key_file(protected))
    with pytest.raises(ConfigurationError, match="The passphrase for the private key") as caught:
        load_private_key(key_file(protected), b"let me in")
    assert "let me in" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o610, 0o666])
def test_accessible_key_is_refused_with_chmod_command(key_file: KeyFile, mode: int) -> None:
    path = key_file(KEY_FILE.read_bytes(), mode)
    with pytest.raises(ConfigurationError, match="accessible to users other") as caught:
        load_private_key(path)
    assert caught.value.hint == f"chmod 600 '{path}'"


def test_unusable_key_file_is_refused(key_file: KeyFile, rsa_key: rsa.RSAPrivateKey) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 (it is refused)
    public = rsa_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    whole, unreadable = pem(rsa_key), "does not contain a readable private key"
    for content, sentence in [
        (pem(short), "1024 bits, but must have at least 2048"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "not an RSA key"),
        *((content, "is not PEM") for content in (b"", b"secret words")),
        *((content, unreadable) for content in (public, whole[: len(whole) // 2])),
        (b"-----BEGIN PRIVATE KEY-----\nbm90IGEga2V5\n-----END PRIVATE KEY-----\n", unreadable),
        (b"-----BEGIN " + b"x" * 70_000, "too large"),
    ]:
        with pytest.raises(ConfigurationError, match=sentence) as caught:
            load_private_key(key_file(content))
        assert "secret words" not in str(caught.value)


def test_key_repr_shows_only_public_half(key: PrivateKey) -> None:
    assert repr(key) == "PrivateKey()"
    assert "key" not in repr(signer(key, SignatureProfile.RAW_BODY)).replace("consumer_key", "")
    assert key.public.public_key_pem().startswith(b"-----BEGIN PUBLIC KEY-----")
    spki = base64.b64decode(b"".join(key.public.public_key_pem().splitlines()[1:-1]))
    assert key.public.fingerprint() == hashlib.sha256(spki).hexdigest()
