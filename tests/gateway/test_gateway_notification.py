"""What a notification says, and what proves it: each profile against values made by another library or by hand."""

import base64
import hashlib
import hmac
import json

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.message import Received
from paygw_batch.gateway.notification import (
    AuthenticityCheck,
    HashAlgorithm,
    HeaderEncoding,
    HeaderHash,
    HeaderSignature,
    NotificationFields,
    SharedSecretHash,
    SignedHeader,
    headers_that_matter,
    read_notification,
)
from paygw_batch.gateway.signing.key import SignatureAlgorithm, gateway_key_of

NAMES = NotificationFields("client_orderid", "amount", "currency", "status", ("reference",))
SAID = {"client_orderid": "PAY-1", "amount": "1500.50", "currency": "KES", "status": "approved"}
BODY = json.dumps(SAID).encode()
SECRET = b"a secret of enough bytes"
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def posted(body: bytes = BODY, content_type: str = "application/json", **headers: str) -> Received:
    return Received("POST", content_type, "", body, tuple((n.replace("_", "-"), v) for n, v in headers.items()))


def proof_of(received: Received, check: AuthenticityCheck | None) -> Proof:
    said = read_notification(received, NAMES, check)
    assert isinstance(said, Claim), said
    return said.proof


@pytest.mark.parametrize(
    "content_type",
    [
        *("application/json", "text/json", "", "application/vnd.gateway.v2+json", "Application/Problem+JSON"),
        *("application/json; charset=UTF-8", 'text/json;charset="utf-8"', "application/json; profile=x; charset=utf-8"),
    ],
)
def test_json_notification_is_read_under_every_type(content_type: str) -> None:
    assert read_notification(posted(content_type=content_type), NAMES, None) == Claim(
        "PAY-1", "1500.50", "KES", "approved"
    )


@pytest.mark.parametrize(
    ("content_type", "cause"),
    [
        ("application/json; charset=latin-1", "notification.charset"),
        ("text/xml", "notification.content_type"),
        ("application/xml+json2", "notification.content_type"),
        ("text/vnd.x+json", "notification.content_type"),
        ("; charset=utf-16", "notification.charset"),
    ],
)
def test_notification_with_unsupported_type_is_not_read(content_type: str, cause: str) -> None:
    assert read_notification(posted(content_type=content_type), NAMES, None) == cause


def test_untyped_body_other_than_json_is_not_read() -> None:
    assert read_notification(posted(b"client_orderid=PAY-1", ""), NAMES, None) == "reply.not_json"


# A keyed hash in a header


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
@pytest.mark.parametrize(
    ("algorithm", "digest"), [(HashAlgorithm.HMAC_SHA256, "sha256"), (HashAlgorithm.HMAC_SHA512, "sha512")]
)
@pytest.mark.parametrize("prefix", ["", "v1="])
def test_keyed_hash_over_raw_body_proves_notification(
    encoding: HeaderEncoding, algorithm: HashAlgorithm, digest: str, prefix: str
) -> None:
    made = hmac.new(SECRET, BODY, digest).digest()
    text = prefix + (made.hex() if encoding is HeaderEncoding.HEX else base64.b64encode(made).decode())
    check = HeaderHash(algorithm, SignedHeader("X-Signature", encoding, prefix), SECRET)
    assert proof_of(posted(x_signature=text), check) is Proof.PROVEN
    assert proof_of(posted(BODY + b" ", x_signature=text), check) is Proof.FORGED  # the very bytes, not their meaning
    assert proof_of(posted(x_signature=text[:-2]), check) is Proof.FORGED
    assert proof_of(posted(x_other=text), check) is Proof.FORGED
    assert proof_of(posted(), check) is Proof.FORGED
    assert proof_of(posted(x_signature=text), HeaderHash(algorithm, check.header, SECRET + b"x")) is Proof.FORGED


HMAC = HeaderHash(HashAlgorithm.HMAC_SHA256, SignedHeader("X-Signature", HeaderEncoding.HEX), SECRET)


def test_uppercase_hash_is_accepted() -> None:
    made = hmac.new(SECRET, BODY, "sha256").hexdigest().upper()
    assert proof_of(posted(x_signature=made), HMAC) is Proof.PROVEN


@pytest.mark.parametrize("text", ["zz", "", "é", "0" * 63, "=" * 8])
@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_undecodable_signature_header_proves_nothing(text: str, encoding: HeaderEncoding) -> None:
    check = HeaderHash(HashAlgorithm.HMAC_SHA256, SignedHeader("X-Signature", encoding), SECRET)
    assert proof_of(posted(x_signature=text), check) is Proof.FORGED


def test_repeated_signature_header_proves_nothing() -> None:
    made = hmac.new(SECRET, BODY, "sha256").hexdigest()
    twice = Received("POST", "application/json", "", BODY, (("x-signature", made), ("x-signature", made)))
    assert proof_of(twice, HMAC) is Proof.FORGED


def test_body_hash_does_not_prove_address_values() -> None:
    query = "client_orderid=PAY-1&amount=1500.50&currency=KES&status=approved"
    empty = hmac.new(SECRET, b"", "sha256").hexdigest()
    assert proof_of(Received("GET", "", query, b"", (("x-signature", empty),)), HMAC) is Proof.FORGED


def test_form_is_proven_by_raw_bytes() -> None:
    form = b"client_orderid=PAY-1&amount=1500.50&currency=KES&status=approved"
    made = hmac.new(SECRET, form, "sha256").hexdigest()
    assert proof_of(posted(form, "application/x-www-form-urlencoded", x_signature=made), HMAC) is Proof.PROVEN


# A signature in a header


def signed(algorithm: SignatureAlgorithm, body: bytes) -> bytes:
    match algorithm:
        case SignatureAlgorithm.RSA_SHA256:
            return KEY.sign(body, padding.PKCS1v15(), hashes.SHA256())
        case SignatureAlgorithm.RSA_SHA512:
            return KEY.sign(body, padding.PKCS1v15(), hashes.SHA512())
        case SignatureAlgorithm.RSA_PSS_SHA256:
            return KEY.sign(body, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())


@pytest.mark.parametrize("algorithm", list(SignatureAlgorithm))
def test_rsa_signature_over_raw_body_proves_notification(algorithm: SignatureAlgorithm) -> None:
    header = SignedHeader("Signature", HeaderEncoding.BASE64)
    check = HeaderSignature(header, gateway_key_of(PEM, algorithm, name="the key"))
    text = base64.b64encode(signed(algorithm, BODY)).decode()
    assert proof_of(posted(signature=text), check) is Proof.PROVEN
    assert proof_of(posted(BODY.replace(b"approved", b"declined"), signature=text), check) is Proof.FORGED
    assert proof_of(posted(signature=text[4:]), check) is Proof.FORGED
    assert proof_of(posted(), check) is Proof.FORGED
    for other in set(SignatureAlgorithm) - {algorithm}:
        check = HeaderSignature(header, gateway_key_of(PEM, other, name="the key"))
        assert proof_of(posted(signature=text), check) is Proof.FORGED


def test_hex_signature_is_read_where_configured() -> None:
    header = SignedHeader("Signature", HeaderEncoding.HEX, "rsa:")
    check = HeaderSignature(header, gateway_key_of(PEM, SignatureAlgorithm.RSA_SHA256, name="the key"))
    text = f"rsa:{signed(SignatureAlgorithm.RSA_SHA256, BODY).hex()}"
    assert proof_of(posted(signature=text), check) is Proof.PROVEN


def test_invalid_gateway_key_is_refused_by_name() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505 (it is to be refused)
    pem = short.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ConfigurationError, match=r"key\.pem is not an RSA key of at least 2048 bits"):
        gateway_key_of(pem, SignatureAlgorithm.RSA_SHA256, name="key.pem")
    for junk in (b"", b"junk", PEM[:-40]):
        with pytest.raises(ConfigurationError, match=r"key\.pem does not contain a readable public key"):
            gateway_key_of(junk, SignatureAlgorithm.RSA_SHA256, name="key.pem")


# A hash of the gateway family's own


def test_sha1_hash_without_separator_proves_nothing() -> None:
    fields = ("status", "client_orderid", "{secret}")
    check = SharedSecretHash(HashAlgorithm.SHA1, fields, "", "control", SECRET)
    made = hashlib.sha1(b"approvedPAY-1" + SECRET, usedforsecurity=False).hexdigest()
    for control, proof in ((made, Proof.UNPROVEN), (made.upper(), Proof.UNPROVEN), ("0" * 40, Proof.FORGED)):
        body = json.dumps({**SAID, "control": control}).encode()
        assert proof_of(posted(body), check) is proof
    assert proof_of(posted(), check) is Proof.FORGED


def test_hashed_value_containing_separator_is_forged() -> None:
    fields = ("status", "client_orderid", "amount", "currency", "{secret}")
    check = SharedSecretHash(HashAlgorithm.SHA256, fields, "|", "control", SECRET)
    for status, proof in (("approved", Proof.PROVEN), ("appr|oved", Proof.FORGED)):
        text = f"{status}|PAY-1|1500.50|KES|".encode() + SECRET
        said = {**SAID, "status": status, "control": hashlib.sha256(text).hexdigest()}
        assert proof_of(posted(json.dumps(said).encode()), check) is proof


# Headers


def test_only_relevant_headers_without_secrets_are_kept() -> None:
    received = posted(
        x_signature="s" * 2000,
        x_request_id="r-1",
        date="Sun, 22 Nov 2026 04:00:00 GMT",
        user_agent="gateway/1",
        x_gateway_proof="p",
        authorization="Bearer secret",
        cookie="secret",
        x_auth_signature="secret",
        accept="*/*",
    )
    kept = headers_that_matter(received, "X-Gateway-Proof")
    assert kept[0] == ("x-gateway-proof", "p")
    assert dict(kept)["x-signature"] == "s" * 1000
    assert set(dict(kept)) == {"x-gateway-proof", "x-signature", "x-request-id", "date", "user-agent"}


def test_number_of_kept_headers_is_limited() -> None:
    many = Received("POST", "", "", b"", tuple((f"x-event-{n}", "v") for n in range(100)))
    assert len(headers_that_matter(many, None)) == 30
