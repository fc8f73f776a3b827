"""Opens the configured gateway: loads keys and secrets, and builds signers, authenticity checks and the transport.

For the sandbox, it opens the built-in gateway, which runs only while it is needed.
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
from paygw_batch.gateway.encode import BodyConstants, ControlAlgorithm, ControlAmount, ControlPart, ControlProfile
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
    load_private_key,
    parse_gateway_key,
    parse_kms_key_id,
    parse_token_address,
)
from paygw_batch.gateway.signing.signers import Signers
from paygw_batch.journal import BatchRecord, Journal
from paygw_batch.language import mark, say
from paygw_batch.opening.given_sheet import operation_of, require_complete
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import PayinSection
from paygw_batch.trusted_files import OtherUsers, read_and_check_access, read_trusted_file

if TYPE_CHECKING:
    from paygw_batch.custody.token_key import TokenLocation

_MAX_SECRET_BYTES = 4096


def load_secret(setting: str, variable: str | None, file: Path | None, environ: Mapping[str, str]) -> bytes:
    """Load a secret from the environment variable `variable` or, if that is not set, from `file`.

    Raises `ConfigurationError`, naming `setting`, if there is no secret or if other users can access `file`.
    """
    if variable is not None and (text := environ.get(variable)):
        return text.encode()
    if file is not None:
        return _read_private_file(f"{setting}_file", file)
    suffix = "" if variable is None else f" ({variable})"
    message = mark("Neither {key}_file nor a variable named by {key}_env{named} is set.")
    raise ConfigurationError(say(message, key=setting, named=suffix))


def load_passphrase(settings: Settings, environ: Mapping[str, str]) -> bytes | None:
    """Load the private key's passphrase, or return None if none is configured.

    Raises `ConfigurationError` if the file cannot be read or, outside the sandbox, if other users can access the file.
    """
    gateway = settings.gateway
    if (variable := gateway.private_key_passphrase_env) is not None and (text := environ.get(variable)) is not None:
        return text.encode()
    if (file := gateway.private_key_passphrase_file) is not None:
        return _read_private_file("gateway.private_key_passphrase_file", file, check_access=not settings.uses_sandbox)
    return None


def _read_private_file(setting: str, file: Path, *, check_access: bool = True) -> bytes:
    source = read_and_check_access(file, f"{setting} {file}", OtherUsers.NO_ACCESS, max_bytes=_MAX_SECRET_BYTES)
    if source.trust_error is not None and check_access:
        raise source.trust_error
    # Windows editors start a file with an invisible byte order mark, which is not part of the secret.
    return source.content.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")


SANDBOX_URL = "http://127.0.0.1"
"""A placeholder for the URL of the built-in gateway when it is not running."""


@dataclass(frozen=True, slots=True)
class RequestSigning:
    """Signs requests, and explains signatures without showing the secret token in the callback URL. Sends nothing."""

    signer: Signer
    rules: Rules
    callback_url: str | None = field(repr=False)
    """The callback URL as sent to the gateway, including the token."""

    def build_preparer(self, signers: Signers) -> Preparer:
        urls = {**self.signer.constants.urls, "server_callback_url": self.callback_url}
        signer = replace(self.signer, constants=replace(self.signer.constants, urls=urls))
        return Preparer(self.rules, signer, signers)

    def explain(self, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int) -> Explanation:
        rule = self.rules[instruction.country]
        return explain(self.signer, rule, instruction, order_id=order_id, nonce=nonce, timestamp_s=timestamp_s)


def key_location(settings: Settings) -> Path | str:
    """Return the path or URI of the merchant's private key. The sandbox creates a key if none is configured."""
    location = settings.gateway.private_key
    if location is None and settings.uses_sandbox:
        location = extra("sandbox.throw_away_key").ensure_sandbox_key(settings.journal_path().parent)
    if location is None:
        raise ConfigurationError(say("The configuration does not set gateway.private_key."))
    return location


def load_signing_key(settings: Settings, environ: Mapping[str, str]) -> SigningKey:
    """Load the merchant's private key. Raises `ConfigurationError` if it cannot be used."""
    location = key_location(settings)
    if isinstance(location, Path):
        return load_private_key(location, load_passphrase(settings, environ))
    with _explain_missing_library():
        if location.startswith(AWSKMS):
            kms_key: SigningKey = extra("custody.kms_key").load_kms_key(
                parse_kms_key_id(location), settings.gateway.signing_concurrency
            )
            return kms_key
        token_key: SigningKey = extra("custody.token_key").load_token_key(token_location(settings, location, environ))
        return token_key


def ensure_token_key(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Create the private key in the PKCS#11 token if missing. Return whether it was created."""
    location = key_location(settings)
    if isinstance(location, Path) or location.startswith(AWSKMS):
        return False
    with _explain_missing_library():
        token_key_location, module = token_location(settings, location, environ), extra("custody.token_key")
        if module.has_token_key(token_key_location):
            return False
        module.create_token_key(token_key_location)
        return True


def token_location(settings: Settings, uri: str, environ: Mapping[str, str]) -> "TokenLocation":
    """Return the private key's location in the PKCS#11 token. Raises `ConfigurationError` for unusable settings."""
    module, passphrase = settings.gateway.pkcs11_module, load_passphrase(settings, environ)
    if module is None:
        message = say("The configuration does not set gateway.pkcs11_module.")
        raise ConfigurationError(message, hint=say("Set it to the token vendor's module, a file that ends in .so."))
    try:
        pin = None if not passphrase else passphrase.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(say("The PIN for gateway.private_key is not UTF-8.")) from None
    location: TokenLocation = extra("custody.token_key").TokenLocation(
        parse_token_address(uri), module, pin, settings.gateway.signing_concurrency
    )
    return location


_EXTRA_BY_LIBRARY = {"pkcs11": "pkcs11", "boto3": "aws", "botocore": "aws"}
"""The extra that installs each library for keys in tokens or key services."""


@contextmanager
def _explain_missing_library() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (extra_name := _EXTRA_BY_LIBRARY.get(error.name or "")) is None:
            raise
        message = say("This kind of private key needs {library}, which is not installed.", library=error.name)
        hint = say("Install it: {command}.", command=install_command(extra_name))
        raise ConfigurationError(message, hint=hint) from None


def build_constants(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> BodyConstants:
    """Build the values shared by all requests of an operation. Raises `ConfigurationError` if any is missing."""
    operation, payin = operation_of(rules), settings.payin
    require_complete(settings, rules, set())
    field_names = {field.name for rule in rules.values() if rule.form is not None for field in rule.form.fields}
    urls = {name: url for name, url in settings.urls().items() if name in field_names}
    if len(operation.amount_forms) == 1:
        return BodyConstants(urls, operation.amount_forms[0])
    control = ControlProfile(
        tuple(map(ControlPart, payin.control_order or ())),
        payin.control_separator or "",
        ControlAmount(payin.control_amount or ""),
        load_control_secret(payin, environ),
        ControlAlgorithm(payin.control_algorithm),
    )
    return BodyConstants(urls, AmountForm(payin.amount or ""), control)


def load_control_secret(payin: PayinSection, environ: Mapping[str, str]) -> str:
    """Load the secret for the control hash, or return an empty string if none is needed."""
    if not payin.needs_secret:
        return ""
    secret = load_secret("payin.control_secret", payin.control_secret_env, payin.control_secret_file, environ)
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise ConfigurationError(say("The control secret (payin.control_secret) is empty or not UTF-8."))
    return text


def build_signer(settings: Settings, rules: Rules, key: SigningKey, url: str, environ: Mapping[str, str]) -> Signer:
    """Build the signer for requests to the gateway at `url`. The callback URL still contains its token placeholder."""
    gateway = settings.gateway
    endpoint_id = gateway.endpoint_id or ""
    return Signer(
        url=operation_url(url, operation_of(rules), endpoint_id),
        endpoint_id=endpoint_id,
        consumer_key=gateway.consumer_key or "",
        constants=build_constants(settings, rules, environ),
        profile=SignatureProfile(gateway.signature_profile or ""),
        key=key,
    )


def build_signing(settings: Settings, rules: Rules, environ: Mapping[str, str]) -> RequestSigning:
    """Build the request signing without opening the gateway. Raises `ConfigurationError` for missing settings.

    The built-in gateway is not started, so its port is unknown. Its requests are signed for `SANDBOX_URL` instead.
    """
    base_url = SANDBOX_URL if settings.uses_sandbox else settings.gateway.base_url or ""
    signer = build_signer(settings, rules, load_signing_key(settings, environ), base_url, environ)
    return RequestSigning(signer, rules, settings.gateway.server_callback_url)


TOKEN_PLACEHOLDER = "{token}"  # noqa: S105 (stands for the token in the callback URL)
MIN_TOKEN_CHARACTERS = 32
MIN_SECRET_BYTES = 16
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]+")


def callback_url(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return the callback URL with the secret token filled in, or None if no URL is configured."""
    if (url := settings.gateway.server_callback_url) is None or TOKEN_PLACEHOLDER not in url:
        return url
    return url.replace(TOKEN_PLACEHOLDER, listener_token(settings, environ))


def listener_path(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the callback URL's path, which the listener serves. Raises `ConfigurationError` if it has no `{token}`."""
    url = settings.gateway.server_callback_url
    if url is None or TOKEN_PLACEHOLDER not in urlsplit(url).path:
        raise ConfigurationError(
            say("gateway.server_callback_url must have {token} in its path.", token=TOKEN_PLACEHOLDER),
            hint=say(
                'Write it as "https://merchant.example/paygw/{token}". The token comes from [notifications] token_env '
                "or token_file. It is filled in when payouts are signed, and the listener accepts only this path.",
                token=TOKEN_PLACEHOLDER,
            ),
        )
    return urlsplit(url).path.replace(TOKEN_PLACEHOLDER, listener_token(settings, environ))


def listener_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Load and check the secret token for the callback URL. Error messages do not contain it."""
    section = settings.notifications
    token = load_secret("notifications.token", section.token_env, section.token_file, environ).decode(errors="replace")
    if len(token) < MIN_TOKEN_CHARACTERS or not _TOKEN_PATTERN.fullmatch(token):
        message = say(
            "The notification token must have at least {least} characters: only letters, digits, - and _.",
            least=MIN_TOKEN_CHARACTERS,
        )
        raise ConfigurationError(message, hint=say("To create one, run `openssl rand -hex 32`."))
    return token


def notification_fields(settings: Settings, operation: Operation) -> NotificationFields:
    """Return the configured field names of notifications. By default, they are the same as in replies."""
    configured = settings.notifications.fields
    return NotificationFields(
        order_id=configured.order_id or operation.reply.order_id[0],
        amount=configured.amount or operation.reply.amount[0],
        currency=configured.currency or operation.reply.currency[0],
        status=configured.status,
        reference=operation.reply.reference if configured.reference is None else (configured.reference,),
    )


def build_authenticity_check(
    settings: Settings, fields: NotificationFields, environ: Mapping[str, str]
) -> AuthenticityCheck | None:
    """Build the authenticity check, if configured. Raises `ConfigurationError` listing any missing settings."""
    match settings.notifications.authenticity:
        case None:
            return None
        case "shared-secret-hash":
            return _build_secret_hash(settings, fields, environ)
        case "header-hmac":
            header = build_signed_header(settings)
            algorithm = HashAlgorithm(settings.notifications.hash_algorithm or "")
            return HeaderHash(algorithm, header, _load_notification_secret(settings, environ))
        case "header-rsa":
            return HeaderSignature(build_signed_header(settings), _load_gateway_key(settings, environ))
        case other:
            assert_never(other)


def _require_notification_settings(settings: Settings, *keys: str, hint: str = "") -> None:
    section = settings.notifications
    missing = [f"notifications.{key}" for key in keys if not getattr(section, key)]
    if missing:
        context = {"authenticity": section.authenticity, "missing": ", ".join(missing)}
        message = say('With authenticity = "{authenticity}", you must set {missing}.', **context)
        hint = say("The gateway's interface does not specify them. Ask its operator.") + f" {hint}".rstrip()
        raise ConfigurationError(message, hint=hint)


def _build_secret_hash(settings: Settings, fields: NotificationFields, environ: Mapping[str, str]) -> SharedSecretHash:
    section = settings.notifications
    is_strong = section.hash_algorithm != "sha1"
    keys = ("hash_algorithm", "hash_fields", *(("hash_separator",) if is_strong else ()), "hash_field")
    hint = say(
        "The separator must not be empty, because values could then be shifted from one field to the next without "
        "changing the hash."
    )
    _require_notification_settings(settings, *keys, hint=hint if is_strong else "")
    algorithm = HashAlgorithm(section.hash_algorithm or "")
    hashed_fields = tuple(section.hash_fields or ())
    required_fields = {fields.order_id, fields.amount, fields.currency, fields.status} if is_strong else set()
    if algorithm is not HashAlgorithm.HMAC_SHA256:
        required_fields.add(SECRET)
    if unhashed := sorted(required_fields - set(hashed_fields)):
        raise ConfigurationError(
            say(
                "notifications.hash_fields must include {unhashed}. Otherwise, anyone who has seen a notification "
                "could forge these fields.",
                unhashed=", ".join(unhashed),
            ),
            hint=say(
                "Use this check only if the gateway's hash covers them. Without it, a person must confirm each "
                "notification."
            ),
        )
    secret = _load_notification_secret(settings, environ)
    return SharedSecretHash(algorithm, hashed_fields, section.hash_separator or "", section.hash_field or "", secret)


def build_signed_header(settings: Settings) -> SignedHeader:
    """Return the configured header that authenticates notifications. Raises `ConfigurationError` if incomplete."""
    section = settings.notifications
    _require_notification_settings(settings, "hash_algorithm", "header", "header_encoding")
    encoding = HeaderEncoding(section.header_encoding or "")
    return SignedHeader(section.header or "", encoding, section.header_prefix or "")


def _load_notification_secret(settings: Settings, environ: Mapping[str, str]) -> bytes:
    section = settings.notifications
    secret = load_secret("notifications.secret", section.secret_env, section.secret_file, environ)
    if len(secret) < MIN_SECRET_BYTES:
        message = say("The notification secret must have at least {least} bytes.", least=MIN_SECRET_BYTES)
        raise ConfigurationError(message)
    return secret


def _load_gateway_key(settings: Settings, environ: Mapping[str, str]) -> GatewayKey:
    """Load the gateway's public key. It is not secret, but anyone who can change its file can forge notifications."""
    section = settings.notifications
    algorithm = SignatureAlgorithm(section.hash_algorithm or "")
    if section.public_key_env is not None and (text := environ.get(section.public_key_env)):
        return parse_gateway_key(text.encode(), algorithm, name=say("The variable {name}", name=section.public_key_env))
    _require_notification_settings(settings, "public_key_file")
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
        """Return why the gateway cannot be reached, or None if it can be. Sends no request."""
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
    """Open the gateway for the operation of `rules`. The built-in gateway runs until the context exits.

    Open the gateway before a journal, so that no journal is opened if a key, URL or certificate is unusable.
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
    """Return a runtime with real clocks, 128-bit random nonces, and random numbers."""
    return Runtime(now=utc_now, elapsed_s=elapsed_s, nonce=partial(secrets.token_hex, 16), random=random.random)


@dataclass(frozen=True, slots=True)
class SendJob:
    """A batch to send, and everything needed to send it. `known` counts the rows that were already in the journal.

    If `choices.first` limits the number of rows, only this process sends them, in the sheet's order.
    """

    settings: Settings
    rules: Rules
    gateway: GatewayAccess
    journal: Journal
    batch: BatchRecord
    known: int = 0
    choices: Choices = field(default_factory=Choices)
