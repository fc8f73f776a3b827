"""Reads the configuration of notifications with its secrets, and builds the check of their authenticity."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from paygw_batch.countries.rules import Operation
from paygw_batch.errors import ConfigurationError
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
from paygw_batch.gateway.signing.key import GatewayKey, SignatureAlgorithm, gateway_key_of
from paygw_batch.language import say
from paygw_batch.settings.configuration import Settings
from paygw_batch.trusted_files import Others, read_trusted
from paygw_batch.wiring.signing import secret_of

TOKEN = "{token}"  # noqa: S105 (its place in the callback address, not one)
MIN_TOKEN_CHARACTERS = 32
MIN_SECRET_BYTES = 16
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def callback_url(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return the callback address for the gateway, with the secret token in its place."""
    url = settings.gateway.server_callback_url
    return url.replace(TOKEN, listener_token(settings, environ)) if url is not None and TOKEN in url else url


def listener_path(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the path of the callback address, which the listener listens on. Raises `ConfigurationError`."""
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
    """Return the secret token of the callback address. Raises `ConfigurationError`, which does not quote it."""
    section = settings.notifications
    token = secret_of("notifications.token", section.token_env, section.token_file, environ).decode("utf-8", "replace")
    if len(token) < MIN_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            say(
                "The token of the notifications must be {least} letters, digits, - or _, or more.",
                least=MIN_TOKEN_CHARACTERS,
            ),
            hint=say("Make one with `openssl rand -hex 32`."),
        )
    return token


def field_names(settings: Settings, operation: Operation) -> NotificationFields:
    """Return the names of a notification's fields: the configured ones, or the request's own."""
    names = settings.notifications.fields
    return NotificationFields(
        order_id=names.order_id or operation.reply.order_id[0],
        amount=names.amount or operation.reply.amount[0],
        currency=names.currency or operation.reply.currency[0],
        status=names.status,
        reference=operation.reply.reference if names.reference is None else (names.reference,),
    )


def authenticity(settings: Settings, names: NotificationFields, environ: Mapping[str, str]) -> AuthenticityCheck | None:
    """Return the configured check, None if none is. Raises `ConfigurationError` naming every key it still needs."""
    match settings.notifications.authenticity:
        case None:
            return None
        case "shared-secret-hash":
            return _shared_secret_hash(settings, names, environ)
        case "header-hmac":
            header = signed_header(settings)
            algorithm = HashAlgorithm(settings.notifications.hash_algorithm or "")
            return HeaderHash(algorithm, header, _secret(settings, environ))
        case "header-rsa":
            return HeaderSignature(signed_header(settings), _public_key(settings, environ))
        case other:
            assert_never(other)


def _require_keys(settings: Settings, *keys: str, hint: str = "") -> None:
    section = settings.notifications
    missing = [f"notifications.{key}" for key in keys if not getattr(section, key)]
    if missing:
        raise ConfigurationError(
            say(
                'authenticity = "{authenticity}" also needs {missing}.',
                authenticity=section.authenticity,
                missing=", ".join(missing),
            ),
            hint=say("The gateway's interface shows none of them: write down what its operator says.{hint}", hint=hint),
        )


def _shared_secret_hash(settings: Settings, names: NotificationFields, environ: Mapping[str, str]) -> SharedSecretHash:
    section = settings.notifications
    is_proof = section.hash_algorithm != "sha1"
    hint = (
        " The separator must not be empty: values could then be shifted from one field to the next without the hash "
        "changing."
    )
    keys = ("hash_algorithm", "hash_fields", *(("hash_separator",) if is_proof else ()), "hash_field")
    _require_keys(settings, *keys, hint=hint if is_proof else "")
    algorithm = HashAlgorithm(section.hash_algorithm or "")
    hashed = tuple(section.hash_fields or ())
    needed = {names.order_id, names.amount, names.currency, names.status} if is_proof else set()
    if algorithm is not HashAlgorithm.HMAC_SHA256:
        needed.add(SECRET)
    if unhashed := sorted(needed - set(hashed)):
        raise ConfigurationError(
            say(
                "notifications.hash_fields lacks {unhashed}: anyone who has seen a notification could change it.",
                unhashed=", ".join(unhashed),
            ),
            hint=say("Use the check only if the gateway's hash covers them; without it a person confirms."),
        )
    secret = _secret(settings, environ)
    return SharedSecretHash(algorithm, hashed, section.hash_separator or "", section.hash_field or "", secret)


def signed_header(settings: Settings) -> SignedHeader:
    """Return the header that proves a notification. Raises `ConfigurationError` naming every key it still needs."""
    section = settings.notifications
    _require_keys(settings, "hash_algorithm", "header", "header_encoding")
    encoding = HeaderEncoding(section.header_encoding or "")
    return SignedHeader(section.header or "", encoding, section.header_prefix or "")


def _secret(settings: Settings, environ: Mapping[str, str]) -> bytes:
    section = settings.notifications
    secret = secret_of("notifications.secret", section.secret_env, section.secret_file, environ)
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            say(
                "The secret of the notifications is shorter than {least} bytes.",
                least=MIN_SECRET_BYTES,
            )
        )
    return secret


def _public_key(settings: Settings, environ: Mapping[str, str]) -> GatewayKey:
    """Return the gateway's key. It is not secret, but anyone who can write its file can forge proof."""
    section = settings.notifications
    algorithm = SignatureAlgorithm(section.hash_algorithm or "")
    if section.public_key_env is not None and (text := environ.get(section.public_key_env)):
        return gateway_key_of(text.encode(), algorithm, name=say("The variable {name}", name=section.public_key_env))
    _require_keys(settings, "public_key_file")
    file = section.public_key_file or Path()
    name = f"notifications.public_key_file {file}"
    return gateway_key_of(read_trusted(file, name, Others.MAY_READ), algorithm, name=name)
