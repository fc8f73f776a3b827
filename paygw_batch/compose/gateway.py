"""The way to the gateway: the configured one, or the built-in one for the duration of a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from paygw_batch.compose.notifications import authenticity, callback_url, field_names
from paygw_batch.compose.parts import PAYOUT, as_answered, operation_of, require_complete
from paygw_batch.compose.secrets import passphrase, secret_of
from paygw_batch.core.instruction import Instruction
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.countries.rules import AmountForm, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.address import Connections, TransportSettings, operation_url
from paygw_batch.gateway.authenticity import HeaderHash, SharedSecretHash
from paygw_batch.gateway.control import ControlAlgorithm, ControlAmount, ControlPart, ControlProfile
from paygw_batch.gateway.encode import Supplies
from paygw_batch.gateway.explain import Explanation, explain
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.prepare import Preparer, Signer
from paygw_batch.gateway.sign import SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey, load_private_key
from paygw_batch.gateway.signing.signers import Signers
from paygw_batch.sandbox.behaviour import load_behaviour, shipped_behaviour
from paygw_batch.sandbox.callback import CallbackHash, CallbackHeader
from paygw_batch.sandbox.expects import ControlRule, Expects
from paygw_batch.sandbox.sandbox_app import SandboxConfig, Served
from paygw_batch.sandbox.sandbox_server import running_sandbox
from paygw_batch.sandbox.throw_away_key import sandbox_key
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import PayinSection

RECORD_NAME = "sandbox-record.csv"
"""What the built-in gateway accepted of payouts, beside the journal."""
ENQUIRY_PROFILE = "paynet-v4"
"""The status enquiry that the built-in gateway answers."""
SANDBOX_URL = "http://127.0.0.1"
"""The built-in gateway's address where none is started."""


@dataclass(frozen=True, slots=True)
class Signing:
    """Signs requests by the rules of their countries, and explains what it signs. Sends nothing.

    What is explained shows the callback address without its secret token.
    """

    signer: Signer
    rules: Rules
    callback_url: str | None = field(repr=False)
    """Where the gateway is told to send notifications, the token in its place."""

    def preparer(self, signers: Signers) -> Preparer:
        """Return what a run prepares its requests with."""
        urls = {**self.signer.supplies.urls, "server_callback_url": self.callback_url}
        signer = replace(self.signer, supplies=replace(self.signer.supplies, urls=urls))
        return Preparer(self.rules, signer, signers)

    def explain(self, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int) -> Explanation:
        """Return the same request, taken apart."""
        rule = self.rules[instruction.country]
        return explain(self.signer, rule, instruction, order_id=order_id, nonce=nonce, timestamp_s=timestamp_s)


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """What a run needs of the gateway: `signing` prepares requests, `transport` sends, inside the run's event loop."""

    signing: Signing
    transport: PayoutTransport
    base_url: str


def key_path(settings: Settings) -> Path:
    """Return where the merchant's private key is; for the sandbox one is made when none is configured."""
    path = settings.gateway.private_key
    if path is None and settings.uses_sandbox:
        path = sandbox_key(settings.journal_path().parent)
    if path is None:
        raise ConfigurationError("The configuration does not say gateway.private_key.")
    return path


def signer_key(settings: Settings, environ: Mapping[str, str]) -> PrivateKey:
    """Return the merchant's private key."""
    return load_private_key(key_path(settings), passphrase(settings, environ))


def transport_settings(settings: Settings, base_url: str) -> TransportSettings:
    """Return how the gateway at `base_url` is reached."""
    gateway = settings.gateway
    return TransportSettings(
        base_url=base_url,
        connect_timeout_s=gateway.connect_timeout_s,
        read_timeout_s=gateway.read_timeout_s,
        total_timeout_s=gateway.total_timeout_s,
        connections=Connections(settings.submission.connections),
        ca_bundle=gateway.ca_bundle,
        proxy=gateway.proxy,
    )


def supplies_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Supplies:
    """Return what the configuration supplies to every body of the operation that `rules` are for.

    Raises `ConfigurationError` naming the keys that are missing.
    """
    operation, payin = operation_of(rules), settings.payin
    require_complete(settings, rules, set())
    names = {field.name for rule in rules.values() if rule.form is not None for field in rule.form.fields}
    urls = {name: url for name, url in settings.urls().items() if name in names}
    if len(operation.amount_forms) == 1:
        return Supplies(urls, operation.amount_forms[0])
    control = ControlProfile(
        tuple(map(ControlPart, payin.control_order or ())),
        payin.control_separator or "",
        ControlAmount(payin.control_amount or ""),
        _control_secret(payin, environ),
        ControlAlgorithm(payin.control_algorithm),
    )
    return Supplies(urls, AmountForm(payin.amount or ""), control)


def _control_secret(payin: PayinSection, environ: Mapping[str, str]) -> str:
    """Return the secret of the control hash, empty where it needs none."""
    if not payin.needs_secret:
        return ""
    secret = secret_of("payin.control_secret", payin.control_secret_env, payin.control_secret_file, environ)
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigurationError("The secret of the control (payin.control_secret) is empty, or is not UTF-8.")
    return text


def signer_of(settings: Settings, rules: Rules, key: PrivateKey, base_url: str, environ: Mapping[str, str]) -> Signer:
    """Return what signs requests of the rules' operation for the gateway at `base_url`.

    The token's place in the callback address is left open.
    Raises `ConfigurationError` for settings that are not complete.
    """
    gateway = settings.gateway
    return Signer(
        url=operation_url(base_url, operation_of(rules), gateway.endpoint_id or ""),
        consumer_key=gateway.consumer_key or "",
        supplies=supplies_of(settings, rules, environ),
        profile=SignatureProfile(gateway.signature_profile or ""),
        key=key,
    )


def sandbox_config(
    settings: Settings, every_rules: Sequence[Rules], key: PrivateKey, environ: Mapping[str, str]
) -> SandboxConfig:
    """Return the built-in gateway that expects what these settings send, and proves what it notifies of.

    It serves the operations of `every_rules`.
    """
    gateway = settings.gateway
    return SandboxConfig(
        endpoint_id=gateway.endpoint_id or "",
        consumer_key=gateway.consumer_key or "",
        public_key_pem=key.public_key_pem(),
        profile=gateway.signature_profile or "",
        served=tuple(_served(settings, rules, environ) for rules in every_rules),
        behaviour=load_behaviour(chosen) if (chosen := settings.sandbox.behaviour) else shipped_behaviour(),
        callback_proof=_callback_proof(settings, environ),
        enquiry=load_enquiry(ENQUIRY_PROFILE, as_answered(settings, load_operation(PAYOUT))),
    )


def _callback_proof(settings: Settings, environ: Mapping[str, str]) -> CallbackHash | CallbackHeader | None:
    check = authenticity(settings, field_names(settings, load_operation(PAYOUT)), environ)
    match check:
        case SharedSecretHash():
            return CallbackHash(check.algorithm, check.fields, check.separator, check.hash_field, check.secret)
        case HeaderHash(algorithm, header, secret):
            return CallbackHeader(algorithm, header.name, header.encoding, header.prefix, secret)
        case _:
            return None  # the sandbox has no key of the gateway's: what it notifies of is unproven


def _served(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Served:
    operation, supplies, payin = operation_of(rules), supplies_of(settings, rules, environ), settings.payin
    control = None
    if supplies.control is not None:
        secret = _control_secret(payin, environ)
        order, separator, amount = payin.control_order or (), payin.control_separator or "", payin.control_amount or ""
        control = ControlRule(tuple(order), separator, amount, secret, is_keyed=payin.has_key)
    expects = Expects(supplies.amount_form is AmountForm.TWO_DECIMALS, control)
    return Served(as_answered(settings, operation), rules, record_path(settings, operation.name), expects)


def record_path(settings: Settings, operation: str) -> Path:
    """Return where the built-in gateway writes down what it accepted: beside the journal, by operation."""
    name = RECORD_NAME if operation == PAYOUT else f"sandbox-record-{operation}.csv"
    return settings.journal_path().parent / name


def signing_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Signing:
    """Return what signs for the gateway, without a way to it. The settings must be complete.

    The built-in gateway is not started: it stands at another port each time, so it is signed for at `SANDBOX_URL`.
    """
    base_url = SANDBOX_URL if settings.uses_sandbox else settings.gateway.base_url or ""
    signer = signer_of(settings, rules, signer_key(settings, environ), base_url, environ)
    return Signing(signer, rules, settings.gateway.server_callback_url)


@contextmanager
def gateway_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Iterator[GatewayAccess]:
    """Yield the way to the gateway, for the operation of `rules`.

    With `base_url = "sandbox"` the built-in one runs as long as the context lasts.

    Whatever is wrong with key, addresses or certificates shows here, before a journal is touched.
    """
    key = signer_key(settings, environ)
    with ExitStack() as stack:
        base_url = settings.gateway.base_url or ""
        if settings.uses_sandbox:
            base_url = stack.enter_context(running_sandbox(sandbox_config(settings, [rules], key, environ)))
        signer = signer_of(settings, rules, key, base_url, environ)
        signing = Signing(signer, rules, callback_url(settings, environ))
        yield GatewayAccess(signing, PayoutTransport(transport_settings(settings, base_url)), base_url)
