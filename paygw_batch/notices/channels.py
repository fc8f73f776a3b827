"""Builds the channels for notices (e-mail and webhook) from `[notices]`."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.http.tls import client_context
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import load_secret
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import NoticesSection, validate_webhook_url
from paygw_batch.submit.notices import has_notice_recipients

if TYPE_CHECKING:
    from paygw_batch.notices.mail import MailServer
    from paygw_batch.notices.webhook import Webhook
_DEFAULT_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels for notices. A channel that is not configured is None."""

    mail: "MailServer | None" = None
    webhook: "Webhook | None" = None


def build_channels(settings: Settings, environ: Mapping[str, str]) -> Channels:
    """Build the configured channels. Raises `ConfigurationError` if one of them cannot be used."""
    section = settings.notices
    if not has_notice_recipients(settings):
        return Channels()
    return Channels(_build_mail_server(section, environ), _build_webhook(section, environ))


def _tls_context(section: NoticesSection, protocol: str | None) -> ssl.SSLContext:
    return client_context(section.ca_bundle, key="notices.ca_bundle", protocol=protocol)


def _build_mail_server(section: NoticesSection, environ: Mapping[str, str]) -> "MailServer | None":
    if section.smtp is None:
        return None
    from paygw_batch.notices.mail import MailServer  # noqa: PLC0415 (only if e-mail is configured)

    url = urlsplit(section.smtp)
    password = ""
    if section.smtp_user is not None:
        env, file = section.smtp_password_env, section.smtp_password_file
        password = _read_secret("notices.smtp_password", env, file, environ)
    return MailServer(
        url.hostname or "",
        url.port or _DEFAULT_PORTS[url.scheme],
        url.scheme == "smtps",
        _tls_context(section, None),
        section.smtp_user,
        password,
    )


def _build_webhook(section: NoticesSection, environ: Mapping[str, str]) -> "Webhook | None":
    if not section.has_webhook:
        return None
    from paygw_batch.notices.webhook import Webhook, decode_secret  # noqa: PLC0415 (only if a webhook is configured)

    url = section.webhook or _read_secret("notices.webhook", section.webhook_env, section.webhook_file, environ)
    secret = None
    try:
        validate_webhook_url(url)
    except ValueError as error:
        raise ConfigurationError(f"notices.webhook: {error}.") from None
    if section.needs_secret:
        env, file = section.webhook_secret_env, section.webhook_secret_file
        try:
            secret = decode_secret(_read_secret("notices.webhook_secret", env, file, environ))
        except ValueError as error:
            raise ConfigurationError(
                say("The webhook secret cannot be used: {error}.", error=error),
                hint=say(
                    "Write whsec_ followed by 32 random bytes in base64 (`echo whsec_$(openssl rand -base64 32)`), "
                    "and give the receiver the same value."
                ),
            ) from None
    return Webhook(url, _tls_context(section, "http/1.1"), secret)


def _read_secret(key: str, env: str | None, file: Path | None, environ: Mapping[str, str]) -> str:
    try:
        return load_secret(key, env, file, environ).decode().strip()
    except UnicodeDecodeError:
        raise ConfigurationError(say("The file in {key}_file is not text.", key=key)) from None
