"""Notifications and their proof: each profile is tested with values from another library or computed by hand."""

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

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


def public_pem(key: rsa.RSAPrivateKey | None = None) -> bytes:
    public = (key or private_key()).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def build_post(body: bytes = BODY, content_type: str = "application/json", **headers: str) -> IncomingRequest:
    return IncomingRequest("POST", content_type, "", body, tuple((n.replace("_", "-"), v) for n, v in headers.items()))


def read_proof(received: IncomingRequest, check: AuthenticityCheck | None) -> Proof:
    output = read_notification(received, NAMES, check)
    assert isinstance(output, Claim), output
    return output.proof


@pytest.mark.parametrize(
    ("content_type", "cause"),
    [
        *((kind, None) for kind in ("application/json", "text/json", "", "application/vnd.gateway.v2+json")),
        *((kind, None) for kind in ("Application/Problem+JSON", "application/json; profile=x; charset=utf-8")),
        *((kind, None) for kind in ("application/json; charset=UTF-8", 'text/json;charset="utf-8"')),
        *((kind, "notification.charset") for kind in ("application/json; charset=latin-1", "; charset=utf-16")),
        *((kind, "notification.content_type") for kind in ("text/xml", "application/xml+json2", "text/vnd.x+json")),
    ],
)
def test_only_json_in_utf8_is_read(content_type: str, cause: str | None) -> None:
    expected = cause or Claim("PAY-1", "1500.50", "KES", "approved")
    assert read_notification(build_post(content_type=content_type), NAMES, None) == expected
    assert read_notification(build_post(b"client_orderid=PAY-1", ""), NAMES, None) == "reply.not_json"


# A keyed hash in a header
@pytest.mark.parametrize("encoding", list(HeaderEncoding))
@pytest.mark.parametrize("digest", ["sha256", "sha512"])
@pytest.mark.parametrize("prefix", ["", "v1="])
def test_keyed_hash_over_raw_body_proves_notification(encoding: HeaderEncoding, digest: str, prefix: str) -> None:
    algorithm = HashAlgorithm[f"HMAC_{digest.upper()}"]
    created = hmac.new(SECRET, BODY, digest).digest()
    text = prefix + (created.hex() if encoding is HeaderEncoding.HEX else base64.b64encode(created).decode())
    check = HeaderHash(algorithm, SignedHeader("X-Signature", encoding, prefix), SECRET)
    assert read_proof(build_post(x_signature=text), check) is Proof.PROVEN
    changed = build_post(BODY + b" ", x_signature=text)  # the hash covers the bytes, not the meaning
    for received in (changed, build_post(x_signature=text[:-2]), build_post(x_other=text), build_post()):
        assert read_proof(received, check) is Proof.FORGED
    for undecodable in ("zz", "", "é", "0" * 63, "=" * 8):
        assert read_proof(build_post(x_signature=prefix + undecodable), check) is Proof.FORGED
    assert read_proof(build_post(x_signature=text), HeaderHash(algorithm, check.header, SECRET + b"x")) is Proof.FORGED


HMAC = HeaderHash(HashAlgorithm.HMAC_SHA256, SignedHeader("X-Signature", HeaderEncoding.HEX), SECRET)


def test_single_hash_covers_body_but_not_url() -> None:
    created = hmac.new(SECRET, BODY, "sha256").hexdigest()
    assert read_proof(build_post(x_signature=created.upper()), HMAC) is Proof.PROVEN
    twice = IncomingRequest("POST", "application/json", "", BODY, (("x-signature", created), ("x-signature", created)))
    assert read_proof(twice, HMAC) is Proof.FORGED
    form = "client_orderid=PAY-1&amount=1500.50&currency=KES&status=approved"
    empty, created = (hmac.new(SECRET, body, "sha256").hexdigest() for body in (b"", form.encode()))
    assert read_proof(IncomingRequest("GET", "", form, b"", (("x-signature", empty),)), HMAC) is Proof.FORGED
    posted = build_post(form.encode(), "application/x-www-form-urlencoded", x_signature=created)
    assert read_proof(posted, HMAC) is Proof.PROVEN


# A signature in a header
PADDINGS: dict[SignatureAlgorithm, tuple[Any, Any]] = {
    SignatureAlgorithm.RSA_SHA256: (padding.PKCS1v15(), hashes.SHA256()),
    SignatureAlgorithm.RSA_SHA512: (padding.PKCS1v15(), hashes.SHA512()),
    SignatureAlgorithm.RSA_PSS_SHA256: (padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256()),
}


@pytest.mark.parametrize("algorithm", list(SignatureAlgorithm))
def test_rsa_signature_over_raw_body_proves_notification(algorithm: SignatureAlgorithm) -> None:
    header = SignedHeader("Signature", HeaderEncoding.BASE64)
    check = HeaderSignature(header, parse_gateway_key(public_pem(), algorithm, name="the key"))
    signature = private_key().sign(BODY, *PADDINGS[algorithm])
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


def test_error_about_invalid_gateway_key_names_it() -> None:
    short = public_pem(rsa.generate_private_key(65537, 1024))  # noqa: S505 (it is to be refused)
    weak, unreadable = "is not an RSA key of at least 2048 bits", "does not contain a readable public key"
    for pem, problem in ((short, weak), *((junk, unreadable) for junk in (b"", b"junk", public_pem()[:-40]))):
        with pytest.raises(ConfigurationError, match=rf"key\.pem {problem}"):
            parse_gateway_key(pem, SignatureAlgorithm.RSA_SHA256, name="key.pem")


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
