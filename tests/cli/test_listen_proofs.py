"""Proofs of notifications, and enquiries about unproven ones, with real processes and sockets."""

import json
import signal
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cli.listening import (
    APPROVED,
    configure_listener,
    count_acknowledged,
    count_findings,
    merchant_and_gateway,
    read_log,
    run_listener,
    send_request,
)
from tests.support.patience import wait_until
from tests.support.program import Program, kenyan_rows

SECRET = b"a secret of enough bytes"
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
SHA1 = """
authenticity = "shared-secret-hash"
hash_algorithm = "sha1"
hash_fields = ["status", "client_orderid", "{secret}"]
hash_field = "control"
secret_file = "secret.txt"
"""
ENQUIRY = '\n[status_enquiry]\nprofile = "paynet-v4"\nnot_found = ["not-found"]\n'
ASKS = f'on_unproven = "refresh"\n{ENQUIRY}'


@cache
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


BODY = json.dumps(APPROVED).encode()


def public_pem() -> bytes:
    key = private_key().public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def wait_until_moved(program: Program, rows: int) -> None:
    wait_until(lambda: count_findings(program)["moved"] == rows, f"{count_findings(program)}; {read_log(program)}")


BEHAVIOUR = """
[default]
status = "processing"

[enquiry]
later = { processing = "approved" }

[[notification]]
status = "approved"
order_id = "PAY-1"

[[notification]]
status = "declined"
order_id = "PAY-2"
"""


def test_unproven_notification_triggers_enquiry(program: Program) -> None:
    """This includes a false notification: the gateway confirms that PAY-2 was paid."""
    with merchant_and_gateway(program, behaviour=BEHAVIOUR, notifications=ASKS) as (port, callbacks):
        with run_listener(program, port):
            sheet = program.sheet(kenyan_rows(3))
            program.json("submit", sheet)
            wait_until(lambda: count_acknowledged(callbacks).total() == 2, "the sandbox was not heard")
            wait_until_moved(program, 2)
        status = program.json("status", sheet)
        assert status["states"] == {"paid": 2, "accepted": 1}  # no notification was sent about the third
        assert status["evidence_waiting"] == []
        assert count_findings(program) == {"to_confirm": 2, "moved": 2}
        assert program.json("verify")["exit_code"] == 0
    with closing(sqlite3.connect(f"file:{program.journal}?mode=ro", uri=True)) as connection:
        sources = connection.execute("SELECT source, finding FROM fact WHERE finding IS NOT NULL ORDER BY 1, 2")
        assert list(sources) == [("enquiry", "moved")] * 2 + [("notification", "to_confirm")] * 2


def test_enquiry_answer_reaches_current_run(program: Program) -> None:
    slow = BEHAVIOUR.replace('status = "processing"\n\n[enquiry]', 'status = "processing"\ndelay_s = 0.3\n\n[enquiry]')
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
    lie = BEHAVIOUR.replace('order_id = "PAY-2"', 'order_id = "PAY-2"\nforged = true')
    with merchant_and_gateway(program, behaviour=lie, notifications=section) as (port, callbacks):
        sheet = program.sheet(kenyan_rows(2))
        with run_listener(program, port):
            program.json("submit", sheet)
            wait_until(lambda: count_acknowledged(callbacks).total() == 2, "the sandbox was not heard")
            wait_until(lambda: count_findings(program).total() == 2, "not taken in")
        assert count_findings(program) == {"moved": 1, "forged": 1}
        assert program.json("status", sheet)["states"] == {"paid": 1, "accepted": 1}


def test_listener_without_enquiry_profile_makes_no_enquiries(program: Program) -> None:
    port = configure_listener(program, 'on_unproven = "refresh"\n')
    sheet = program.sheet(kenyan_rows(1, amount="9002"))
    program.json("submit", sheet)
    with run_listener(program, port):
        assert send_request(port, body=BODY, Content_Type="application/json") == 200
        wait_until(lambda: count_findings(program) == {"to_confirm": 1}, "not taken in")
    assert "status_enquiry.profile is not set" in read_log(program)
    assert program.json("status", sheet)["exit_code"] == 5


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        (HEADER_HMAC.replace('header = "X-Signature"', ""), None, "you must set notifications.header."),
        (HEADER_HMAC.replace('header_encoding = "hex"', ""), None, "you must set notifications.header_encoding."),
        (HEADER_HMAC.replace('"hmac-sha256"', '"sha256"'), None, "hash_algorithm hmac-sha256 or hmac-sha512"),
        (HEADER_HMAC.replace('"hex"', '"base32"'), None, "header_encoding"),
        (HEADER_HMAC.replace("X-Signature", "X Signature"), None, "notifications.header"),
        (HEADER_HMAC + 'hash_field = "control"\n', None, "hash_field is not used with authenticity"),
        (HEADER_HMAC, lambda home: (home / "secret.txt").write_text("short"), "at least 16 bytes"),
        (HEADER_HMAC.replace('secret_file = "secret.txt"', ""), None, "notifications.secret_file"),
        (HEADER_RSA, None, "gateway.pem: no such file"),
        (HEADER_RSA, lambda home: (home / "gateway.pem").write_text("junk"), "does not contain a readable public key"),
        (HEADER_RSA, lambda home: _write_key(home / "gateway.pem", 0o666), "writable by other users"),
        (
            HEADER_RSA.replace('public_key_file = "gateway.pem"', ""),
            None,
            "you must set notifications.public_key_file.",
        ),
        (SHA1.replace(', "{secret}"', ""), None, "must include {secret}"),
        ('authenticity = "header-dsa"\n', None, "notifications.authenticity"),
        ('on_unproven = "ignore"\n', None, "notifications.on_unproven"),
    ],
)
def test_invalid_proof_configuration_is_refused(program: Program, section: str, change: object, said: str) -> None:
    configure_listener(program, section)
    if callable(change):
        change(program.home)
    refused = program.run("listen")
    assert (refused.exit_code, "Traceback" in refused.stderr) == (2, False)
    assert said in refused.stderr


def _write_key(path: Path, mode: int) -> None:
    path.write_bytes(public_pem())
    path.chmod(mode)


def test_doctor_reads_gateway_key_from_environment(program: Program) -> None:
    by_variable = HEADER_RSA.replace('public_key_file = "gateway.pem"', 'public_key_env = "PAYGW_GATEWAY_KEY"')
    configure_listener(program, by_variable)
    output = program.run("doctor", PAYGW_GATEWAY_KEY=public_pem().decode()).stdout
    assert "checked by header-rsa" in output
    assert "PAYGW_GATEWAY_KEY is not a setting" not in output
