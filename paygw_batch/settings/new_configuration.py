"""Writes a new user's configuration, and the letter to the gateway's operator.

The letter has our public key, and every question that the interface leaves open.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paygw_batch.errors import UsageError
from paygw_batch.language import say

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_JOURNAL_TABLE = re.compile(r"^\[journal\].*?(?=^\[)", re.MULTILINE | re.DOTALL)
_OPEN_PURPOSE = '# purpose = "..."'


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """A person's answers about an endpoint. An answer that the gateway's operator has not given is None or absent.

    `countries` maps a code to the purpose of its payouts. `open_keys` maps it to what the interface leaves open there
    (`purpose`, `form`). Paths are as they are to be written.
    """

    base_url: str
    endpoint_id: str
    consumer_key: str
    server_callback_url: str
    private_key: str
    signature_profile: str | None = None
    pkcs11_module: str | None = None
    passphrase_env: str | None = None
    passphrase_file: str | None = None
    ca_bundle: str | None = None
    proxy: str | None = None
    journal: str | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    countries: Mapping[str, str | None] = field(default_factory=dict)
    open_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def endpoint_text(endpoint: NewEndpoint) -> str:
    """Return the configuration of a real endpoint. A setting that is not known yet is written as a comment."""
    lines = [
        "# Written by `paygw-batch init`. No secret belongs in this file. It decides where money goes: keep it 0600.",
        "# What the gateway's operator answers is filled in where a line begins with `# `. Then: paygw-batch doctor",
        "",
        *_gateway(endpoint),
        "",
        *(("[journal]", _line("path", endpoint.journal), "") if endpoint.journal else ()),
        "# The gateway's `status` words, each as paid, accepted or rejected. A word that is not listed puts its row in",
        "# doubt.",
        *_outcomes(endpoint.outcomes),
        "",
        "# Under which names a reply repeats our fields, and says its own: only where they differ from those that",
        "# `paygw-batch doctor` shows.",
        "# [reply]",
        '# order_id = ["..."]',
        "",
        *_countries(endpoint),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def sandbox_text(shipped: str, journal: str | None) -> str:
    """Return the shipped configuration of the sandbox with its journal at `journal`, or in the state directory."""
    place = f"[journal]\n{_line('path', journal)}\n\n" if journal else ""
    kept, places = _JOURNAL_TABLE.subn(lambda _: place, shipped)
    if places != 1:
        raise ValueError("the shipped configuration of the sandbox has no table [journal]")
    settings = kept[kept.index("[gateway]") :]
    return f"# Written by `paygw-batch init --sandbox`. The built-in gateway: no money moves.\n\n{settings}"


def _gateway(endpoint: NewEndpoint) -> Iterator[str]:
    yield "[gateway]"
    yield _line("base_url", endpoint.base_url)
    yield _line("endpoint_id", endpoint.endpoint_id)
    yield _line("consumer_key", endpoint.consumer_key)
    yield _line("private_key", endpoint.private_key)
    if endpoint.pkcs11_module:
        yield _line("pkcs11_module", endpoint.pkcs11_module)
    if endpoint.passphrase_env:
        yield _line("private_key_passphrase_env", endpoint.passphrase_env)
    if endpoint.passphrase_file:
        yield _line("private_key_passphrase_file", endpoint.passphrase_file)
    yield _line("server_callback_url", endpoint.server_callback_url)
    if endpoint.signature_profile:
        yield _line("signature_profile", endpoint.signature_profile)
    else:
        yield '# signature_profile = "json-params"  # or "raw-body": what exactly is signed'
    if endpoint.ca_bundle:
        yield _line("ca_bundle", endpoint.ca_bundle)
    if endpoint.proxy:
        yield _line("proxy", endpoint.proxy)


def _outcomes(outcomes: Mapping[str, str]) -> Iterator[str]:
    if outcomes:
        yield "[outcomes]"
        yield from (_line(word, meaning) for word, meaning in outcomes.items())
        return
    yield "# [outcomes]"
    yield from ('# approved = "paid"', '# processing = "accepted"', '# declined = "rejected"')


def _countries(endpoint: NewEndpoint) -> Iterator[str]:
    yield "# A table for each country that is paid. `purpose` is the operator's code."
    if not endpoint.countries:
        yield from ("# [countries.KE.payout]", _OPEN_PURPOSE)
    for code, purpose in endpoint.countries.items():
        yield f"[countries.{code}.payout]"
        if purpose is not None:
            yield _line("purpose", purpose)
        for key in endpoint.open_keys.get(code, ()):
            if key != "purpose" or purpose is None:
                yield '# form = "account"  # or "receiver"' if key == "form" else f'# {key} = "..."'
        yield ""


def _line(key: str, value: str | None) -> str:
    text = value or ""
    if _CONTROL.search(text) or _CONTROL.search(key):
        raise UsageError(
            say("{key} has a control character or a line break.", key=key), hint=say("Write it again, on one line.")
        )
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)
    return f"{name} = {_quoted(text)}"


def _quoted(text: str) -> str:
    """Return a text as TOML writes it: as JSON does; it has no control character."""
    return json.dumps(text, ensure_ascii=False)


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
_WIDTH = 78


def operator_letter(endpoint: NewEndpoint, payout_url: str, public_key_pem: str, fingerprint: str) -> str:
    """Return the letter as plain text, without the questions that `endpoint` already answers."""
    lines = [
        "To the operator of the payment gateway",
        "",
        "We are about to send payouts through your gateway, as:",
        "",
        f"  base address:      {endpoint.base_url}",
        f"  payouts go to:     {payout_url}",
        f"  endpoint id:       {endpoint.endpoint_id}",
        f"  consumer key:      {endpoint.consumer_key}",
        f"  callback address:  {endpoint.server_callback_url}",
        f"  countries:         {', '.join(endpoint.countries) or 'to be agreed on'}",
        "",
        "Please confirm these, and register this public key for our consumer key. Its",
        "SHA-256 (of the key in DER) is",
        f"  {fingerprint}",
        "",
        public_key_pem.strip(),
        "",
        "Your documentation leaves the following open. In brackets is the place in our",
        "configuration where each answer goes.",
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
