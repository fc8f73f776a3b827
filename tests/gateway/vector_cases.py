"""The published signature vectors: what they are made of. `write_vectors.py` writes them, the tests hold them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway_cases import (
    CALLBACK_URL,
    CONSUMER_KEY,
    KEY_FILE,
    NONCE,
    RULES,
    TIMESTAMP_S,
    instruction_for,
    signer,
)

from paygw_batch.core.instruction import Instruction
from paygw_batch.gateway.explain import explain
from paygw_batch.gateway.sign import PrivateKey, SignatureProfile

VECTORS = Path(__file__).resolve().parents[2] / "docs" / "signing-vectors.json"
PAGE = VECTORS.with_name("signing.md")


def named(country: str, name: str, **changes: Any) -> Instruction:
    """Return a good instruction whose payee is called `name`."""
    made = instruction_for(country, **changes)
    return replace(made, fields={**made.fields, "account_name": name})


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


def vectors(key: PrivateKey) -> dict[str, Any]:
    """Return the published file: everything another implementation needs, and what it must come to."""
    made = []
    for profile in SignatureProfile:
        for name, shows, instruction in CASES:
            explanation = explain(
                signer(key, profile),
                RULES[instruction.country],
                instruction,
                order_id=instruction.client_orderid,
                nonce=NONCE,
                timestamp_s=TIMESTAMP_S,
            )
            made.append({"name": f"{profile.value}/{name}", "shows": shows, **explanation.as_json()})
    return {
        "about": "Test vectors for docs/signing.md. The key is published here, so it protects nothing: never use it.",
        "consumer_key": CONSUMER_KEY,
        "nonce": NONCE,
        "timestamp": str(TIMESTAMP_S),
        "server_callback_url": CALLBACK_URL,
        "private_key_pem": "-----BEGIN" + KEY_FILE.read_text().partition("-----BEGIN")[2],
        "public_key_pem": key.public_key_pem().decode(),
        "vectors": made,
    }


def as_text(file: dict[str, Any]) -> str:
    """Return the file's text."""
    return json.dumps(file, ensure_ascii=False, indent=1) + "\n"
