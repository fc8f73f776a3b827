"""Sends e-mails one at a time, and only over TLS."""

import smtplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP

from paygw_batch.core.text import escape_for_terminal
from paygw_batch.notices.words import DeliveryFailure, FailureKind

_FAILURE_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (ssl.SSLCertVerificationError, FailureKind.UNTRUSTED),
    (ssl.SSLError, FailureKind.NOT_ENCRYPTED),
    (TimeoutError, FailureKind.NO_ANSWER),
    (smtplib.SMTPAuthenticationError, FailureKind.SIGN_IN),
    (smtplib.SMTPRecipientsRefused, FailureKind.REFUSED),
    (smtplib.SMTPResponseException, FailureKind.REFUSED),
    (smtplib.SMTPException, FailureKind.BROKEN),
    (OSError, FailureKind.NOT_REACHED),
    (ValueError, FailureKind.BROKEN),  # smtplib raises it for a reply that is not SMTP
)
"""The kind of failure for each exception. The first match counts."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server. `has_tls` means TLS from the first byte; otherwise STARTTLS is required."""

    host: str
    port: int
    has_tls: bool
    trust: ssl.SSLContext = field(repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0
    """How long to wait for each reply."""

    def send(self, mail: EmailMessage) -> DeliveryFailure | None:
        """Send a mail. Return the failure, or None if the server accepted it."""
        return self._run_session(lambda client: client.send_message(mail))

    def probe(self) -> DeliveryFailure | None:
        """Sign in without sending anything. Return the failure, or None."""
        return self._run_session(smtplib.SMTP.noop)

    def _run_session(self, act: Callable[[smtplib.SMTP], object]) -> DeliveryFailure | None:
        try:
            with self._connect() as client:
                act(client)
        except tuple(kind for kind, _ in _FAILURE_KINDS) as error:
            return _to_delivery_failure(error)
        return None

    @contextmanager
    def _connect(self) -> Iterator[smtplib.SMTP]:
        # The local host name is fixed, because looking it up can block on a slow name server.
        name, timeout_s = "localhost", self.timeout_s
        client = (
            smtplib.SMTP_SSL(self.host, self.port, local_hostname=name, timeout=timeout_s, context=self.trust)
            if self.has_tls
            else smtplib.SMTP(self.host, self.port, local_hostname=name, timeout=timeout_s)
        )
        try:
            client.ehlo()
            if not self.has_tls:
                self._encrypt(client)
            if self.user is not None:
                self._sign_in(client, self.user)
            yield client
            with suppress(smtplib.SMTPException, OSError):  # the server has already accepted the mail
                client.quit()
        finally:
            client.close()

    def _encrypt(self, client: smtplib.SMTP) -> None:
        """Encrypt the connection, or raise an error.

        If an attacker removes the offer of STARTTLS, the mail must not be sent in clear.
        """
        try:
            code, _ = client.starttls(context=self.trust)
        except smtplib.SMTPNotSupportedError:
            code = 0
        if code != 220:  # noqa: PLR2004 (RFC 3207)
            raise ssl.SSLError("the server does not offer STARTTLS")
        client.ehlo()

    def _sign_in(self, client: smtplib.SMTP, user: str) -> None:
        try:
            client.login(user, self.password)
        except smtplib.SMTPNotSupportedError:
            raise smtplib.SMTPAuthenticationError(0, b"") from None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to attach to a mail."""

    name: str
    content: bytes = field(repr=False)


def build_mail(
    notice: str,
    sender: tuple[str, str],
    recipient: str,
    at: datetime,
    subject: str,
    text: str,
    html: str,
    attachment: Attachment | None = None,
) -> EmailMessage:
    """Build the mail for a notice. Its Message-ID contains the notice's id, so retries have the same one."""
    mail = EmailMessage(policy=SMTP)
    name, address = sender
    mail["From"] = Address(name, addr_spec=address)
    mail["To"] = Address(addr_spec=recipient)
    # The library decodes text that looks like an encoded word, in which a sheet's name could hide line breaks and
    # text directions.
    mail["Subject"] = " ".join(subject.split()).replace("=?", "= ?")
    mail["Date"] = at
    mail["Message-ID"] = f"<{notice}@{address.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    mail.add_alternative(html, subtype="html")
    if attachment is not None:
        mail.add_attachment(
            attachment.content,
            maintype="application",
            subtype="octet-stream",
            filename=escape_for_terminal(attachment.name),
        )
    return mail


def _to_delivery_failure(error: Exception) -> DeliveryFailure:
    if isinstance(error, smtplib.SMTPServerDisconnected) and isinstance(error.__context__, TimeoutError):
        return DeliveryFailure(FailureKind.NO_ANSWER)  # smtplib turned a timeout into this error
    kind = next(kind for sort, kind in _FAILURE_KINDS if isinstance(error, sort))
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return DeliveryFailure(kind, max((code for code, _ in error.recipients.values()), default=0))
    return DeliveryFailure(kind, max(error.smtp_code, 0) if isinstance(error, smtplib.SMTPResponseException) else 0)
