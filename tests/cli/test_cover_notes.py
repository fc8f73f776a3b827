"""Cover notes in a drop folder, which replace the options of `submit`."""

import os
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from paygw_batch.cli.commands.pay import submit_command
from paygw_batch.cli.invocation import program_options
from paygw_batch.core.choices import Choices
from paygw_batch.errors import SheetError
from paygw_batch.opening.given_sheet import Reading
from paygw_batch.settings.cover_note import CoverNote, parse_cover_note
from tests.cli.sheets import OLD, write_note, write_workbook
from tests.support.program import HEADING, Program, kenyan_rows, read_csv


def file_names(folder: Path, place: str) -> list[str]:
    return sorted(path.name.partition("-")[2] for path in (folder / place).iterdir())


def read_refusal(folder: Path) -> str:
    (path,) = (folder / "refused").glob("*.refused.txt")
    return path.read_text()


def test_cover_note_chooses_worksheet_and_moves_with_sheet(program: Program, folder: Path) -> None:
    book = write_workbook(
        folder / "pay.xlsx", October=kenyan_rows(2, prefix="OCT"), November=kenyan_rows(3, prefix="NOV")
    )
    write_note(book, 'worksheet = "November"\nexpect_rows = 3\n[expect_total]\nKES = "4501.50"\n')
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 3})
    assert {line["client_orderid"] for line in program.record()} == {"NOV-1", "NOV-2", "NOV-3"}
    assert [path.name for path in folder.iterdir() if path.is_file()] == []
    assert {"pay.xlsx", "pay.xlsx.toml"} <= set(file_names(folder, "done"))


def test_workbook_without_named_worksheet_is_refused_with_help(program: Program, folder: Path) -> None:
    write_note(write_workbook(folder / "pay.xlsx", October=kenyan_rows(2), November=kenyan_rows(3)), None)
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], program.record()) == (3, [])
    assert file_names(folder, "refused") == ["pay.refused.txt", "pay.summary.json", "pay.xlsx"]
    assert "'October' (2 rows), 'November' (3 rows)" in read_refusal(folder)
    assert all(part in read_refusal(folder) for part in ("pay.xlsx.toml", "new_payees"))


def test_reference_in_note_gives_same_order_ids(program: Program, folder: Path) -> None:
    rows = [",".join(row.split(",")[:1] + row.split(",")[2:]) for row in kenyan_rows(2)]
    heading = HEADING.replace("client_orderid,", "")
    write_note(program.sheet(rows, "drop/pay.csv", heading), 'reference = "payroll-2026-11"\n')
    assert program.json("run-folder", folder)["states"] == {"paid": 2}
    again = program.json("submit", program.sheet(rows, "pay.csv", heading), "--reference", "payroll-2026-11")
    assert (again["known"], again["sent_this_run"]) == (2, 0)


def test_sheet_with_invalid_note_is_refused(program: Program, folder: Path) -> None:
    for note, said in (
        ("expect_rows = 4\n", "You expected 4 rows, but the sheet has 3."),
        ('[expect_total]\nKES = "1.00"\n', "You expected KES 1.00"),
        ('[expect_total]\nUGX = "100"\n', "the sheet has no rows in UGX"),
        ("[expect_total]\nKES = 4501.50\n", "write the amount in quotation marks"),
        ('[expect_total]\nKES = "1e3"\n', "is not an amount"),
        ('[expect_total]\nkes = "4501.50"\n', "expect_total"),
        ('work_sheet = "x"\n', "work_sheet is not a known key"),
        ("expect_row = 3\n", "Did you mean expect_rows?"),
        ("expect_rows = -1\n", "expect_rows"),
        ('reference = ""\n', "reference"),
        ("reference = \n", "is not valid TOML"),
        ("", "is empty"),
        ('column_profile = "none-such"\n', "there is no profile"),
        ('column_profile = "/etc/passwd.toml"\n', "column_profile"),
        ('encoding = "none-such"\n', "is not a text encoding"),
        ('skip_invalid = "yes"\n', "skip_invalid"),
        ('by = "two\\nlines"\n', "one line"),
        ("# " + "x" * 70_000, "too large"),
    ):
        write_note(program.sheet(kenyan_rows(3), "drop/pay.csv"), note)
        summary = program.json("run-folder", folder)
        assert (summary["exit_code"], summary["sent_this_run"], program.record()) == (3, 0, []), note
        assert said in summary["sheets"][0]["message"]
        assert said in read_refusal(folder)
        assert file_names(folder, "refused") == ["pay.csv", "pay.csv.toml", "pay.refused.txt", "pay.summary.json"]
        shutil.rmtree(folder / "refused")


def test_symbolic_link_as_note_is_refused(program: Program, folder: Path) -> None:
    outside = program.home / "note.toml"
    outside.write_text("expect_rows = 3\n")
    (folder / "a.csv.toml").symlink_to(outside)
    os.utime(folder / "a.csv.toml", OLD, follow_symlinks=False)
    write_note(program.sheet(kenyan_rows(3), "drop/a.csv"), None)
    summary = program.json("run-folder", folder)
    assert summary["exit_code"] == 3
    assert "a.csv.toml is not valid TOML" in read_refusal(folder)
    assert outside.exists()


def test_sheet_waits_for_unfinished_note(program: Program, folder: Path) -> None:
    sheet = write_note(program.sheet(kenyan_rows(1), "drop/a.csv"), "")
    (folder / "a.csv.toml").write_text("expect_rows = 1\n")  # the current time
    other = write_note(program.sheet(kenyan_rows(1, prefix="B"), "drop/b.csv"), None)
    (folder / "b.csv.toml.part").write_text("expect")
    assert program.json("run-folder", folder)["sheets"] == []
    assert sheet.exists()
    assert other.exists()
    assert program.json("run-folder", folder, "--settle-s", "0")["states"] == {"paid": 1}


def test_claimed_sheet_keeps_note_after_crash(program: Program, folder: Path) -> None:
    """The crash came after the sheet was claimed, and before its note was removed."""
    assert program.json("run-folder", folder)["sheets"] == []
    (working,) = folder.glob("working-*")
    claimed = "20261122T050000000000Z-pay.csv"
    program.sheet(kenyan_rows(1), f"drop/{working.name}/{claimed}")
    for path in (working / f"{claimed}.toml", folder / "pay.csv.toml"):
        path.write_text("expect_rows = 2\n")
    assert program.json("run-folder", folder)["exit_code"] == 3
    assert program.record() == []
    assert not (folder / "pay.csv.toml").exists()


@pytest.mark.parametrize("content", [b"", b"\n", b"# totals follow\n", b"[expect_total]\n", b"\xff"])
def test_empty_or_binary_cover_note_is_refused(content: bytes) -> None:
    with pytest.raises(SheetError):
        parse_cover_note(content, "a.toml")


# A note supports every option of a submission

NOT_FOR_A_NOTE = {
    *("out", "force", "for_excel"),  # run-folder names the files that it writes, by the time, for programs
    *("plan", "mended"),  # a plan is a file of its own; corrections are made and submitted in the console
    *("first", "detach", "dry_run"),  # the next run continues a sheet; workers are followed; a sheet is paid or refused
    *("concurrency", "rate_per_s", "wait"),  # these are matters of the host and the journal
    *("expected", "decided_by"),  # as expect_rows, expect_total and by
}


def test_cover_note_supports_every_option_and_choice() -> None:
    program_names = {str(one.name) for one in program_options(lambda: None).__click_params__}  # type: ignore[attr-defined]
    options = {str(parameter.name) for parameter in submit_command.params} - {"sheet"} - program_names
    assert set(CoverNote.model_fields) == options - NOT_FOR_A_NOTE
    choices = {field.name for field in fields(Choices)} - {"sent_by", "is_plan_named", "answered"}
    choices |= {field.name for field in fields(Reading)} - {"corrections"}
    assert choices - NOT_FOR_A_NOTE <= set(CoverNote.model_fields)


BAD = "KE,BAD-1,1e3,KES,Jane Wanjiku,254712345678,+254712345678"


def test_cover_note_can_skip_rows_with_defects(program: Program, folder: Path) -> None:
    write_note(program.sheet([*kenyan_rows(2), BAD], "drop/pay.csv"), "skip_invalid = false\n")
    assert program.json("run-folder", folder, "--skip-invalid")["exit_code"] == 3, "the note overrides the command"
    assert program.record() == []
    (rejects,) = (folder / "refused").glob("*.rejects.csv")
    assert not list((folder / "refused").glob("*.refused.txt"))
    assert read_csv(rejects)[0]["client_orderid"] == "BAD-1"
    write_note(program.sheet([*kenyan_rows(2), BAD], "drop/pay.csv"), 'skip_invalid = true\nby = "Ms Njeri"\n')
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["states"]) == (4, {"paid": 2, "invalid": 1})


@pytest.mark.parametrize(
    ("before", "rows", "note", "paid"),
    [
        (kenyan_rows(6), kenyan_rows(6, prefix="AGAIN"), "repeats_meant = true\n", 6),
        (kenyan_rows(1, amount="9001"), kenyan_rows(1), "amend = true\n", 1),
    ],
    ids=["repeated payments", "a row in place of a rejected one"],
)
def test_cover_note_can_confirm_payments(
    program: Program, folder: Path, before: list[str], rows: list[str], note: str, paid: int
) -> None:
    program.json("submit", program.sheet(before))
    for content, code in ((None, 3), (note, 0)):
        write_note(program.sheet(rows, "drop/pay.csv"), content)
        summary = program.json("run-folder", folder)
        assert summary["exit_code"] == code
    assert summary["states"] == {"paid": paid}


def test_cover_note_can_make_warnings_defects(program: Program, folder: Path) -> None:
    write_note(program.sheet([*kenyan_rows(1), *kenyan_rows(1, prefix="TWIN")], "drop/pay.csv"), "strict = true\n")
    assert program.json("run-folder", folder)["exit_code"] == 3
    assert program.record() == []


def test_note_sets_sheet_headings_and_encoding(program: Program, folder: Path) -> None:
    rows = "\n".join(kenyan_rows(2)).replace("Jane Wanjiku", "Jos\u00e9 Wanjiku")
    for note, code in ((None, 3), ('encoding = "cp1252"\ncolumn_profile = "payroll-english"\n', 0)):
        (folder / "pay.csv").write_bytes(f"{HEADING}\n{rows}\n".encode("cp1252"))
        write_note(folder / "pay.csv", note)
        assert program.json("run-folder", folder)["exit_code"] == code
    assert len(program.json("find", "Jos\u00e9")["payments"]) == 2
