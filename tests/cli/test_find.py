"""`find`: payments of a person by name, number or order id, and the remittance advice."""

import json
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.countries.load import load_rules
from paygw_batch.show.batch_status import number_forms, parse_payment_search
from tests.cli.conftest import MachineCache
from tests.support.program import Program, sandbox_toml

HEADING = (
    "country,client_orderid,amount,currency,account_name,account_number,phone,"
    "receiver_first_name,receiver_last_name,receiver_phone,receiver_email"
)
PEOPLE = [
    "KE,OCT-1,1500.50,KES,Jane Wanjiku,254712345001,+254712345001,,,,",
    "KE,OCT-2,9001,KES,José Ñandú,254712345002,+254712345002,,,,",  # the sandbox declines 9001
    "TZ,OCT-3,700,TZS,,,,Asha,Juma,0712345003,asha@example.com",
    "KE,OCT-4,800,KES,Jane Wairimu,254712345004,+254712345004,,,,",
]
NOVEMBER = ["KE,NOV-1,2000,KES,Jane WANJIKU,0712 345 001,0712345001,,,,"]


def prepare_payments(program: Program) -> None:
    program.run("submit", program.sheet(PEOPLE, "october.csv", HEADING))
    program.run("submit", program.sheet(NOVEMBER, "november.csv", HEADING))


@pytest.fixture
def paid(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_payments)


def orders(program: Program, *text: str) -> list[str]:
    summary = program.json("find", *text)
    assert summary["exit_code"] == 0
    return [payment["client_orderid"] for payment in summary["payments"]]


def test_find_accepts_name_number_or_order_id(paid: Program) -> None:
    for wanted, texts in {
        ("NOV-1", "OCT-1"): [
            *("Jane Wanjiku", "wanjiku jane", "WANJ", "254712345001", "+254 712 345 001", "00254712345001"),
            *("0712 345 001", "(0712) 345-001", "+254 (0)712 345 001", "712345001", "wanjiku 0712345001"),
        ],
        ("OCT-2",): ["jose nandu"],
        ("OCT-3",): ["asha", "0712345003", "+255712345003", "asha@example.com"],
        ("OCT-4",): ["OCT-4", "oct-4"],
        (): ["wanjiku 0712345004", "712345", "nobody", "%", "jane OR asha"],
    }.items():
        for text in texts:
            assert orders(paid, text) == list(wanted), text
    assert orders(paid, "Jane", "Wairimu") == ["OCT-4"], "words without quotes"


def test_found_payment_shows_state_amount_and_row(paid: Program) -> None:
    summary = paid.json("find", "OCT-1")
    (payment,) = summary["payments"]
    found = [payment[name] for name in ("state", "currency", "amount", "row", "sheet")]
    assert found == ["paid", "KES", "1500.50", 2, "october.csv"]
    assert payment["first_sent_at"] <= payment["updated_at"]
    (record,) = [line for line in paid.record() if line["client_orderid"] == "OCT-1"]
    assert payment["gateway_reference"] in record.values()
    batches = {batch["sheet"]: batch["batch"] for batch in paid.json("status")["batches"]}
    assert payment["batch"] == batches["october.csv"]
    assert (summary["rows"], summary["states"], summary["has_more"]) == (1, {"paid": 1}, False)


def test_screen_masks_numbers_but_not_names(paid: Program) -> None:
    output = paid.run("find", "José").stdout
    assert output.startswith("rejected: KES 9,001 to José Ñandú")
    assert "1 payment matches 'José': 1 rejected." in output
    listed, found, _ = paid.run("find", "254712345001").stdout.partition("2 payments match '254712345001': 2 paid.")
    assert (bool(found), "Jane Wanjiku (...001)" in listed, "712345001" in listed) == (True, True, False)
    assert "712345001" not in json.dumps(paid.json("find", "Jane")["payments"])


def test_find_and_status_show_local_times(paid: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EAT-3")
    time.tzset()
    try:
        batch = paid.json("find", "José")["payments"][0]["batch"]
        output = paid.run("find", "José").stdout + paid.run("status", batch).stdout
    finally:
        monkeypatch.undo()
        time.tzset()
    times = re.findall(r"(?:sent|last update|opened) ([^,.\n]+)", output)
    assert len(times) >= 4
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d EAT", time_text) for time_text in times), times


def test_find_without_match_or_journal_prints_message(paid: Program, tmp_path: Path) -> None:
    result = paid.run("find", "nobody at all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("No payment in this journal matches 'nobody at all'.")
    paid.config.write_text(sandbox_toml(f"{tmp_path}/none.sqlite3"))
    assert paid.run("find", "jane").exit_code == 7


def test_hostile_sheet_text_is_escaped(program: Program) -> None:
    row = PEOPLE[0].replace("Jane Wanjiku", "<script>alert(1)</script>")
    program.run("submit", program.sheet([row], "ev\u202eil\x1b[31m.csv", HEADING))
    shown = program.run("find", "OCT-1").stdout
    assert "ev\\u202eil\\x1b[31m.csv" in shown
    assert not {"\u202e", "\x1b"} & set(shown)
    assert advice(program, "OCT-1")["exit_code"] == 0
    assert "<script" not in (program.home / "advice.html").read_text()


def advice(program: Program, *words: str | Path) -> dict[str, Any]:
    return program.json("find", *words, "--advice", program.home / "advice.html")


def test_advice_lists_only_payments_to_payee(paid: Program) -> None:
    summary = advice(paid, "Jane Wanjiku")
    path = paid.home / "advice.html"
    assert summary["advice"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    for said in ("254712345001", "OCT-1", "NOV-1", "1,500.50", "KES 3,500.50 in total", "2 payments"):
        assert said in page
    assert not [text for text in ("OCT-4", "october.csv") if text in page]
    assert advice(paid, "OCT-1")["advice"] == str(path)  # the program may replace its own file


def test_advice_shows_payer_and_payment_run(program: Program) -> None:
    path = program.home / "advice.html"
    heading = HEADING.replace("client_orderid,", "")
    sheet = program.sheet([PEOPLE[0].replace("OCT-1,", "")], "october.csv", heading)
    program.run("submit", sheet, "--reference", "payroll-2026-10")
    advice(program, "Jane")
    assert "Paid by" not in path.read_text()
    program.config.write_text(program.config.read_text() + '\n[reporting]\npayer = "Umoja & Co"\n')
    advice(program, "Jane")
    assert "<p>Paid by Umoja &amp; Co, payment run payroll-2026-10.</p>" in path.read_text()
    program.run("submit", program.sheet(NOVEMBER, "november.csv", HEADING))
    program.run("reconcile", program.home / "november.csv", "--out", program.home / "nov.csv", "--advices", path)
    assert "<p>Paid by Umoja &amp; Co.</p>" in path.read_text()


def test_advice_for_several_or_unpaid_people_is_refused(paid: Program) -> None:
    no_advice = "No remittance advice was written"
    for text, sentence in (("Jane", "matches 2 people"), ("José", no_advice), ("nobody", no_advice)):
        result = paid.run("find", text, "--advice", paid.home / "advice.html")
        assert (result.exit_code, sentence in result.stderr) == (2, True), text
    assert not (paid.home / "advice.html").exists()


def test_advice_replaces_only_older_advice(paid: Program) -> None:
    path = paid.home / "advice.html"
    path.write_text("<!doctype html><title>mine</title>")
    assert paid.run("find", "OCT-1", "--advice", path).exit_code == 2
    assert "mine" in path.read_text()
    assert paid.run("find", "OCT-1", "--advice", path, "--force").exit_code == 0
    assert paid.run("find", "OCT-1", "--advice", paid.journal, "--force").exit_code == 2


def test_find_matches_local_and_international_numbers() -> None:
    every = [rule.numbers for rule in load_rules("payout", {}).values()]
    for numbers in every:
        abroad, inside = f"{numbers.dialling_code}{numbers.example}", f"{numbers.trunk_prefix}{numbers.example}"
        for typed in (f"+{abroad}", abroad, f"00{abroad}", inside):
            assert {abroad, inside} <= set(number_forms(typed, every)), typed
    for typed in ("0123456789", "+225 01 23 45 67 89", "225 0123456789"):
        assert "2250123456789" in number_forms(typed, every), "the leading zero is kept"


def test_search_is_parsed_as_words_or_id() -> None:
    search = parse_payment_search("  Jo Wanjiku - ", [])
    assert (search.words, search.order_id) == ((("Jo",), ("Wanjiku*",)), "Jo Wanjiku -")
