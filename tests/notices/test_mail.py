"""Mail servers: the good ones get the mail encrypted, and each bad one is told apart."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

import pytest

from paygw_batch.core.text import fit_for_terminal
from paygw_batch.gateway.http.tls import client_context
from paygw_batch.journal import KeptNotice, Occasion
from paygw_batch.notices.mail import Attachment, MailServer, mail_of
from paygw_batch.notices.words import Trouble, TroubleKind, mail_page, mail_text, notice_words, webhook_body
from tests.support.patience import PATIENCE_S
from tests.support.receivers import PASSWORD, USER, Mails, Trust, mail_server, peer, silent

AT = datetime(2026, 11, 24, 8, tzinfo=UTC)


def mail(subject: str = "payroll.csv: the run has ended", **more: Attachment) -> EmailMessage:
    sender = ("Payouts, Nairobi", "payouts@example.com")
    return mail_of("notice_1", sender, "ada@example.com", AT, subject, "in words", "<p>in words</p>", **more)


def server(
    trust: Trust | None, port: int, *, host: str = "127.0.0.1", timeout_s: float = PATIENCE_S, **more: str
) -> MailServer:
    context = client_context(trust.bundle if trust else None, protocol=None)
    return MailServer(host, port, has_tls=bool(more.pop("tls", "")), trust=context, timeout_s=timeout_s, **more)


@contextmanager
def good(trust: Trust) -> Iterator[Mails]:
    with mail_server(trust.context()) as mails:
        yield mails


def test_mail_is_sent_after_starttls_and_sign_in(trust: Trust) -> None:
    with good(trust) as mails:
        assert server(trust, mails.port, user=USER, password=PASSWORD).send(mail()) is None
    (taken,) = mails.taken
    assert taken["Message-ID"] == "<notice_1@example.com>"
    assert taken["From"] == '"Payouts, Nairobi" <payouts@example.com>'
    assert (taken["To"], taken["Auto-Submitted"]) == ("ada@example.com", "auto-generated")
    text, html = taken.get_body(("plain",)), taken.get_body(("html",))
    assert text is not None
    assert html is not None
    assert (text.get_content().strip(), html.get_content().strip()) == ("in words", "<p>in words</p>")


def test_mail_is_sent_over_tls_from_first_byte(trust: Trust) -> None:
    with mail_server(trust.context(), from_the_start=True) as mails:
        assert server(trust, mails.port, tls="yes").send(mail(attachment=Attachment("rows.csv", b"1"))) is None
    (attached,) = mails.taken[0].iter_attachments()
    assert (attached.get_filename(), attached.get_content()) == ("rows.csv", b"1")


def test_sheet_name_cannot_add_mail_header(trust: Trust) -> None:
    with good(trust) as mails:
        assert server(trust, mails.port).send(mail("a\r\nBcc: eve@example.com\r\n\r\nb.csv é")) is None
    assert mails.taken[0]["Bcc"] is None
    assert mails.taken[0]["Subject"] == "a Bcc: eve@example.com b.csv é"


@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize("case", ["another name", "an unknown authority"])
def test_mail_server_with_wrong_certificate_is_untrusted(trust: Trust, case: str, *, from_the_start: bool) -> None:
    context = trust.context("mail.example.com" if case == "another name" else "127.0.0.1")
    with mail_server(context, from_the_start=from_the_start) as mails:
        knows = trust if case == "another name" else None
        found = server(knows, mails.port, tls="yes" if from_the_start else "").send(mail())
    assert found == Trouble(TroubleKind.UNTRUSTED)
    assert mails.taken == []


def test_unencrypted_mail_server_gets_nothing_even_locally(trust: Trust) -> None:
    with mail_server(None) as mails:
        assert server(trust, mails.port).send(mail()) == Trouble(TroubleKind.NOT_ENCRYPTED)
        assert server(trust, mails.port, tls="yes").send(mail()) == Trouble(TroubleKind.NOT_ENCRYPTED)
    assert mails.taken == []


def test_wrong_mail_password_is_reported(trust: Trust) -> None:
    with good(trust) as mails:
        wrong = server(trust, mails.port, user=USER, password="another")
        assert wrong.send(mail()) == wrong.probe() == Trouble(TroubleKind.SIGN_IN, 535)
        assert server(trust, mails.port, user=USER, password=PASSWORD).probe() is None
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
def test_mail_refusal_is_quoted_by_code_only(trust: Trust, answers: dict[str, str], code: int) -> None:
    with good(trust) as mails:
        mails.answers |= answers
        found = server(trust, mails.port).send(mail())
    assert found == Trouble(TroubleKind.REFUSED, code)
    assert found.code == f"refused {code}"


def _hang_up(connection: socket.socket) -> None:
    connection.sendall(b"220 hello\r\n")
    connection.recv(100)


def _talk_nonsense(connection: socket.socket) -> None:
    connection.sendall(b"\0\xff\xfe" * 100 + b"\r\n")
    connection.recv(100)


def _write_without_end(connection: socket.socket) -> None:
    connection.sendall(b"220 " + b"x" * 100_000 + b"\r\n")
    connection.recv(100)


@pytest.mark.parametrize(
    ("serve", "kinds"),
    [
        (_hang_up, {TroubleKind.BROKEN}),
        (_talk_nonsense, {TroubleKind.BROKEN, TroubleKind.REFUSED}),
        (_write_without_end, {TroubleKind.BROKEN, TroubleKind.REFUSED}),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_non_mail_server_is_reported_as_such(
    trust: Trust, serve: Callable[[socket.socket], None], kinds: set[TroubleKind]
) -> None:
    with peer(serve) as port:
        found = server(trust, port).send(mail())
    assert found is not None
    assert found.kind in kinds


def test_clear_answers_after_starttls_get_nothing(trust: Trust) -> None:
    got = []

    def promise(connection: socket.socket) -> None:
        for answer in (b"220 hello", b"250-hello\r\n250 STARTTLS", b"220 go on\r\n250 OK\r\n250 OK\r\n250 OK"):
            connection.sendall(answer + b"\r\n")
            got.append(connection.recv(10_000))

    with peer(promise) as port:
        found = server(trust, port).send(mail())
    assert found is not None
    assert found.kind in {TroubleKind.NOT_ENCRYPTED, TroubleKind.NOT_REACHED}
    assert len(got) == 3
    assert b"example.com" not in b"".join(got)


def test_silent_mail_server_times_out(trust: Trust) -> None:
    with peer(silent) as port:
        for tls in ("", "yes"):
            assert server(trust, port, tls=tls, timeout_s=0.05).send(mail()) == Trouble(TroubleKind.NO_ANSWER)


def test_absent_mail_server_or_host_is_not_reached(trust: Trust) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert server(trust, port).send(mail()) == Trouble(TroubleKind.NOT_REACHED)
    assert server(trust, 25, host="mail.invalid").send(mail()) == Trouble(TroubleKind.NOT_REACHED)


@pytest.mark.parametrize("code", ["refused 550", "no_answer", "not_reached"])
def test_notice_trouble_is_stored_and_read_as_code(code: str) -> None:
    assert Trouble.of_code(code).code == code


@pytest.mark.parametrize("code", ["", "a word of a later version", "refused x"])
def test_unknown_code_reads_as_trouble(code: str) -> None:
    assert Trouble.of_code(code).kind in {TroubleKind.BROKEN, TroubleKind.REFUSED}


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
    notice = KeptNotice(1, "notice_1", occasion, "s", "b", "webhook", at, content, 0, None, None, None, "")
    words = notice_words(notice, content)
    sender, attachment = ("Payouts", "payouts@example.com"), Attachment(name, b"x")
    told = (words.title, mail_text(words), mail_page(words))
    sent = mail_of("notice_1", sender, "ada@example.com", AT, *told, attachment).as_bytes()
    found = message_from_bytes(sent, policy=default)
    assert sorted(found.keys()) == [
        "Auto-Submitted", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Subject", "To"
    ]  # fmt: skip
    assert [one.addr_spec for one in found["To"].addresses] == ["ada@example.com"]
    assert fit_for_terminal(str(found["Subject"])) == str(found["Subject"])
    assert max(map(len, sent.split(b"\r\n"))) <= 998
    for style in ("standard", "slack", "teams"):
        assert json.loads(webhook_body(notice, content, style))
