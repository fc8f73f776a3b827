"""Signs requests by the settings: the key, the configuration's additions to a body, and the rules of each country."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from paygw_batch.compose.operations import operation_of, require_complete
from paygw_batch.compose.secrets import passphrase, secret_of
from paygw_batch.core.instruction import Instruction
from paygw_batch.countries.rules import AmountForm, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.control import ControlAlgorithm, ControlAmount, ControlPart, ControlProfile
from paygw_batch.gateway.encode import Supplies
from paygw_batch.gateway.explain import Explanation, explain
from paygw_batch.gateway.prepare import Preparer, Signer
from paygw_batch.gateway.sign import SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey, load_private_key
from paygw_batch.gateway.signing.signers import Signers
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import PayinSection

SANDBOX_URL = "http://127.0.0.1"
"""The built-in gateway's address where none is started."""


@dataclass(frozen=True, slots=True)
class Signing:
    """Signs requests by the rules of their countries, and explains each part of a request. Sends nothing.

    What is explained shows the callback address without its secret token.
    """

    signer: Signer
    rules: Rules
    callback_url: str | None = field(repr=False)
    """The callback address for the gateway, the token in its place."""

    def preparer(self, signers: Signers) -> Preparer:
        """Return the preparer of a run's requests."""
        urls = {**self.signer.supplies.urls, "server_callback_url": self.callback_url}
        signer = replace(self.signer, supplies=replace(self.signer.supplies, urls=urls))
        return Preparer(self.rules, signer, signers)

    def explain(self, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int) -> Explanation:
        """Return the same request, taken apart."""
        rule = self.rules[instruction.country]
        return explain(self.signer, rule, instruction, order_id=order_id, nonce=nonce, timestamp_s=timestamp_s)


def key_path(settings: Settings) -> Path:
    """Return where the merchant's private key is; for the sandbox one is made when none is configured."""
    path = settings.gateway.private_key
    if path is None and settings.uses_sandbox:
        from paygw_batch.sandbox.throw_away_key import sandbox_key  # noqa: PLC0415 (the sandbox alone has one)

        path = sandbox_key(settings.journal_path().parent)
    if path is None:
        raise ConfigurationError("The configuration does not say gateway.private_key.")
    return path


def signer_key(settings: Settings, environ: Mapping[str, str]) -> PrivateKey:
    """Return the merchant's private key."""
    return load_private_key(key_path(settings), passphrase(settings, environ))


def supplies_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Supplies:
    """Return the values that the configuration supplies to every body of the operation that `rules` are for.

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
        control_secret(payin, environ),
        ControlAlgorithm(payin.control_algorithm),
    )
    return Supplies(urls, AmountForm(payin.amount or ""), control)


def control_secret(payin: PayinSection, environ: Mapping[str, str]) -> str:
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
    """Return the signer of requests of the rules' operation, for the gateway at `base_url`.

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


def signing_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Signing:
    """Return the signing for the gateway, without access to it. The settings must be complete.

    The built-in gateway is not started: it stands at another port each time, so it is signed for at `SANDBOX_URL`.
    """
    base_url = SANDBOX_URL if settings.uses_sandbox else settings.gateway.base_url or ""
    signer = signer_of(settings, rules, signer_key(settings, environ), base_url, environ)
    return Signing(signer, rules, settings.gateway.server_callback_url)
