"""`sign`: how one row is signed, shown step by step, without anything being sent."""

import json
import re
from contextlib import closing
from typing import Any

import apsw
import pytest

from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import MayLeave, PreparedRequest
from tests.support.program import Program, kenyan_rows

FRESH = ("--nonce", "abc", "--timestamp", "1790000000")


def signed(program: Program, *arguments: Any) -> dict[str, Any]:
    summary = program.json("sign", *arguments)
    assert summary["exit_code"] == 0
    found: dict[str, Any] = summary["signed"]
    return found


def test_sign_explain_shows_every_step_and_value(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    shown = program.run("sign", "--explain", sheet).stdout
    values = signed(program, sheet)
    for name in ("body", "body sha256", "parameters", "base string", "digest", "key fingerprint", "signature"):
        assert re.search(rf"^{name} \(", shown, flags=re.MULTILINE), name
    for name in ("body", "body_sha256", "base_string", "digest", "key_fingerprint", "signature"):
        assert f":\n{values[name]}\n" in shown, name
    assert f"\nAuthorization: {values['authorization']}\n" in shown
    assert "\n".join(one["encoded"] for one in values["parameters"]) in shown


def test_sign_shows_only_request_without_explain(program: Program) -> None:
    shown = program.run("sign", program.sheet(kenyan_rows(1))).stdout
    assert '{"account_name":"Jane Wanjiku"' in shown
    assert "\nAuthorization: OAuth " in shown
    assert "POST&" not in shown


def test_sign_warns_about_clear_personal_data(program: Program) -> None:
    assert "row's data in clear" in program.run("sign", program.sheet(kenyan_rows(1))).stdout


def test_sign_is_deterministic_unless_nonce_is_given(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    first = signed(program, sheet)
    assert first == signed(program, sheet)
    assert 'oauth_timestamp="1700000000"' in first["authorization"]
    fresh = signed(program, sheet, *FRESH)
    assert 'oauth_nonce="abc"' in fresh["authorization"]
    assert 'oauth_timestamp="1790000000"' in fresh["authorization"]


def test_sign_accepts_row_order_id_and_profile(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    assert '"client_orderid":"PAY-1"' in signed(program, sheet)["body"]
    chosen = signed(program, sheet, "--row", "3", "--order-id", "PAY-2-r2", "--profile", "raw-body")
    assert (chosen["row"], chosen["profile"]) == (3, "raw-body")
    assert '"client_orderid":"PAY-2-r2"' in chosen["body"]
    assert [one["name"][:6] for one in chosen["parameters"]] == ["oauth_"] * 5


def test_sign_shows_request_sent_by_run(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet, sent, deliver = program.sheet(kenyan_rows(1)), list[PreparedRequest](), PayoutTransport.deliver

    async def seen(transport: PayoutTransport, request: PreparedRequest, may_leave: MayLeave) -> Any:
        sent.append(request)
        return await deliver(transport, request, may_leave)

    monkeypatch.setattr(PayoutTransport, "deliver", seen)
    assert program.run("submit", sheet).exit_code == 0
    with closing(apsw.Connection(str(program.journal), flags=apsw.SQLITE_OPEN_READONLY)) as journal:
        ((nonce, timestamp_s),) = journal.execute("SELECT nonce, timestamp_s FROM fact WHERE kind = 'intended'")
    again = signed(program, sheet, "--nonce", nonce, "--timestamp", timestamp_s)
    (request,) = sent
    assert (again["body"].encode(), again["body_sha256"]) == (request.body, request.body_sha256)
    (arrived,), body = program.record(), json.loads(again["body"])
    assert [arrived[name] for name in ("client_orderid", "currency", "account_number", "purpose")] == [
        body[name] for name in ("client_orderid", "currency", "account_number", "purpose")
    ]


def test_sign_sends_nothing_and_creates_no_journal(program: Program) -> None:
    assert program.run("sign", "--explain", program.sheet(kenyan_rows(1))).exit_code == 0
    assert program.record() == []
    assert not program.journal.exists()


def test_sign_uses_first_row_without_defect(program: Program) -> None:
    bad, good = kenyan_rows(2)
    sheet = program.sheet([bad.replace("KES", "USD"), good])
    assert signed(program, sheet)["row"] == 3


def test_a_row_with_a_defect_is_never_signed(program: Program) -> None:
    bad, good = kenyan_rows(2)
    sheet = program.sheet([bad.replace("KES", "USD"), good])
    refused = program.run("sign", "--row", "2", sheet)
    assert refused.exit_code == 3
    assert "Row 2 of payroll.csv has defects (currency." in refused.stderr
    assert "254712345" not in refused.output


def test_sign_of_absent_row_is_refused(program: Program) -> None:
    refused = program.run("sign", "--row", "9", program.sheet(kenyan_rows(2)))
    assert refused.exit_code == 2
    assert "payroll.csv has no row 9." in refused.stderr


@pytest.mark.parametrize("option", ["--nonce", "--order-id"])
def test_sign_refuses_option_with_line_break(program: Program, option: str) -> None:
    assert program.run("sign", option, "two\nlines", program.sheet(kenyan_rows(1))).exit_code == 2


def test_sign_names_missing_configuration(program: Program) -> None:
    program.config.write_text(program.config.read_text().replace("signature_profile", "# signature_profile"))
    sheet = program.sheet(kenyan_rows(1))
    refused = program.run("sign", sheet)
    assert refused.exit_code == 2
    assert "gateway.signature_profile" in refused.stderr
    assert program.run("sign", "--profile", "raw-body", sheet).exit_code == 0


def test_doctor_shows_signing_steps_of_sample(program: Program) -> None:
    shown = program.run("doctor").stdout
    assert re.search(r"^base string \(.*\):\nPOST&http", shown, flags=re.MULTILINE)
    assert re.search(r"^Authorization: OAuth oauth_consumer_key=", shown, flags=re.MULTILINE)
