"""Configures the built-in gateway from the settings."""

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from paygw_batch.core.batch import PAYOUT
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.countries.rules import AmountForm, Rules
from paygw_batch.gateway.notification import HeaderHash, SharedSecretHash
from paygw_batch.gateway.signing.key import SigningKey
from paygw_batch.opening.gateway_access import (
    build_authenticity_check,
    build_signed_header,
    build_supplies,
    load_control_secret,
    notification_fields,
)
from paygw_batch.opening.given_sheet import load_rules_operation, with_reply_names
from paygw_batch.sandbox.callback import CallbackHash, CallbackHeader, CallbackProof, rsa_signer
from paygw_batch.sandbox.form import ControlRule, Expectations
from paygw_batch.sandbox.reply import load_behaviour, shipped_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation
from paygw_batch.sandbox.throw_away_key import sandbox_gateway_key
from paygw_batch.settings.configuration import Settings

RECORD_NAME = "sandbox-record.csv"
"""The file next to the journal that records the payouts accepted by the built-in gateway."""
ENQUIRY_PROFILE = "paynet-v4"
"""The profile of the status enquiries that the built-in gateway answers."""


def sandbox_config(
    settings: Settings, rules_by_operation: Sequence[Rules], key: SigningKey, environ: Mapping[str, str]
) -> SandboxConfig:
    """Return the configuration of a built-in gateway that serves the operations of `rules_by_operation`.

    It expects the requests that these settings produce, and proves its notifications as they require.
    """
    gateway = settings.gateway
    return SandboxConfig(
        endpoint_id=gateway.endpoint_id or "",
        consumer_key=gateway.consumer_key or "",
        public_key_pem=key.public.public_key_pem(),
        profile=gateway.signature_profile or "",
        operations=tuple(_build_served_operation(settings, rules, environ) for rules in rules_by_operation),
        behaviour=load_behaviour(path) if (path := settings.sandbox.behaviour) else shipped_behaviour(),
        callback_proof=_callback_proof(settings, environ),
        enquiry=load_enquiry(ENQUIRY_PROFILE, with_reply_names(settings, load_operation(PAYOUT))),
    )


def _callback_proof(settings: Settings, environ: Mapping[str, str]) -> CallbackProof | None:
    """Return the proof of the sandbox's notifications, or None if the configuration requires none."""
    # With "header-rsa" they are signed with the sandbox's own key, whose public half is configured.
    if settings.notifications.authenticity == "header-rsa":
        signed, name = build_signed_header(settings), settings.notifications.hash_algorithm or ""
        key = sandbox_gateway_key(settings.journal_path().parent)
        return CallbackHeader(signed.name, signed.encoding, signed.prefix, rsa_signer(name, key))
    check = build_authenticity_check(settings, notification_fields(settings, load_operation(PAYOUT)), environ)
    match check:
        case SharedSecretHash():
            return CallbackHash(check.algorithm, check.fields, check.separator, check.hash_field, check.secret)
        case HeaderHash(algorithm, header, secret):
            digest = algorithm.removeprefix("hmac-")
            # This is not a partial, because the repr of a partial would contain the secret.
            proof = lambda body: hmac.digest(secret, body, digest)  # noqa: E731
            return CallbackHeader(header.name, header.encoding, header.prefix, proof)
        case _:
            return None


def _build_served_operation(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> ServedOperation:
    operation, supplies, payin = load_rules_operation(rules), build_supplies(settings, rules, environ), settings.payin
    control = None
    if supplies.control is not None:
        secret = load_control_secret(payin, environ)
        order, separator, amount = payin.control_order or (), payin.control_separator or "", payin.control_amount or ""
        control = ControlRule(tuple(order), separator, amount, secret, is_keyed=payin.has_key)
    expectations = Expectations(supplies.amount_form is AmountForm.TWO_DECIMALS, control)
    path = record_path(settings, operation.name)
    return ServedOperation(with_reply_names(settings, operation), rules, path, expectations)


def record_path(settings: Settings, operation: str) -> Path:
    """Return the path of the record of an operation's accepted orders, next to the journal."""
    name = RECORD_NAME if operation == PAYOUT else f"sandbox-record-{operation}.csv"
    return settings.journal_path().parent / name
