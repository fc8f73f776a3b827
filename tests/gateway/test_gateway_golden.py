"""The golden requests of every country and profile, checked by independent libraries."""

import hashlib
import json
from typing import Any

import pytest

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


@pytest.mark.parametrize(("profile", "country"), EVERY_REQUEST)
def test_golden_payout_request_has_interface_form(key: PrivateKey, profile: SignatureProfile, country: str) -> None:
    assert request_bytes(prepare_golden_request(key, profile, country)) == golden_path(profile, country).read_bytes()
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
    assert authorization.startswith("OAuth ")
    oauth = parse_oauth(authorization)
    assert [item for item in oauth if item[0] != "oauth_signature"] == [
        ("oauth_consumer_key", CONSUMER_KEY),
        ("oauth_nonce", NONCE),
        ("oauth_signature_method", "RSA-SHA256"),
        ("oauth_timestamp", str(TIMESTAMP_S)),
        ("oauth_version", "1.0"),
    ]
    assert oauth[2][0] == "oauth_signature"
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


def test_every_country_and_profile_has_golden_request() -> None:
    kept = {path.name for path in GOLDEN.glob("*.http")}
    assert kept == {golden_path(profile, country).name for profile in SignatureProfile for country in RULES}


@pytest.mark.parametrize("country", RULES)
def test_prepared_request_contains_signed_and_expected_values(key: PrivateKey, country: str) -> None:
    request = prepare_golden_request(key, SignatureProfile.JSON_PARAMS, country)
    instruction = instruction_for(country)
    assert request.body_sha256 == hashlib.sha256(request.body).hexdigest()
    assert (request.nonce, request.timestamp_s, request.url) == (NONCE, TIMESTAMP_S, URL)
    assert request.purpose == (None if country == "ZA" else RULES[country].purpose)
    assert (request.expected.order_id, request.expected.currency) == (instruction.client_orderid, instruction.currency)
    assert str(request.expected.amount) == instruction.amount
