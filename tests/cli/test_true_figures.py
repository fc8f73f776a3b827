"""Figures must be correct: rows count once, paid rows are not ready, and quiet runs report needed action."""

from pathlib import Path

import pytest

from paygw_batch.unattended.run_report import mask_numbers
from tests.support.program import Program, kenyan_rows

BAD = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"


def test_row_in_two_batches_is_counted_once(program: Program) -> None:
    first = kenyan_rows(3, amount="100")
    program.json("submit", program.sheet(first))
    program.json("submit", program.sheet([*first, *kenyan_rows(2, amount="50", prefix="NEW")], "corrected.csv"))
    status = program.json("status")
    assert (status["rows"], status["states"]) == (5, {"paid": 5})
    assert status["totals"] == {"KES": {"paid": "400.00"}}
    assert [(batch["rows"], batch["known"], batch["states"]) for batch in status["batches"]] == [
        (3, 0, {"paid": 3}),
        (5, 3, {"paid": 5}),
    ]
    output = program.run("status").stdout
    assert "400.00" in output
    assert "700.00" not in output


def test_rows_of_three_batches_are_counted_once(program: Program) -> None:
    rejected = kenyan_rows(1, amount="9001", prefix="NO")
    for number in range(1, 4):
        program.json("submit", program.sheet([*rejected, *kenyan_rows(number, amount="100")], f"{number}.csv"))
    status = program.json("status")
    assert (status["rows"], status["states"]) == (4, {"paid": 3, "rejected": 1})
    assert status["totals"] == {"KES": {"paid": "300.00", "rejected": "9001.00"}}


def test_refused_sheet_keeps_states_of_paid_rows(program: Program) -> None:
    paid = kenyan_rows(3, amount="100")
    program.json("submit", program.sheet(paid))
    new = kenyan_rows(2, amount="50", prefix="NEW")
    sheet = program.sheet([*paid, *new, BAD], "more.csv")
    for options in ([], ["--dry-run"]):
        summary = program.json("submit", sheet, *options)
        assert (summary["exit_code"], summary["states"]) == (3, {"ready": 2, "paid": 3, "invalid": 1})


def test_refused_open_sheet_shows_states_of_rows(program: Program) -> None:
    sheet = program.sheet([*kenyan_rows(2, amount="100"), BAD])
    assert program.json("submit", sheet, "--skip-invalid")["exit_code"] == 4
    summary = program.json("submit", sheet)
    assert (summary["exit_code"], summary["states"]) == (3, {"paid": 2, "invalid": 1})


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


def test_refused_folder_sheet_keeps_paid_rows_paid(program: Program) -> None:
    paid = kenyan_rows(2, amount="100")
    program.json("submit", program.sheet(paid))
    folder = run_dropped_sheets(program, more=[*paid, *kenyan_rows(1, amount="50", prefix="NEW"), BAD])
    summary = program.json("run-folder", folder, "--settle-s", "0")
    assert (summary["exit_code"], summary["states"]) == (3, {"ready": 1, "paid": 2, "invalid": 1})


def test_folder_with_only_refused_sheets_exits_3(program: Program) -> None:
    folder = run_dropped_sheets(program, bad=[BAD])
    assert program.json("run-folder", folder, "--settle-s", "0")["exit_code"] == 3


def test_refused_sheet_does_not_hide_row_in_doubt(program: Program) -> None:
    folder = run_dropped_sheets(
        program, bad=[BAD], doubt=kenyan_rows(1, amount="9007", prefix="LOST"), good=kenyan_rows(1, amount="100")
    )
    summary = program.json("run-folder", folder, "--settle-s", "0")
    assert summary["states"].get("in_doubt") == 1, summary
    assert summary["exit_code"] == 5


def test_quiet_run_prints_only_needed_action(program: Program) -> None:
    good, bad = program.sheet(kenyan_rows(2, amount="100")), program.sheet([BAD], "bad.csv")
    assert program.run("-q", "submit", good).output == ""
    result = program.run("-q", "submit", bad)
    assert "1 of 1 row has defects: nothing was sent" in result.stdout
    mixed = program.sheet(kenyan_rows(1, amount="9001", prefix="NO"), "no.csv")
    assert "rejected" in program.run("-q", "submit", mixed).stdout


def test_quiet_run_folder_shows_only_needed_action(program: Program) -> None:
    folder = run_dropped_sheets(program, bad=[BAD], good=kenyan_rows(3, amount="100"))
    output = program.run("-q", "run-folder", folder, "--settle-s", "0").stdout
    assert "bad.csv: 1 of 1 row has defects" in output
    assert "good.csv" not in output
    assert program.run("-q", "run-folder", folder, "--settle-s", "0").output == ""


def test_log_keeps_date_in_file_name() -> None:
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
