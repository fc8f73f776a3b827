"""Notices from end to end: runs, refused sheets, plans and rows in doubt, and who receives them."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, NoReturn

import pytest
import standardwebhooks

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalUnwritable
from paygw_batch.gateway.signing.key import Custody, KeyKind, PrivateKey
from paygw_batch.journal import Outbox
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.notices import delivery
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.settings.configuration import load_settings
from paygw_batch.settings.sections import OCCASIONS, NoticesSection
from tests.support.approving import policy, prepare_sheet
from tests.support.checkout import ROOT
from tests.support.clusters import ClusterProgram
from tests.support.journal_rows import outcome_of
from tests.support.patience import wait_until
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows
from tests.support.receivers import (
    PASSWORD,
    SECRET,
    USER,
    MailSink,
    Trust,
    Webhook,
    create_authority,
    mail_server,
    running_peer,
    stay_silent,
    webhook,
)

ADA, BEN = "ada@example.com", "ben@example.com"
NAME = "Wanjiku"
"""A payee's name, which appears only in notices to people who may have it."""


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return create_authority(tmp_path_factory.mktemp("trust_of_notices"))


@pytest.fixture
def mails(trust: Trust) -> Iterator[MailSink]:
    with mail_server(trust.context()) as server:
        yield server


@pytest.fixture
def posts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setenv("PAYGW_HOOK", SECRET)
    with webhook() as receiver:
        yield receiver


def bodies(posts: Webhook) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in posts.got]


def write_settings(program: Program, *lines: str) -> None:
    text = program.config.read_text().partition("\n[notices]")[0]
    program.config.write_text("\n".join([text, "[notices]", *lines, ""]))


def configure_mail(program: Program, trust: Trust, port: int, *lines: str) -> None:
    """Notify Ada of every occasion by mail, unless `lines` say otherwise."""
    secret = program.home / "password"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    recipients = [f'{occasion} = ["{ADA}"]' for occasion in OCCASIONS if occasion not in " ".join(lines)]
    server = (
        f'smtp = "smtp://127.0.0.1:{port}"', f'smtp_user = "{USER}"', 'smtp_password_file = "password"',
        'from = "Payouts <payouts@example.com>"', f'ca_bundle = "{trust.bundle}"',
    )  # fmt: skip
    write_settings(program, *server, *recipients, *lines)


def configure_webhook(program: Program, posts: Webhook, *lines: str) -> None:
    write_settings(program, f'webhook = "{posts.url}"', 'webhook_secret_env = "PAYGW_HOOK"', *lines)


def outbox(program: Program) -> list[dict[str, Any]]:
    return list(program.json("notices")["notices"])


def mail_text(found: Any) -> str:
    return str(found.get_body(("plain",)).get_content())


def test_run_end_notice_has_totals_but_no_payees(program: Program, trust: Trust, mails: MailSink) -> None:
    configure_mail(program, trust, mails.port)
    sheet = program.sheet(kenyan_rows(3))
    assert program.json("submit", sheet)["states"] == {"paid": 3}
    (mail,) = mails.taken
    assert (mail["To"], mail["Subject"]) == (ADA, "payroll.csv: the run has ended")
    assert "paid: 3 (KES 4,501.50)" in mail_text(mail)
    assert (NAME in mail.as_string(), "254712345" in mail.as_string()) == (False, False)
    (kept,) = outbox(program)
    assert (kept["occasion"], kept["tries"], kept["problem"]) == ("run_ended", 1, "")
    assert None not in (kept["next_at"], kept["sent_at"])
    assert program.json("submit", sheet)["sent_this_run"] == 0
    assert len(mails.taken) == 1, "a run that sends nothing is no news"


@pytest.mark.parametrize(("style", "field"), [("slack", "text"), ("teams", "attachments")])
def test_slack_and_teams_get_their_own_formats(program: Program, posts: Webhook, style: str, field: str) -> None:
    write_settings(program, 'webhook_env = "PAYGW_ADDRESS"', f'webhook_format = "{style}"')
    program.json("submit", program.sheet(kenyan_rows(2)), PAYGW_ADDRESS=posts.url)
    ((headers, body),) = posts.got
    assert ("webhook-signature" in headers, field in json.loads(body)) == (False, True)


def test_each_dropped_refused_sheet_sends_one_notice(program: Program, trust: Trust, mails: MailSink) -> None:
    configure_mail(program, trust, mails.port, f'sheet_refused = ["{ADA}", "{BEN}"]', f'personal_data = ["{BEN}"]')
    folder = program.home / "drop"
    folder.mkdir()
    rows = [*kenyan_rows(1), "KE,PAY-9,-5,KES,Jane Wanjiku,254712345999,+254712345999"]
    for _ in range(2):
        program.sheet(rows, name="drop/payroll.csv")
        assert program.json("run-folder", folder, "--settle-s", "0")["exit_code"] == 3
    assert [mail["To"] for mail in mails.taken] == [ADA, BEN] * 2
    plain, personal = mails.taken[:2]
    assert all(part in mail_text(plain) for part in ("1 row has defects.", "rejects.csv", "does not name any payee"))
    assert (NAME in plain.as_string(), list(plain.iter_attachments())) == (False, [])
    (attached,) = personal.iter_attachments()
    assert NAME in attached.get_content().decode()
    assert "does not name any payee" not in mail_text(personal)


@pytest.mark.parametrize("rows", [["KE,PAY-1,-5,KES,Jane Wanjiku,254712345999,+254712345999"], ["not", "a", "sheet"]])
def test_submit_sends_notice_of_refused_sheet(program: Program, posts: Webhook, rows: list[str]) -> None:
    configure_webhook(program, posts)
    program.run("journal", "new")
    assert program.json("submit", program.sheet(rows))["exit_code"] == 3
    (said,) = bodies(posts)
    assert (said["type"], said["data"]["sheet"]) == ("sheet_refused", "payroll.csv")


def test_waiting_plan_notice_contains_link(program: Program, trust: Trust, mails: MailSink) -> None:
    console = '\n[console]\norigin = "https://pay.example.com"\n'
    program.config.write_text(program.config.read_text() + policy(program.home) + console)
    configure_mail(program, trust, mails.port)
    prepare_sheet(program)
    (mail,) = mails.taken
    assert mail["Subject"] == "payroll.csv is waiting for approval"
    assert "asks for your approval: KES 4,501.50." in mail_text(mail)
    assert "https://pay.example.com" in mail_text(mail)
    assert NAME not in mail.as_string()


def test_each_row_in_doubt_sends_one_notice(program: Program, posts: Webhook) -> None:
    configure_webhook(program, posts, "in_doubt_h = 0", 'webhook_for = ["in_doubt"]')
    (program.home / "doubt.toml").write_text('[default]\nstatus = "a word that nobody knows"\n')
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "doubt.toml"\n')
    for number in (1, 2):
        sheet = program.sheet(kenyan_rows(1, prefix=f"P{number}"), name=f"{number}.csv")
        program.json("submit", sheet, "--repeats-meant")
        assert program.json("notices", "send")["sent"] == 0
    notices = [(body["data"]["sheet"], body["data"]["rows_in_doubt"]) for body in bodies(posts)]
    assert notices == [("1.csv", 1), ("2.csv", 1)]


def test_each_contradicting_message_sends_one_notice(program: Program, posts: Webhook) -> None:
    configure_webhook(program, posts, 'webhook_for = ["contradicted"]')
    program.json("submit", program.sheet(kenyan_rows(2)))
    location = journal_location(load_settings(program.config, environ=os.environ))
    for row in (1, 2):
        with closing(location.open_to_write("a test")) as journal:
            assert isinstance(journal, SqliteJournal)
            journal.append([outcome_of(row, 1, OutcomeKind.REJECTED, timestamp(utc_now()))])
        assert [program.json("notices", "send")["sent"] for _ in range(2)] == [1, 0]
    assert [body["data"]["messages"] for body in bodies(posts)] == [1, 2]


def test_full_disk_sends_one_notice_a_day(program: Program, posts: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_webhook(program, posts, 'webhook_for = ["runs_out"]')
    monkeypatch.setattr("paygw_batch.submit.send.free_bytes", lambda _: 2**10)
    sheet = program.sheet(kenyan_rows(2))
    assert [program.json("submit", sheet)["exit_code"] for _ in range(2)] == [6, 6]
    assert program.json("doctor")["exit_code"] == 6
    (said,) = bodies(posts)
    assert (said["type"], said["data"]["what"], said["data"]["free_bytes"]) == ("runs_out", "disk", 2**10)
    assert len(outbox(program)) == 1


@pytest.mark.parametrize(("days", "told"), [(40, []), (10, [False]), (-1, [True])])
def test_expiring_key_sends_one_notice(
    program: Program, posts: Webhook, monkeypatch: pytest.MonkeyPatch, days: int, told: list[bool]
) -> None:
    configure_webhook(program, posts, 'webhook_for = ["runs_out"]')
    until_day = utc_now().date() + timedelta(days=days)
    monkeypatch.setattr(PrivateKey, "custody", Custody(KeyKind.FILE, "here", expires=until_day))
    for number in range(2):
        program.json("submit", program.sheet(kenyan_rows(1, prefix=f"K{number}")), "--repeats-meant")
        program.json("doctor")
    assert [body["data"]["has_ended"] for body in bodies(posts)] == told


def test_notice_is_written_in_configured_language(program: Program, trust: Trust, mails: MailSink) -> None:
    configure_mail(program, trust, mails.port, 'language = "fr"')
    assert "paid" in program.run("submit", program.sheet(kenyan_rows(1))).output
    assert 'lang=3D"fr"' in str(mails.taken[0].get_body(("html",)))
    assert mails.taken[0]["Subject"] != "payroll.csv: the run has ended"


@pytest.mark.parametrize("case", ["gone", "silent", "refusing"])
def test_failing_notice_server_does_not_change_run(
    program: Program, monkeypatch: pytest.MonkeyPatch, trust: Trust, mails: MailSink, case: str
) -> None:
    monkeypatch.setattr(delivery, "MAX_WAIT_AFTER_RUN_S", 0.5)
    mails.answers["RCPT"] = "550 no"
    with running_peer(stay_silent) as hole:
        port = {"gone": 1, "silent": hole, "refusing": mails.port}[case]
        configure_mail(program, trust, port)
        summary = program.json("submit", program.sheet(kenyan_rows(2)))
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 2})
    (kept,) = outbox(program)
    assert (kept["sent_at"], kept["tries"]) == (None, 1)
    mails.answers.clear()
    configure_mail(program, trust, mails.port)
    if case == "silent":  # as after a crash: the result of the attempt is unknown
        assert program.json("notices", "send", "--again")["sent"] == 0
        return
    assert program.json("notices", "send")["exit_code"] == 0
    assert mails.taken == []
    assert program.json("notices", "send", "--again")["sent"] == 1
    assert mails.ids() == [f"<{kept['id']}@example.com>"]


def test_undeliverable_notice_changes_exit_code_and_doctor_report(
    program: Program, trust: Trust, mails: MailSink
) -> None:
    mails.answers["DATA"] = "552 full"
    configure_mail(program, trust, mails.port)
    program.json("submit", program.sheet(kenyan_rows(1)))
    again = program.json("notices", "send", "--again")
    assert (again["exit_code"], again["failed"]) == (6, 1)
    assert "(552)" in program.run("notices").stdout
    assert notice_checks(program) == ["ok", "warning"]
    with mail_server(trust.context("mail.example.com")) as untrusted:
        configure_mail(program, trust, untrusted.port)
        assert notice_checks(program) == ["wrong", "warning"]


def notice_checks(program: Program) -> list[str]:
    return [check["state"] for check in program.json("doctor")["checks"] if check["check"] == "notices"]


def test_notice_without_journal_does_not_stop_commands(
    program: Program, posts: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_webhook(program, posts)
    monkeypatch.setattr(PrivateKey, "custody", Custody(KeyKind.FILE, "here", expires=utc_now().date()))
    checked = program.run("doctor")
    assert "A notice could not be written, so it was not sent: There is no journal" in " ".join(checked.stderr.split())
    assert not program.journal.exists()
    program.json("submit", program.sheet(kenyan_rows(1)))
    assert [body["type"] for body in bodies(posts)] == ["run_ended", "runs_out"]


def test_unwritable_notice_does_not_stop_payout(
    program: Program, posts: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_webhook(program, posts)

    def full(*_: object, **__: object) -> NoReturn:
        raise JournalUnwritable("The disk is full.")

    monkeypatch.setattr(Outbox, "_add", full)
    summary = program.json("submit", program.sheet(kenyan_rows(1)))
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 1})
    assert posts.got == []


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (['run_ended = ["ada@example.com"]'], "smtp"),
        (['smtp = "mail.example.com"', 'from = "p@example.com"', 'run_ended = ["ada"]'], "'ada'"),
        (['smtp = "https://mail.example.com"'], "smtp"),
        (['smtp = "smtp://me:secret@mail.example.com"'], "smtp_user"),
        (['from = "nobody"'], "'nobody'"),
        ([r'from = "P\r\nBcc: x@y.example <p@example.com>"'], "cannot be printed"),
        ([r'from = "P\u202e <p@example.com>"'], "cannot be printed"),
        (['from = "=?utf-8?q?x=0D=0ABcc:_a?= <p@example.com>"'], "=?"),
        ([f'from = "{"P" * 10_000} <p@example.com>"'], "200"),
        (['from = "P <p@example.com, q@example.com>"'], "'p@example.com, q@example.com'"),
        ([r'run_ended = ["ada@example.com\r\nBcc: x@y.example"]'], "not an e-mail address"),
        (['run_ended = ["a..b@example.com"]'], "'a..b@example.com'"),
        (['run_ended = ["a@example.com, b@example.com"]'], "'a@example.com, b@example.com'"),
        (["run_ended = ['\"a b\"@example.com']"], "not an e-mail address"),
        ([f'run_ended = ["{"a" * 10_000}@example.com"]'], "not an e-mail address"),
        ([r'smtp = "smtp://mail.example.com\r\nX"'], "mail server"),
        ([r'webhook = "https://h.example/\r\nX: y"', 'webhook_secret_env = "A"'], "address of a webhook"),
        (['webhook = "https://[::1/"', 'webhook_secret_env = "A"'], "webhook"),
        (['run_ends = ["ada@example.com"]'], "run_ended"),
        (['webhook_for = ["run_ends"]'], "run_ended"),
        (['webhook = "http://hooks.example.com/"', 'webhook_secret_env = "A"'], "https://"),
        (['webhook = "https://hooks.example.com/"'], "webhook_secret_env"),
        (['webhook = "https://hooks.example.com/"', 'webhook_format = "slack"'], "webhook_env"),
        (['webhook = "https://hooks.example.com/"', 'webhook_secret_env = "PAYGW_HOOK"'], "PAYGW_HOOK"),
        (['webhook = "https://h.example/"', 'webhook_secret_env = "PAYGW_HOOK"', 'ca_bundle = "none.pem"'], "none.pem"),
        (['webhook_env = "PAYGW_ADDRESS"', 'webhook_secret_env = "PAYGW_HOOK"'], "PAYGW_ADDRESS"),
        (['personal_data = ["ada@example.com"]'], "ada@example.com"),
        (['language = "tlh"'], "'tlh'"),
    ],
)
def test_invalid_notice_configuration_stops_run(program: Program, lines: list[str], named: str) -> None:
    write_settings(program, *lines)
    environ = {"PAYGW_HOOK": SECRET} if "none.pem" in named or named == "PAYGW_ADDRESS" else {}
    summary = program.json("submit", program.sheet(kenyan_rows(1)), **environ)
    assert summary["exit_code"] == 2
    assert named in summary["message"]
    assert "secret" not in summary["message"].replace("webhook_secret", "").replace("its secret", "")
    assert program.json("doctor", **environ)["exit_code"] == 2
    assert program.record() == []


def test_notices_never_show_secrets(program: Program, posts: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings(program, 'webhook_env = "PAYGW_ADDRESS"', 'webhook_secret_env = "PAYGW_HOOK"')
    monkeypatch.setenv("PAYGW_ADDRESS", f"{posts.url}/T0/B0")
    output = program.run("config", "show").stdout + program.run("doctor").stdout
    output += program.run("--json", "submit", program.sheet(kenyan_rows(1))).stdout
    assert (SECRET in output, "T0/B0" in output, len(posts.got)) == (False, False, 1)


@pytest.mark.parametrize("where", ["before the sending", "before it is noted"])
def test_notice_survives_killed_process_with_same_id(
    program: Program, posts: Webhook, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    started: list[subprocess.Popen[str]] = []

    def kill_it(*_: object) -> None:
        wait_until(lambda: started)
        os.kill(started[0].pid, signal.SIGKILL)

    sheet = program.sheet(kenyan_rows(1))
    with running_peer(kill_it) as hole:
        configure_webhook(program, posts)
        if where == "before the sending":
            program.config.write_text(program.config.read_text().replace(posts.url, f"http://127.0.0.1:{hole}/"))
        posts.on_post = kill_it
        started.append(program.start("submit", sheet))
        started[0].communicate()
        assert started[0].returncode == -signal.SIGKILL
    posts.on_post = None
    configure_webhook(program, posts)
    sent = 0 if where == "before the sending" else 1
    assert len(posts.got) == sent
    assert program.json("notices", "send")["sent"] == 0, "it was just tried"
    monkeypatch.setattr("paygw_batch.journal.outbox.FIRST_PAUSE", timedelta(0))
    assert program.json("notices", "send", "--again")["sent"] == 1
    assert set(posts.ids()) == {outbox(program)[0]["id"]}
    assert len(posts.got) == sent + 1
    assert program.json("submit", sheet)["states"] == {"paid": 1}


def test_documented_notice_configuration_and_commands_work(
    program: Program, trust: Trust, mails: MailSink, posts: Webhook
) -> None:
    text = (ROOT / "docs" / "notices.md").read_text()
    blocks = dict(re.findall(r"```(toml|json|sh)\n(.*?)```", text, flags=re.DOTALL))
    for name, secret in (("smtp-password", PASSWORD), ("webhook-secret", SECRET)):
        (program.home / name).write_text(secret)
        (program.home / name).chmod(0o600)
    configuration = blocks["toml"].replace("mail.example.com:587", f"127.0.0.1:{mails.port}")
    configuration = configuration.replace('"payouts"', f'"{USER}"').replace("https://erp.example.com/paygw", posts.url)
    program.config.write_text(f'{program.config.read_text()}\n{configuration}\nca_bundle = "{trust.bundle}"\n')
    assert program.json("submit", program.sheet(kenyan_rows(2)))["states"] == {"paid": 2}
    assert [mail["To"] for mail in mails.taken] == ["treasury@example.com"]
    ((headers, body),) = posts.got
    said, wanted = standardwebhooks.Webhook(SECRET).verify(body, dict(headers)), json.loads(blocks["json"])
    assert (said["type"], NAME in body.decode()) == ("run_ended", False)
    assert headers["webhook-id"] in {notice["id"] for notice in outbox(program)}
    assert (said.keys(), said["data"].keys()) == (wanted.keys(), wanted["data"].keys())
    assert (said["data"]["states"], said["data"]["totals"]) == (wanted["data"]["states"], wanted["data"]["totals"])
    for line in blocks["sh"].splitlines():
        assert program.json(*shlex.split(line, comments=True)[1:])["exit_code"] == 0, line
    assert (len(mails.taken), len(posts.got)) == (1, 1)


def test_every_notice_setting_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for name, field in NoticesSection.model_fields.items():
        key = field.alias or name
        assert f"`notices.{key}`" in text or re.search(rf"`notices\.\w+`.*`{key}`", text), key


def test_moved_journal_keeps_waiting_notices(program: Program, posts: Webhook, postgres_server: PostgresServer) -> None:
    name = postgres_server.new_database()
    posts.status = 500
    configure_webhook(program, posts)
    assert program.json("submit", program.sheet(kenyan_rows(1)))["states"] == {"paid": 1}
    (waiting,) = outbox(program)
    user = ClusterProgram(program.home, program.config)
    user.write_url(postgres_server.url(name))
    assert user.json("journal", "move", program.journal, "--by", "Ada")["exit_code"] == 0
    posts.status = 204
    assert user.json("notices", "send", "--again")["sent"] == 1
    assert set(posts.ids()) == {waiting["id"]}
    postgres_server.drop_database(name)
