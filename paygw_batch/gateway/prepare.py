"""Prepares requests: encodes and signs an instruction before a connection is used."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from paygw_batch.core.instruction import Instruction
from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.gateway.encode import EncodedBody, Supplies, encode_body
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest
from paygw_batch.gateway.sign import SignatureProfile, authorization, base_string, oauth_parameters
from paygw_batch.gateway.signing.key import PrivateKey
from paygw_batch.gateway.signing.signers import Signers


@dataclass(frozen=True, slots=True)
class Draft:
    """A request that lacks nothing but its signature. `text` is the text to sign."""

    attempt: Attempt
    url: str
    own_urls: tuple[str, ...]
    encoded: EncodedBody
    oauth: tuple[tuple[str, str], ...] = field(repr=False)
    text: str = field(repr=False)

    def signed(self, signature: str) -> PreparedRequest:
        """Return the request with `signature`, the key's signature of `text` in base64."""
        attempt, body = self.attempt, self.encoded.body
        instruction = attempt.instruction
        return PreparedRequest(
            url=self.url,
            authorization=authorization(self.oauth, signature),
            body=body,
            body_sha256=hashlib.sha256(body).hexdigest(),
            nonce=attempt.nonce,
            timestamp_s=attempt.timestamp_s,
            purpose=next((value for name, value in self.encoded.params if name == "purpose"), None),
            expected=Expected(attempt.order_id, Decimal(instruction.amount), instruction.currency, self.own_urls),
        )


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
        """Return the request of one attempt, signed here and now. Raises the errors of `encode_body`."""
        drafted = self.draft(rule, Attempt(instruction, order_id, nonce, timestamp_s))
        return drafted.signed(self.key.sign(drafted.text))

    def draft(self, rule: CountryRule, attempt: Attempt) -> Draft:
        """Return the request of one attempt but for its signature. Raises the errors of `encode_body`."""
        encoded = encode_body(rule, attempt.instruction, order_id=attempt.order_id, supplies=self.supplies)
        oauth = oauth_parameters(consumer_key=self.consumer_key, nonce=attempt.nonce, timestamp_s=attempt.timestamp_s)
        own_urls = tuple([url for url in self.supplies.urls.values() if url])
        return Draft(attempt, self.url, own_urls, encoded, oauth, base_string(self.profile, self.url, encoded, oauth))

    def base_string(self, encoded: EncodedBody, *, nonce: str, timestamp_s: int) -> str:
        """Return the text that would be signed for `encoded`, to be shown to a person."""
        oauth = oauth_parameters(consumer_key=self.consumer_key, nonce=nonce, timestamp_s=timestamp_s)
        return base_string(self.profile, self.url, encoded, oauth)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns attempts into signed requests, many at a time: drafted here, signed elsewhere."""

    rules: Rules
    signer: Signer
    signers: Signers

    async def __call__(self, attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
        """Return the request of each attempt. Raises the errors of `encode_body`, and `SigningFailed`."""
        drafts = [self.signer.draft(self.rules[attempt.instruction.country], attempt) for attempt in attempts]
        signatures = await self.signers.sign([drafted.text for drafted in drafts])
        return [drafted.signed(signature) for drafted, signature in zip(drafts, signatures, strict=True)]
