"""The merchant of all benchmarks: a key, the sandbox's terms, and rows to pay."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from paygw_batch.clock import timestamp
from paygw_batch.core.batch import Instruction
from paygw_batch.countries.data import config_dir
from paygw_batch.countries.load import load_operation, load_rules
from paygw_batch.countries.rules import Operation, Rules
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.encode import BodyConstants
from paygw_batch.gateway.sign import SignatureProfile, Signer
from paygw_batch.gateway.signing.key import load_private_key
from paygw_batch.journal.journal import Journal
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.values import BatchRecord, NewBatch, NewInstruction
from paygw_batch.settings.configuration import Settings, load_settings

KEY_BITS = 2048
FIELDS = {"account_name": "Wanjiru Mwangi", "account_number": "254712345678", "phone": "+254712345678"}


@dataclass(frozen=True, slots=True)
class Merchant:
    """A merchant with an RSA-2048 key, and the rules and status words of `config/sandbox.toml`."""

    key: Path
    settings: Settings
    rules: Rules
    operation: Operation

    @classmethod
    def load_or_create(cls, directory: Path) -> "Merchant":
        """Return the merchant whose key is in `directory`. Creates the key if it is missing."""
        key = directory / "merchant.pem"
        if not key.exists():
            private = generate_private_key(public_exponent=65537, key_size=KEY_BITS)
            key.touch(mode=0o600)
            key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        settings = load_settings(config_dir() / "sandbox.toml", environ={})
        return cls(key, settings, load_rules("payout", settings.terms("payout")), load_operation("payout"))

    def url(self, base_url: str) -> str:
        """Return the address for payouts at this gateway."""
        return operation_url(base_url, self.operation, "1000")

    def signer(self, base_url: str) -> Signer:
        """Return the signer of payouts for this gateway."""
        return Signer(
            url=self.url(base_url),
            endpoint_id="1000",
            consumer_key="benchmark",
            constants=BodyConstants({"server_callback_url": "https://merchant.example/paygw/callback"}),
            profile=SignatureProfile.JSON_PARAMS,
            key=load_private_key(self.key),
        )


def instruction(row: int) -> Instruction:
    """Return an instruction to pay a Kenyan wallet, in the account form that most countries use."""
    return Instruction(f"BENCH-{row:08}", "KE", "KES", "1500.50", "account", FIELDS)


def open_batch(journal: Journal, rows: int) -> BatchRecord:
    """Open a batch of `rows` such instructions in `journal`."""
    return journal.open_batch(
        NewBatch("be" * 16, "payout", "benchmark.csv", "00" * 32, rows=rows, defects=0),
        parts=[BatchPart([b"rows"], InstructionRows(_new_instructions(rows)))],
        known=[],
        amendments=[],
        at=timestamp(datetime.now(UTC)),
    )


def _new_instructions(rows: int) -> Iterator[NewInstruction]:
    fields = json.dumps(FIELDS)
    for row in range(2, rows + 2):
        paid = instruction(row)
        yield NewInstruction(
            row=row,
            client_orderid=paid.client_orderid,
            country=paid.country,
            currency=paid.currency,
            amount=paid.amount,
            minor=150050,
            form=paid.form,
            fields=fields,
            payee=FIELDS["account_number"],
            content=f"KE|KES|150050|{row}",
        )
