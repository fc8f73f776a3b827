"""Mail servers: good ones receive encrypted mail, and each bad one is distinguished."""

import socket
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest

from paygw_batch.gateway.http.tls import client_context
from paygw_batch.notices.mail import Attachment, MailServer, build_mail
from paygw_batch.notices.words import DeliveryFailure, FailureKind
from tests.support.patience import PATIENCE_S
from tests.support.receivers import PASSWORD, USER, Trust, mail_server, running_peer, stay_silent

AT = datetime(2026, 11, 24, 8, tzinfo=UTC)


def sample_mail(subject: str = "payroll.csv: the run has ended", **more: Attachment) -> EmailMessage:
    sender = ("Payouts, Nairobi", "payouts@example.com")
    return build_mail("notice_1", sender, "ada@example.com", AT, subject, "in words", "<p>in words</p>", **more)


def build_server(trust: Trust | None, port: int, *, host: str = "127.0.0.1", tls: str = "", **more: Any) -> MailServer:
    context = client_context(trust.bundle if trust else None, protocol=None)
    more = {"timeout_s": PATIENCE_S} | more
    return MailServer(host, port, implicit_tls=bool(tls), tls_context=context, **more)


def test_mail_is_sent_by_starttls_or_tls(trust: Trust) -> None:
    with mail_server(trust.context()) as mails:
        assert build_server(trust, mails.port, user=USER, password=PASSWORD).send(sample_mail()) is None
    (taken,) = mails.taken
    assert taken["Message-ID"] == "<notice_1@example.com>"
    assert taken["From"] == '"Payouts, Nairobi" <payouts@example.com>'
    assert (taken["To"], taken["Auto-Submitted"]) == ("ada@example.com", "auto-generated")
    parts = {part.get_content_type(): part.get_content().strip() for part in taken.iter_parts()}
    assert parts == {"text/plain": "in words", "text/html": "<p>in words</p>"}
    mail = sample_mail(attachment=Attachment("rows.csv", b"1"))
    with mail_server(trust.context(), from_the_start=True) as mails:
        assert build_server(trust, mails.port, tls="yes").send(mail) is None
    (attached,) = mails.taken[0].iter_attachments()
    assert (attached.get_filename(), attached.get_content()) == ("rows.csv", b"1")


@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize("case", ["another name", "an unknown authority"])
def test_mail_server_with_wrong_certificate_is_untrusted(trust: Trust, case: str, *, from_the_start: bool) -> None:
    context = trust.context("mail.example.com" if case == "another name" else "127.0.0.1")
    with mail_server(context, from_the_start=from_the_start) as mails:
        knows = trust if case == "another name" else None
        failure = build_server(knows, mails.port, tls="yes" if from_the_start else "").send(sample_mail())
    assert failure == DeliveryFailure(FailureKind.UNTRUSTED)
    assert mails.taken == []


def test_unencrypted_local_mail_server_receives_nothing(trust: Trust) -> None:
    with mail_server(None) as mails:
        for tls in ("", "yes"):
            failure = build_server(trust, mails.port, tls=tls).send(sample_mail())
            assert failure == DeliveryFailure(FailureKind.NOT_ENCRYPTED)
    assert mails.taken == []


def test_wrong_mail_password_is_reported(trust: Trust) -> None:
    with mail_server(trust.context()) as mails:
        wrong = build_server(trust, mails.port, user=USER, password="another")
        assert wrong.send(sample_mail()) == wrong.probe() == DeliveryFailure(FailureKind.SIGN_IN, 535)
        assert build_server(trust, mails.port, user=USER, password=PASSWORD).probe() is None
    assert mails.taken == []


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"RCPT": "550 no such user"}, 550),
        ({"DATA": "552 the mailbox of Jane Wanjiku is full"}, 552),
        ({"DATA": "452 insufficient storage"}, 452),
        ({"RCPT": "421 going away"}, 421),
    ],
)
def test_mail_refusal_is_stored_as_code(trust: Trust, answers: dict[str, str], code: int) -> None:
    with mail_server(trust.context()) as mails:
        mails.answers |= answers
        failure = build_server(trust, mails.port).send(sample_mail())
    assert failure == DeliveryFailure(FailureKind.REFUSED, code)
    assert failure.code == f"refused {code}"


@pytest.mark.parametrize(
    ("greeting", "kinds"),
    [
        (b"220 hello\r\n", {FailureKind.BROKEN}),  # then it hangs up
        (b"\0\xff\xfe" * 100 + b"\r\n", {FailureKind.BROKEN, FailureKind.REFUSED}),
        (b"220 " + b"x" * 100_000 + b"\r\n", {FailureKind.BROKEN, FailureKind.REFUSED}),
    ],
    ids=["hang-up", "nonsense", "endless"],
)
def test_other_servers_are_not_mistaken_for_mail_servers(
    trust: Trust, greeting: bytes, kinds: set[FailureKind]
) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(greeting)
        connection.recv(100)

    with running_peer(serve) as port:
        failure = build_server(trust, port).send(sample_mail())
    assert failure is not None
    assert failure.kind in kinds


def test_server_replying_without_tls_receives_nothing(trust: Trust) -> None:
    got = []

    def promise(connection: socket.socket) -> None:
        for answer in (b"220 hello", b"250-hello\r\n250 STARTTLS", b"220 go on\r\n250 OK\r\n250 OK\r\n250 OK"):
            connection.sendall(answer + b"\r\n")
            got.append(connection.recv(10_000))

    with running_peer(promise) as port:
        failure = build_server(trust, port).send(sample_mail())
    assert failure is not None
    assert failure.kind in {FailureKind.NOT_ENCRYPTED, FailureKind.NOT_REACHED}
    assert len(got) == 3
    assert b"example.com" not in b"".join(got)


def test_silent_or_missing_mail_server_is_reported(trust: Trust) -> None:
    with running_peer(stay_silent) as port:
        for tls in ("", "yes"):
            failure = build_server(trust, port, tls=tls, timeout_s=0.05).send(sample_mail())
            assert failure == DeliveryFailure(FailureKind.NO_ANSWER)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for missing in (build_server(trust, port), build_server(trust, 25, host="mail.invalid")):
        assert missing.send(sample_mail()) == DeliveryFailure(FailureKind.NOT_REACHED)


def test_delivery_failure_is_stored_as_code() -> None:
    for code in ("refused 550", "no_answer", "not_reached"):
        assert DeliveryFailure.from_code(code).code == code
    for code in ("", "a word of a later version", "refused x"):
        assert DeliveryFailure.from_code(code).kind in {FailureKind.BROKEN, FailureKind.REFUSED}
