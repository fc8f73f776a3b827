"""Collections that the sandbox accepts, one for each country, and those that it refuses."""

import hashlib
from typing import Any

import pytest

from paygw_batch.sandbox.form import ControlRule, Expectations, Order
from paygw_batch.sandbox.verifier import Verifier
from tests.sandbox.sandbox_merchant import ENDPOINT_ID, Merchant, build_request, require_refusal, verifier_of
from tests.support.operator_terms import complete_rules

PATH = f"/paynet/api/v2/sale-form/{ENDPOINT_ID}"
RULES = complete_rules("TEST", "payin")
CONTROL = ControlRule(("client_orderid", "amount", "currency", "secret"), "#", "as-sent", "s3cret")


def add_control(fields: dict[str, str]) -> dict[str, str]:
    text = f"{fields['client_orderid']}#{fields['amount']}#{fields['currency']}#s3cret"
    return fields | {"control": hashlib.sha256(text.encode()).hexdigest()}


def good_collection(code: str) -> dict[str, str]:
    """Return a good collection, written by hand from sections 2.1 to 2.4 of the interface."""
    rule = RULES[code]
    number = f"+{rule.numbers.dialling_code}{rule.numbers.example}"
    fields = {
        "address1": "1 Long Street",
        "amount": "1500" if rule.minor_units == 0 else "1500.50",
        "cell_phone": number,
        "city": "Town",
        "client_orderid": f"COL-{code}",
        "country": code,
        "currency": rule.currency,
        "email": "neema@example.com",
        "first_name": "Neema",
        "last_name": "Mushi",
        "ipaddress": "192.0.2.1",
        "order_desc": "Fees",
        "phone": f"{number[:6]}**{number[8:]}",
        "purpose": rule.purpose or "",
        "redirect_url": "https://merchant.example/thanks",
        "server_callback_url": "https://merchant.example/callback",
        "site_url": "https://merchant.example",
        "zip_code": "P-7062",
    }
    if code == "KE":
        del fields["cell_phone"]
        fields["merchant_data"] = "tag"
    if code == "RW":
        fields["account_name"] = "Keza Gasana"
    if code == "ZA":
        del fields["purpose"]
    return add_control(fields)


@pytest.fixture
def verifier(merchant: Merchant) -> Verifier:
    return verifier_of(merchant, "payin", RULES, Expectations(amount_is_text=False, control=CONTROL))


def verify_refused(verifier: Verifier, merchant: Merchant, fields: dict[str, str], path: str = PATH) -> str:
    return require_refusal(verifier.verify(build_request(merchant, fields, path=path))).code


@pytest.mark.parametrize("code", sorted(RULES))
def test_collection_needs_all_country_fields(verifier: Verifier, merchant: Merchant, code: str) -> None:
    fields = good_collection(code)
    order = verifier.verify(build_request(merchant, fields, path=PATH))
    payer = fields.get("cell_phone", fields["phone"])
    purpose = fields.get("purpose")
    callback = fields["server_callback_url"]
    assert order == Order(f"COL-{code}", code, RULES[code].currency, fields["amount"], payer, purpose, callback)
    for name in good_collection(code).keys() - {"country", "currency"}:
        fields = {each: value for each, value in good_collection(code).items() if each != name}
        assert verify_refused(verifier, merchant, fields) == name


@pytest.mark.parametrize(
    ("code", "further"),
    [
        *(("KE", {"cell_phone": "+254712345678"}), ("KE", {"account_name": "Jane"}), ("ZA", {"purpose": "X"})),
        *(("CI", {"merchant_data": "tag"}), ("TZ", {"account_number": "255621234567"})),
    ],
)
def test_field_unused_by_country_is_refused(verifier: Verifier, merchant: Merchant, code: str, further: Any) -> None:
    assert verify_refused(verifier, merchant, good_collection(code) | further) == "body"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("control", "0" * 64, "control"),
        ("control", hashlib.sha256(b"COL-KE#1500.50#KES#").hexdigest(), "control"),
        ("control", hashlib.sha256(b"COL-KE#1500.50#KES#s3cret").hexdigest().upper(), "control"),
        ("amount", "1500.5", "control"),
        ("client_orderid", "COL-KF", "control"),
        ("purpose", "OTHER", "purpose"),
    ],
)
def test_refused_value_names_field(verifier: Verifier, merchant: Merchant, name: str, text: str, code: str) -> None:
    assert verify_refused(verifier, merchant, good_collection("KE") | {name: text}) == code


def test_collection_on_payout_path_is_refused(verifier: Verifier, merchant: Merchant) -> None:
    for path, code in ((f"/paynet/api/v4/payout/{ENDPOINT_ID}", "path"), ("/paynet/api/v2/sale-form/9", "endpoint")):
        assert verify_refused(verifier, merchant, good_collection("KE"), path) == code
