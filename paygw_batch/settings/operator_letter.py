"""Writes the letter to the gateway's operator: our public key, and every question that the interface leaves open."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from paygw_batch.settings.new_configuration import NewEndpoint


class OpenQuestion(NamedTuple):
    """A question that the interface leaves open, and the configuration keys of its answer."""

    text: str
    place: str


_SIGNATURE = OpenQuestion(
    "What exactly is signed (RSA-SHA256)? (a) The RFC 5849 base string POST&url&parameters, in which the "
    "parameters are the fields of the body together with the five oauth_ parameters, sorted. (b) "
    "POST&url&parameters&body, in which the parameters are the five oauth_ parameters alone, and the body is "
    "its raw text. Is the URL signed as it is sent, without a query? How far may the timestamp be from your "
    "clock?",
    'gateway.signature_profile: (a) is "json-params", (b) is "raw-body"',
)
_WORDS = OpenQuestion(
    "Which words can `status` have in the reply to a payout? Which of them is a final yes, which a final no, "
    "and which says that the payment is still being processed?",
    "outcomes",
)
_REPLY = OpenQuestion(
    "Under which names does a reply repeat our order id, the amount and the currency? Is that amount in the "
    "major or in the smallest unit, and is it the amount that we sent, or net of fees? Under which names does "
    "it say your reference, the error code and the error message?",
    "reply",
)
_ORDER_IDS = OpenQuestion(
    "How long may `client_orderid` be, and of which characters? What do you do with a second request under "
    "the same client_orderid? May a payout that you declined be sent again under the same one?",
    "retry.order_id",
)
_FIELDS = OpenQuestion(
    "Which fields of a payout are required in each of these countries, which may be left out, and are there "
    "fields that your documentation does not show? How long may each be?",
    "countries.XX.payout.optional, also, defaults",
)
_AMOUNTS = OpenQuestion(
    "What are the lowest and the highest amount of one payout in each country?",
    "countries.XX.payout.min_amount, max_amount",
)
_NOTIFICATIONS = OpenQuestion(
    "What does the body of a notification hold, and under which names? What proves that it comes from you: a "
    "hash over which values, in which order, with what between them and with which secret, or a signature in "
    "which header? How often is it sent again, and until which answer?",
    "notifications",
)
_ENQUIRY = OpenQuestion(
    "Can we ask for the status of an order? At which address, how often, and what is the answer about an "
    "order that you never had?",
    "status_enquiry",
)
_LIMITS = OpenQuestion(
    "How many requests may be open at once, and how many may we send in a second? May one connection carry "
    "several requests?",
    "submission.concurrency, rate_per_s, connections",
)
_BALANCE = OpenQuestion(
    "What is the reply when our balance does not cover a payout? And what when the signature is wrong?",
    "submission.stop_after_rejected",
)
_DOUBT = OpenQuestion(
    "Whom do we ask when a reply was lost? After which time can you say for certain that you do not have an "
    "order? In which format, and in which time zone, can we have a statement of all orders of a day?",
    "submission.quarantine_h, statement.columns",
)
_WIDTH = 100


def operator_letter(endpoint: NewEndpoint, public_key_pem: str, fingerprint: str) -> str:
    """Return the letter as plain text, without the questions that `endpoint` already answers."""
    lines = [
        "To the operator of the payment gateway",
        "",
        "We are about to send payouts through your gateway, as:",
        "",
        f"  base address:      {endpoint.base_url}",
        f"  endpoint id:       {endpoint.endpoint_id}",
        f"  consumer key:      {endpoint.consumer_key}",
        f"  callback address:  {endpoint.server_callback_url}",
        f"  countries:         {', '.join(endpoint.countries) or 'to be agreed on'}",
        "",
        "Please confirm these, and register this public key for our consumer key. Its SHA-256 (of the key in DER) is",
        f"  {fingerprint}",
        "",
        public_key_pem.strip(),
        "",
        "Your documentation leaves the following open. In brackets is the place in our configuration where",
        "each answer goes.",
        "",
    ]
    for number, (question, place) in enumerate(questions(endpoint), start=1):
        lines += textwrap.wrap(f"{number}. {question}", _WIDTH, subsequent_indent="   ", break_on_hyphens=False)
        lines += [f"   [{place}]", ""]
    return "\n".join(lines)


def questions(endpoint: NewEndpoint) -> Iterator[OpenQuestion]:
    """Yield the questions that are still open about an endpoint."""
    if endpoint.signature_profile is None:
        yield _SIGNATURE
    if not endpoint.outcomes:
        yield _WORDS
    yield _REPLY
    yield from _purposes(endpoint)
    yield _FIELDS
    yield _AMOUNTS
    yield _ORDER_IDS
    yield _NOTIFICATIONS
    yield _ENQUIRY
    yield _LIMITS
    yield _BALANCE
    yield _DOUBT


def _purposes(endpoint: NewEndpoint) -> Iterator[OpenQuestion]:
    asked = [code for code, purpose in endpoint.countries.items() if purpose is None]
    codes = [code for code in asked if "purpose" in endpoint.open_keys.get(code, ())]
    if codes or not endpoint.countries:
        where = f"payouts to {', '.join(codes)}" if codes else "the payouts of each country"
        text = f"What is the exact `purpose` code (operator or channel) of {where}?"
        yield OpenQuestion(text, "countries.XX.payout.purpose")
    forms = [code for code in endpoint.countries if "form" in endpoint.open_keys.get(code, ())]
    if forms:
        text = f"Your documentation shows no payout to {', '.join(forms)}. Do you offer it, and with which fields?"
        yield OpenQuestion(text, "countries.XX.payout.form")
