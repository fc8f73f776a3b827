"""The text of notices: every occasion, language and channel, with a hostile sheet name."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest

from paygw_batch.core.text import escape_for_terminal
from paygw_batch.journal import Occasion, StoredNotice
from paygw_batch.language import language_context, languages
from paygw_batch.notices.mail import Attachment, build_mail
from paygw_batch.notices.words import (
    DeliveryFailure,
    FailureKind,
    describe_failure,
    mail_html,
    mail_text,
    notice_text,
    webhook_body,
)

HOSTILE = "pay <b>\"&\\'\x1b[2J\u202e.csv"
CONTENT: Mapping[Occasion, Mapping[str, Any]] = {
    Occasion.RUN_ENDED: {
        "sheet": HOSTILE, "batch": "b1", "rows": 5, "states": {"paid": 2, "in_doubt": 1, "ready": 2}, "exit_code": 5,
        "totals": {"KES": {"paid": "3001.00", "in_doubt": "1.00", "ready": "2.00"}, "XOF": {"paid": "7"}},
        "at": "2026-11-24T08:00:00.000Z", "link": "https://pay.example.com/payouts/b1",
    },
    Occasion.SHEET_REFUSED: {"sheet": HOSTILE, "defects": 2, "answer": f"/srv/refused/{HOSTILE}"},
    Occasion.PLAN_WAITS: {
        "sheet": HOSTILE, "batch": "b1", "rows": 3, "totals": {"KES": "4501.50"}, "maker": "Ada", "needed": 1,
        "code": "1a2b 3c4d", "link": "",
    },
    Occasion.IN_DOUBT: {
        "sheet": HOSTILE, "batch": "b1", "rows_in_doubt": 1, "hours": 24.0, "oldest": "2026-11-23T07:30:00.000Z",
        "link": "",
    },
    Occasion.CONTRADICTED: {
        "sheet": HOSTILE, "batch": "b1", "messages": 2, "at": "2026-11-23T07:30:00.000Z", "link": "",
    },
    Occasion.WORKER_DIED: {
        "host": HOSTILE, "pid": 7, "since": "2026-11-23T07:30:00Z", "seen_at": "2026-11-23T08:30:00Z", "batch": "b1",
    },
    Occasion.RUNS_OUT: {"what": "key", "place": HOSTILE, "until": "2026-12-01", "has_ended": False},
}  # fmt: skip


def build_notice(occasion: Occasion) -> StoredNotice:
    at = "2026-11-24T08:00:00.000Z"
    return StoredNotice(1, "notice_1", occasion, "s", "b1", "webhook", at, None, 0, None, None, None, "")


@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize("occasion", Occasion)
def test_every_occasion_has_text_for_every_channel(occasion: Occasion, language: str) -> None:
    content = CONTENT[occasion]
    with language_context(language):
        words = notice_text(build_notice(occasion), content)
        text, page = mail_text(words), mail_html(words)
        slack, teams = (json.loads(webhook_body(build_notice(occasion), content, kind)) for kind in ("slack", "teams"))
    for shown in (text, page, slack["text"], json.dumps(teams, ensure_ascii=False)):
        assert ("\x1b" in shown, "\u202e" in shown) == (False, False)
    assert text.startswith(words.title)
    assert ("<b>" in page, "<b>" in slack["text"]) == (False, False)
    assert teams["attachments"][0]["content"]["body"][0]["text"] == words.title
    assert all(sentence in text for sentence in words.sentences)


@pytest.mark.parametrize("occasion", Occasion)
def test_webhook_body_contains_unformatted_values(occasion: Occasion) -> None:
    message = json.loads(webhook_body(build_notice(occasion), CONTENT[occasion], "standard"))
    assert message == {"type": occasion.value, "timestamp": "2026-11-24T08:00:00.000Z", "data": CONTENT[occasion]}


def test_run_notice_lists_states_with_sums() -> None:
    words = notice_text(build_notice(Occasion.RUN_ENDED), CONTENT[Occasion.RUN_ENDED])
    assert list(words.table) == [
        ("not sent yet", "2", "KES 2.00"),
        ("in doubt", "1", "KES 1.00"),
        ("paid", "2", "KES 3,001.00, XOF 7"),
    ]
    assert mail_text(words).count("\n\n\n") == 0


@pytest.mark.parametrize("kind", FailureKind)
def test_every_delivery_failure_has_message(kind: FailureKind) -> None:
    assert describe_failure(DeliveryFailure(kind, 550).code).endswith(" (550)")
    assert describe_failure(kind.value)


def test_notice_with_file_does_not_deny_personal_data() -> None:
    of = (build_notice(Occasion.SHEET_REFUSED), CONTENT[Occasion.SHEET_REFUSED])
    for has_attachment in (False, True):
        words = notice_text(*of, has_attachment=has_attachment)
        assert ("does not name any payee" in mail_text(words)) is not has_attachment
        assert ("does not name any payee" in mail_html(words)) is not has_attachment


HOSTILE_NAMES = (
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


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
@pytest.mark.parametrize("occasion", [Occasion.RUN_ENDED, Occasion.SHEET_REFUSED, Occasion.PLAN_WAITS])
def test_hostile_name_adds_no_header_or_recipient(name: str, occasion: Occasion) -> None:
    notice, content = build_notice(occasion), {**CONTENT[occasion], "sheet": name, "answer": name, "maker": name}
    words = notice_text(notice, content)
    parts = (words.title, mail_text(words), mail_html(words))
    ends = (("Payouts", "payouts@example.com"), "ada@example.com", datetime(2026, 11, 24, 8, tzinfo=UTC))
    sent = build_mail("notice_1", *ends, *parts, Attachment(name, b"x")).as_bytes()
    mail = message_from_bytes(sent, policy=default)
    assert sorted(mail.keys()) == [
        "Auto-Submitted", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Subject", "To"
    ]  # fmt: skip
    assert [address.addr_spec for address in mail["To"].addresses] == ["ada@example.com"]
    assert escape_for_terminal(str(mail["Subject"])) == str(mail["Subject"])
    assert max(map(len, sent.split(b"\r\n"))) <= 998
    for style in ("standard", "slack", "teams"):
        assert json.loads(webhook_body(notice, content, style))
