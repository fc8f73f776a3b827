"""Sends e-mails, one at a time and only over TLS."""

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
    (ValueError, FailureKind.BROKEN),  # raised by smtplib for a reply that is not SMTP
)
"""The kind of failure for each exception. The first match applies."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server. With `implicit_tls`, it uses TLS from the first byte. Otherwise STARTTLS is required."""

    host: str
    port: int
    implicit_tls: bool
    tls_context: ssl.SSLContext = field(repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0
    """How long to wait for each reply."""

    def send(self, mail: EmailMessage) -> DeliveryFailure | None:
        """Send a mail. Returns the failure, or None if the server accepted it."""
        return self._run_session(lambda client: client.send_message(mail))

    def probe(self) -> DeliveryFailure | None:
        """Sign in without sending anything. Returns the failure, or None."""
        return self._run_session(smtplib.SMTP.noop)

    def _run_session(self, action: Callable[[smtplib.SMTP], object]) -> DeliveryFailure | None:
        try:
            with self._connect() as client:
                action(client)
        except tuple(error_type for error_type, _ in _FAILURE_KINDS) as error:
            return _build_failure(error)
        return None

    @contextmanager
    def _connect(self) -> Iterator[smtplib.SMTP]:
        # Our own host name is not looked up, because that can block on a slow name server.
        name, timeout_s = "localhost", self.timeout_s
        client = (
            smtplib.SMTP_SSL(self.host, self.port, local_hostname=name, timeout=timeout_s, context=self.tls_context)
            if self.implicit_tls
            else smtplib.SMTP(self.host, self.port, local_hostname=name, timeout=timeout_s)
        )
        try:
            client.ehlo()
            if not self.implicit_tls:
                self._start_tls(client)
            if self.user is not None:
                self._sign_in(client, self.user)
            yield client
            with suppress(smtplib.SMTPException, OSError):  # the server has already accepted the mail
                client.quit()
        finally:
            client.close()

    def _start_tls(self, client: smtplib.SMTP) -> None:
        """Encrypt the connection. Raises `ssl.SSLError` if the server does not offer STARTTLS."""
        try:
            code, _ = client.starttls(context=self.tls_context)
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
    """A file attached to a mail."""

    name: str
    content: bytes = field(repr=False)


def build_mail(
    notice_id: str,
    sender: tuple[str, str],
    recipient: str,
    written_at: datetime,
    subject: str,
    text: str,
    html: str,
    attachment: Attachment | None = None,
) -> EmailMessage:
    """Build the mail for a notice. Retries have the same Message-ID, which contains the notice's id."""
    mail = EmailMessage(policy=SMTP)
    name, address = sender
    mail["From"] = Address(name, addr_spec=address)
    mail["To"] = Address(addr_spec=recipient)
    # The library decodes encoded words (`=?...?=`), in which the name of a sheet could hide line breaks.
    mail["Subject"] = " ".join(subject.split()).replace("=?", "= ?")
    mail["Date"] = written_at
    mail["Message-ID"] = f"<{notice_id}@{address.rpartition('@')[2]}>"
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


def _build_failure(error: Exception) -> DeliveryFailure:
    if isinstance(error, smtplib.SMTPServerDisconnected) and isinstance(error.__context__, TimeoutError):
        return DeliveryFailure(FailureKind.NO_ANSWER)  # this is how smtplib reports a timeout
    kind = next(kind for error_type, kind in _FAILURE_KINDS if isinstance(error, error_type))
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return DeliveryFailure(kind, max((code for code, _ in error.recipients.values()), default=0))
    return DeliveryFailure(kind, max(error.smtp_code, 0) if isinstance(error, smtplib.SMTPResponseException) else 0)
