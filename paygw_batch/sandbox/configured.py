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
    build_constants,
    build_signed_header,
    load_control_secret,
    notification_fields,
)
from paygw_batch.opening.given_sheet import operation_of, with_reply_names
from paygw_batch.sandbox.callback import NotificationHash, NotificationHeader, NotificationProof, rsa_signer
from paygw_batch.sandbox.form import ControlRule, Expectations
from paygw_batch.sandbox.reply import default_behaviour, load_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation
from paygw_batch.sandbox.throw_away_key import ensure_gateway_key
from paygw_batch.settings.configuration import Settings

RECORD_NAME = "sandbox-record.csv"
"""The name of the file, next to the journal, in which the built-in gateway records the payouts it accepts."""
ENQUIRY_PROFILE = "paynet-v4"
"""The status enquiry profile that the built-in gateway supports."""


def sandbox_config(
    settings: Settings, rule_sets: Sequence[Rules], key: SigningKey, environ: Mapping[str, str]
) -> SandboxConfig:
    """Return a configuration that accepts requests made with `settings`, with an operation for each rule set."""
    gateway = settings.gateway
    return SandboxConfig(
        endpoint_id=gateway.endpoint_id or "",
        consumer_key=gateway.consumer_key or "",
        public_key_pem=key.public.public_key_pem(),
        profile=gateway.signature_profile or "",
        operations=tuple(_build_served_operation(settings, rules, environ) for rules in rule_sets),
        behaviour=load_behaviour(path) if (path := settings.sandbox.behaviour) else default_behaviour(),
        notification_proof=_build_notification_proof(settings, environ),
        enquiry=load_enquiry(ENQUIRY_PROFILE, with_reply_names(settings, load_operation(PAYOUT))),
    )


def _build_notification_proof(settings: Settings, environ: Mapping[str, str]) -> NotificationProof | None:
    # With "header-rsa", the sandbox signs notifications with its own key. Only the public key is configured.
    if settings.notifications.authenticity == "header-rsa":
        signed_header, algorithm_name = build_signed_header(settings), settings.notifications.hash_algorithm or ""
        compute = rsa_signer(algorithm_name, ensure_gateway_key(settings.journal_path().parent))
        return NotificationHeader(signed_header.name, signed_header.encoding, signed_header.prefix, compute)
    check = build_authenticity_check(settings, notification_fields(settings, load_operation(PAYOUT)), environ)
    match check:
        case SharedSecretHash():
            return NotificationHash(check.algorithm, check.fields, check.separator, check.hash_field, check.secret)
        case HeaderHash(algorithm, header, secret):
            hash_name = algorithm.removeprefix("hmac-")
            # Not functools.partial, because its repr would contain the secret.
            compute = lambda body: hmac.digest(secret, body, hash_name)  # noqa: E731
            return NotificationHeader(header.name, header.encoding, header.prefix, compute)
        case _:
            return None


def _build_served_operation(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> ServedOperation:
    operation, constants, payin = operation_of(rules), build_constants(settings, rules, environ), settings.payin
    control = None
    if constants.control is not None:
        secret = load_control_secret(payin, environ)
        parts, separator, amount = payin.control_order or (), payin.control_separator or "", payin.control_amount or ""
        control = ControlRule(tuple(parts), separator, amount, secret, is_keyed=payin.is_keyed)
    expectations = Expectations(constants.amount_form is AmountForm.TWO_DECIMALS, control)
    record = record_path(settings, operation.name)
    return ServedOperation(with_reply_names(settings, operation), rules, record, expectations)


def record_path(settings: Settings, operation: str) -> Path:
    """Return the path of an operation's record of accepted orders, next to the journal."""
    name = RECORD_NAME if operation == PAYOUT else f"sandbox-record-{operation}.csv"
    return settings.journal_path().parent / name
