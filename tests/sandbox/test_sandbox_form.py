"""Orders that the sandbox accepts: the body, and the form of their country."""

from dataclasses import replace
from decimal import Decimal

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import Rules
from paygw_batch.sandbox.form import FormCheck, Order, Refusal
from paygw_batch.sandbox.verifier import Verifier
from tests.sandbox.sandbox_merchant import (
    GOOD,
    PROFILES,
    MakeVerifier,
    Merchant,
    build_request,
    encode_body,
    parse_fields,
    require_refusal,
)

KENYA = GOOD["KE"]
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
    verdict = require_refusal(make_verifier(merchant).verify(replace(build_request(merchant, KENYA), body=body)))
    assert (verdict.http_status, verdict.code) == (400, "body")


@pytest.mark.parametrize("code", GOOD)
def test_missing_or_further_field_is_refused(verifier: Verifier, merchant: Merchant, code: str) -> None:
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


def test_refused_country_or_field_is_not_repeated(verifier: Verifier, merchant: Merchant) -> None:
    verdict = require_refusal(verifier.verify(build_request(merchant, KENYA | {"Jane Doe 0712345678": "x"})))
    assert "Jane" not in verdict.message
    phone_of_nowhere = GOOD["CI"] | {"phone": "+254712345678"}
    assert require_refusal(verifier.verify(build_request(merchant, phone_of_nowhere))).code == "currency"
    check = FormCheck(load_rules("payout", {}))
    assert require_refusal(check.check(parse_fields(encode_body(GOOD["SN"])))).code == "currency"
    assert require_refusal(check.check(parse_fields(encode_body(KENYA)))).code == "purpose"


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
def test_wrong_value_names_its_field(verifier: Verifier, merchant: Merchant, code: str, name: str, value: str) -> None:
    verdict = require_refusal(verifier.verify(build_request(merchant, GOOD[code] | {name: value})))
    assert (verdict.http_status, verdict.code) == (422, name)
    assert verdict.message.startswith(f"{name} ")
    assert len(value) < 4 or value not in verdict.message
    assert verdict.order_id == (value if name == "client_orderid" else GOOD[code]["client_orderid"])


@pytest.mark.parametrize(
    ("currency", "code"),
    [("EUR", "currency"), ("kes", "currency"), ("", "currency"), ("XOF", "currency"), ("UGX", "amount")],
)
def test_unexpected_currency_is_refused(verifier: Verifier, merchant: Merchant, currency: str, code: str) -> None:
    verdict = require_refusal(verifier.verify(build_request(merchant, KENYA | {"currency": currency})))
    assert (verdict.http_status, verdict.code) == (422, code)


@pytest.mark.parametrize(
    ("sent", "instead", "code"),
    [(b"1500.50", b'"1500.50"', "amount"), (b'"254712345678"', b"254712345678", "account_number")],
    ids=["an amount as text", "a number where text belongs"],
)
def test_wrong_type_is_refused(verifier: Verifier, merchant: Merchant, sent: bytes, instead: bytes, code: str) -> None:
    request = build_request(merchant, KENYA, body=BODY.replace(sent, instead))
    assert require_refusal(verifier.verify(request)).code == code


def test_amount_outside_operators_limits_is_refused(rules: Rules) -> None:
    limited = replace(rules["KE"], min_amount=Decimal(10), max_amount=Decimal(100))
    check = FormCheck({"KE": limited})

    def verdict(amount: str) -> Order | Refusal:
        return check.check(parse_fields(encode_body(KENYA | {"amount": amount})))

    assert isinstance(verdict("10"), Order)
    assert isinstance(verdict("100.00"), Order)
    assert require_refusal(verdict("9.99")).code == "amount"
    assert require_refusal(verdict("100.01")).code == "amount"


@pytest.mark.parametrize("value", ["0712345678", "Jane\nDoe", "+254 712"])
def test_sandbox_accepts_any_form_of_phone(verifier: Verifier, merchant: Merchant, value: str) -> None:
    fields = KENYA | {"account_name": value, "account_number": value, "phone": value}
    assert isinstance(verifier.verify(build_request(merchant, fields)), Order)
