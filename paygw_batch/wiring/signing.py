"""Signs requests by the settings: the key, the configuration's additions to a body, and the rules of each country."""

import base64
import codecs
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.rules import AmountForm, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.extras import install_command
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.encode import ControlAlgorithm, ControlAmount, ControlPart, ControlProfile, Supplies
from paygw_batch.gateway.explain import Explanation, explain
from paygw_batch.gateway.sign import Preparer, SignatureProfile, Signer
from paygw_batch.gateway.signing.key import SigningKey, load_private_key
from paygw_batch.gateway.signing.key_address import AWSKMS, KeyTrouble, KeyUnusable, kms_key_id, token_address
from paygw_batch.gateway.signing.signers import Signers
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import PayinSection
from paygw_batch.trusted_files import Others, read_with_mode
from paygw_batch.wiring.operations import operation_of, require_complete

if TYPE_CHECKING:
    from paygw_batch.gateway.signing.token_key import TokenPlace

_MAX_BYTES = 4096


def secret_of(key: str, variable: str | None, file: Path | None, environ: Mapping[str, str]) -> bytes:
    """Return the secret that the keys `KEY_env` (a variable's name) or `KEY_file` of the configuration name.

    Raises `ConfigurationError` if there is none, and for a file that others than its owner may read or write.
    """
    if variable is not None and (text := environ.get(variable)):
        return text.encode()
    if file is not None:
        return _private_file(f"{key}_file", file)
    named = "" if variable is None else f" ({variable})"
    raise ConfigurationError(
        say(
            "The configuration does not set {key}_file, and no variable that {key}_env names{named} is set.",
            key=key,
            named=named,
        )
    )


def passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase of the private key from where the settings say it is, or None if they name no place.

    Raises `ConfigurationError` for a file that cannot be read and, unless the gateway is the built-in one, for a file
    that others than its owner may read or write.
    """
    gateway = settings.gateway
    if (variable := gateway.private_key_passphrase_env) is not None and (text := environ.get(variable)) is not None:
        return text.encode()
    if (file := gateway.private_key_passphrase_file) is not None:
        return _private_file("gateway.private_key_passphrase_file", file, is_checked=not settings.uses_sandbox)
    return None


def _private_file(key: str, file: Path, *, is_checked: bool = True) -> bytes:
    found = read_with_mode(file, f"{key} {file}", Others.MAY_NOTHING, most_bytes=_MAX_BYTES)
    if found.distrust is not None and is_checked:
        raise found.distrust
    # Editors on Windows begin a text with a byte order mark, which nobody sees and which is not part of the secret.
    return found.content.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")


SANDBOX_URL = "http://127.0.0.1"
"""The built-in gateway's address if none is started."""


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


def key_place(settings: Settings) -> Path | str:
    """Return where the merchant's private key is; for the sandbox one is made when none is configured."""
    path = settings.gateway.private_key
    if path is None and settings.uses_sandbox:
        from paygw_batch.sandbox.throw_away_key import sandbox_key  # noqa: PLC0415 (the sandbox alone has one)

        path = sandbox_key(settings.journal_path().parent)
    if path is None:
        raise ConfigurationError(say("The configuration does not set gateway.private_key."))
    return path


def signer_key(settings: Settings, environ: Mapping[str, str]) -> SigningKey:
    """Return the merchant's private key. Raises `ConfigurationError` if it cannot be used."""
    place = key_place(settings)
    if isinstance(place, Path):
        return load_private_key(place, passphrase(settings, environ))
    with _extra_needed():
        if place.startswith(AWSKMS):
            from paygw_batch.gateway.signing.kms_key import load_kms_key  # noqa: PLC0415 (an extra)

            return load_kms_key(kms_key_id(place), settings.gateway.signing_concurrency)
        from paygw_batch.gateway.signing.token_key import load_token_key  # noqa: PLC0415 (an extra)

        return load_token_key(token_place(settings, place, environ))


def require_good_signature(key: SigningKey, text: str) -> None:
    """Have the key sign a text that pays nobody. Raises `ConfigurationError` if the signature is invalid."""
    if not key.public.has_signed(text, base64.b64decode(key.sign(text))):
        raise KeyUnusable(key.custody.place, KeyTrouble.WRONG_SIGNATURE)


def made_in_token(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Make the private key in its token where there is none yet, and return whether it was made.

    Raises `ConfigurationError` if the token cannot be used.
    """
    place = key_place(settings)
    if isinstance(place, Path) or place.startswith(AWSKMS):
        return False
    with _extra_needed():
        from paygw_batch.gateway.signing.token_key import has_token_key, make_token_key  # noqa: PLC0415 (an extra)

        there = token_place(settings, place, environ)
        if has_token_key(there):
            return False
        make_token_key(there)
        return True


def token_place(settings: Settings, address: str, environ: Mapping[str, str]) -> "TokenPlace":
    """Return the key in a token that the settings name. Raises `ConfigurationError`."""
    from paygw_batch.gateway.signing.token_key import TokenPlace  # noqa: PLC0415 (an extra)

    module, pin = settings.gateway.pkcs11_module, passphrase(settings, environ)
    if module is None:
        raise ConfigurationError(
            say("The configuration does not set gateway.pkcs11_module."),
            hint=say("Set it to the module of the token's vendor, a file that ends in .so."),
        )
    try:
        text = None if not pin else pin.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(say("The PIN for gateway.private_key is not UTF-8.")) from None
    return TokenPlace(token_address(address), module, text, settings.gateway.signing_concurrency)


_EXTRAS = {"pkcs11": "pkcs11", "boto3": "aws", "botocore": "aws"}
"""The libraries for keys that are not files, each with its extra."""


@contextmanager
def _extra_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (extra := _EXTRAS.get(error.name or "")) is None:
            raise
        raise ConfigurationError(
            say("This kind of private key needs {library}, which is not installed.", library=error.name),
            hint=say("Install it: {command}.", command=install_command(extra)),
        ) from None


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
    """Return the secret of the control hash, empty if it needs none."""
    if not payin.needs_secret:
        return ""
    secret = secret_of("payin.control_secret", payin.control_secret_env, payin.control_secret_file, environ)
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigurationError(say("The secret of the control (payin.control_secret) is empty, or is not UTF-8."))
    return text


def signer_of(settings: Settings, rules: Rules, key: SigningKey, base_url: str, environ: Mapping[str, str]) -> Signer:
    """Return the signer of requests of the rules' operation, for the gateway at `base_url`.

    The token's place in the callback address is left open.
    Raises `ConfigurationError` for settings that are not complete.
    """
    gateway = settings.gateway
    endpoint_id = gateway.endpoint_id or ""
    return Signer(
        url=operation_url(base_url, operation_of(rules), endpoint_id),
        endpoint_id=endpoint_id,
        consumer_key=gateway.consumer_key or "",
        supplies=supplies_of(settings, rules, environ),
        profile=SignatureProfile(gateway.signature_profile or ""),
        key=key,
    )


def signing_of(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Signing:
    """Return the signing for the gateway, without access to it. The settings must be complete.

    The built-in gateway is not started: its port differs each time, so it is signed for at `SANDBOX_URL`.
    """
    base_url = SANDBOX_URL if settings.uses_sandbox else settings.gateway.base_url or ""
    signer = signer_of(settings, rules, signer_key(settings, environ), base_url, environ)
    return Signing(signer, rules, settings.gateway.server_callback_url)
