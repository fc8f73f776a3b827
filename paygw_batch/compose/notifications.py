"""Reads the configuration of notifications with its secrets, and builds the check of their authenticity."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from paygw_batch.compose.secrets import secret_of
from paygw_batch.countries.rules import Operation
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.notification import SECRET, HashAlgorithm, NotificationFields, SharedSecretHash
from paygw_batch.settings.configuration import Settings

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
            f"gateway.server_callback_url does not have {TOKEN} in its path.",
            hint=f'Write it as "https://merchant.example/paygw/{TOKEN}": the token, from [notifications] token_env or '
            "token_file, is put in where payouts are signed, and the listener takes this very path.",
        )
    return urlsplit(url).path.replace(TOKEN, listener_token(settings, environ))


def listener_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the secret token of the callback address. Raises `ConfigurationError`, which does not quote it."""
    section = settings.notifications
    token = secret_of("notifications.token", section.token_env, section.token_file, environ).decode("utf-8", "replace")
    if len(token) < MIN_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"The token of the notifications must be {MIN_TOKEN_CHARACTERS} letters, digits, - or _, or more.",
            hint="Make one with `openssl rand -hex 32`.",
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


def authenticity(settings: Settings, names: NotificationFields, environ: Mapping[str, str]) -> SharedSecretHash | None:
    """Return the configured check, None where none is. Raises `ConfigurationError` naming every key it still needs."""
    section = settings.notifications
    if section.authenticity is None:
        return None
    keys = ("hash_algorithm", "hash_fields", "hash_separator", "hash_field")
    missing = [f"notifications.{key}" for key in keys if not getattr(section, key)]
    if missing:
        raise ConfigurationError(
            f'authenticity = "{section.authenticity}" also needs {", ".join(missing)}.',
            hint="The gateway's interface shows none of them: write down what its operator says. The separator must "
            "not be empty: values could then be shifted from one field to the next without the hash changing.",
        )
    algorithm = HashAlgorithm(section.hash_algorithm or "")
    hashed = tuple(section.hash_fields or ())
    needed = {names.order_id, names.amount, names.currency, names.status}
    if algorithm is HashAlgorithm.SHA256:
        needed.add(SECRET)
    if unhashed := sorted(needed - set(hashed)):
        raise ConfigurationError(
            f"notifications.hash_fields lacks {', '.join(unhashed)}: whoever has seen a notification could change it.",
            hint="Use the check only if the gateway's hash covers them; without it a person confirms.",
        )
    secret = secret_of("notifications.secret", section.secret_env, section.secret_file, environ)
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigurationError(f"The secret of the notifications is shorter than {MIN_SECRET_BYTES} bytes.")
    return SharedSecretHash(algorithm, hashed, section.hash_separator or "", section.hash_field or "", secret)
