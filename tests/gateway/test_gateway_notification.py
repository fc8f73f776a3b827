"""Notifications and their proof: each profile is tested with values from another library or computed by hand."""

import base64
import hashlib
import hmac
import json
from functools import cache

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.message import IncomingRequest
from paygw_batch.gateway.notification import (
    AuthenticityCheck,
    HashAlgorithm,
    HeaderEncoding,
    HeaderHash,
    HeaderSignature,
    NotificationFields,
    SharedSecretHash,
    SignedHeader,
    read_notification,
    relevant_headers,
)
from paygw_batch.gateway.signing.key import SignatureAlgorithm, parse_gateway_key

NAMES = NotificationFields("client_orderid", "amount", "currency", "status", ("reference",))
SAID = {"client_orderid": "PAY-1", "amount": "1500.50", "currency": "KES", "status": "approved"}
BODY = json.dumps(SAID).encode()
SECRET = b"a secret of enough bytes"


@cache
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def public_pem() -> bytes:
    key = private_key().public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def build_post(body: bytes = BODY, content_type: str = "application/json", **headers: str) -> IncomingRequest:
    return IncomingRequest("POST", content_type, "", body, tuple((n.replace("_", "-"), v) for n, v in headers.items()))


def read_proof(received: IncomingRequest, check: AuthenticityCheck | None) -> Proof:
    output = read_notification(received, NAMES, check)
    assert isinstance(output, Claim), output
    return output.proof


@pytest.mark.parametrize(
    "content_type",
    [
        *("application/json", "text/json", "", "application/vnd.gateway.v2+json", "Application/Problem+JSON"),
        *("application/json; charset=UTF-8", 'text/json;charset="utf-8"', "application/json; profile=x; charset=utf-8"),
    ],
)
def test_json_notification_is_read_under_every_type(content_type: str) -> None:
    received = build_post(content_type=content_type)
    assert read_notification(received, NAMES, None) == Claim("PAY-1", "1500.50", "KES", "approved")


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
    assert read_notification(build_post(content_type=content_type), NAMES, None) == cause


def test_untyped_non_json_body_is_not_read() -> None:
    assert read_notification(build_post(b"client_orderid=PAY-1", ""), NAMES, None) == "reply.not_json"


# A keyed hash in a header
@pytest.mark.parametrize("encoding", list(HeaderEncoding))
@pytest.mark.parametrize(
    ("algorithm", "digest"), [(HashAlgorithm.HMAC_SHA256, "sha256"), (HashAlgorithm.HMAC_SHA512, "sha512")]
)
@pytest.mark.parametrize("prefix", ["", "v1="])
def test_keyed_hash_over_raw_body_proves_notification(
    encoding: HeaderEncoding, algorithm: HashAlgorithm, digest: str, prefix: str
) -> None:
    created = hmac.new(SECRET, BODY, digest).digest()
    text = prefix + (created.hex() if encoding is HeaderEncoding.HEX else base64.b64encode(created).decode())
    check = HeaderHash(algorithm, SignedHeader("X-Signature", encoding, prefix), SECRET)
    assert read_proof(build_post(x_signature=text), check) is Proof.PROVEN
    assert (
        read_proof(build_post(BODY + b" ", x_signature=text), check) is Proof.FORGED
    )  # the hash covers the bytes, not the meaning
    assert read_proof(build_post(x_signature=text[:-2]), check) is Proof.FORGED
    assert read_proof(build_post(x_other=text), check) is Proof.FORGED
    assert read_proof(build_post(), check) is Proof.FORGED
    assert read_proof(build_post(x_signature=text), HeaderHash(algorithm, check.header, SECRET + b"x")) is Proof.FORGED


HMAC = HeaderHash(HashAlgorithm.HMAC_SHA256, SignedHeader("X-Signature", HeaderEncoding.HEX), SECRET)


@pytest.mark.parametrize("text", ["zz", "", "é", "0" * 63, "=" * 8])
@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_undecodable_signature_header_proves_nothing(text: str, encoding: HeaderEncoding) -> None:
    check = HeaderHash(HashAlgorithm.HMAC_SHA256, SignedHeader("X-Signature", encoding), SECRET)
    assert read_proof(build_post(x_signature=text), check) is Proof.FORGED


def test_single_hash_in_any_case_is_accepted() -> None:
    created = hmac.new(SECRET, BODY, "sha256").hexdigest()
    assert read_proof(build_post(x_signature=created.upper()), HMAC) is Proof.PROVEN
    twice = IncomingRequest("POST", "application/json", "", BODY, (("x-signature", created), ("x-signature", created)))
    assert read_proof(twice, HMAC) is Proof.FORGED


def test_hash_covers_body_but_not_url() -> None:
    query = "client_orderid=PAY-1&amount=1500.50&currency=KES&status=approved"
    empty = hmac.new(SECRET, b"", "sha256").hexdigest()
    assert read_proof(IncomingRequest("GET", "", query, b"", (("x-signature", empty),)), HMAC) is Proof.FORGED
    form = b"client_orderid=PAY-1&amount=1500.50&currency=KES&status=approved"
    created = hmac.new(SECRET, form, "sha256").hexdigest()
    assert read_proof(build_post(form, "application/x-www-form-urlencoded", x_signature=created), HMAC) is Proof.PROVEN


# A signature in a header
def sign_body(algorithm: SignatureAlgorithm, body: bytes) -> bytes:
    match algorithm:
        case SignatureAlgorithm.RSA_SHA256:
            return private_key().sign(body, padding.PKCS1v15(), hashes.SHA256())
        case SignatureAlgorithm.RSA_SHA512:
            return private_key().sign(body, padding.PKCS1v15(), hashes.SHA512())
        case SignatureAlgorithm.RSA_PSS_SHA256:
            return private_key().sign(body, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())


@pytest.mark.parametrize("algorithm", list(SignatureAlgorithm))
def test_rsa_signature_over_raw_body_proves_notification(algorithm: SignatureAlgorithm) -> None:
    header = SignedHeader("Signature", HeaderEncoding.BASE64)
    check = HeaderSignature(header, parse_gateway_key(public_pem(), algorithm, name="the key"))
    signature = sign_body(algorithm, BODY)
    text = base64.b64encode(signature).decode()
    assert read_proof(build_post(signature=text), check) is Proof.PROVEN
    assert read_proof(build_post(BODY.replace(b"approved", b"declined"), signature=text), check) is Proof.FORGED
    assert read_proof(build_post(signature=text[4:]), check) is Proof.FORGED
    assert read_proof(build_post(), check) is Proof.FORGED
    in_hex = HeaderSignature(SignedHeader("Signature", HeaderEncoding.HEX, "rsa:"), check.key)
    assert read_proof(build_post(signature=f"rsa:{signature.hex()}"), in_hex) is Proof.PROVEN
    for other in set(SignatureAlgorithm) - {algorithm}:
        check = HeaderSignature(header, parse_gateway_key(public_pem(), other, name="the key"))
        assert read_proof(build_post(signature=text), check) is Proof.FORGED


def test_invalid_gateway_key_error_names_key() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505 (it is to be refused)
    pem = short.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ConfigurationError, match=r"key\.pem is not an RSA key of at least 2048 bits"):
        parse_gateway_key(pem, SignatureAlgorithm.RSA_SHA256, name="key.pem")
    for junk in (b"", b"junk", public_pem()[:-40]):
        with pytest.raises(ConfigurationError, match=r"key\.pem does not contain a readable public key"):
            parse_gateway_key(junk, SignatureAlgorithm.RSA_SHA256, name="key.pem")


# A hash in the format of this gateway family
def test_sha1_hash_without_separator_proves_nothing() -> None:
    fields = ("status", "client_orderid", "{secret}")
    check = SharedSecretHash(HashAlgorithm.SHA1, fields, "", "control", SECRET)
    created = hashlib.sha1(b"approvedPAY-1" + SECRET, usedforsecurity=False).hexdigest()
    for control, proof in ((created, Proof.UNPROVEN), (created.upper(), Proof.UNPROVEN), ("0" * 40, Proof.FORGED)):
        body = json.dumps({**SAID, "control": control}).encode()
        assert read_proof(build_post(body), check) is proof
    assert read_proof(build_post(), check) is Proof.FORGED


def test_hashed_value_containing_separator_is_forged() -> None:
    fields = ("status", "client_orderid", "amount", "currency", "{secret}")
    check = SharedSecretHash(HashAlgorithm.SHA256, fields, "|", "control", SECRET)
    for status, proof in (("approved", Proof.PROVEN), ("appr|oved", Proof.FORGED)):
        text = f"{status}|PAY-1|1500.50|KES|".encode() + SECRET
        output = {**SAID, "status": status, "control": hashlib.sha256(text).hexdigest()}
        assert read_proof(build_post(json.dumps(output).encode()), check) is proof


# Headers
def test_only_relevant_headers_without_secrets_are_stored() -> None:
    received = build_post(
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
    kept = relevant_headers(received, "X-Gateway-Proof")
    assert kept[0] == ("x-gateway-proof", "p")
    assert dict(kept)["x-signature"] == "s" * 1000
    assert set(dict(kept)) == {"x-gateway-proof", "x-signature", "x-request-id", "date", "user-agent"}
    many = IncomingRequest("POST", "", "", b"", tuple((f"x-event-{n}", "v") for n in range(100)))
    assert len(relevant_headers(many, None)) == 30
