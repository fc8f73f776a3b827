"""Builds enquiries about the state of an order, and parses the answers.

The gateway's published interface has no such request, so this is an extension: see `config/enquiries/`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.core.outcome import ANSWERS, Advice, OutcomeKind
from paygw_batch.countries.rules import Operation
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.encode import EncodedBody
from paygw_batch.gateway.message import ExpectedReply, PreparedRequest, RawReply, TransportFault
from paygw_batch.gateway.sign import SignatureProfile, authorization, base_string, oauth_parameters
from paygw_batch.gateway.signing.signers import Signers

UNLISTED = "reply.status_unlisted"
"""The cause of an outcome whose status word is not in `[outcomes]`."""


@dataclass(frozen=True, slots=True)
class EnquirySigner:
    """Signs enquiries about orders. `url_for` returns an endpoint's enquiry URL, exactly as signed."""

    url_for: Callable[[str], str]
    consumer_key: str
    profile: SignatureProfile
    signers: Signers = field(repr=False)

    async def prepare(
        self, expected: ExpectedReply, *, endpoint_id: str, nonce: str, timestamp_s: int
    ) -> PreparedRequest:
        """Return a signed enquiry about the order in `expected`. Raises `SigningFailed`."""
        url = self.url_for(endpoint_id)
        name, order_id = "client_orderid", expected.order_id
        encoded = EncodedBody(json.dumps({name: order_id}, ensure_ascii=False).encode(), ((name, order_id),))
        oauth = oauth_parameters(consumer_key=self.consumer_key, nonce=nonce, timestamp_s=timestamp_s)
        (signature,) = await self.signers.sign([base_string(self.profile, url, encoded, oauth)])
        return PreparedRequest(
            url=url,
            authorization=authorization(oauth, signature),
            body=encoded.body,
            body_sha256=hashlib.sha256(encoded.body).hexdigest(),
            nonce=nonce,
            timestamp_s=timestamp_s,
            purpose=None,
            endpoint_id=endpoint_id,
            expected=expected,
        )


@dataclass(frozen=True, slots=True)
class EnquiryAnswer:
    """The result of an enquiry: a claim (or the `cause` if there is none) and the advice for later enquiries."""

    claim: Claim | None
    cause: str
    advice: Advice
    has_replied: bool


def parse_answer(
    reply: RawReply | TransportFault,
    expected: ExpectedReply,
    words: Mapping[str, OutcomeKind],
    operation: Operation,
    *,
    not_found: Collection[str],
    now: datetime,
) -> EnquiryAnswer:
    """Return the result of an enquiry about an order. The reply is interpreted as in `classify`.

    `not_found` contains the status words for an unknown order. Values missing from the reply come from the enquiry.
    """
    verdict = classify(reply, expected, words, operation, now=now)
    outcome = verdict.outcome
    has_replied = isinstance(reply, RawReply)
    is_not_found = outcome.cause == UNLISTED and outcome.gateway_status in not_found
    if outcome.kind not in ANSWERS and not is_not_found:
        return EnquiryAnswer(None, outcome.cause, verdict.advice, has_replied)
    claim = Claim(
        expected.order_id,
        str(expected.amount),
        expected.currency,
        outcome.gateway_status,
        outcome.gateway_reference,
        Proof.PROVEN,
        is_not_found=is_not_found,
    )
    return EnquiryAnswer(claim, "", verdict.advice, has_replied)
