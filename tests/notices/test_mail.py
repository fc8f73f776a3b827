"""Mail servers: good ones receive encrypted mail, and each bad one is distinguished."""

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

import pytest

from paygw_batch.core.text import escape_for_terminal
from paygw_batch.gateway.http.tls import client_context
from paygw_batch.journal import Occasion, StoredNotice
from paygw_batch.notices.mail import Attachment, MailServer, build_mail
from paygw_batch.notices.words import DeliveryFailure, FailureKind, mail_page, mail_text, notice_text, webhook_body
from tests.support.patience import PATIENCE_S
from tests.support.receivers import PASSWORD, USER, Trust, mail_server, running_peer, stay_silent

AT = datetime(2026, 11, 24, 8, tzinfo=UTC)


def sample_mail(subject: str = "payroll.csv: the run has ended", **more: Attachment) -> EmailMessage:
    sender = ("Payouts, Nairobi", "payouts@example.com")
    return build_mail("notice_1", sender, "ada@example.com", AT, subject, "in words", "<p>in words</p>", **more)


def build_server(
    trust: Trust | None, port: int, *, host: str = "127.0.0.1", timeout_s: float = PATIENCE_S, **more: str
) -> MailServer:
    context = client_context(trust.bundle if trust else None, protocol=None)
    return MailServer(
        host, port, implicit_tls=bool(more.pop("tls", "")), tls_context=context, timeout_s=timeout_s, **more
    )


def test_mail_is_sent_by_starttls_or_tls(trust: Trust) -> None:
    with mail_server(trust.context()) as mails:
        assert build_server(trust, mails.port, user=USER, password=PASSWORD).send(sample_mail()) is None
    (taken,) = mails.taken
    assert taken["Message-ID"] == "<notice_1@example.com>"
    assert taken["From"] == '"Payouts, Nairobi" <payouts@example.com>'
    assert (taken["To"], taken["Auto-Submitted"]) == ("ada@example.com", "auto-generated")
    text, html = taken.get_body(("plain",)), taken.get_body(("html",))
    assert text is not None
    assert html is not None
    assert (text.get_content().strip(), html.get_content().strip()) == ("in words", "<p>in words</p>")
    mail = sample_mail(attachment=Attachment("rows.csv", b"1"))
    with mail_server(trust.context(), from_the_start=True) as mails:
        assert build_server(trust, mails.port, tls="yes").send(mail) is None
    (attached,) = mails.taken[0].iter_attachments()
    assert (attached.get_filename(), attached.get_content()) == ("rows.csv", b"1")


def test_sheet_name_cannot_add_mail_header(trust: Trust) -> None:
    with mail_server(trust.context()) as mails:
        assert build_server(trust, mails.port).send(sample_mail("a\r\nBcc: eve@example.com\r\n\r\nb.csv é")) is None
    assert mails.taken[0]["Bcc"] is None
    assert mails.taken[0]["Subject"] == "a Bcc: eve@example.com b.csv é"


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


def _hang_up(connection: socket.socket) -> None:
    connection.sendall(b"220 hello\r\n")
    connection.recv(100)


def _talk_nonsense(connection: socket.socket) -> None:
    connection.sendall(b"\0\xff\xfe" * 100 + b"\r\n")
    connection.recv(100)


def _write_without_end(connection: socket.socket) -> None:
    connection.sendall(b"220 " + b"x" * 100_000 + b"\r\n")
    connection.recv(100)


@pytest.mark.parametrize("serve", [_hang_up, _talk_nonsense, _write_without_end], ids=lambda one: one.__name__)
def test_other_servers_are_not_mistaken_for_mail_servers(trust: Trust, serve: Callable[[socket.socket], None]) -> None:
    with running_peer(serve) as port:
        failure = build_server(trust, port).send(sample_mail())
    assert failure is not None
    assert failure.kind in ({FailureKind.BROKEN} if serve is _hang_up else {FailureKind.BROKEN, FailureKind.REFUSED})


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


HOSTILE = (
    "a\r\nBcc: x@y.example",
    "a,b\"'<b>;\\",
    "\u202elsx.exe",
    "x" * 10_000,
    "é" * 10_000,
    "a\x00\x1b[31m\x85\u2028",
    "=?utf-8?q?x=0D=0ABcc:_x@y.example?=",
    "=?utf-8?b?DQpCY2M6IHhAeS56?=",
    "{{ 7 * 7 }} <!channel>",
)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("occasion", [Occasion.RUN_ENDED, Occasion.SHEET_REFUSED, Occasion.PLAN_WAITS])
def test_hostile_name_adds_no_header_or_recipient(name: str, occasion: Occasion) -> None:
    content = {
        "sheet": name, "defects": 1, "answer": name, "rows": 1, "totals": {"KES": "1"}, "maker": name, "needed": 1,
        "code": "1", "link": "", "states": {}, "at": "2026-11-24T08:00",
    }  # fmt: skip
    at = "2026-11-24T08:00:00.000Z"
    notice = StoredNotice(1, "notice_1", occasion, "s", "b", "webhook", at, content, 0, None, None, None, "")
    words = notice_text(notice, content)
    sender, attachment = ("Payouts", "payouts@example.com"), Attachment(name, b"x")
    parts = (words.title, mail_text(words), mail_page(words))
    sent = build_mail("notice_1", sender, "ada@example.com", AT, *parts, attachment).as_bytes()
    mail = message_from_bytes(sent, policy=default)
    assert sorted(mail.keys()) == [
        "Auto-Submitted", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Subject", "To"
    ]  # fmt: skip
    assert [addresse.addr_spec for addresse in mail["To"].addresses] == ["ada@example.com"]
    assert escape_for_terminal(str(mail["Subject"])) == str(mail["Subject"])
    assert max(map(len, sent.split(b"\r\n"))) <= 998
    for style in ("standard", "slack", "teams"):
        assert json.loads(webhook_body(notice, content, style))
