"""`sign` shows step by step how a row is signed, without sending it."""

import json
import re
from contextlib import closing
from typing import Any

import apsw
import pytest

from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import PreparedRequest, SendGuard
from tests.support.program import Program, kenyan_rows


def sign_row(program: Program, *arguments: Any) -> dict[str, Any]:
    summary = program.json("sign", *arguments)
    assert summary["exit_code"] == 0
    return dict(summary["signed"])


def test_sign_explain_shows_every_step_and_value(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    output = program.run("sign", "--explain", sheet).stdout
    values = sign_row(program, sheet)
    assert (program.record(), program.journal.exists()) == ([], False)
    plain = program.run("sign", sheet).stdout
    shown = ('{"account_name":"Jane Wanjiku"', "\nAuthorization: OAuth ", "row's data unencrypted")
    assert (all(part in plain for part in shown), "POST&" in plain) == (True, False)
    for name in ("body", "body sha256", "parameters", "base string", "digest", "key fingerprint", "signature"):
        assert re.search(rf"^{name} \(", output, flags=re.MULTILINE), name
    for name in ("body", "body_sha256", "base_string", "digest", "key_fingerprint", "signature"):
        assert f":\n{values[name]}\n" in output, name
    assert f"\nAuthorization: {values['authorization']}\n" in output
    assert "\n".join(parameter["encoded"] for parameter in values["parameters"]) in output


def test_sign_is_deterministic_unless_nonce_is_given(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    first = sign_row(program, sheet)
    assert first == sign_row(program, sheet)
    assert 'oauth_timestamp="1700000000"' in first["authorization"]
    fresh = sign_row(program, sheet, "--nonce", "abc", "--timestamp", "1790000000")["authorization"]
    assert ('oauth_nonce="abc"' in fresh, 'oauth_timestamp="1790000000"' in fresh) == (True, True)


def test_sign_accepts_row_order_id_and_profile(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    assert '"client_orderid":"PAY-1"' in sign_row(program, sheet)["body"]
    chosen = sign_row(program, sheet, "--row", "3", "--order-id", "PAY-2-r2", "--profile", "raw-body")
    assert (chosen["row"], chosen["profile"]) == (3, "raw-body")
    assert '"client_orderid":"PAY-2-r2"' in chosen["body"]
    assert [parameter["name"][:6] for parameter in chosen["parameters"]] == ["oauth_"] * 5


def test_sign_command_shows_request_sent_by_run(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet, sent, deliver = program.sheet(kenyan_rows(1)), list[PreparedRequest](), PayoutTransport.deliver

    async def seen(transport: PayoutTransport, request: PreparedRequest, may_send: SendGuard) -> Any:
        sent.append(request)
        return await deliver(transport, request, may_send)

    monkeypatch.setattr(PayoutTransport, "deliver", seen)
    assert program.run("submit", sheet).exit_code == 0
    with closing(apsw.Connection(str(program.journal), flags=apsw.SQLITE_OPEN_READONLY)) as journal:
        ((nonce, timestamp_s),) = journal.execute("SELECT nonce, timestamp_s FROM fact WHERE kind = 'intended'")
    again = sign_row(program, sheet, "--nonce", nonce, "--timestamp", timestamp_s)
    (request,) = sent
    assert (again["body"].encode(), again["body_sha256"]) == (request.body, request.body_sha256)
    (arrived,), body = program.record(), json.loads(again["body"])
    names = ("client_orderid", "currency", "account_number", "purpose")
    assert [arrived[name] for name in names] == [body[name] for name in names]


def test_sign_refuses_row_with_defect(program: Program) -> None:
    bad, good = kenyan_rows(2)
    sheet = program.sheet([bad.replace("KES", "USD"), good])
    assert sign_row(program, sheet)["row"] == 3
    refused = program.run("sign", "--row", "2", sheet)
    reason = "Row 2 of payroll.csv was not signed, because it has defects (currency."
    assert (refused.exit_code, reason in refused.stderr, "254712345" in refused.output) == (3, True, False)
    missing = program.run("sign", "--row", "9", sheet)
    assert (missing.exit_code, "payroll.csv has no row 9." in missing.stderr) == (2, True)
    for option in ("--nonce", "--order-id"):
        assert program.run("sign", option, "two\nlines", sheet).exit_code == 2


def test_only_sign_can_name_missing_profile(program: Program) -> None:
    sheet, doctor = program.sheet(kenyan_rows(1)), program.run("doctor").stdout
    assert re.search(r"^base string \(.*\):\nPOST&http", doctor, flags=re.MULTILINE)
    assert re.search(r"^Authorization: OAuth oauth_consumer_key=", doctor, flags=re.MULTILINE)
    program.config.write_text(program.config.read_text().replace("signature_profile", "# signature_profile"))
    refused = program.run("sign", sheet)
    assert (refused.exit_code, "gateway.signature_profile" in refused.stderr) == (2, True)
    assert program.run("sign", "--profile", "raw-body", sheet).exit_code == 0
