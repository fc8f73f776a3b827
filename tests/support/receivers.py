"""Receivers of notices on loopback: a mail server with TLS, a webhook, and misbehaving servers."""

import contextlib
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.ports import free_port

USER, PASSWORD = "mailer", "a password of a test"


@dataclass(frozen=True)
class Trust:
    """A certificate authority for tests, and the file with its certificate."""

    authority: trustme.CA
    bundle: Path

    def context(self, name: str = "127.0.0.1") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(name).configure_cert(context)
        return context


def create_authority(folder: Path) -> Trust:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return Trust(authority, folder / "authority.pem")


@dataclass
class MailSink:
    """The mails that a server has accepted. `answers` overrides its replies to SMTP commands."""

    answers: dict[str, str] = field(default_factory=dict)
    taken: list[EmailMessage] = field(default_factory=list)
    port: int = 0

    def ids(self) -> list[str]:
        return [str(mail["Message-ID"]) for mail in self.taken]

    async def handle_RCPT(  # noqa: N802 (aiosmtpd's name)
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        envelope.rcpt_tos.append(address)
        return self.answers.get("RCPT", "250 OK")

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        answer = self.answers.get("DATA", "250 OK")
        if answer.startswith("250"):
            self.taken.append(message_from_bytes(cast("bytes", envelope.content), policy=default))
        return answer


def _authenticate(_server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: Any) -> AuthResult:
    is_right = isinstance(given, LoginPassword) and (given.login, given.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=is_right, handled=False)


@contextmanager
def mail_server(tls: ssl.SSLContext | None, *, from_the_start: bool = False) -> Iterator[MailSink]:
    """Run a mail server with STARTTLS, with TLS from the first byte, or without TLS if `tls` is None."""
    mails, more = MailSink(), dict[str, Any]()
    if tls is not None and not from_the_start:
        more = {"tls_context": tls, "require_starttls": True, "authenticator": _authenticate}
    elif tls is not None:
        more = {"ssl_context": tls}
    mails.port = free_port()
    controller = Controller(mails, hostname="127.0.0.1", port=mails.port, ready_timeout=60, **more)
    controller.start()
    try:
        yield mails
    finally:
        controller.stop()


@dataclass
class Webhook:
    """The requests that a webhook received (lower-case headers, `:path` and bodies), and the status that it answers."""

    status: int = 204
    answer: dict[str, str] = field(default_factory=dict)
    got: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    on_post: Callable[[], object] | None = None  # what is done with each post before it is answered

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]


@contextmanager
def webhook(tls: ssl.SSLContext | None = None) -> Iterator[Webhook]:
    posts = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            if len(body := self.rfile.read(length)) < length:
                return  # the sending process has died
            headers = {name.lower(): value for name, value in self.headers.items()}
            posts.got.append((headers | {":path": self.path}, body))
            if posts.on_post is not None:
                posts.on_post()
            self.send_response(posts.status)
            for name, value in posts.answer.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore a client that has disconnected."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        posts.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}/paygw"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield posts
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def running_peer(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server that handles each connection with `serve`, and yield its port."""
    ended = threading.Event()

    def accept() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        ended.set()


def stay_silent(connection: socket.socket) -> None:
    """Send nothing until the other side has closed the connection."""
    while connection.recv(4096):
        pass


SECRET = "whsec_" + b64encode(bytes(range(32))).decode()
