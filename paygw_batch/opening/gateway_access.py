"""Opens the configured gateway: keys, secrets, the supplied values of request bodies, and the transport.

In the sandbox, this is the built-in gateway, which runs as long as it is needed.
"""

import codecs
import random
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

from paygw_batch.clock import elapsed_s, utc_now
from paygw_batch.core.batch import Instruction
from paygw_batch.core.choices import Choices
from paygw_batch.countries.rules import AmountForm, Operation, Rules
from paygw_batch.engine.ports import Runtime
from paygw_batch.errors import ConfigurationError
from paygw_batch.extras import extra, install_command
from paygw_batch.gateway.address import Connections, TransportSettings, operation_url
from paygw_batch.gateway.encode import ControlAlgorithm, ControlAmount, ControlPart, ControlProfile, Supplies
from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import TransportFault
from paygw_batch.gateway.notification import (
    SECRET,
    AuthenticityCheck,
    HashAlgorithm,
    HeaderEncoding,
    HeaderHash,
    HeaderSignature,
    NotificationFields,
    SharedSecretHash,
    SignedHeader,
)
from paygw_batch.gateway.sign import Explanation, Preparer, SignatureProfile, Signer, explain
from paygw_batch.gateway.signing.key import (
    AWSKMS,
    GatewayKey,
    SignatureAlgorithm,
    SigningKey,
    kms_key_id,
    load_private_key,
    parse_gateway_key,
    token_address,
)
from paygw_batch.gateway.signing.signers import Signers
from paygw_batch.journal import BatchRecord, Journal
from paygw_batch.language import mark, say
from paygw_batch.opening.given_sheet import load_rules_operation, require_complete
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import PayinSection
from paygw_batch.trusted_files import OtherUsers, read_and_check_access, read_trusted_file

if TYPE_CHECKING:
    from paygw_batch.custody.token_key import TokenLocation

_MAX_SECRET_BYTES = 4096


def load_secret(key: str, variable: str | None, file: Path | None, environ: Mapping[str, str]) -> bytes:
    """Load the secret named by the configuration keys `KEY_env` (an environment variable) or `KEY_file`.

    Raises `ConfigurationError` if there is no secret, or if its file is accessible to others than its owner.
    """
    if variable is not None and (text := environ.get(variable)):
        return text.encode()
    if file is not None:
        return _read_private_file(f"{key}_file", file)
    suffix = "" if variable is None else f" ({variable})"
    unset = mark("The configuration does not set {key}_file, and no variable that {key}_env names{named} is set.")
    raise ConfigurationError(say(unset, key=key, named=suffix))


def load_passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Load the private key's passphrase. Returns None if none is configured.

    Raises `ConfigurationError` if its file cannot be read or, except in the sandbox, if the file is accessible to
    others than its owner.
    """
    gateway = settings.gateway
    if (variable := gateway.private_key_passphrase_env) is not None and (text := environ.get(variable)) is not None:
        return text.encode()
    if (file := gateway.private_key_passphrase_file) is not None:
        return _read_private_file("gateway.private_key_passphrase_file", file, is_checked=not settings.uses_sandbox)
    return None


def _read_private_file(key: str, file: Path, *, is_checked: bool = True) -> bytes:
    secret = read_and_check_access(file, f"{key} {file}", OtherUsers.MAY_NOTHING, max_bytes=_MAX_SECRET_BYTES)
    if secret.distrust is not None and is_checked:
        raise secret.distrust
    # Windows editors put an invisible byte order mark before the text, which is not part of the secret.
    return secret.content.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")


SANDBOX_URL = "http://127.0.0.1"
"""The address of the built-in gateway when it is not started."""


@dataclass(frozen=True, slots=True)
class RequestSigning:
    """Signs requests by the rules of their countries and explains each part. Sends nothing.

    Explanations show the callback address without its secret token.
    """

    signer: Signer
    rules: Rules
    callback_url: str | None = field(repr=False)
    """The callback address that the gateway gets, with the token in it."""

    def preparer(self, signers: Signers) -> Preparer:
        urls = {**self.signer.supplies.urls, "server_callback_url": self.callback_url}
        signer = replace(self.signer, supplies=replace(self.signer.supplies, urls=urls))
        return Preparer(self.rules, signer, signers)

    def explain(self, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int) -> Explanation:
        rule = self.rules[instruction.country]
        return explain(self.signer, rule, instruction, order_id=order_id, nonce=nonce, timestamp_s=timestamp_s)


def key_location(settings: Settings) -> Path | str:
    """Return the location of the merchant's private key. The sandbox creates a key if none is configured."""
    path = settings.gateway.private_key
    if path is None and settings.uses_sandbox:
        path = extra("sandbox.throw_away_key").sandbox_key(settings.journal_path().parent)
    if path is None:
        raise ConfigurationError(say("The configuration does not set gateway.private_key."))
    return path


def load_signing_key(settings: Settings, environ: Mapping[str, str]) -> SigningKey:
    """Load the merchant's private key. Raises `ConfigurationError` if it cannot be used."""
    location = key_location(settings)
    if isinstance(location, Path):
        return load_private_key(location, load_passphrase(settings, environ))
    with _translating_missing_library():
        if location.startswith(AWSKMS):
            kms: SigningKey = extra("custody.kms_key").load_kms_key(
                kms_key_id(location), settings.gateway.signing_concurrency
            )
            return kms
        token: SigningKey = extra("custody.token_key").load_token_key(token_location(settings, location, environ))
        return token


def ensure_token_key(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Create the private key in its token unless it exists and return whether it was created.

    Raises `ConfigurationError` if the token cannot be used.
    """
    location = key_location(settings)
    if isinstance(location, Path) or location.startswith(AWSKMS):
        return False
    with _translating_missing_library():
        token_key_location, token_key = token_location(settings, location, environ), extra("custody.token_key")
        if token_key.has_token_key(token_key_location):
            return False
        token_key.make_token_key(token_key_location)
        return True


def token_location(settings: Settings, address: str, environ: Mapping[str, str]) -> "TokenLocation":
    """Return the location of the configured key in a token. Raises `ConfigurationError` if settings are missing."""
    module, pin = settings.gateway.pkcs11_module, load_passphrase(settings, environ)
    if module is None:
        raise ConfigurationError(
            say("The configuration does not set gateway.pkcs11_module."),
            hint=say("Set it to the module of the token's vendor, a file that ends in .so."),
        )
    try:
        text = None if not pin else pin.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(say("The PIN for gateway.private_key is not UTF-8.")) from None
    location: TokenLocation = extra("custody.token_key").TokenLocation(
        token_address(address), module, text, settings.gateway.signing_concurrency
    )
    return location


_EXTRA_BY_LIBRARY = {"pkcs11": "pkcs11", "boto3": "aws", "botocore": "aws"}
"""The libraries for keys that are not in files, each with the extra that installs it."""


@contextmanager
def _translating_missing_library() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (extra_name := _EXTRA_BY_LIBRARY.get(error.name or "")) is None:
            raise
        raise ConfigurationError(
            say("This kind of private key needs {library}, which is not installed.", library=error.name),
            hint=say("Install it: {command}.", command=install_command(extra_name)),
        ) from None


def build_supplies(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Supplies:
    """Return the configured values for every request body of the operation of `rules`.

    Raises `ConfigurationError` with all missing keys.
    """
    operation, payin = load_rules_operation(rules), settings.payin
    require_complete(settings, rules, set())
    names = {field.name for rule in rules.values() if rule.form is not None for field in rule.form.fields}
    urls = {name: url for name, url in settings.urls().items() if name in names}
    if len(operation.amount_forms) == 1:
        return Supplies(urls, operation.amount_forms[0])
    control = ControlProfile(
        tuple(map(ControlPart, payin.control_order or ())),
        payin.control_separator or "",
        ControlAmount(payin.control_amount or ""),
        load_control_secret(payin, environ),
        ControlAlgorithm(payin.control_algorithm),
    )
    return Supplies(urls, AmountForm(payin.amount or ""), control)


def load_control_secret(payin: PayinSection, environ: Mapping[str, str]) -> str:
    """Load the secret of the control hash. Empty if none is needed."""
    if not payin.needs_secret:
        return ""
    secret = load_secret("payin.control_secret", payin.control_secret_env, payin.control_secret_file, environ)
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigurationError(say("The secret of the control (payin.control_secret) is empty, or is not UTF-8."))
    return text


def build_signer(settings: Settings, rules: Rules, key: SigningKey, url: str, environ: Mapping[str, str]) -> Signer:
    """Build the signer for requests of the rules' operation to the gateway at `url`.

    The callback address keeps the placeholder for the token. Raises `ConfigurationError` for incomplete settings.
    """
    gateway = settings.gateway
    endpoint_id = gateway.endpoint_id or ""
    return Signer(
        url=operation_url(url, load_rules_operation(rules), endpoint_id),
        endpoint_id=endpoint_id,
        consumer_key=gateway.consumer_key or "",
        supplies=build_supplies(settings, rules, environ),
        profile=SignatureProfile(gateway.signature_profile or ""),
        key=key,
    )


def build_signing(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> RequestSigning:
    """Build the signing of requests without opening the gateway. The settings must be complete.

    The built-in gateway is not started. Its port differs each time, so requests are signed for `SANDBOX_URL`.
    """
    base_url = SANDBOX_URL if settings.uses_sandbox else settings.gateway.base_url or ""
    signer = build_signer(settings, rules, load_signing_key(settings, environ), base_url, environ)
    return RequestSigning(signer, rules, settings.gateway.server_callback_url)


TOKEN = "{token}"  # noqa: S105 (a placeholder in the callback address, not a token)
MIN_TOKEN_CHARACTERS = 32
MIN_SECRET_BYTES = 16
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def callback_url(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return the callback URL with the secret token filled in."""
    url = settings.gateway.server_callback_url
    return url.replace(TOKEN, listener_token(settings, environ)) if url is not None and TOKEN in url else url


def listener_path(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the path of the callback address, which the listener serves. Raises `ConfigurationError`."""
    url = settings.gateway.server_callback_url
    if url is None or TOKEN not in urlsplit(url).path:
        raise ConfigurationError(
            say("gateway.server_callback_url does not have {token} in its path.", token=TOKEN),
            hint=say(
                'Write it as "https://merchant.example/paygw/{token}": the token, from [notifications] '
                "token_env or token_file, is filled in when payouts are signed, and the listener accepts only "
                "this path.",
                token=TOKEN,
            ),
        )
    return urlsplit(url).path.replace(TOKEN, listener_token(settings, environ))


def listener_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Load the secret token of the callback address. Raises `ConfigurationError` without quoting it."""
    section = settings.notifications
    token = load_secret("notifications.token", section.token_env, section.token_file, environ).decode(errors="replace")
    if len(token) < MIN_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            say(
                "The token of the notifications must have at least {least} characters, only letters, digits, - and _.",
                least=MIN_TOKEN_CHARACTERS,
            ),
            hint=say("Create one with `openssl rand -hex 32`."),
        )
    return token


def notification_fields(settings: Settings, operation: Operation) -> NotificationFields:
    """Return the names of a notification's fields: the configured ones or, by default, those of replies."""
    names = settings.notifications.fields
    return NotificationFields(
        order_id=names.order_id or operation.reply.order_id[0],
        amount=names.amount or operation.reply.amount[0],
        currency=names.currency or operation.reply.currency[0],
        status=names.status,
        reference=operation.reply.reference if names.reference is None else (names.reference,),
    )


def build_authenticity_check(
    settings: Settings, names: NotificationFields, environ: Mapping[str, str]
) -> AuthenticityCheck | None:
    """Build the configured check of notifications, if any. Raises `ConfigurationError` with all missing keys."""
    match settings.notifications.authenticity:
        case None:
            return None
        case "shared-secret-hash":
            return _shared_secret_hash(settings, names, environ)
        case "header-hmac":
            header = build_signed_header(settings)
            algorithm = HashAlgorithm(settings.notifications.hash_algorithm or "")
            return HeaderHash(algorithm, header, _load_notification_secret(settings, environ))
        case "header-rsa":
            return HeaderSignature(build_signed_header(settings), _load_gateway_key(settings, environ))
        case other:
            assert_never(other)


def _require_keys(settings: Settings, *keys: str, hint: str = "") -> None:
    section = settings.notifications
    missing = [f"notifications.{key}" for key in keys if not getattr(section, key)]
    if missing:
        context = {"authenticity": section.authenticity, "missing": ", ".join(missing)}
        raise ConfigurationError(
            say('authenticity = "{authenticity}" also needs {missing}.', **context),
            hint=say("The gateway's interface does not specify them. Ask its operator.") + f" {hint}".rstrip(),
        )


def _shared_secret_hash(settings: Settings, names: NotificationFields, environ: Mapping[str, str]) -> SharedSecretHash:
    section = settings.notifications
    is_proof = section.hash_algorithm != "sha1"
    keys = ("hash_algorithm", "hash_fields", *(("hash_separator",) if is_proof else ()), "hash_field")
    hint = say(
        "The separator must not be empty: values could then be shifted from one field to the next without the hash "
        "changing."
    )
    _require_keys(settings, *keys, hint=hint if is_proof else "")
    algorithm = HashAlgorithm(section.hash_algorithm or "")
    hashed = tuple(section.hash_fields or ())
    required = {names.order_id, names.amount, names.currency, names.status} if is_proof else set()
    if algorithm is not HashAlgorithm.HMAC_SHA256:
        required.add(SECRET)
    if missing_names := sorted(required - set(hashed)):
        raise ConfigurationError(
            say(
                "notifications.hash_fields lacks {unhashed}: anyone who has seen a notification could change it.",
                unhashed=", ".join(missing_names),
            ),
            hint=say("Use the check only if the gateway's hash covers them; without it a person confirms."),
        )
    secret = _load_notification_secret(settings, environ)
    return SharedSecretHash(algorithm, hashed, section.hash_separator or "", section.hash_field or "", secret)


def build_signed_header(settings: Settings) -> SignedHeader:
    """Build the header that proves a notification. Raises `ConfigurationError` with all missing keys."""
    section = settings.notifications
    _require_keys(settings, "hash_algorithm", "header", "header_encoding")
    encoding = HeaderEncoding(section.header_encoding or "")
    return SignedHeader(section.header or "", encoding, section.header_prefix or "")


def _load_notification_secret(settings: Settings, environ: Mapping[str, str]) -> bytes:
    section = settings.notifications
    secret = load_secret("notifications.secret", section.secret_env, section.secret_file, environ)
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            say("The secret of the notifications is shorter than {least} bytes.", least=MIN_SECRET_BYTES)
        )
    return secret


def _load_gateway_key(settings: Settings, environ: Mapping[str, str]) -> GatewayKey:
    """Load the gateway's public key. It is no secret, but anyone who can write its file can forge proof."""
    section = settings.notifications
    algorithm = SignatureAlgorithm(section.hash_algorithm or "")
    if section.public_key_env is not None and (text := environ.get(section.public_key_env)):
        return parse_gateway_key(text.encode(), algorithm, name=say("The variable {name}", name=section.public_key_env))
    _require_keys(settings, "public_key_file")
    file = section.public_key_file or Path()
    name = f"notifications.public_key_file {file}"
    return parse_gateway_key(read_trusted_file(file, name, OtherUsers.MAY_READ), algorithm, name=name)


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Access to the gateway: `signing` prepares requests, and `transport` sends them in the run's event loop."""

    signing: RequestSigning
    transport: PayoutTransport
    base_url: str

    async def probe(self) -> TransportFault | None:
        """Return why the gateway cannot be reached, or None if it can. Sends no request."""
        async with self.transport as transport:
            return await transport.probe()


def transport_settings(settings: Settings, base_url: str) -> TransportSettings:
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


@contextmanager
def open_gateway(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> Iterator[GatewayAccess]:
    """Open the gateway for the operation of `rules`.

    With `base_url = "sandbox"` the built-in gateway runs as long as the context lasts. Problems with the key, the
    addresses or the certificates are raised here, before a journal is opened.
    """
    key = load_signing_key(settings, environ)
    with ExitStack() as stack:
        base_url = settings.gateway.base_url or ""
        if settings.uses_sandbox:
            config = extra("sandbox.configured").sandbox_config(settings, [rules], key, environ)
            base_url = stack.enter_context(extra("sandbox.server").running_sandbox(config))
        signer = build_signer(settings, rules, key, base_url, environ)
        signing = RequestSigning(signer, rules, callback_url(settings, environ))
        yield GatewayAccess(signing, PayoutTransport(transport_settings(settings, base_url)), base_url)


def system_runtime() -> Runtime:
    """Return the real clocks, nonces of 128 random bits, and a source of random numbers."""
    return Runtime(now=utc_now, elapsed_s=elapsed_s, nonce=partial(secrets.token_hex, 16), chance=random.random)


@dataclass(frozen=True, slots=True)
class SendJob:
    """A batch to send, and everything needed to send it. `known` is the number of rows already in the journal.

    If `choices` limit the number of rows to send (`first`), this process alone sends them, in the sheet's order.
    """

    settings: Settings
    rules: Rules
    connection: GatewayAccess
    journal: Journal
    batch: BatchRecord
    known: int = 0
    choices: Choices = field(default_factory=Choices)
