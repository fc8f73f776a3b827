"""The way to the gateway: the configured one, or the built-in one for the duration of a run."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from paygw_batch.compose.notifications import authenticity, callback_url, field_names
from paygw_batch.compose.parts import PAYOUT
from paygw_batch.core.instruction import Instruction
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.countries.rules import Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.encode import Supplies
from paygw_batch.gateway.endpoint import Connections, TransportSettings, operation_url
from paygw_batch.gateway.explain import Explanation, explain
from paygw_batch.gateway.prepare import Preparer, Signer
from paygw_batch.gateway.sign import PrivateKey, SignatureProfile, load_private_key
from paygw_batch.gateway.signers import Signers
from paygw_batch.gateway.transport import PayoutTransport
from paygw_batch.sandbox.app import SandboxConfig, Served
from paygw_batch.sandbox.behaviour import load_behaviour, shipped_behaviour
from paygw_batch.sandbox.callback import CallbackHash
from paygw_batch.sandbox.key import sandbox_key
from paygw_batch.sandbox.server import running_sandbox
from paygw_batch.settings import Settings, passphrase

RECORD_NAME = "sandbox-record.csv"
"""What the built-in gateway accepted, beside the journal."""
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
class Connection:
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
    return load_private_key(key_path(settings), passphrase(settings.gateway, environ))


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


def signer_of(settings: Settings, key: PrivateKey, base_url: str) -> Signer:
    """Return what signs requests for the gateway at `base_url`, the token's place in the callback address left open.

    The settings must be complete.
    """
    gateway = settings.gateway
    return Signer(
        url=operation_url(base_url, load_operation(PAYOUT), gateway.endpoint_id or ""),
        consumer_key=gateway.consumer_key or "",
        supplies=Supplies({"server_callback_url": gateway.server_callback_url}),
        profile=SignatureProfile(gateway.signature_profile or ""),
        key=key,
    )


def sandbox_config(settings: Settings, rules: Rules, key: PrivateKey, environ: Mapping[str, str]) -> SandboxConfig:
    """Return the built-in gateway that expects what these settings send, and proves what it notifies of."""
    gateway = settings.gateway
    return SandboxConfig(
        endpoint_id=gateway.endpoint_id or "",
        consumer_key=gateway.consumer_key or "",
        public_key_pem=key.public_key_pem(),
        profile=gateway.signature_profile or "",
        served=(Served(load_operation(PAYOUT), rules, settings.journal_path().parent / RECORD_NAME),),
        behaviour=load_behaviour(chosen) if (chosen := settings.sandbox.behaviour) else shipped_behaviour(),
        callback_hash=_callback_hash(settings, environ),
        enquiry=load_enquiry(ENQUIRY_PROFILE, load_operation(PAYOUT)),
    )


def _callback_hash(settings: Settings, environ: Mapping[str, str]) -> CallbackHash | None:
    check = authenticity(settings, field_names(settings, load_operation(PAYOUT)), environ)
    if check is None:
        return None
    return CallbackHash(check.algorithm, check.fields, check.separator, check.hash_field, check.secret)


def signing_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Signing:
    """Return what signs for the gateway, without a way to it. The settings must be complete.

    The built-in gateway is not started: it stands at another port each time, so it is signed for at `SANDBOX_URL`.
    """
    base_url = SANDBOX_URL if settings.uses_sandbox else settings.gateway.base_url or ""
    signer = signer_of(settings, signer_key(settings, environ), base_url)
    return Signing(signer, rules, settings.gateway.server_callback_url)


@contextmanager
def gateway_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Iterator[Connection]:
    """Yield the way to the gateway; with `base_url = "sandbox"` the built-in one runs as long as the context lasts.

    Whatever is wrong with key, addresses or certificates shows here, before a journal is touched.
    """
    key = signer_key(settings, environ)
    with ExitStack() as stack:
        base_url = settings.gateway.base_url or ""
        if settings.uses_sandbox:
            base_url = stack.enter_context(running_sandbox(sandbox_config(settings, rules, key, environ)))
        signing = Signing(signer_of(settings, key, base_url), rules, callback_url(settings, environ))
        yield Connection(signing, PayoutTransport(transport_settings(settings, base_url)), base_url)
