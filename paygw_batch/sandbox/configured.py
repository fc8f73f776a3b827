"""Configures the built-in gateway from the settings: the requests that it accepts, how it proves notifications."""

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.countries.rules import AmountForm, Rules
from paygw_batch.gateway.notification import HeaderHash, SharedSecretHash
from paygw_batch.gateway.signing.key import SigningKey
from paygw_batch.opening.gateway_access import authenticity, control_secret, field_names, signed_header, supplies_of
from paygw_batch.opening.given_sheet import as_answered, operation_of
from paygw_batch.sandbox.callback import CallbackHash, CallbackHeader, CallbackProof, by_key
from paygw_batch.sandbox.form import ControlRule, Expects
from paygw_batch.sandbox.reply import load_behaviour, shipped_behaviour
from paygw_batch.sandbox.server import SandboxConfig, Served
from paygw_batch.sandbox.throw_away_key import sandbox_gateway_key
from paygw_batch.settings.configuration import Settings

RECORD_NAME = "sandbox-record.csv"
"""The name of the file, beside the journal, with the payouts that the built-in gateway accepted."""
ENQUIRY_PROFILE = "paynet-v4"
"""The profile of status enquiries that the built-in gateway answers."""


def sandbox_config(
    settings: Settings, every_rules: Sequence[Rules], key: SigningKey, environ: Mapping[str, str]
) -> SandboxConfig:
    """Return the configuration of the built-in gateway, by which it expects requests and proves its notifications.

    The gateway serves the operations of `every_rules`.
    """
    gateway = settings.gateway
    return SandboxConfig(
        endpoint_id=gateway.endpoint_id or "",
        consumer_key=gateway.consumer_key or "",
        public_key_pem=key.public.public_key_pem(),
        profile=gateway.signature_profile or "",
        served=tuple(_served(settings, rules, environ) for rules in every_rules),
        behaviour=load_behaviour(chosen) if (chosen := settings.sandbox.behaviour) else shipped_behaviour(),
        callback_proof=_callback_proof(settings, environ),
        enquiry=load_enquiry(ENQUIRY_PROFILE, as_answered(settings, load_operation(PAYOUT))),
    )


def _callback_proof(settings: Settings, environ: Mapping[str, str]) -> CallbackProof | None:
    """Return how the sandbox proves its notifications, or None if the configuration requires no proof."""
    if settings.notifications.authenticity == "header-rsa":  # signed by its own key, whose public half is configured
        signed, name = signed_header(settings), settings.notifications.hash_algorithm or ""
        key = sandbox_gateway_key(settings.journal_path().parent)
        return CallbackHeader(signed.name, signed.encoding, signed.prefix, by_key(name, key))
    check = authenticity(settings, field_names(settings, load_operation(PAYOUT)), environ)
    match check:
        case SharedSecretHash():
            return CallbackHash(check.algorithm, check.fields, check.separator, check.hash_field, check.secret)
        case HeaderHash(algorithm, header, secret):
            digest = algorithm.removeprefix("hmac-")
            # A partial would show the secret in its text.
            proof = lambda body: hmac.digest(secret, body, digest)  # noqa: E731
            return CallbackHeader(header.name, header.encoding, header.prefix, proof)
        case _:
            return None


def _served(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Served:
    operation, supplies, payin = operation_of(rules), supplies_of(settings, rules, environ), settings.payin
    control = None
    if supplies.control is not None:
        secret = control_secret(payin, environ)
        order, separator, amount = payin.control_order or (), payin.control_separator or "", payin.control_amount or ""
        control = ControlRule(tuple(order), separator, amount, secret, is_keyed=payin.has_key)
    expects = Expects(supplies.amount_form is AmountForm.TWO_DECIMALS, control)
    return Served(as_answered(settings, operation), rules, record_path(settings, operation.name), expects)


def record_path(settings: Settings, operation: str) -> Path:
    """Return the path of the built-in gateway's record of an operation's accepted orders, beside the journal."""
    name = RECORD_NAME if operation == PAYOUT else f"sandbox-record-{operation}.csv"
    return settings.journal_path().parent / name
