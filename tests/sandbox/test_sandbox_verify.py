"""The requests that the sandbox accepts: request line, headers, signature, body, and the form of the country."""

import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.message import Attempt
from paygw_batch.gateway.sign import SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey
from paygw_batch.sandbox.form import FormCheck, Order, Request
from paygw_batch.sandbox.verifier import CLOCK_TOLERANCE_S, Authenticator, NonceMemory, VerifiedProfile, Verifier
from tests.sandbox.sandbox_merchant import (
    GOOD,
    NOW_S,
    PATH,
    PROFILES,
    MakeVerifier,
    Merchant,
    build_request,
    encode_body,
    oauth_header,
    parse_fields,
    require_refusal,
)
from tests.support.gateway_cases import RULES, instruction_for, signed, signer

KENYA = GOOD["KE"]


def refused(verifier: Verifier, request: Request) -> tuple[int, str]:
    verdict = require_refusal(verifier.verify(request))
    return verdict.http_status, verdict.code


@pytest.mark.parametrize("signs", PROFILES)
def test_wrong_profile_is_refused(make_verifier: MakeVerifier, merchant_key: RSAPrivateKey, signs: str) -> None:
    expectations = next(profile for profile in PROFILES if profile != signs)
    verifier = make_verifier(Merchant(merchant_key, expectations))
    verdict = require_refusal(verifier.verify(build_request(Merchant(merchant_key, signs), KENYA)))
    assert (verdict.http_status, verdict.code, verdict.order_id) == (401, "signature", KENYA["client_orderid"])


@pytest.mark.parametrize("profile", PROFILES)
def test_changed_signed_body_is_refused(make_verifier: MakeVerifier, merchant_key: RSAPrivateKey, profile: str) -> None:
    merchant = Merchant(merchant_key, profile)
    changes = [KENYA | {name: value + "x"} for name, value in KENYA.items() if name != "amount"]
    for changed in (*changes, KENYA | {"amount": "1500.51"}, KENYA | {"amount": "1500.5"}):
        request = replace(build_request(merchant, KENYA), body=encode_body(changed))
        assert refused(make_verifier(merchant), request) == (401, "signature"), changed


@pytest.mark.parametrize("profile", PROFILES)
def test_sandbox_accepts_client_signature(merchant_key: RSAPrivateKey, profile: str) -> None:
    """Names in several scripts are signed as UTF-8 by both."""
    merchant, url = Merchant(merchant_key, profile), f"http://127.0.0.1:8080{PATH}"
    client = signer(PrivateKey(merchant_key), SignatureProfile(profile), url=url)
    pem, verified = merchant.public_key_pem(), VerifiedProfile(profile)
    authenticator = Authenticator(consumer_key=client.consumer_key, public_key_pem=pem, profile=verified)
    for number, (country, rule) in enumerate(RULES.items()):
        instruction = instruction_for(country)
        sent = signed(client, rule, Attempt(instruction, instruction.client_orderid, f"{number:032x}", NOW_S))
        headers = (("host", "127.0.0.1:8080"), ("authorization", sent.authorization))
        request = Request("1.1", "POST", PATH, "", headers, sent.body)
        assert authenticator.check(request, parse_fields(sent.body), NOW_S) is None, country


def test_signature_for_another_host_or_key_is_refused(verifier: Verifier, merchant: Merchant) -> None:
    signed = build_request(merchant, KENYA, host="gateway.example")
    headers = tuple((name, "127.0.0.1:8080" if name == "host" else value) for name, value in signed.headers)
    assert refused(verifier, replace(signed, headers=headers)) == (401, "signature")
    stranger = Merchant(generate_private_key(public_exponent=65537, key_size=2048))
    assert refused(verifier, build_request(stranger, KENYA)) == (401, "signature")
    for signature in ("AAAA", "not base64!", "AAA"):
        header = oauth_header(merchant.parameters() | {"oauth_signature": signature})
        request = build_request(merchant, KENYA, headers={"authorization": header})
        assert refused(verifier, request) == (401, "signature")


def test_signed_request_in_time_uses_nonce_once(verifier: Verifier, merchant: Merchant) -> None:
    request = build_request(merchant, KENYA)
    tampered = replace(request, body=encode_body(KENYA | {"amount": "9"}))
    assert require_refusal(verifier.verify(tampered)).code == "signature"
    assert isinstance(verifier.verify(request), Order)
    assert require_refusal(verifier.verify(request)).code == "nonce"
    for off_s in (-CLOCK_TOLERANCE_S, 0, CLOCK_TOLERANCE_S):
        assert isinstance(verifier.verify(build_request(merchant, KENYA, now_s=NOW_S + off_s)), Order)
    overrides = {"oauth_nonce": "n" * 32}
    for fields, code in ((KENYA | {"phone": ""}, "phone"), (KENYA, "nonce")):
        assert require_refusal(verifier.verify(build_request(merchant, fields, overrides=overrides))).code == code


@given(st.lists(st.floats(0, 300), max_size=30), st.integers(0, 29))
def test_nonce_is_remembered_while_timestamp_is_valid(steps_s: list[float], position: int) -> None:
    memory = NonceMemory()
    now_s, seen_at_s = 0.0, None
    for index, step_s in enumerate(steps_s):
        now_s += step_s
        if index == position:
            assert memory.remember("the nonce", now_s)
            seen_at_s = now_s
        elif seen_at_s is not None and now_s - seen_at_s <= 2 * CLOCK_TOLERANCE_S:
            assert not memory.remember("the nonce", now_s)
        else:
            memory.remember(f"another {index}", now_s)
    for second in range(100):
        memory.remember(str(second), now_s + second * CLOCK_TOLERANCE_S)
    assert len(memory._older) + len(memory._newer) < 10, "expired nonces are discarded"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *(("oauth_consumer_key", "somebody", "consumer_key"), ("oauth_version", "1.0a", "version")),
        *(("oauth_signature_method", method, "signature_method") for method in ("HMAC-SHA1", "RSA-SHA1")),
        *((name, None, "authorization") for name in ("oauth_version", "oauth_nonce")),
        *(("oauth_nonce", "short", "nonce"), ("oauth_token", "t", "authorization"), ("realm", "r", "authorization")),
        *(("oauth_timestamp", text, "timestamp") for text in ("yesterday", "-5", f"{NOW_S}.5")),
        *(("oauth_timestamp", str(NOW_S + sign * (CLOCK_TOLERANCE_S + 1)), "timestamp") for sign in (-1, 1)),
    ],
)
def test_wrong_parameter_is_refused(verifier: Verifier, merchant: Merchant, name: str, value: Any, code: str) -> None:
    request = build_request(merchant, KENYA, overrides={name: value})
    assert refused(verifier, request) == (403 if code == "consumer_key" else 401, code)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("OAuth ", "Bearer "), ("OAuth ", "oauth "), (".+", ""), (".+", "OAuth")),
        *(("$", ","), (", ", "; "), ('"', "")),
        ("$", ', oauth_version="1.0"'),  # a parameter twice
        ("RSA-SHA256", "RSA%2DSHA256"),  # needless encoding
        *(("%3D", "%3d"), ("%3D", "="), ("%3D", "%zz")),
        ('oauth_nonce="', 'oauth_nonce="%FF'),  # not UTF-8
    ],
)
def test_invalid_authorization_is_refused(verifier: Verifier, merchant: Merchant, old: str, new: str) -> None:
    header = re.sub(old, new, dict(build_request(merchant, KENYA).headers)["authorization"])
    request = build_request(merchant, KENYA, headers={"authorization": header})
    assert refused(verifier, request) == (401, "authorization")


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"http_version": "1.0"}, (400, "http")),
        *(({"method": method}, (405, "method")) for method in ("GET", "PUT")),
        ({"path": "/paynet/api/v4/payout/1001"}, (403, "endpoint")),
        *(({"path": PATH + "/"}, (403, "endpoint")), ({"path": "/"}, (404, "path")), ({"query": "a=b"}, (404, "path"))),
        ({"path": "/paynet/api/v2/sale-form/1000"}, (404, "path")),
    ],
)
def test_wrong_method_or_path_is_refused(verifier: Verifier, merchant: Merchant, change: Any, answer: Any) -> None:
    assert refused(verifier, replace(build_request(merchant, KENYA), **change)) == answer


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        *(("content-type", value, 415) for value in (None, "application/json; charset=utf-8", "text/json")),
        *(("content-encoding", "gzip", 415), ("accept", None, 406), ("accept", "*/*", 406)),
        *(("host", None, 400), ("authorization", None, 401)),
    ],
)
def test_wrong_header_is_refused(verifier: Verifier, merchant: Merchant, name: str, value: Any, status: int) -> None:
    assert refused(verifier, build_request(merchant, KENYA, headers={name: value})) == (status, name)
    request = build_request(merchant, KENYA)
    twice = replace(request, headers=(*request.headers, (name, dict(request.headers).get(name, "gzip"))))
    assert refused(verifier, twice)[1] == name


def test_invalid_public_key_is_configuration_error() -> None:
    ec_key = generate_ec_key(SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for pem in (b"no key", ec_key):
        with pytest.raises(ConfigurationError):
            Authenticator(consumer_key="c", public_key_pem=pem, profile=VerifiedProfile.RAW_BODY)


BODY = encode_body(KENYA)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"amount=1500", b"[]", b'"text"', b"null", b"[" * 60000, b'{"a":' * 10000),
        *(b"\xef\xbb\xbf" + BODY, BODY.decode().encode("utf-16"), BODY + b"{}", BODY[:-1], BODY.replace(b"}", b",}")),
        *(BODY.replace(b"Amina", name) for name in (b"\xff", b"\\ud800")),
        *(BODY.replace(b"1500.50", amount) for amount in (b"NaN", b"-Infinity", b"01500", b"null", b"true")),
        *(BODY.replace(b"1500.50", amount) for amount in (b'{"value": 1}', b"[1500.50]")),
        BODY.replace(b"{", b'{"amount": 1, ', 1),
        BODY.replace(b'"account_name"', b'"\\ud800"'),
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_body_other_than_flat_json_object_is_refused(
    make_verifier: MakeVerifier, merchant_key: RSAPrivateKey, profile: str, body: bytes
) -> None:
    merchant = Merchant(merchant_key, profile)
    assert refused(make_verifier(merchant), replace(build_request(merchant, KENYA), body=body)) == (400, "body")


@pytest.mark.parametrize("code", GOOD)
def test_missing_or_extra_field_is_refused(verifier: Verifier, merchant: Merchant, code: str) -> None:
    for missing in GOOD[code]:
        fields = {name: value for name, value in GOOD[code].items() if name != missing}
        verdict = require_refusal(verifier.verify(build_request(merchant, fields)))
        assert (verdict.http_status, verdict.code) == (422, missing)
        assert verdict.message.startswith(missing)
    others = {"control": "x", "order": "x", "cell_phone": "x", "country": code}
    others |= {"purpose": "TEST-ZA"} if code == "ZA" else {}
    others |= {"phone": "+255621234567"} if code == "TZ" else {"receiver_phone": "0712345678"}
    for name, value in others.items():
        verdict = require_refusal(verifier.verify(build_request(merchant, GOOD[code] | {name: value})))
        assert (verdict.http_status, verdict.code) == (422, "body")
        assert name in verdict.message


def test_repr_and_refusal_hide_payee(verifier: Verifier, merchant: Merchant) -> None:
    verdict = require_refusal(verifier.verify(build_request(merchant, KENYA | {"Jane Doe 0712345678": "x"})))
    assert "Jane" not in verdict.message
    phone_of_nowhere = GOOD["CI"] | {"phone": "+254712345678"}
    assert require_refusal(verifier.verify(build_request(merchant, phone_of_nowhere))).code == "currency"
    check = FormCheck(load_rules("payout", {}))
    assert require_refusal(check.check(parse_fields(encode_body(GOOD["SN"])))).code == "currency"
    assert require_refusal(check.check(parse_fields(encode_body(KENYA)))).code == "purpose"
    request = build_request(merchant, KENYA)
    order = verifier.verify(request)
    assert "254712345678" not in repr(request) + repr(order)
    assert "oauth" not in repr(request)


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        *(("KE", "amount", value) for value in ("0", "0.00", "-5", "1.5e3", "1E3", "100.105", "1000000000000000")),
        *(("UG", "amount", "100.0"), ("CI", "amount", "100.00")),
        *((code, "account_name", value) for code, value in (("KE", ""), ("KE", "   "), ("RW", ""))),
        *(("KE", "purpose", value) for value in ("TEST-UG", "test-ke", "")),
        *(("KE", "client_orderid", ""), ("NG", "purpose", "TEST-BANK")),
        *(("TZ", "receiver_country_code", "KE"), ("TZ", "receiver_first_name", "")),
    ],
)
def test_refusal_names_wrong_field(verifier: Verifier, merchant: Merchant, code: str, name: str, value: str) -> None:
    verdict = require_refusal(verifier.verify(build_request(merchant, GOOD[code] | {name: value})))
    assert (verdict.http_status, verdict.code) == (422, name)
    assert verdict.message.startswith(f"{name} ")
    assert len(value) < 4 or value not in verdict.message
    assert verdict.order_id == (value if name == "client_orderid" else GOOD[code]["client_orderid"])


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        *(('"KES"', f'"{currency}"', "currency") for currency in ("EUR", "kes", "", "XOF")),
        ('"KES"', '"UGX"', "amount"),
        ("1500.50", '"1500.50"', "amount"),
        ('"254712345678"', "254712345678", "account_number"),
    ],
)
def test_wrong_currency_or_type_refused(verifier: Verifier, merchant: Merchant, old: str, new: str, code: str) -> None:
    body = BODY.replace(old.encode(), new.encode())
    fields = KENYA | {"currency": new.strip('"')} if old == '"KES"' else KENYA
    assert refused(verifier, build_request(merchant, fields, body=body)) == (422, code)


def test_amount_outside_limits_is_refused(rules: Rules) -> None:
    limited = replace(rules["KE"], min_amount=Decimal(10), max_amount=Decimal(100))
    check = FormCheck({"KE": limited})

    bodies = [encode_body(KENYA | {"amount": amount}) for amount in ("10", "100.00", "9.99", "100.01")]
    verdicts = [check.check(parse_fields(body)) for body in bodies]
    assert all(isinstance(verdict, Order) for verdict in verdicts[:2])
    assert [require_refusal(verdict).code for verdict in verdicts[2:]] == ["amount", "amount"]


@pytest.mark.parametrize("value", ["0712345678", "Jane\nDoe", "+254 712"])
def test_sandbox_accepts_any_phone_format(verifier: Verifier, merchant: Merchant, value: str) -> None:
    fields = KENYA | {"account_name": value, "account_number": value, "phone": value}
    assert isinstance(verifier.verify(build_request(merchant, fields)), Order)
