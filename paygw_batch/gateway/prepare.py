"""Prepares requests: encodes and signs an instruction. All that is known before a connection is touched."""

import hashlib
from dataclasses import dataclass, field
from decimal import Decimal

from paygw_batch.core.instruction import Instruction
from paygw_batch.countries.rules import CountryRule
from paygw_batch.gateway.encode import EncodedBody, Supplies, encode_body
from paygw_batch.gateway.message import Expected, PreparedRequest
from paygw_batch.gateway.sign import PrivateKey, SignatureProfile, authorization, base_string, oauth_parameters


@dataclass(frozen=True, slots=True)
class Signer:
    """Turns instructions into signed requests for one endpoint. Frozen, and safe to use from many threads at once.

    `url` is where the operation lives (`endpoint.operation_url`), exactly as it is sent and signed.
    """

    url: str
    consumer_key: str
    supplies: Supplies
    profile: SignatureProfile
    key: PrivateKey = field(repr=False)

    def prepare(
        self, rule: CountryRule, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int
    ) -> PreparedRequest:
        """Return the request of one attempt, signed. Raises what `encode_body` raises."""
        encoded = encode_body(rule, instruction, order_id=order_id, supplies=self.supplies)
        oauth = oauth_parameters(consumer_key=self.consumer_key, nonce=nonce, timestamp_s=timestamp_s)
        signature = self.key.sign(base_string(self.profile, self.url, encoded, oauth))
        return PreparedRequest(
            url=self.url,
            authorization=authorization(oauth, signature),
            body=encoded.body,
            body_sha256=hashlib.sha256(encoded.body).hexdigest(),
            nonce=nonce,
            timestamp_s=timestamp_s,
            purpose=next((value for name, value in encoded.params if name == "purpose"), None),
            expected=Expected(
                order_id,
                Decimal(instruction.amount),
                instruction.currency,
                tuple(url for url in self.supplies.urls.values() if url),
            ),
        )

    def base_string(self, encoded: EncodedBody, *, nonce: str, timestamp_s: int) -> str:
        """Return the text that would be signed for `encoded`, to be shown to a person."""
        oauth = oauth_parameters(consumer_key=self.consumer_key, nonce=nonce, timestamp_s=timestamp_s)
        return base_string(self.profile, self.url, encoded, oauth)
