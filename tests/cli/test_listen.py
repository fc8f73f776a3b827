"""The listener with bad input, a confirming person, and kills, as real processes and sockets."""

import json
import socket
from pathlib import Path

import pytest

from tests.cli.listening import (
    AUTHENTIC,
    PATH,
    TOKEN,
    configure_listener,
    count_findings,
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


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side closes a connection without a response."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


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
            (b'{"client_orderid": "PAY-1", "client_orderid": "PAY-2"}', "application/json"),
            (b'{"client_orderid": "PAY-1"', "application/json"),
            (b'{"status": "approved"}', "application/json"),
            (b'{"client_orderid": "PAY-\xff"}', "application/json"),
            (b"{}", "application/json; charset=latin-1"),
            (b"<x/>", "text/xml"),
            (b"client_orderid=PAY-1&client_orderid=PAY-1", "application/x-www-form-urlencoded"),
            (b"client_orderid=%ff", "application/x-www-form-urlencoded"),
        ):
            assert send_request(port, body=body, Content_Type=content_type) == 400, body
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
    assert TOKEN not in read_log(program)
    assert b"PAY-1" not in read_log(program).encode()
    assert program.json("verify")["exit_code"] == 0
    assert program.json("status")["evidence"] == dict(count_findings(program))
    assert "9 unreadable" in program.run("status").stdout


def test_unproven_notification_waits_for_person(program: Program) -> None:
    port = configure_listener(program)
    sheet = program.sheet(kenyan_rows(1, amount="9002"))
    program.json("submit", sheet)
    with run_listener(program, port):
        assert notify(port) == 200
        wait_until(lambda: count_findings(program).total() == 1, "not taken in")
    assert "No authenticity check is configured" in read_log(program)
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
        slow.settimeout(30)
        assert is_closed(slow)


def test_notifications_above_rate_limit_get_429(program: Program) -> None:
    port = configure_listener(program, "rate_per_s = 0.5\n")
    with run_listener(program, port):
        codes = [notify(port) for _ in range(12)]
    assert codes.count(200) >= 5
    assert 429 in codes


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("", lambda home: (home / "token.txt").chmod(0o644), "accessible to users other"),
        ("", lambda home: (home / "token.txt").chmod(0o666), "accessible to users other"),
        (AUTHENTIC, lambda home: (home / "secret.txt").chmod(0o666), "accessible to users other"),
        (AUTHENTIC, lambda home: (home / "secret.txt").chmod(0o620), "accessible to users other"),
        ("", lambda home: (home / "token.txt").write_text("short"), "at least 32 characters"),
        ("", lambda home: (home / "token.txt").unlink(), "token_file"),
        (AUTHENTIC.replace('"{secret}"', '"x"'), None, "must include {secret}"),
        (AUTHENTIC.replace('"amount", ', ""), None, "must include amount"),
        (AUTHENTIC.replace('hash_separator = "|"', 'hash_separator = ""'), None, "hash_separator"),
        (AUTHENTIC.replace('hash_field = "control"', ""), None, "hash_field"),
        (AUTHENTIC, lambda home: (home / "secret.txt").write_text("short"), "at least"),
    ],
)
def test_listen_reports_invalid_setting(program: Program, section: str, change: object, said: str) -> None:
    configure_listener(program, section)
    if callable(change):
        change(program.home)
    refused = program.run("listen")
    assert (refused.exit_code, said in refused.stderr, TOKEN in refused.stderr) == (2, True, False)


def test_token_is_never_printed_or_stored(program: Program) -> None:
    configure_listener(program)
    sheet = program.sheet(kenyan_rows(1))
    program.json("submit", sheet)
    output = program.run("doctor").stdout + program.run("status", sheet, "--history").stdout
    assert TOKEN not in output
    assert "token" in output
    kept_files = [path for path in Path(program.home).rglob("*") if path.is_file() and path.name != "token.txt"]
    assert not [path for path in kept_files if TOKEN.encode() in path.read_bytes()]


def test_callback_url_without_token_is_refused(program: Program) -> None:
    refused = program.run("listen")
    assert refused.exit_code == 2
    assert "{token}" in refused.stderr
