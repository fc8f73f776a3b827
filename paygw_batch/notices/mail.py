"""Sends one e-mail at a time, only over TLS: from the first byte, or after STARTTLS."""

import smtplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP

from paygw_batch.core.text import fit_for_terminal
from paygw_batch.notices.words import Trouble, TroubleKind

_FAILURES: tuple[tuple[type[Exception], TroubleKind], ...] = (
    (ssl.SSLCertVerificationError, TroubleKind.UNTRUSTED),
    (ssl.SSLError, TroubleKind.NOT_ENCRYPTED),
    (TimeoutError, TroubleKind.NO_ANSWER),
    (smtplib.SMTPAuthenticationError, TroubleKind.SIGN_IN),
    (smtplib.SMTPRecipientsRefused, TroubleKind.REFUSED),
    (smtplib.SMTPResponseException, TroubleKind.REFUSED),
    (smtplib.SMTPException, TroubleKind.BROKEN),
    (OSError, TroubleKind.NOT_REACHED),
    (ValueError, TroubleKind.BROKEN),  # smtplib raises it for an answer that is not SMTP
)
"""The trouble that each exception means. The first matching line counts."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server, and how it is used. `has_tls`: TLS from the first byte, otherwise STARTTLS is requested."""

    host: str
    port: int
    has_tls: bool
    trust: ssl.SSLContext = field(repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0
    """How long the server may be silent."""

    def send(self, mail: EmailMessage) -> Trouble | None:
        """Send a mail. Return why the server did not accept it, or None if it did."""
        return self._trouble_with(lambda client: client.send_message(mail))

    def probe(self) -> Trouble | None:
        """Sign in, and send nothing. Return why that failed, or None if it did not."""
        return self._trouble_with(smtplib.SMTP.noop)

    def _trouble_with(self, act: Callable[[smtplib.SMTP], object]) -> Trouble | None:
        try:
            with self._connected() as client:
                act(client)
        except tuple(kind for kind, _ in _FAILURES) as error:
            return _trouble(error)
        return None

    @contextmanager
    def _connected(self) -> Iterator[smtplib.SMTP]:
        # Our own name is not looked up, because that can take as long as a name server wants.
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
            with suppress(smtplib.SMTPException, OSError):  # the server has accepted the mail by now
                client.quit()
        finally:
            client.close()

    def _encrypt(self, client: smtplib.SMTP) -> None:
        """Encrypt the connection, or raise an error, so that nobody who removes the offer of STARTTLS gets the mail."""
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
    """A file that is attached to a mail."""

    name: str
    content: bytes = field(repr=False)


def mail_of(
    notice: str,
    sender: tuple[str, str],
    recipient: str,
    at: datetime,
    subject: str,
    text: str,
    html: str,
    attachment: Attachment | None = None,
) -> EmailMessage:
    """Return the mail of a notice. Its Message-ID contains the notice's id, so it is the same in every try."""
    mail = EmailMessage(policy=SMTP)
    name, address = sender
    mail["From"] = Address(name, addr_spec=address)
    mail["To"] = Address(addr_spec=recipient)
    # The library decodes a text that looks like an encoded word, in which a sheet's name could hide line ends and
    # directions.
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
            filename=fit_for_terminal(attachment.name),
        )
    return mail


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, smtplib.SMTPServerDisconnected) and isinstance(error.__context__, TimeoutError):
        return Trouble(TroubleKind.NO_ANSWER)  # smtplib turned a timeout into this error
    kind = next(kind for sort, kind in _FAILURES if isinstance(error, sort))
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return Trouble(kind, max((code for code, _ in error.recipients.values()), default=0))
    return Trouble(kind, max(error.smtp_code, 0) if isinstance(error, smtplib.SMTPResponseException) else 0)
