"""An independent merchant for tests, which signs requests with `cryptography` and oauthlib, and none of our code."""

import base64
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from oauthlib.oauth1.rfc5849.signature import normalize_parameters, signature_base_string

from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sandbox.form import Expectations, Refusal, Request, parse_body
from paygw_batch.sandbox.record import RecordLine, read_record
from paygw_batch.sandbox.server import SandboxConfig
from paygw_batch.sandbox.verifier import Authenticator, VerifiedProfile, Verifier
from tests.support.operator_terms import complete_rules
from tests.support.patience import PATIENCE_S, wait_until

ENDPOINT_ID = "1000"
CONSUMER_KEY = "sandbox-merchant"
PATH = f"/paynet/api/v4/payout/{ENDPOINT_ID}"
CALLBACK = "https://merchant.example/paygw/callback"
NOW_S = 1_795_000_000

MakeVerifier = Callable[..., Verifier]
MakeConfig = Callable[..., SandboxConfig]

PROFILES = ("json-params", "raw-body")

_nonces = itertools.count()


def payout_rules() -> Rules:
    """Return the rules with purpose codes for tests, and the XOF zone enabled."""
    return complete_rules("TEST", NG=OperatorTerms(purpose="TEST-BANK/TEST-A/TEST-B", bank_account_pattern="[0-9]{10}"))


def account_form(code: str, currency: str, amount: str, number: str, purpose: str | None) -> dict[str, str]:
    """Return the fields of an account-form payout in the interface's order. `amount` is the digits of a number."""
    fields = {
        "account_name": "Amina Wanjirũ O'Brien & Co",
        "account_number": number,
        "amount": amount,
        "client_orderid": f"SAL/2026-11 {code}~1",
        "currency": currency,
        "phone": f"+{number}",
        "purpose": purpose,
        "server_callback_url": CALLBACK,
    }
    return {name: value for name, value in fields.items() if value is not None}


GOOD = {
    "KE": account_form("KE", "KES", "1500.50", "254712345678", "TEST-KE"),
    "UG": account_form("UG", "UGX", "90000", "256712345678", "TEST-UG"),
    "GH": account_form("GH", "GHS", "12.1", "233231234567", "TEST-GH"),
    "NG": account_form("NG", "NGN", "0.01", "2348021234567", "TEST-BANK/TEST-A/TEST-B"),
    "ZM": account_form("ZM", "ZMW", "77", "260955123456", "TEST-ZM"),
    "RW": account_form("RW", "RWF", "5000", "250720123456", "TEST-RW"),
    "EG": account_form("EG", "EGP", "999999999999999.99", "201001234567", "TEST-EG"),
    "ZA": account_form("ZA", "ZAR", "350.00", "27711234567", None),
    "BF": account_form("BF", "XOF", "1000", "22670123456", "TEST-XOF"),
    "CI": account_form("CI", "XOF", "1000", "2250123456789", "TEST-XOF"),
    "SN": account_form("SN", "XOF", "1000", "221701234567", "TEST-XOF"),
    "GN": account_form("GN", "XOF", "1000", "224601123456", "TEST-XOF"),
    "BN": account_form("BN", "XOF", "1000", "2290195123456", "TEST-XOF"),
    "TZ": {
        "amount": "25000.00",
        "client_orderid": "SAL/2026-11 TZ~1",
        "currency": "TZS",
        "ipaddress": "127.0.0.1",
        "order_desc": "Mshahara wa Novemba 50%",
        "purpose": "TEST-TZ",
        "receiver_country_code": "TZ",
        "receiver_email": "neema@example.com",
        "receiver_first_name": "Neema",
        "receiver_last_name": "Mushi",
        "receiver_phone": "0621234567",
    },
}
"""One good payout for each country, written by hand from sections 2.2 to 2.4 of the interface."""


def encode_body(fields: Mapping[str, str]) -> bytes:
    """Return the fields as a JSON object, with `amount` as a number with exactly these digits."""
    members = (f'"{name}": {value if name == "amount" else json.dumps(value)}' for name, value in fields.items())
    return ("{" + ", ".join(members) + "}").encode()


Parameters = Mapping[str, str | None]
NONE: Parameters = MappingProxyType({})


@dataclass(frozen=True)
class Merchant:
    """A merchant that signs requests. `overrides` replace parameters before signing; None omits one."""

    key: RSAPrivateKey = field(repr=False)
    profile: str = "json-params"
    consumer_key: str = CONSUMER_KEY

    def public_key_pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def parameters(self, now_s: float = NOW_S, overrides: Parameters = NONE) -> dict[str, str]:
        parameters: dict[str, str | None] = {
            "oauth_consumer_key": self.consumer_key,
            "oauth_nonce": f"nonce-of-the-tests-own-{next(_nonces)}",
            "oauth_signature_method": "RSA-SHA256",
            "oauth_timestamp": str(int(now_s)),
            "oauth_version": "1.0",
        }
        parameters |= overrides
        return {name: value for name, value in parameters.items() if value is not None}

    def signature(self, url: str, parameters: Mapping[str, str], fields: Mapping[str, str], body: bytes) -> str:
        signed = list(parameters.items())
        if self.profile == "json-params":
            signed += list(fields.items())
        text = signature_base_string("POST", url, normalize_parameters(signed))  # type: ignore[arg-type]  # pairs, says oauthlib itself
        if self.profile == "raw-body":
            text += "&" + quote(body.decode(), safe="")
        return base64.b64encode(self.key.sign(text.encode(), PKCS1v15(), SHA256())).decode()

    def authorization(
        self, url: str, fields: Mapping[str, str], body: bytes, *, now_s: float = NOW_S, overrides: Parameters = NONE
    ) -> str:
        parameters = self.parameters(now_s, overrides)
        return oauth_header(parameters | {"oauth_signature": self.signature(url, parameters, fields, body)})


def verifier_of(merchant: Merchant, operation: str, rules: Rules, expectations: Expectations | None = None) -> Verifier:
    pem, profile = merchant.public_key_pem(), VerifiedProfile(merchant.profile)
    return Verifier(
        endpoint_id=ENDPOINT_ID,
        operation=load_operation(operation),
        rules=rules,
        authenticator=Authenticator(consumer_key=CONSUMER_KEY, public_key_pem=pem, profile=profile),
        clock=lambda: NOW_S,
        expectations=expectations or Expectations(),
    )


def oauth_header(parameters: Mapping[str, str]) -> str:
    return "OAuth " + ", ".join(f'{name}="{quote(value, safe="")}"' for name, value in parameters.items())


def build_request(
    merchant: Merchant,
    fields: Mapping[str, str],
    *,
    body: bytes | None = None,
    headers: Mapping[str, str | None] | None = None,
    host: str = "127.0.0.1:8080",
    path: str = PATH,
    now_s: float = NOW_S,
    overrides: Parameters = NONE,
) -> Request:
    """Return a request as it arrives. `headers` replace headers, or omit them if None."""
    sent = encode_body(fields) if body is None else body
    given: dict[str, str | None] = {
        "host": host,
        "content-type": "application/json",
        "accept": "application/json",
        "authorization": merchant.authorization(f"http://{host}{path}", fields, sent, now_s=now_s, overrides=overrides),
    }
    all_headers = given | dict(headers or {})
    return Request("1.1", "POST", path, "", tuple((n, v) for n, v in all_headers.items() if v is not None), sent)


def raw_request(merchant: Merchant, base_url: str, fields: Mapping[str, str], *, close: bool = True) -> bytes:
    body = encode_body(fields)
    head = [
        f"POST {PATH} HTTP/1.1",
        f"Host: {base_url.removeprefix('http://')}",
        "Content-Type: application/json",
        "Accept: application/json",
        f"Authorization: {merchant.authorization(base_url + PATH, fields, body, now_s=time.time())}",
        f"Content-Length: {len(body)}",
        f"Connection: {'close' if close else 'keep-alive'}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def payout_fields(order_id: str, amount: str = "1500.50", code: str = "KE") -> dict[str, str]:
    return GOOD[code] | {"client_orderid": order_id, "amount": amount}


def split_address(base_url: str) -> tuple[str, int]:
    host, _, port = base_url.removeprefix("http://").partition(":")
    return host, int(port)


def require_refusal(verdict: object) -> Refusal:
    assert isinstance(verdict, Refusal), verdict
    return verdict


def parse_fields(body: bytes) -> Mapping[str, str]:
    fields = parse_body(body)
    assert not isinstance(fields, Refusal), fields
    return fields


@dataclass(frozen=True)
class RunningSandbox:
    base_url: str
    record_path: Path

    def recorded(self, order_id: str) -> list[RecordLine]:
        return [line for line in read_record(self.record_path) if line.client_orderid == order_id]


def connection(base_url: str) -> HTTPConnection:
    return HTTPConnection(*split_address(base_url), timeout=PATIENCE_S)


def post(merchant: Merchant, base_url: str, fields: dict[str, str], **headers: str) -> tuple[HTTPResponse, bytes]:
    body = encode_body(fields)
    authorization = merchant.authorization(base_url + PATH, fields, body, now_s=time.time())
    all_headers = {"Content-Type": "application/json", "Accept": "application/json", "Authorization": authorization}
    sender = connection(base_url)
    try:
        sender.request("POST", PATH, body, all_headers | headers)
        reply = sender.getresponse()
        return reply, reply.read()
    finally:
        sender.close()


def wait_for_record(path: Path, order_id: str) -> None:
    wait_until(lambda: order_id in {line.client_orderid for line in read_record(path)}, f"{order_id} never came")
