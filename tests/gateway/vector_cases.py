"""The cases of the published signature vectors: `python -m tests.gateway.vector_cases` writes them."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.load import load_operation, load_rules
from paygw_batch.countries.rules import AmountForm, CountryRule, OperatorTerms
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.encode import BodyConstants, ControlAmount, ControlPart, ControlProfile
from paygw_batch.gateway.sign import SignatureProfile, Signer, explain
from paygw_batch.gateway.signing.key import PrivateKey
from tests.support.gateway_cases import (
    BASE_URL,
    CALLBACK_URL,
    CONSUMER_KEY,
    ENDPOINT_ID,
    KEY_FILE,
    NONCE,
    RULES,
    TIMESTAMP_S,
    instruction_for,
    private_test_key,
    signer,
)

PAYIN_RULES = load_rules("payin", {code: OperatorTerms(purpose=f"OPERATOR-{code}") for code in ("KE", "GH")})
PAYIN_URL = operation_url(BASE_URL, load_operation("payin"), ENDPOINT_ID)
SHOP = "https://shop.example"
OWN_URLS = {"redirect_url": f"{SHOP}/thanks", "server_callback_url": CALLBACK_URL, "site_url": SHOP}
VECTORS = Path(__file__).resolve().parents[2] / "docs" / "signing-vectors.json"
PAGE = VECTORS.with_name("signing.md")


def named(country: str, name: str, **changes: Any) -> Instruction:
    made = instruction_for(country, **changes)
    return replace(made, fields={**made.fields, "account_name": name})


def build_collection(country: str, **changes: str) -> Instruction:
    rule = PAYIN_RULES[country]
    number = f"+{rule.numbers.dialling_code}700123456"
    fields = {
        "address1": "12 Ngong Road",
        "cell_phone": number,
        "city": "Nairobi",
        "email": "customer@example.com",
        "first_name": "Zoë",
        "last_name": "O'Brien",
        "ipaddress": "127.0.0.1",
        "order_desc": "Invoice 7/2026",
        "phone": number,
        "zip_code": "00100-A",
        **changes,
    }
    return Instruction(f"COLLECT-{country}-1", country, rule.currency, "1500.5", "customer", fields)


CASES: tuple[tuple[str, str, Instruction], ...] = (
    ("plain", "A plain payout.", named("KE", "Jane Wanjiku", amount="1500")),
    ("two-decimals", "Digits are signed as they stand in the body.", named("KE", "Jane", amount="1500.50")),
    ("trailing-zero", "1500.0 is another text than 1500.", named("GH", "Kofi Mensah", amount="1500.0")),
    ("below-one", "An amount below one.", named("ZM", "Mutale", amount="0.05")),
    ("no-minor-units", "A currency without decimals.", named("UG", "Namukasa", amount="250000")),
    ("latin", "Letters beyond ASCII: UTF-8, encoded twice.", named("SN", "Ndèye Aïssata Ouédraogo")),
    ("arabic", "A name written from right to left.", named("EG", "محمد أحمد")),
    ("beyond-16-bits", "A character of four bytes.", named("RW", "Marie 😀")),
    ("decomposed", "An accent of its own is signed as it is: nothing is normalised.", named("BF", "Ai\u0308ssata")),
    ("reserved", "Characters that mean something in URLs and forms.", named("ZM", "A&B=C+D 50% #1/2?;~-._*'()")),
    ("json-escapes", "The value is signed, and not as the body writes it.", named("NG", 'Chuks "Emeka" \\ Okafor')),
    ("no-purpose", "South Africa sends no purpose.", named("ZA", "Thandi Nkosi")),
    ("receiver-form", "The receiver form, with a slash and a plus.", instruction_for("TZ")),
)
"""Name, what it shows, and the instruction."""


_ID_AMOUNT_CURRENCY = (ControlPart.ORDER_ID, ControlPart.AMOUNT, ControlPart.CURRENCY)
COLLECTIONS = (
    (
        *("collection", "A collection: its control is part of the body that is signed."),
        build_collection("KE", merchant_data="tag"),
        BodyConstants(OWN_URLS, AmountForm.NUMBER, ControlProfile(_ID_AMOUNT_CURRENCY, "", ControlAmount.AS_SENT)),
    ),
    (
        "collection-with-secret",
        "The amount as text with two decimals, its control in minor units, with a secret; a phone partly hidden.",
        build_collection("GH", phone="+2337*****456"),
        BodyConstants(
            *(OWN_URLS, AmountForm.TWO_DECIMALS),
            ControlProfile((*_ID_AMOUNT_CURRENCY, ControlPart.SECRET), "|", ControlAmount.MINOR_UNITS, "published"),
        ),
    ),
)
"""Name, what it shows, the instruction, and the form of its amount with its control profile."""


def describe_control(control: ControlProfile) -> dict[str, Any]:
    """Return a control profile as another implementation needs it."""
    order = [part.value for part in control.order]
    return {"order": order, "separator": control.separator, "amount": control.amount.value, "secret": control.secret}


def _explain_case(made: Signer, rule: CountryRule, instruction: Instruction) -> dict[str, Any]:
    order_id = instruction.client_orderid
    return explain(made, rule, instruction, order_id=order_id, nonce=NONCE, timestamp_s=TIMESTAMP_S).as_json()


def vectors(key: PrivateKey) -> dict[str, Any]:
    """Return the published vectors: all inputs for another implementation, and the expected results."""
    made: list[dict[str, Any]] = []
    for profile in SignatureProfile:
        for name, shows, instruction in CASES:
            explained = _explain_case(signer(key, profile), RULES[instruction.country], instruction)
            made.append({"name": f"{profile.value}/{name}", "shows": shows, "operation": "payout", **explained})
        for name, shows, instruction, constants in COLLECTIONS:
            signs = replace(signer(key, profile, url=PAYIN_URL), constants=constants)
            explained = _explain_case(signs, PAYIN_RULES[instruction.country], instruction)
            about = {"name": f"{profile.value}/{name}", "shows": shows, "operation": "payin"}
            assert constants.control is not None
            made.append({**about, "control_profile": describe_control(constants.control), **explained})
    return {
        "about": "Test vectors for docs/signing.md. The key is published here, so it protects nothing: never use it.",
        "consumer_key": CONSUMER_KEY,
        "nonce": NONCE,
        "timestamp": str(TIMESTAMP_S),
        "server_callback_url": CALLBACK_URL,
        "private_key_pem": "-----BEGIN" + KEY_FILE.read_text().partition("-----BEGIN")[2],
        "public_key_pem": key.public.public_key_pem().decode(),
        "vectors": made,
    }


def as_text(file: dict[str, Any]) -> str:
    return json.dumps(file, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":  # after an intended change of the requests; review the difference
    with tempfile.TemporaryDirectory() as directory:
        VECTORS.write_text(as_text(vectors(private_test_key(Path(directory)))), encoding="utf-8")
