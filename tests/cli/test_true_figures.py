"""Figures and names of `status` and `verify` are correct: rows count once, and quiet runs report needed action."""

from pathlib import Path

import pytest

from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.settings.configuration import load_settings
from paygw_batch.unattended.run_report import mask_numbers
from tests.cli.paying import block_first_reply, run_gateway
from tests.support.people import newest_entries
from tests.support.program import Program, kenyan_rows

BAD = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"


def test_row_in_two_batches_is_counted_once(program: Program) -> None:
    first = kenyan_rows(3, amount="100")
    program.json("submit", program.sheet(first))
    program.json("submit", program.sheet([*first, *kenyan_rows(2, amount="50", prefix="NEW")], "corrected.csv"))
    status = program.json("status")
    assert (status["rows"], status["states"]) == (5, {"paid": 5})
    assert status["totals"] == {"KES": {"paid": "400.00"}}
    batches = [(batch["rows"], batch["known"], batch["states"]) for batch in status["batches"]]
    assert batches == [(3, 0, {"paid": 3}), (5, 3, {"paid": 5})]
    output = program.run("status").stdout
    assert ("400.00" in output, "700.00" in output) == (True, False)


def test_refused_sheet_keeps_states_of_paid_rows(program: Program) -> None:
    paid = kenyan_rows(3, amount="100")
    program.json("submit", program.sheet(paid))
    new = kenyan_rows(2, amount="50", prefix="NEW")
    sheet = program.sheet([*paid, *new, BAD], "more.csv")
    for options in ([], ["--dry-run"]):
        summary = program.json("submit", sheet, *options)
        assert (summary["exit_code"], summary["states"]) == (3, {"ready": 2, "paid": 3, "invalid": 1})


def run_dropped_sheets(program: Program, **sheets: list[str]) -> Path:
    folder = program.home / "drop"
    folder.mkdir()
    for name, rows in sheets.items():
        program.sheet(rows, f"drop/{name}.csv")
    return folder


def test_folder_with_refused_sheet_exits_3_after_sending(program: Program) -> None:
    folder = run_dropped_sheets(program, bad=[BAD], good=kenyan_rows(3, amount="100"))
    summary = program.json("run-folder", folder, "--settle-s", "0")
    assert (summary["exit_code"], summary["sent_this_run"]) == (3, 3)
    assert sorted(sheet["exit_code"] for sheet in summary["sheets"]) == [0, 3]


def test_refused_sheet_does_not_hide_row_in_doubt(program: Program) -> None:
    doubt = kenyan_rows(1, amount="9007", prefix="LOST")
    folder = run_dropped_sheets(program, bad=[BAD], doubt=doubt, good=kenyan_rows(1, amount="100"))
    summary = program.json("run-folder", folder, "--settle-s", "0")
    assert summary["states"].get("in_doubt") == 1, summary
    assert summary["exit_code"] == 5


def test_quiet_run_prints_only_required_actions(program: Program) -> None:
    good, bad = program.sheet(kenyan_rows(2, amount="100")), program.sheet([BAD], "bad.csv")
    assert program.run("-q", "submit", good).output == ""
    result = program.run("-q", "submit", bad)
    assert "Nothing was sent, because 1 of 1 row has defects" in result.stdout
    mixed = program.sheet(kenyan_rows(1, amount="9001", prefix="NO"), "no.csv")
    assert "rejected" in program.run("-q", "submit", mixed).stdout


def test_quiet_run_folder_prints_only_required_actions(program: Program) -> None:
    folder = run_dropped_sheets(program, bad=[BAD], good=kenyan_rows(3, amount="100"))
    output = program.run("-q", "run-folder", folder, "--settle-s", "0").stdout
    assert "bad.csv: Nothing was sent, because 1 of 1 row has defects" in output
    assert "good.csv" not in output
    assert program.run("-q", "run-folder", folder, "--settle-s", "0").output == ""


def test_log_keeps_dates_in_file_names() -> None:
    name = "done/20261122T031500123456Z-payroll-20261130.reconciliation.csv"
    assert name in mask_numbers(f"The reconciliation is in {name}.")
    assert mask_numbers("pay-20261130.xlsx: 254712345678") == "pay-20261130.xlsx: ***678"
    for sentence in ("20261130 was called", "254712345678.csv", "25420261130.csv", "pay-20269930.csv"):
        assert "***" in mask_numbers(sentence), sentence


@pytest.mark.parametrize("phone", ["254712345678", "+254712345678", "0712345678"])
def test_log_masks_phone_numbers_and_keeps_file_names(phone: str) -> None:
    name = "done/20261122T031500123456Z-payroll.reconciliation.csv"
    sentence = mask_numbers(f"{phone}: batch 0123456789abcdef is in {name}.")
    assert name in sentence
    assert "batch 0123456789abcdef" in sentence
    assert phone not in sentence
    assert "***678" in sentence


def test_status_lists_rows_in_doubt_with_one_instruction(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3, amount="9007"))
    batch = program.json("submit", sheet)["batch"]
    lines = program.run("status", sheet).stdout.splitlines()
    named = [line for line in lines if line.startswith("- Row ")]
    assert len(named) == 3
    assert "KES 9,007 to Jane Wanjiku (...001), order PAY-1, since 20" in named[0]
    output = " ".join(lines)
    assert output.count("Do not pay them by other means") == 1
    assert f"paygw-batch resolve row {batch} 2 --as paid --evidence TEXT" in output


def test_status_shows_sending_process(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(3))
    with run_gateway(program) as gateway, block_first_reply(program, gateway, "submit", sheet):
        summary = program.json("status", sheet)
        assert summary["states"].get("in_flight", 0) > 0
        assert (summary["states"].get("in_doubt", 0), summary["needs_person"]) == (0, [])
        result = program.run("status", sheet)
        assert "`paygw-batch submit` (process " in result.stdout
        assert "0 of 3 rows have an answer" in result.stdout


@pytest.mark.parametrize("name", ["payroll.csv"])
def test_status_shows_replaced_row_as_replaced(program: Program, name: str) -> None:
    program.json("submit", program.sheet(kenyan_rows(1, amount="9001"), name))
    first = program.json("status")["batches"][0]["batch"]
    amended: Path = program.sheet(kenyan_rows(1, amount="10"), name)
    assert program.json("submit", amended, "--amend")["states"] == {"paid": 1}
    (line,) = [line for line in program.run("status", first).stdout.splitlines() if "9,001.00" in line]
    assert line.split()[:4] == ["KE", "KES", "replaced", "1"]


def test_verify_reports_last_audit_trail_entry(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1)))
    summary = program.json("verify")
    assert (summary["checked"]["audit_entries"], "trail" in summary["message"]) == (0, False)
    settings = load_settings(program.config, environ=program.environ)
    for act, result in (("sign in", AuditResult.DONE), ("approve", AuditResult.REFUSED)):
        note = AuditNote("Ada Wanjiru", act, "batch 0123456789abcdef", result)
        journal_location(settings).add_audit_entry(note, "2026-11-22T08:00:00.000Z")
    copy = program.home / "copy.sqlite3"
    assert program.json("backup", copy)["exit_code"] == 0
    newest = newest_entries(settings, limit=1)[0]
    for options in ((), ("--journal", copy)):
        summary = program.json(*options, "verify")
        assert (summary["exit_code"], summary["checked"]["audit_entries"]) == (0, 2)
        assert f"The audit trail is intact and ends with entry 2, {newest.hash[:16]}." in summary["message"]
