"""The golden requests of every country and profile, checked by independent libraries."""

import base64
import hashlib
import json
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from oauthlib.oauth1.rfc5849.utils import escape

from paygw_batch.gateway.sign import SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey
from tests.support.gateway_cases import (
    CALLBACK_URL,
    CONSUMER_KEY,
    GOLDEN,
    NONCE,
    RULES,
    TIMESTAMP_S,
    URL,
    golden_path,
    instruction_for,
    oauthlib_base_string,
    parse_oauth,
    prepare_golden_request,
    request_bytes,
    split_request,
)

EVERY_REQUEST = [
    pytest.param(profile, country, id=f"{profile.value}-{country}") for profile in SignatureProfile for country in RULES
]
ACCOUNT_FORM = [
    *("account_name", "account_number", "amount", "client_orderid", "currency", "phone", "purpose"),
    "server_callback_url",
]
RECEIVER_FORM = [
    *("amount", "client_orderid", "currency", "ipaddress", "order_desc", "purpose", "receiver_country_code"),
    *("receiver_email", "receiver_first_name", "receiver_last_name", "receiver_phone"),
]


def text_to_sign(profile: SignatureProfile, oauth: list[tuple[str, str]], body: bytes) -> str:
    """Return the text to sign, built with oauthlib's own encoding, sorting and joining."""
    signed = [(name, value) for name, value in oauth if name != "oauth_signature"]
    if profile is SignatureProfile.JSON_PARAMS:
        signed += json.loads(body, parse_int=str, parse_float=str).items()
    base = oauthlib_base_string(signed)
    return base if profile is SignatureProfile.JSON_PARAMS else f"{base}&{escape(body.decode())}"


def verify(key: PrivateKey, signature: str, text: str) -> None:
    public = load_pem_public_key(key.public.public_key_pem())
    assert isinstance(public, RSAPublicKey)
    public.verify(base64.b64decode(signature, validate=True), text.encode(), PKCS1v15(), SHA256())


@pytest.mark.parametrize(("profile", "country"), EVERY_REQUEST)
def test_payout_request_matches_golden_bytes(key: PrivateKey, profile: SignatureProfile, country: str) -> None:
    assert request_bytes(prepare_golden_request(key, profile, country)) == golden_path(profile, country).read_bytes()


def test_every_country_and_profile_has_golden_request() -> None:
    kept = {path.name for path in GOLDEN.glob("*.http")}
    assert kept == {golden_path(profile, country).name for profile in SignatureProfile for country in RULES}


@pytest.mark.parametrize(("profile", "country"), EVERY_REQUEST)
def test_golden_signature_is_valid_for_oauthlib_text(key: PrivateKey, profile: SignatureProfile, country: str) -> None:
    _, headers, body = split_request(golden_path(profile, country).read_bytes())
    oauth = parse_oauth(headers["authorization"])
    text = text_to_sign(profile, oauth, body)
    verify(key, dict(oauth)["oauth_signature"], text)
    with pytest.raises(InvalidSignature):
        verify(key, dict(oauth)["oauth_signature"], text + " ")


@pytest.mark.parametrize(("profile", "country"), EVERY_REQUEST)
def test_golden_head_has_only_interface_headers(profile: SignatureProfile, country: str) -> None:
    first, headers, body = split_request(golden_path(profile, country).read_bytes())
    assert first == "POST /paynet/api/v4/payout/1234 HTTP/1.1"
    authorization = headers.pop("authorization")
    assert headers == {
        "host": "gateway.example",
        "user-agent": "paygw-batch",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-length": str(len(body)),
        "connection": "close",
    }
    oauth = parse_oauth(authorization)
    assert authorization.startswith("OAuth ")
    assert [name for name, _ in oauth] == [
        "oauth_consumer_key",
        "oauth_nonce",
        "oauth_signature",
        "oauth_signature_method",
        "oauth_timestamp",
        "oauth_version",
    ]
    values = dict(oauth)
    del values["oauth_signature"]
    assert values == {
        "oauth_consumer_key": CONSUMER_KEY,
        "oauth_nonce": NONCE,
        "oauth_signature_method": "RSA-SHA256",
        "oauth_timestamp": str(TIMESTAMP_S),
        "oauth_version": "1.0",
    }


@pytest.mark.parametrize(("profile", "country"), EVERY_REQUEST)
def test_golden_body_pays_instruction(profile: SignatureProfile, country: str) -> None:
    _, _, body = split_request(golden_path(profile, country).read_bytes())
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
    instruction = instruction_for(country)
    form = RECEIVER_FORM if country == "TZ" else [name for name in ACCOUNT_FORM if (country, name) != ("ZA", "purpose")]
    assert [name for name, _ in pairs] == form
    expected = {
        **instruction.fields,
        "client_orderid": instruction.client_orderid,
        "currency": instruction.currency,
        "amount": "250000" if RULES[country].minor_units == 0 else "1500.50",
    }
    if country != "ZA":
        expected["purpose"] = RULES[country].purpose or "is never empty"
    if country != "TZ":
        expected["server_callback_url"] = CALLBACK_URL
    assert dict(pairs) == expected


@pytest.mark.parametrize("country", RULES)
def test_prepared_request_contains_signed_and_expected_values(key: PrivateKey, country: str) -> None:
    request = prepare_golden_request(key, SignatureProfile.JSON_PARAMS, country)
    instruction = instruction_for(country)
    assert request.body_sha256 == hashlib.sha256(request.body).hexdigest()
    assert (request.nonce, request.timestamp_s, request.url) == (NONCE, TIMESTAMP_S, URL)
    assert request.purpose == (None if country == "ZA" else RULES[country].purpose)
    assert (request.expected.order_id, request.expected.currency) == (instruction.client_orderid, instruction.currency)
    assert str(request.expected.amount) == instruction.amount
