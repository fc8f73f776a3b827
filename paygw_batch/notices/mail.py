"""Sends one e-mail at a time, over TLS alone: from the first byte, or after STARTTLS."""

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
    (ValueError, TroubleKind.BROKEN),  # of smtplib, for an answer that is none
)
"""The trouble that each exception means: the first line that fits counts."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server, and how it is spoken with. `has_tls`: from the first byte; else STARTTLS is asked for."""

    host: str
    port: int
    has_tls: bool
    trust: ssl.SSLContext = field(repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0
    """How long it may be silent."""

    def send(self, mail: EmailMessage) -> Trouble | None:
        """Send a mail; return why the server did not take it, or None if it did."""
        return self._trouble_with(lambda client: client.send_message(mail))

    def probe(self) -> Trouble | None:
        """Sign in, and send nothing; return why that failed, or None if it did not."""
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
        # Our own name is not looked up: that can take as long as a name server pleases.
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
            with suppress(smtplib.SMTPException, OSError):  # it has the mail by now
                client.quit()
        finally:
            client.close()

    def _encrypt(self, client: smtplib.SMTP) -> None:
        """Go on encrypted, or not at all: removing the offer of STARTTLS must not get anyone the mail."""
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
    """A file that goes with a mail."""

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
    """Return the mail of a notice. Its Message-ID is made of the notice's id, so every try has the same."""
    mail = EmailMessage(policy=SMTP)
    name, address = sender
    mail["From"] = Address(name, addr_spec=address)
    mail["To"] = Address(addr_spec=recipient)
    # The library decodes what looks like an encoded word: a sheet's name could hide line ends and directions in one.
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
        return Trouble(TroubleKind.NO_ANSWER)  # smtplib makes one of the other
    kind = next(kind for sort, kind in _FAILURES if isinstance(error, sort))
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return Trouble(kind, max((code for code, _ in error.recipients.values()), default=0))
    return Trouble(kind, max(error.smtp_code, 0) if isinstance(error, smtplib.SMTPResponseException) else 0)
