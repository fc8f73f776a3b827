"""The listener with bad input, proofs, enquiries, a confirming person, and kills, as real processes and sockets."""

import json
import signal
import socket
import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cli.listening import (
    AUTHENTIC,
    PATH,
    TOKEN,
    configure_listener,
    count_acknowledged,
    count_findings,
    merchant_and_gateway,
    notify,
    read_log,
    run_listener,
    send_request,
    start_process,
)
from tests.cli.stopped import stop_process, wait_for_first_payment
from tests.support.patience import wait_until
from tests.support.ports import wait_for_server
from tests.support.program import Program, kenyan_rows


def test_invalid_notifications_change_nothing(program: Program) -> None:
    port = configure_listener(program, "max_body_kib = 8\nrate_per_s = 1000\n" + AUTHENTIC)
    sheet = program.sheet(kenyan_rows(1, amount="9002"))
    program.json("submit", sheet)
    with run_listener(program, port, "--json"):
        assert send_request(port, path="/paygw/another-token-of-thirty-two-characters", body=b"{}") == 404
        assert send_request(port, path="/paygw/", body=b"{}") == 404
        assert send_request(port, path=f"/other-endpoint/{TOKEN}", body=b"{}") == 404
        assert send_request(port, "PUT", body=b"{}") == 405
        assert send_request(port, body=b"x" * 10_000_000, Content_Type="application/json") == 413
        for body, content_type in (
            (b'{"client_orderid": "PAY-1", "client_orderid": "PAY-2"}', "json"),
            (b'{"client_orderid": "PAY-1"', "json"),
            (b'{"status": "approved"}', "json"),
            (b'{"client_orderid": "PAY-\xff"}', "json"),
            (b"{}", "json; charset=latin-1"),
            (b"<x/>", "xml"),
            (b"client_orderid=PAY-1&client_orderid=PAY-1", "x-www-form-urlencoded"),
            (b"client_orderid=%ff", "x-www-form-urlencoded"),
        ):
            assert send_request(port, body=body, Content_Type=f"application/{content_type}") == 400, body
        assert send_request(port, "GET", PATH) == 400
        assert notify(port) == 200  # no hash, so it is forged
        assert notify(port, control="0" * 64) == 200
        assert notify(port, status="sandbox-limbo", control="0" * 64) == 200
        assert notify(port, client_orderid="NOT-OURS") == 200
        wait_until(lambda: count_findings(program).total() == 13, "not all was taken in")
    assert count_findings(program) == {"unreadable": 9, "forged": 3, "unknown_order": 1}
    requests = json.loads(read_log(program).splitlines()[-1])["requests"]
    assert requests == {"200": 4, "400": 9, "404": 3, "405": 1, "413": 1, "kept": 13, "unreadable": 9}
    status = program.json("status", sheet)
    assert (status["states"], status["exit_code"]) == ({"accepted": 1}, 0)
    assert (TOKEN in read_log(program), "PAY-1" in read_log(program)) == (False, False)
    assert program.json("verify")["exit_code"] == 0
    assert program.json("status")["evidence"] == dict(count_findings(program))
    assert "9 unreadable" in program.run("status").stdout


@pytest.mark.parametrize(
    ("section", "said"),
    [("", "No authenticity check is configured"), ('on_unproven = "refresh"\n', "status_enquiry.profile is not set")],
)
def test_unproven_notification_waits_for_person(program: Program, section: str, said: str) -> None:
    port = configure_listener(program, section)
    sheet = program.sheet(kenyan_rows(1, amount="9002"))
    program.json("submit", sheet)
    with run_listener(program, port):
        assert notify(port) == 200
        wait_until(lambda: count_findings(program) == {"to_confirm": 1}, "not taken in")
    assert said in read_log(program)
    status = program.json("status", sheet)
    assert (status["states"], status["exit_code"]) == ({"accepted": 1}, 5)
    (waiting,) = status["evidence_waiting"]
    assert (waiting["row"], waiting["said"], waiting["finding"]) == (2, "paid", "to_confirm")
    settled = program.json("resolve", "row", sheet, "2", "--as", "paid", "--evidence", "their support said so")
    assert settled["states"] == {"paid": 1}
    assert program.json("status", sheet)["exit_code"] == 0


def test_acknowledged_notifications_survive_killed_listener(program: Program) -> None:
    port = configure_listener(program)
    sheet = program.sheet(kenyan_rows(1, amount="9002"))
    with start_process(program, "listen", config=program.config) as listener:
        wait_for_server(port, listener)
        for _ in range(20):
            assert notify(port) == 200
        listener.kill()
        listener.wait()
    program.json("submit", sheet)
    assert count_findings(program) == {"unknown_order": 20}
    assert program.json("verify")["checked"]["notifications_waiting"] == 0


def test_notification_about_row_in_flight_waits(program: Program) -> None:
    port = configure_listener(program)
    sheet = program.sheet(kenyan_rows(1, amount="9005"))  # never answered
    with start_process(program, "listen", config=program.config) as listener:
        wait_for_server(port, listener)
        run = program.start("submit", sheet)
        wait_for_first_payment(program, run)
        with stop_process(run):
            assert notify(port, client_orderid="NOBODY") == 200
            assert notify(port, amount="9005") == 200
        # The run judges the first and leaves the second, and both have arrived by then.
        wait_until(lambda: count_findings(program) or run.poll() is not None, "nothing was judged")
        assert (count_findings(program), run.poll()) == ({"unknown_order": 1}, None)
        run.kill()
        run.communicate()
        wait_until(lambda: count_findings(program).total() == 2, "not taken in")
    assert count_findings(program) == {"unknown_order": 1, "to_confirm": 1}
    assert program.json("status", sheet)["states"] == {"in_doubt": 1}


def test_slow_client_does_not_block_notifications(program: Program) -> None:
    port = configure_listener(program, "client_timeout_s = 1\n")
    with run_listener(program, port), socket.create_connection(("127.0.0.1", port), 30) as slow:
        slow.sendall(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nab".encode())
        assert notify(port) == 200
        with suppress(ConnectionError):  # it is closed without a response
            assert slow.recv(1) == b""


def test_notifications_above_rate_limit_get_429(program: Program) -> None:
    port = configure_listener(program, "rate_per_s = 0.5\n")
    with run_listener(program, port):
        codes = [notify(port) for _ in range(12)]
        second = program.run("listen")
    assert codes.count(200) >= 5
    assert 429 in codes
    assert (second.exit_code, "[notifications] port" in second.stderr) == (2, True)


def test_token_is_never_printed_or_stored(program: Program) -> None:
    configure_listener(program)
    sheet = program.sheet(kenyan_rows(1))
    program.json("submit", sheet)
    output = program.run("doctor").stdout + program.run("status", sheet, "--history").stdout
    assert TOKEN not in output
    assert "token" in output
    for path in program.home.rglob("*"):
        assert path.name == "token.txt" or not path.is_file() or TOKEN.encode() not in path.read_bytes()


HEADER_HMAC = """
authenticity = "header-hmac"
hash_algorithm = "hmac-sha256"
header = "X-Signature"
header_encoding = "hex"
header_prefix = "sha256="
secret_file = "secret.txt"
"""
HEADER_RSA = """
authenticity = "header-rsa"
hash_algorithm = "rsa-sha256"
header = "X-Signature"
header_encoding = "base64"
public_key_file = "gateway.pem"
"""
ENQUIRY = '\n[status_enquiry]\nprofile = "paynet-v4"\nnot_found = ["not-found"]\n'
ASKS = f'on_unproven = "refresh"\n{ENQUIRY}'


@cache
def public_pem() -> bytes:
    key = rsa.generate_private_key(65537, 2048).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def wait_until_moved(program: Program, rows: int) -> None:
    wait_until(lambda: count_findings(program)["moved"] == rows, f"{count_findings(program)}; {read_log(program)}")


BEHAVIOUR = """
default = { status = "processing" }
enquiry = { later = { processing = "approved" } }
notification = [{ status = "approved", order_id = "PAY-1" }, { status = "declined", order_id = "PAY-2" }]
"""


def test_unproven_notification_triggers_enquiry(program: Program) -> None:
    """This includes a false notification: the gateway confirms that PAY-2 was paid."""
    with merchant_and_gateway(program, behaviour=BEHAVIOUR, notifications=ASKS) as (port, callbacks):
        with run_listener(program, port):
            sheet = program.sheet(kenyan_rows(3))
            program.json("submit", sheet)
            wait_until(lambda: count_acknowledged(callbacks).total() == 2, "the sandbox was not heard")
            wait_until_moved(program, 2)
        status = program.json("status", sheet)  # no notification was sent about the third
        assert (status["states"], status["evidence_waiting"]) == ({"paid": 2, "accepted": 1}, [])
        assert count_findings(program) == {"to_confirm": 2, "moved": 2}
        assert program.json("verify")["exit_code"] == 0
    with closing(sqlite3.connect(f"file:{program.journal}?mode=ro", uri=True)) as connection:
        sources = connection.execute("SELECT source, finding FROM fact WHERE finding IS NOT NULL ORDER BY 1, 2")
        assert list(sources) == [("enquiry", "moved")] * 2 + [("notification", "to_confirm")] * 2


def test_enquiry_answer_reaches_current_run(program: Program) -> None:
    slow = BEHAVIOUR.replace('{ status = "processing" }', '{ status = "processing", delay_s = 0.3 }')
    assert slow != BEHAVIOUR
    with merchant_and_gateway(program, behaviour=slow, notifications=ASKS) as (port, _), run_listener(program, port):
        run = program.start("submit", program.sheet(kenyan_rows(60)), "--concurrency", "1")
        wait_until(lambda: count_findings(program)["moved"] == 2 or run.poll() is not None, "the run took nothing in")
        assert run.poll() is None, "the run ended before it took the answers in"
        run.send_signal(signal.SIGTERM)
        run.communicate()
    assert count_findings(program)["moved"] == 2


def test_listener_enquires_about_waiting_notifications_at_start(program: Program) -> None:
    with merchant_and_gateway(program, behaviour=BEHAVIOUR, notifications=ENQUIRY) as (port, callbacks):
        sheet = program.sheet(kenyan_rows(1))
        with run_listener(program, port):
            program.json("submit", sheet)
            wait_until(lambda: count_acknowledged(callbacks).total() == 1, "the sandbox was not heard")
            wait_until(lambda: count_findings(program).total() == 1, "not taken in")
        assert count_findings(program) == {"to_confirm": 1}
        text = program.config.read_text()
        program.config.write_text(text.replace("[notifications]\n", '[notifications]\non_unproven = "refresh"\n'))
        with run_listener(program, port):
            wait_until_moved(program, 1)
        assert program.json("status", sheet)["states"] == {"paid": 1}


@pytest.mark.parametrize(
    "section",
    [
        HEADER_HMAC,
        HEADER_RSA.replace("rsa-sha256", "rsa-pss-sha256").replace("gateway.pem", "gateway/sandbox-gateway-public.pem"),
    ],
)
def test_sandbox_proves_notifications_in_header(program: Program, section: str) -> None:
    lie = BEHAVIOUR.replace('order_id = "PAY-2"', 'order_id = "PAY-2", forged = true')
    with merchant_and_gateway(program, behaviour=lie, notifications=section) as (port, callbacks):
        sheet = program.sheet(kenyan_rows(2))
        with run_listener(program, port):
            program.json("submit", sheet)
            wait_until(lambda: count_acknowledged(callbacks).total() == 2, "the sandbox was not heard")
            wait_until(lambda: count_findings(program).total() == 2, "not taken in")
        assert count_findings(program) == {"moved": 1, "forged": 1}
        assert program.json("status", sheet)["states"] == {"paid": 1, "accepted": 1}


def write_key(home: Path, content: bytes, mode: int = 0o600) -> None:
    (home / "gateway.pem").write_bytes(content)
    (home / "gateway.pem").chmod(mode)


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("", lambda home: (home / "token.txt").chmod(0o644), "accessible to users other"),
        (AUTHENTIC, lambda home: (home / "secret.txt").chmod(0o620), "accessible to users other"),
        ("", lambda home: (home / "token.txt").write_text("short"), "at least 32 characters"),
        ("", lambda home: (home / "token.txt").unlink(), "token_file"),
        (AUTHENTIC.replace('"{secret}"', '"x"'), None, "must include {secret}"),
        (AUTHENTIC.replace('"amount", ', ""), None, "must include amount"),
        (AUTHENTIC.replace('hash_separator = "|"', 'hash_separator = ""'), None, "hash_separator"),
        (AUTHENTIC.replace('hash_field = "control"', ""), None, "hash_field"),
        (AUTHENTIC, lambda home: (home / "secret.txt").write_text("short"), "at least 16 bytes"),
        (HEADER_HMAC.replace('header = "X-Signature"', ""), None, "you must set notifications.header."),
        (HEADER_HMAC.replace('header_encoding = "hex"', ""), None, "you must set notifications.header_encoding."),
        (HEADER_HMAC.replace('"hmac-sha256"', '"sha256"'), None, "hash_algorithm hmac-sha256 or hmac-sha512"),
        (HEADER_HMAC.replace('"hex"', '"base32"'), None, "header_encoding"),
        (HEADER_HMAC.replace("X-Signature", "X Signature"), None, "notifications.header"),
        (HEADER_HMAC + 'hash_field = "control"\n', None, "hash_field is not used with authenticity"),
        (HEADER_HMAC, lambda home: (home / "secret.txt").write_text("short"), "at least 16 bytes"),
        (HEADER_HMAC.replace('secret_file = "secret.txt"', ""), None, "notifications.secret_file"),
        (HEADER_RSA, None, "gateway.pem: no such file"),
        (HEADER_RSA, lambda home: write_key(home, b"junk"), "does not contain a readable public key"),
        (HEADER_RSA, lambda home: write_key(home, public_pem(), 0o666), "writable by other users"),
        (
            HEADER_RSA.replace('public_key_file = "gateway.pem"', ""),
            None,
            "you must set notifications.public_key_file.",
        ),
        ('authenticity = "header-dsa"\n', None, "notifications.authenticity"),
        ('on_unproven = "ignore"\n', None, "notifications.on_unproven"),
    ],
)
def test_listen_reports_invalid_setting(program: Program, section: str, change: object, said: str) -> None:
    configure_listener(program, section)
    if callable(change):
        change(program.home)
    refused = program.run("listen")
    assert (refused.exit_code, TOKEN in refused.stderr, "Traceback" in refused.stderr) == (2, False, False)
    assert said in refused.stderr


def test_callback_url_without_token_is_refused(program: Program) -> None:
    refused = program.run("listen")
    assert (refused.exit_code, "{token}" in refused.stderr) == (2, True)


def test_doctor_reads_gateway_key_from_environment(program: Program) -> None:
    by_variable = HEADER_RSA.replace('public_key_file = "gateway.pem"', 'public_key_env = "PAYGW_GATEWAY_KEY"')
    configure_listener(program, by_variable)
    output = program.run("doctor", PAYGW_GATEWAY_KEY=public_pem().decode()).stdout
    assert ("checked by header-rsa" in output, "PAYGW_GATEWAY_KEY is not a setting" in output) == (True, False)
