"""Rules, an instruction for each country, a test key, and golden requests for the tests of the gateway."""

import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from oauthlib.oauth1.rfc5849.signature import base_string_uri, normalize_parameters, signature_base_string
from oauthlib.oauth1.rfc5849.utils import parse_authorization_header, unescape

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.load import load_operation
from paygw_batch.countries.rules import CountryRule, OperatorTerms
from paygw_batch.gateway.address import operation_url, parse_gateway_url
from paygw_batch.gateway.encode import BodyConstants
from paygw_batch.gateway.http.http1 import build_payout_request
from paygw_batch.gateway.message import Attempt, PreparedRequest
from paygw_batch.gateway.sign import SignatureProfile, Signer
from paygw_batch.gateway.signing.key import PrivateKey, load_private_key
from tests.support.operator_terms import complete_rules

HERE = Path(__file__).resolve().parents[1] / "gateway"
GOLDEN = HERE / "golden"
KEY_FILE = HERE / "keys" / "throw-away.pem"

BASE_URL = "https://gateway.example"
ENDPOINT_ID = "1234"
CONSUMER_KEY = "merchant-login"
CALLBACK_URL = "https://merchant.example/paygw/callback?from=gateway&n=1"
SUPPLIES = BodyConstants({"server_callback_url": CALLBACK_URL})
NONCE = "00112233445566778899aabbccddeeff"
TIMESTAMP_S = 1_790_000_000
OPERATION = load_operation("payout")
URL = operation_url(BASE_URL, OPERATION, ENDPOINT_ID)
BANK = OperatorTerms(purpose="BANK/WALLET-A/WALLET-B")
RULES = complete_rules("OPERATOR", NG=BANK)

_NAMES = {
    "KE": "Wanjiku Kamau",
    "UG": "Namukasa O'Brien",
    "GH": "Kofi Mensah-Bonsu",
    "NG": "Chukwuemeka “Emeka” Okafor",
    "ZM": "Mutale & Sons",
    "RW": "Uwimana 50% Marie",
    "EG": "محمد أحمد",
    "ZA": "Thandi \\ Nkosi",
    "BF": "Aïssata Ouédraogo",
    "CI": "Kouassi N'Guessan",
    "SN": "Ndèye Diop",
    "GN": "Mamadou\u00a0Bah",
    "BN": "Dossou=Koffi+1",
}


def instruction_for(country: str, **changes: Any) -> Instruction:
    rule = RULES[country]
    whole = "250000" if rule.minor_units == 0 else "1500.50"
    wallet = f"{rule.numbers.dialling_code}700123456"
    if country == "TZ":
        fields = {
            "ipaddress": "127.0.0.1",
            "order_desc": "Salary, November: 1/2",
            "receiver_country_code": "TZ",
            "receiver_email": "juma.mushi+pay@example.co.tz",
            "receiver_first_name": "Juma",
            "receiver_last_name": "Mushi 😀",
            "receiver_phone": "0700123456",
        }
        form = "receiver"
    else:
        fields = {"account_name": _NAMES.get(country, "Jane Doe"), "account_number": wallet, "phone": f"+{wallet}"}
        form = "account"
    created = Instruction(f"PAY-{country}-0001", country, rule.currency, whole, form, fields)
    return replace(created, **changes) if changes else created


def rule_for(country: str, **changes: Any) -> CountryRule:
    return replace(RULES[country], **changes)


def private_test_key(directory: Path) -> PrivateKey:
    """Return a private copy of the committed test key, because a checkout leaves it readable to others."""
    copy = directory / "throw-away.pem"
    shutil.copyfile(KEY_FILE, copy)
    copy.chmod(0o600)
    return load_private_key(copy)


def signer(key: PrivateKey, profile: SignatureProfile, *, url: str = URL) -> Signer:
    return Signer(
        url=url, endpoint_id=ENDPOINT_ID, consumer_key=CONSUMER_KEY, constants=SUPPLIES, profile=profile, key=key
    )


def signed(signer: Signer, rule: CountryRule, attempt: Attempt) -> PreparedRequest:
    drafted = signer.draft(rule, attempt)
    return drafted.with_signature(signer.key.sign(drafted.text))


def prepare_golden_request(key: PrivateKey, profile: SignatureProfile, country: str) -> PreparedRequest:
    instruction = instruction_for(country)
    attempt = Attempt(instruction, instruction.client_orderid, NONCE, TIMESTAMP_S)
    return signed(signer(key, profile), RULES[country], attempt)


def golden_path(profile: SignatureProfile, country: str) -> Path:
    return GOLDEN / f"{profile.value}-{country}.http"


def request_bytes(request: PreparedRequest) -> bytes:
    return build_payout_request(request, parse_gateway_url(BASE_URL)[0], close=True)


def split_request(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Split a request into request line, headers by lower-case name, and body, without using our own parser."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = {}
    for line in lines:
        name, value = re.fullmatch(r"([A-Za-z-]+): (\S.*)", line).groups()  # type: ignore[union-attr]
        if name.lower() in headers:
            raise AssertionError(f"{name} stands twice")
        headers[name.lower()] = value
    return first, headers, body


def parse_oauth(authorization: str) -> list[tuple[str, str]]:
    """Return the decoded parameters of an `Authorization` header, as oauthlib reads it."""
    return [(name, unescape(value)) for name, value in parse_authorization_header(authorization)]


def oauthlib_base_string(params: Iterable[tuple[str, str]], url: str = URL) -> str:
    """Return the RFC 5849 base string for a POST to `url` with `params`, as oauthlib builds it."""
    normalised = normalize_parameters(list(params))  # type: ignore[arg-type]  # its stub says dict, its code takes pairs
    return str(signature_base_string("POST", base_string_uri(url), normalised))
