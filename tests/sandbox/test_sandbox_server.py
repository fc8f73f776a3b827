"""The sandbox over a real socket: every answer and every fault, and the record afterwards."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from http.client import HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.errors import ConfigurationError
from paygw_batch.sandbox.record import read_record
from paygw_batch.sandbox.reply import default_behaviour
from paygw_batch.sandbox.server import running_sandbox
from tests.sandbox.sandbox_merchant import (
    GOOD,
    PATH,
    MakeConfig,
    Merchant,
    RunningSandbox,
    connection,
    payout_fields,
    post,
    raw_request,
    split_address,
    wait_for_record,
)
from tests.support.checkout import ROOT
from tests.support.patience import PATIENCE_S

Foreground = tuple["subprocess.Popen[str]", RunningSandbox]


@pytest.fixture(scope="module")
def sandbox(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    record_path = tmp_path_factory.mktemp("sandbox") / "state" / "record.csv"
    with running_sandbox(make_config(record_path)) as base_url:
        yield RunningSandbox(base_url, record_path)


def connected(base_url: str) -> socket.socket:
    return socket.create_connection(split_address(base_url), timeout=PATIENCE_S)


def parse_exact(body: bytes) -> Any:
    return json.loads(body, parse_float=Decimal)


@pytest.mark.parametrize("code", GOOD)
def test_payout_of_each_country_is_recorded(sandbox: RunningSandbox, merchant: Merchant, code: str) -> None:
    fields = GOOD[code] | {"client_orderid": f"GOOD-{code}"}
    reply, body = post(merchant, sandbox.base_url, fields)
    said = parse_exact(body)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    assert said["status"] == "approved"
    assert said["client_orderid"] == f"GOOD-{code}"
    assert said["currency"] == fields["currency"]
    assert f'"amount": {fields["amount"]}}}'.encode() in body
    (line,) = sandbox.recorded(f"GOOD-{code}")
    assert line.reference == said["paynet-order-id"]
    assert (line.country, line.currency, line.amount) == (code, fields["currency"], fields["amount"])
    assert line.account_number == fields["receiver_phone" if code == "TZ" else "account_number"]
    assert line.purpose == fields.get("purpose", "")
    assert (line.answer, line.committed) == ("approved", "yes")


def test_configured_signature_profile_is_used(make_config: MakeConfig, merchant: Merchant, tmp_path: Path) -> None:
    config = make_config(tmp_path / "record.csv", profile="raw-body")
    with running_sandbox(config) as base_url:
        approved, _ = post(replace(merchant, profile="raw-body"), base_url, payout_fields("RAW-1"))
        refused, _ = post(merchant, base_url, payout_fields("RAW-2"))
    assert (approved.status, refused.status) == (200, 401)
    assert [line.client_orderid for line in read_record(config.operations[0].record_path)] == ["RAW-1"]
    with pytest.raises(ZeroDivisionError), running_sandbox(config):
        raise ZeroDivisionError


def test_documented_amounts_get_documented_answers(sandbox: RunningSandbox, merchant: Merchant) -> None:
    for rule in (rule for rule in default_behaviour().rule if rule.fault is None):
        name = f"WORD-{rule.amount_whole}"
        reply, body = post(merchant, sandbox.base_url, payout_fields(name, f"{rule.amount_whole}.50"))
        said = parse_exact(body)
        assert (said["status"], reply.status) == (rule.status, rule.http_status), name
        assert (said["client_orderid"], said["amount"]) == (name, Decimal(f"{rule.amount_whole}.50"))
        assert {name: reply.headers[name] for name in rule.headers} == rule.headers
        (line,) = sandbox.recorded(name)
        assert (line.answer, line.committed) == (rule.status, "yes" if rule.commits else "no"), name


def test_fault_rules_determine_reply_and_record(sandbox: RunningSandbox, merchant: Merchant) -> None:
    garbage, body = post(merchant, sandbox.base_url, payout_fields("GARBAGE", "9006"))
    assert garbage.status == 200
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    error, body = post(merchant, sandbox.base_url, payout_fields("HTTP-500", "9009"))
    assert (error.status, body) == (500, b"Internal Server Error")
    echo, body = post(merchant, sandbox.base_url, payout_fields("ECHO", "9011"))
    assert (echo.status, parse_exact(body)["status"]) == (200, "approved")
    assert parse_exact(body)["client_orderid"] != "ECHO"
    for order_id in ("GARBAGE", "HTTP-500", "ECHO"):
        assert [line.committed for line in sandbox.recorded(order_id)] == ["yes"]
    for answer, whole, committed in (("drop_after", "9007", "yes"), ("drop_before", "9008", "no")):
        with pytest.raises((RemoteDisconnected, ConnectionResetError)):
            post(merchant, sandbox.base_url, payout_fields(answer, whole))
        assert [(line.answer, line.committed) for line in sandbox.recorded(answer)] == [(answer, committed)]


def test_slow_drip_sends_answer_byte_by_byte(make_config: MakeConfig, merchant: Merchant, tmp_path: Path) -> None:
    behaviour = '[default]\nfault = "slow_drip"\ndrip_interval_s = 0.005\n'
    config = make_config(tmp_path / "record.csv", behaviour=behaviour)
    with running_sandbox(config) as base_url, connected(base_url) as client:
        client.sendall(raw_request(merchant, base_url, payout_fields("DRIP")))
        pieces = list(iter(lambda: client.recv(4096), b""))
    body = b"".join(pieces).partition(b"\r\n\r\n")[2]
    assert parse_exact(body)["client_orderid"] == "DRIP"
    assert len(pieces) > 20


@pytest.mark.parametrize("rule", ["delay_s = 0.4", 'fault = "silence"'])
def test_order_is_recorded_before_delay(make_config: MakeConfig, merchant: Merchant, tmp_path: Path, rule: str) -> None:
    config = make_config(tmp_path / "record.csv", behaviour=f"[default]\n{rule}\n")
    with running_sandbox(config) as base_url, connected(base_url) as client:
        client.sendall(raw_request(merchant, base_url, payout_fields("LATER")))
        wait_for_record(config.operations[0].record_path, "LATER")
        is_silent = "silence" in rule
        client.settimeout(0.3 if is_silent else 0)
        with pytest.raises(TimeoutError if is_silent else BlockingIOError):
            client.recv(1)
        if not is_silent:
            client.settimeout(PATIENCE_S)
            assert client.recv(12) == b"HTTP/1.1 200"
    (line,) = read_record(config.operations[0].record_path)
    assert (line.answer, line.committed) == ("silence" if is_silent else "approved", "yes")


def test_orders_may_repeat_and_share_connection(sandbox: RunningSandbox, merchant: Merchant) -> None:
    for _ in range(2):
        reply, _ = post(merchant, sandbox.base_url, payout_fields("TWICE"))
        assert reply.status == 200
    first, second = sandbox.recorded("TWICE")
    assert first.committed == second.committed == "yes"
    assert first.reference != second.reference
    with connected(sandbox.base_url) as client:
        for number in range(5):
            client.sendall(raw_request(merchant, sandbox.base_url, payout_fields(f"KEPT-{number}"), close=False))
            reply = HTTPResponse(client)
            reply.begin()
            assert parse_exact(reply.read())["client_orderid"] == f"KEPT-{number}"
            reply.close()


def test_refused_or_incomplete_order_is_not_recorded(sandbox: RunningSandbox, merchant: Merchant) -> None:
    reply, body = post(merchant, sandbox.base_url, payout_fields("REFUSED") | {"phone": ""})
    said = parse_exact(body)
    assert (reply.status, said["status"], said["error-code"]) == (422, "error", "phone")
    assert said["client_orderid"] == "REFUSED"
    assert said["error-message"].startswith("phone ")
    assert sandbox.recorded("REFUSED") == []
    reply, body = post(merchant, sandbox.base_url, payout_fields("UNSIGNED"), Authorization="OAuth nothing")
    assert (reply.status, parse_exact(body)["status"]) == (401, "error")
    assert reply.headers["WWW-Authenticate"] == "OAuth"
    assert sandbox.recorded("UNSIGNED") == []
    with connected(sandbox.base_url) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n".encode() + b" " * 70000)
        assert client.recv(12) == b"HTTP/1.1 413"
    request = raw_request(merchant, sandbox.base_url, payout_fields("HALF"))
    for cut in (1, len(request) // 2, len(request) - 1):
        with connected(sandbox.base_url) as client:
            client.sendall(request[:cut])
    reply, _ = post(merchant, sandbox.base_url, payout_fields("AFTER-HALF"))
    assert reply.status == 200
    assert sandbox.recorded("HALF") == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", PATH, 405), ("DELETE", PATH, 405), ("POST", "/", 404), ("GET", "/", 404)),
        ("POST", PATH.replace("payout", "%70ayout"), 404),
    ],
)
def test_wrong_method_or_path_gets_json_error(sandbox: RunningSandbox, method: str, path: str, status: int) -> None:
    sender = connection(sandbox.base_url)
    sender.request(method, path)
    reply = sender.getresponse()
    assert reply.status == status
    assert parse_exact(reply.read())["status"] == "error"
    assert reply.headers["Allow"] == ("POST" if status == 405 else None)
    sender.close()


def test_concurrent_orders_are_answered_and_recorded_once(sandbox: RunningSandbox, merchant: Merchant) -> None:
    statuses: list[int] = []

    def pay(worker: int) -> None:
        orders = [payout_fields(f"MANY-{worker}-{number}") for number in range(10)]
        statuses.extend(post(merchant, sandbox.base_url, order)[0].status for order in orders)

    workers = [threading.Thread(target=pay, args=(worker,)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert statuses == [200] * 80
    many = [line.client_orderid for line in read_record(sandbox.record_path) if line.client_orderid.startswith("MANY")]
    assert len(many) == len(set(many)) == 80


@pytest.mark.parametrize("behaviour", ["delay_s = 3600", 'fault = "silence"'])
def test_stop_closes_connections(make_config: MakeConfig, merchant: Merchant, tmp_path: Path, behaviour: str) -> None:
    threads_before = set(threading.enumerate())
    with running_sandbox(make_config(tmp_path / "record.csv", behaviour=f"[default]\n{behaviour}\n")) as base_url:
        client = connected(base_url)
        client.sendall(raw_request(merchant, base_url, payout_fields("OPEN")))
        wait_for_record(tmp_path / "record.csv", "OPEN")
    with client, suppress(ConnectionResetError):
        assert client.recv(1) == b""
    assert set(threading.enumerate()) == threads_before
    with pytest.raises(ConnectionRefusedError):
        connected(base_url)


def test_sandbox_listens_only_on_loopback_and_prints_nothing(
    make_config: MakeConfig, merchant: Merchant, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with running_sandbox(make_config(tmp_path / "record.csv")) as base_url:
        host, port = split_address(base_url)
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):  # a server that listens on all interfaces would answer here
            socket.create_connection(("127.0.0.2", port), PATIENCE_S)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        post(merchant, base_url, payout_fields("QUIET"))
        with connected(base_url) as client:
            client.sendall(b"no http at all\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 400"
    assert capfd.readouterr() == ("", "")


def test_unwritable_record_accepts_no_order(
    make_config: MakeConfig, merchant: Merchant, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path / "record.csv")
    with running_sandbox(config) as base_url:
        for link in Path("/proc/self/fd").iterdir():  # the sandbox's next write to the record fails
            if os.path.realpath(link) == str(config.operations[0].record_path.resolve()):
                reading = os.open(os.devnull, os.O_RDONLY)
                os.dup2(reading, int(link.name))
                os.close(reading)
        reply, body = post(merchant, base_url, payout_fields("LOST"))
    assert (reply.status, body) == (500, b"Internal Server Error")
    assert read_record(config.operations[0].record_path) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "LOST" not in caplog.text
    assert "254712345678" not in caplog.text


def test_busy_port_or_odd_profile_is_refused(make_config: MakeConfig, sandbox: RunningSandbox, tmp_path: Path) -> None:
    port, config = split_address(sandbox.base_url)[1], make_config(tmp_path / "r.csv")
    with pytest.raises(ConfigurationError, match=str(port)), running_sandbox(config, port=port):
        pass
    odd, sentence = replace(config, profile="plain"), "json-params, raw-body"
    with pytest.raises(ConfigurationError, match=sentence), running_sandbox(odd):
        pass


# In the foreground of a separate process, killed and stopped by signals.
PROGRAM = """
import sys; from pathlib import Path
from paygw_batch.countries.load import load_operation
from paygw_batch.sandbox.reply import default_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation, serve
from tests.sandbox.sandbox_merchant import CONSUMER_KEY, ENDPOINT_ID, payout_rules
served = (ServedOperation(load_operation("payout"), payout_rules(), Path(sys.argv[2])),)
key = Path(sys.argv[1]).read_bytes()
config = SandboxConfig(ENDPOINT_ID, CONSUMER_KEY, key, "json-params", served, default_behaviour())
serve(config, 0, on_ready=lambda line: print(line, flush=True))
print("left")
"""


@pytest.fixture
def serving(merchant: Merchant, tmp_path: Path) -> Iterator[Foreground]:
    public_key = tmp_path / "merchant.pub"
    public_key.write_bytes(merchant.public_key_pem())
    record_path = tmp_path / "record.csv"
    command, pipe = [sys.executable, "-c", PROGRAM, str(public_key), str(record_path)], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, RunningSandbox(process.stdout.readline().strip(), record_path)
        process.kill()


def test_killed_sandbox_keeps_answered_orders_in_record(serving: Foreground, merchant: Merchant) -> None:
    process, running = serving
    for number in range(20):
        post(merchant, running.base_url, payout_fields(f"KILL-{number}"))
    with connected(running.base_url) as client:
        client.sendall(raw_request(merchant, running.base_url, payout_fields("KILL-SILENT", "9005")))
        wait_for_record(running.record_path, "KILL-SILENT")
        process.kill()
        process.wait(PATIENCE_S)
    orders = [line.client_orderid for line in read_record(running.record_path)]
    assert orders == [*(f"KILL-{number}" for number in range(20)), "KILL-SILENT"]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_sandbox_exits_quietly_on_signal(serving: Foreground, merchant: Merchant, by: signal.Signals) -> None:
    process, running = serving
    assert post(merchant, running.base_url, payout_fields("FOREGROUND"))[0].status == 200
    process.send_signal(by)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "left\n", "")
