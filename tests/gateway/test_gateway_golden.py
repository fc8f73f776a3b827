"""Golden requests and published signature vectors agree with the code, the page, and independent libraries."""

import hashlib
import json
import re
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from paygw_batch.gateway.sign import SECRET_PLACEHOLDER, SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey
from tests.gateway.vector_cases import CASES, COLLECTIONS, PAGE, VECTORS, as_text, vectors
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


@pytest.mark.parametrize("country", RULES)
@pytest.mark.parametrize("profile", SignatureProfile)
def test_golden_payout_request_has_interface_form(key: PrivateKey, profile: SignatureProfile, country: str) -> None:
    request, instruction = prepare_golden_request(key, profile, country), instruction_for(country)
    assert request_bytes(request) == golden_path(profile, country).read_bytes()
    first, headers, body = split_request(request_bytes(request))
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
    assert oauth.pop(2)[0] == "oauth_signature"
    assert oauth == [
        ("oauth_consumer_key", CONSUMER_KEY),
        ("oauth_nonce", NONCE),
        ("oauth_signature_method", "RSA-SHA256"),
        ("oauth_timestamp", str(TIMESTAMP_S)),
        ("oauth_version", "1.0"),
    ]
    pairs: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
    expected = {
        **instruction.fields,
        "client_orderid": instruction.client_orderid,
        "currency": instruction.currency,
        "amount": "250000" if RULES[country].minor_units == 0 else "1500.50",
        "purpose": RULES[country].purpose or "is never empty",
        "server_callback_url": CALLBACK_URL,
    }
    never_sent = {"ZA": "purpose", "TZ": "server_callback_url"}.get(country)
    assert pairs == sorted(item for item in expected.items() if item[0] != never_sent)
    assert request.body_sha256 == hashlib.sha256(request.body).hexdigest()
    assert (request.nonce, request.timestamp_s, request.url) == (NONCE, TIMESTAMP_S, URL)
    assert request.purpose == (None if country == "ZA" else RULES[country].purpose)
    assert (request.expected.order_id, request.expected.currency) == (instruction.client_orderid, instruction.currency)
    assert str(request.expected.amount) == instruction.amount


def test_every_country_and_profile_has_golden_request() -> None:
    kept = {path.name for path in GOLDEN.glob("*.http")}
    assert kept == {golden_path(profile, country).name for profile in SignatureProfile for country in RULES}


FILE: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
EVERY = [pytest.param(vector, id=vector["name"]) for vector in FILE["vectors"]]
ON_THE_PAGE = "json-params/latin"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which openssl finds the published keys."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("private", "public"):
        (folder / f"{name}.pem").write_text(FILE[f"{name}_key_pem"])
    return folder


def encode_rfc_3986(text: str) -> str:
    return quote(text, safe="-._~")


def body_fields(vector: dict[str, Any]) -> dict[str, str]:
    """Return the body's fields, with the digits of numbers unchanged."""
    fields: dict[str, str] = json.loads(vector["body"], parse_int=str, parse_float=str)
    return fields


def build_page_base_string(vector: dict[str, Any]) -> str:
    """Build the base string as the page says, with only the standard library."""
    oauth = {
        "oauth_consumer_key": FILE["consumer_key"],
        "oauth_nonce": FILE["nonce"],
        "oauth_signature_method": "RSA-SHA256",
        "oauth_timestamp": FILE["timestamp"],
        "oauth_version": "1.0",
    }
    fields = body_fields(vector)
    signed = {**oauth, **fields} if vector["profile"] == "json-params" else oauth
    pairs = sorted((encode_rfc_3986(name), encode_rfc_3986(value)) for name, value in signed.items())
    parts = [vector["url"], "&".join(f"{name}={value}" for name, value in pairs)]
    if vector["profile"] == "raw-body":
        parts.append(vector["body"])
    return "&".join(["POST", *map(encode_rfc_3986, parts)])


def test_vector_file_matches_code_and_cases(key: PrivateKey) -> None:
    assert VECTORS.read_text(encoding="utf-8") == as_text(vectors(key))
    cases = [*(name for name, _, _ in CASES), *(case[0] for case in COLLECTIONS)]
    names = [f"{profile.value}/{name}" for profile in SignatureProfile for name in cases]
    assert [vector["name"] for vector in FILE["vectors"]] == names
    assert (FILE["consumer_key"], FILE["nonce"], FILE["timestamp"]) == (CONSUMER_KEY, NONCE, str(TIMESTAMP_S))


@pytest.mark.parametrize("vector", EVERY)
def test_standard_library_computes_same_base_string(vector: dict[str, Any]) -> None:
    assert build_page_base_string(vector) == vector["base_string"]
    assert hashlib.sha256(vector["base_string"].encode()).hexdigest() == vector["digest"]
    assert hashlib.sha256(vector["body"].encode()).hexdigest() == vector["body_sha256"]
    assert dict(parse_oauth(vector["authorization"]))["oauth_signature"] == vector["signature"]
    encoded = [one["encoded"] for one in vector["parameters"]]
    assert encode_rfc_3986("&".join(encoded)) == vector["base_string"].split("&")[2]
    assert encoded == [f"{encode_rfc_3986(it['name'])}={encode_rfc_3986(it['value'])}" for it in vector["parameters"]]
    assert encoded == sorted(encoded, key=lambda text: tuple(text.split("=")))


@pytest.mark.parametrize("vector", [one for one in FILE["vectors"] if "control" in one], ids=lambda one: one["name"])
def test_standard_library_computes_same_control_hash(vector: dict[str, Any]) -> None:
    profile, fields = vector["control_profile"], body_fields(vector)
    amount = {"as-sent": fields["amount"], "minor-units": str(int(Decimal(fields["amount"]) * 100))}[profile["amount"]]
    parts = {**fields, "amount": amount, "secret": profile["secret"]}
    text = profile["separator"].join(parts[part] for part in profile["order"])
    assert hashlib.sha256(text.encode()).hexdigest() == vector["control"]["value"] == fields["control"]
    assert vector["control"]["text"].replace(SECRET_PLACEHOLDER, profile["secret"]) == text
    assert not profile["secret"] or profile["secret"] not in vector["control"]["text"]


def test_openssl_and_signing_page_match_vectors(keys: Path) -> None:
    der = ["openssl", "pkey", "-pubin", "-in", str(keys / "public.pem"), "-outform", "DER"]
    fingerprint = hashlib.sha256(subprocess.run(der, capture_output=True, check=True).stdout).hexdigest()
    assert {vector["key_fingerprint"] for vector in FILE["vectors"]} == {fingerprint}
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for vector in FILE["vectors"]:
        environ = {"BASE_STRING": vector["base_string"], "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", command], cwd=keys, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == vector["signature"]
    assert f"has {len(FILE['vectors'])} of them" in PAGE.read_text(encoding="utf-8")
    (vector,) = (one for one in FILE["vectors"] if one["name"] == ON_THE_PAGE)
    blocks = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    displayed = [vector[name] for name in ("body", "base_string", "signature")]
    assert blocks == [*displayed, f"Authorization: {vector['authorization']}"]
