"""A drop folder: sheets that are paid once, stray notes, files that are not sheets, and unsafe folders."""

import json
import os
import signal
import stat
import time
import unicodedata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from paygw_batch.cli import send_batch
from paygw_batch.errors import OutputError
from paygw_batch.unattended.drop_folder import ClaimedSheet
from paygw_batch.unattended.dropped_files import FolderEntry, sort_files
from tests.cli.metrics import read_gauges
from tests.cli.paying import block_first_reply, run_gateway
from tests.cli.sheets import OLD
from tests.cli.stopped import stop_process, wait_for_first_payment
from tests.support.approving import policy, prepare_sheet
from tests.support.program import Program, kenyan_rows, kill, read_csv, sandbox_toml

WRONG = 'expect_rows = 99\n[expect_total]\nKES = "1.00"\n'
TORN = 'country,amount\n"KE,1\n'


def drop_file(folder: Path, name: str, content: str = WRONG) -> Path:
    """Write a file with an old modification time into the folder."""
    path = folder / name
    path.write_text(content)
    os.utime(path, OLD)
    return path


def drop_sheet(
    program: Program, rows: list[str] | None = None, name: str = "payroll.csv", *, age_s: float = 3600
) -> Path:
    path = program.sheet(kenyan_rows(3) if rows is None else rows, f"drop/{name}")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def file_names(folder: Path) -> list[str]:
    """Return the file names in a subfolder, without their time prefixes."""
    return sorted(path.name.partition("-")[2] for path in folder.iterdir())


def configure_slow_gateway(program: Program, delay_s: float) -> None:
    (program.home / "slow.toml").write_text(f"[default]\ndelay_s = {delay_s}\n")
    program.config.write_text(f'{program.config.read_text()}\n[sandbox]\nbehaviour = "slow.toml"\n')


# Sheets


def test_unchanged_sheet_is_paid_and_moved_with_reports(program: Program, folder: Path) -> None:
    assert program.json("run-folder", folder)["sheets"] == []
    sheet = drop_sheet(program)
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["sent_this_run"]) == (0, 3)
    assert (summary["totals"], sheet.exists()) == ({"KES": {"paid": "4501.50"}}, False)
    names = ["payroll.csv", *(f"payroll.{end}" for end in ("reconciliation.csv", "report.html", "summary.json"))]
    assert file_names(folder / "done") == names
    (report,) = (folder / "done").glob("*.summary.json")
    assert json.loads(report.read_text())["states"] == {"paid": 3}
    (reconciliation,) = (folder / "done").glob("*.reconciliation.csv")
    assert [line["state"] for line in read_csv(reconciliation)] == ["paid"] * 3
    drop_sheet(program)  # The same sheet is paid once.
    assert (program.json("run-folder", folder)["exit_code"], len(program.record())) == (0, 3)


def test_sheet_waits_until_its_file_stops_changing(program: Program, folder: Path) -> None:
    sheets = [drop_sheet(program, age_s=5), drop_sheet(program, kenyan_rows(1, prefix="LATER", amount="20"), "b.csv")]
    os.utime(sheets[1], (4_000_000_000, 4_000_000_000))
    assert program.json("run-folder", folder)["sheets"] == []
    assert program.json("run-folder", folder, "--settle-s", "0")["states"] == {"paid": 4}


def test_sheet_written_during_claim_waits(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet, rename = drop_sheet(program), Path.rename

    def rename_open_file(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if path == sheet:
            moved.write_text("\n".join([moved.read_text().rstrip(), *kenyan_rows(1, prefix="LATE", amount="20"), ""]))
        return moved

    monkeypatch.setattr(Path, "rename", rename_open_file)
    assert program.json("run-folder", folder)["sheets"] == []
    assert (program.record(), sheet.exists()) == ([], True)
    monkeypatch.undo()
    os.utime(sheet, OLD)
    assert program.json("run-folder", folder)["states"] == {"paid": 4}


def test_refused_sheet_does_not_block_good_sheet(program: Program, folder: Path) -> None:
    drop_sheet(program, [*kenyan_rows(2), "KE,BAD,1e3,KES,Jane,254712345678,+254712345678"], "bad.csv", age_s=9000)
    drop_sheet(program, kenyan_rows(2, prefix="GOOD"), "good.csv")
    drop_file(folder, "torn.csv", TORN)
    summary = program.json("run-folder", folder)
    codes = [(sheet["sheet"], sheet["exit_code"]) for sheet in summary["sheets"]]
    assert (summary["exit_code"], codes) == (3, [("torn.csv", 3), ("bad.csv", 3), ("good.csv", 0)])
    assert file_names(folder / "refused") == [
        *("bad.csv", "bad.rejects.csv", "bad.summary.json"),
        *("torn.csv", "torn.refused.txt", "torn.summary.json"),
    ]
    (rejects,) = (folder / "refused").glob("*.rejects.csv")
    assert [line["client_orderid"] for line in read_csv(rejects)] == ["BAD"]
    (refusal,) = (folder / "refused").glob("*.refused.txt")
    assert refusal.read_text().startswith("'torn.csv' was refused. None of its rows were sent")
    assert {line["client_orderid"] for line in program.record()} == {"GOOD-1", "GOOD-2"}
    assert program.json("run-folder", folder)["sheets"] == []  # the folder is processed only once


@pytest.mark.parametrize("failing", [(send_batch, "write_results"), (ClaimedSheet, "finish")])
def test_late_failure_counts_rows_of_all_sheets(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[Any, str]
) -> None:
    drop_sheet(program)
    drop_sheet(program, kenyan_rows(2, prefix="B", amount="7"), "second.csv", age_s=1800)
    real = getattr(*failing)
    attempts = iter([real, Mock(side_effect=OutputError("Full."))])

    def fail_second(*values: Any, **named: Any) -> Any:
        return next(attempts)(*values, **named)

    monkeypatch.setattr(*failing, fail_second)
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["sent_this_run"], summary["states"]) == (2, 5, {"paid": 5})
    assert [sheet["states"] for sheet in summary["sheets"]] == [{"paid": 3}, {"paid": 2}]
    assert "Full. This run sent" in summary["message"]


def test_second_run_waits_or_is_refused(program: Program, folder: Path) -> None:
    configure_slow_gateway(program, 0.2)
    drop_sheet(program, kenyan_rows(40), "first.csv")
    process = program.start("run-folder", folder)
    wait_for_first_payment(program, process)
    second = drop_sheet(program, kenyan_rows(1, amount="20", prefix="SECOND"), "second.csv")
    with stop_process(process):
        result = program.run("run-folder", folder)
        waiting = program.start("run-folder", folder, "--wait")
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
    assert (result.exit_code, second.exists()) == (7, True)
    assert f"nother run is using this journal: process {process.pid}" in result.stderr
    assert line.startswith("Waiting: ")
    assert f"nother run is using this journal: process {process.pid}" in line
    process.communicate()
    waiting.communicate()
    assert (process.returncode, waiting.returncode, len(program.record())) == (0, 0, 41)


def test_interrupted_sheet_continues_before_other_sheets(program: Program, folder: Path) -> None:
    drop_sheet(program, kenyan_rows(40), "first.csv")
    with run_gateway(program) as gateway:
        with block_first_reply(program, gateway, "run-folder", folder) as process:
            process.send_signal(signal.SIGTERM)
        assert process.returncode == 130
        assert len(gateway.orders()) < 40
        drop_sheet(program, kenyan_rows(1, amount="20", prefix="OLD"), "a-older-sheet.csv", age_s=99999)
        summary = program.json("run-folder", folder)
        assert [sheet["sheet"] for sheet in summary["sheets"]] == ["first.csv", "a-older-sheet.csv"]
        assert summary["states"] == {"paid": 41}
        assert len(gateway.orders()) == 41


def test_claimed_sheet_continues_only_with_its_journal(program: Program, folder: Path) -> None:
    configure_slow_gateway(program, 0.05)
    drop_sheet(program, kenyan_rows(60))
    process = program.start("run-folder", folder)
    wait_for_first_payment(program, process)
    kill(process)
    text = program.config.read_text()
    program.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    assert program.json("run-folder", folder)["sheets"] == []
    for ending in ("", "-wal"):
        program.journal.with_name(f"journal.sqlite3{ending}").rename(program.home / f"moved.sqlite3{ending}")
    (program.home / "known.journal.sqlite3").rename(program.home / "known.moved.sqlite3")
    program.config.write_text(text.replace('"journal.sqlite3"', '"moved.sqlite3"'))
    (sheet,) = program.json("run-folder", folder)["sheets"]
    assert sum(sheet["states"].values()) == 60
    orders = [line["client_orderid"] for line in program.record()]
    assert len(orders) == len(set(orders)) == 60


# Stray notes

MISSPELT = [
    *("payroll.toml", "payroll.csv.TOML", "payroll.csv.Toml", "Payroll.csv.toml", "payroll.CSV.toml"),
    *("payroll.csv.toml.toml", "payroll.csv.toml.txt", "payroll.toml.csv", "payroll.xlsx.toml"),
    *("payroll.csv (1).toml", "payroll (2).csv.toml", "payroll.csv.toml (1)", "payroll.csv .toml"),
    *("payroll.csv.toml ", "payroll.csv.tolm", "payroll.csv.tml", "payroll.csv.t\u043eml", "payroll.csvtoml"),
    *("payroll_csv.toml", "payroll.csv.toml.gz", "payroll.csv.yaml", "payroll.csv.txt", "payroll\u200b.csv.toml"),
    "\uff50ayroll.csv.toml",
]


@pytest.mark.share(4)
@pytest.mark.parametrize("note", MISSPELT)
def test_sheet_with_misnamed_note_is_refused(program: Program, folder: Path, note: str) -> None:
    drop_sheet(program)
    drop_file(folder, note)
    other = drop_sheet(program, kenyan_rows(3, prefix="BONUS", amount="20"), "bonus.csv")
    summary = program.json("run-folder", folder)
    codes = {sheet["sheet"]: sheet["exit_code"] for sheet in summary["sheets"]}
    assert (summary["exit_code"], codes) == (3, {"payroll.csv": 3, other.name: 0})
    assert {line["client_orderid"] for line in program.record()} == {"BONUS-1", "BONUS-2", "BONUS-3"}
    names = [note, "payroll.csv", "payroll.refused.txt", "payroll.summary.json"]
    assert file_names(folder / "refused") == sorted(names)
    assert [path.name for path in folder.iterdir() if path.is_file()] == []


def test_note_name_in_different_unicode_form_is_refused(program: Program, folder: Path) -> None:
    drop_sheet(program, name=unicodedata.normalize("NFC", "l\u00f6hne.csv"))
    drop_file(folder, unicodedata.normalize("NFD", "l\u00f6hne.csv.toml"))
    assert program.json("run-folder", folder)["exit_code"] == 3
    assert program.record() == []


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"payroll.csv.toml": "expect_rows = 3\n", "payroll.toml": WRONG}, 3),
        ({"payroll.csv.plan.json": "{}"}, 8),
        ({"payroll.plan.json": "{}"}, 8),  # It is a plan, but the configuration has no policy.
    ],
)
def test_second_note_or_unusable_plan_causes_refusal(
    program: Program, folder: Path, files: dict[str, str], code: int
) -> None:
    drop_sheet(program)
    for name, content in files.items():
        drop_file(folder, name, content)
    assert program.json("run-folder", folder)["exit_code"] == code
    assert program.record() == []
    assert {"payroll.csv", *files} <= set(file_names(folder / "refused"))


def test_note_for_similarly_named_file_is_ignored(program: Program, folder: Path) -> None:
    drop_sheet(program)
    drop_file(folder, "payroll.xls", "old")
    drop_file(folder, "payroll.xls.toml")
    summary = program.json("run-folder", folder)
    assert {sheet["sheet"]: sheet["exit_code"] for sheet in summary["sheets"]} == {"payroll.csv": 0, "payroll.xls": 3}
    assert len(program.record()) == 3


def test_note_or_plan_without_sheet_is_reported(program: Program, folder: Path) -> None:
    names = ["november.csv.toml", "november.plan.json", "october.toml"]
    for name in names:
        drop_file(folder, name)
    drop_sheet(program)
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["states"]) == (4, {"paid": 3})
    assert sorted(entry["file"] for entry in summary["left"]) == names
    output = program.run("-q", "run-folder", folder).stdout
    assert all((folder / name).exists() and name in output for name in names)


def test_cover_note_may_arrive_before_sheet(program: Program, folder: Path) -> None:
    (folder / "payroll.csv.toml").write_text(WRONG)  # the current time
    (folder / "payroll.csv.part").write_text("country,")
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["left"]) == (0, [])
    os.utime(folder / "payroll.csv.toml", OLD)  # the sheet has not arrived yet
    assert program.json("run-folder", folder)["exit_code"] == 0
    (folder / "payroll.csv.part").unlink()
    drop_sheet(program)
    assert program.json("run-folder", folder)["exit_code"] == 3
    assert program.record() == []


def test_stray_notes_are_reported_and_prevent_payment(program: Program, folder: Path) -> None:
    """The first note was left by a crash; the last one comes too late, and must not affect another sheet."""
    drop_file(folder, "payroll.toml")
    assert program.json("run-folder", folder)["exit_code"] == 4
    drop_sheet(program)
    assert program.json("run-folder", folder)["exit_code"] == 3
    drop_file(folder, "payroll.csv.toml", "expect_rows = 3\n")
    assert program.json("run-folder", folder)["exit_code"] == 4
    assert program.record() == []


def test_folder_named_like_note_prevents_payment(program: Program, folder: Path) -> None:
    drop_sheet(program)
    (folder / "payroll.csv.toml").mkdir()
    os.utime(folder / "payroll.csv.toml", OLD)
    assert [program.json("run-folder", folder)["exit_code"] for _ in range(2)] == [3, 4]
    assert program.record() == []


def test_sheet_with_approved_plan_is_paid(program: Program, folder: Path) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    sheet = prepare_sheet(program, "cleo")
    for path in (sheet, sheet.with_name("payroll.plan.json")):
        os.utime(path.rename(folder / path.name), OLD)
    assert program.json("run-folder", folder)["states"] == {"paid": 3}
    assert {"payroll.csv", "payroll.plan.json"} <= set(file_names(folder / "done"))


# Files that are not sheets


def test_file_of_another_kind_is_refused(program: Program, folder: Path) -> None:
    names = {"payroll.xls", "p.ods", "q.xlsm", "r.csv.gz", "s.json", "payroll", "notes.pdf", "x.PDF"}
    for name in names:
        drop_file(folder, name, "not a sheet")
    drop_file(folder, "empty.csv", "")
    summary = program.json("run-folder", folder)
    codes = {sheet["sheet"]: sheet["exit_code"] for sheet in summary["sheets"]}
    assert (summary["exit_code"], codes) == (3, dict.fromkeys({*names, "empty.csv"}, 3))
    refused = file_names(folder / "refused")
    assert names <= set(refused)
    assert {"x.refused.txt", "x.summary.json", "r.csv.refused.txt"} <= set(refused)
    assert program.json("run-folder", folder)["exit_code"] == 0


def test_link_pipe_or_folder_is_reported(program: Program, folder: Path) -> None:
    outside = program.sheet(kenyan_rows(1))
    (folder / "folder.csv").mkdir()
    (folder / "link.csv").symlink_to(outside)
    (folder / "nowhere.csv").symlink_to(program.home / "nowhere.csv")
    os.mkfifo(folder / "pipe.csv")
    names = ["folder.csv", "link.csv", "nowhere.csv", "pipe.csv"]
    for name in names:
        os.utime(folder / name, OLD, follow_symlinks=False)
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], summary["sheets"], program.record()) == (4, [], [])
    assert sorted(entry["file"] for entry in summary["left"]) == names
    assert outside.exists()
    assert all(os.path.lexists(folder / name) for name in names)


def test_sheet_next_to_aborted_transfer_is_reported(program: Program, folder: Path) -> None:
    sheet = drop_sheet(program)
    drop_file(folder, "payroll.csv.filepart", "country")
    summary = program.json("run-folder", folder)
    assert (summary["exit_code"], [entry["file"] for entry in summary["left"]]) == (4, ["payroll.csv"])
    assert (sheet.exists(), program.record()) == (True, [])


def test_unrelated_files_in_folder_are_ignored(program: Program, folder: Path) -> None:
    ends = (".part", ".tmp", ".filepart", ".PARTIAL", ".crdownload", "~")
    names = [".payroll.csv", ".~lock.payroll.xlsx#", "~$payroll.xlsx", ".DS_Store", "Thumbs.db", ".payroll.csv.Xa3bC9"]
    names += [f"payroll.csv{end}" for end in ends]
    for name in names:
        drop_sheet(program, kenyan_rows(1), name)
    summary = program.json("run-folder", folder)
    assert (summary["sheets"], summary["exit_code"]) == ([], 0)
    for name in ("payroll.reconciliation.csv", "payroll.refused.txt"):
        drop_sheet(program, kenyan_rows(1), name)
    summary = program.json("run-folder", folder)
    assert (summary["sheets"], summary["exit_code"]) == ([], 4)
    assert {*names, name} <= {path.name for path in folder.iterdir()}


def test_corrected_file_of_rejects_is_paid(program: Program, folder: Path) -> None:
    drop_file(folder, "payroll.rejects.csv", drop_sheet(program).read_text())
    (folder / "payroll.csv").unlink()
    assert program.json("run-folder", folder)["states"] == {"paid": 3}


def test_metrics_count_waiting_unfinished_and_refused_files(program: Program, folder: Path) -> None:
    program.config.write_text(f'{sandbox_toml()}\n[reporting]\nmetrics = "paygw.prom"\n')
    drop_file(folder, "payroll.xls", "x")
    drop_file(folder, "november.toml")
    drop_file(folder, "payroll.csv.part", "x")
    program.json("run-folder", folder)
    gauges = read_gauges(program)
    states = ("waiting", "unfinished", "refused")
    assert [gauges[f'paygw_folder_files{{state="{state}"}}'] for state in states] == [1, 1, 1]
    for path in (folder / "refused").iterdir():
        path.unlink()
    program.json("status")
    (folder / "november.toml").unlink()
    program.json("run-folder", folder)
    assert [read_gauges(program)[f'paygw_folder_files{{state="{state}"}}'] for state in states] == [0, 1, 0]


def test_similar_file_names_are_distinguished() -> None:
    settled = FolderEntry(is_file=True, is_folder=False, is_settled=True)
    young = FolderEntry(is_file=True, is_folder=False, is_settled=False)
    names = "a.csv a.csv.toml a.plan.json b.xlsx b.csv b.csv.toml 2026.11.csv 2026.10.toml c.csv e.toml"
    more = "g.csv h_1.csv H-1.toml i.tom.csv j.yaml k.csv k.csv.gz l.csv.txt"
    recent = "c.toml e.csv f.csv.toml g.csv.toml.part"
    entries = dict.fromkeys(f"{names} {more}".split(), settled) | dict.fromkeys(recent.split(), young)
    sorted_names = sort_files(entries)
    assert sorted(sorted_names.ready) == ["2026.11.csv", "a.csv", "b.csv", "b.xlsx", "i.tom.csv", "k.csv", "l.csv.txt"]
    assert set(sorted_names.refused) == {"h_1.csv", "j.yaml", "k.csv.gz"}
    assert set(sorted_names.untouched) == {"2026.10.toml"}
    assert {"c.csv", "e.csv", "g.csv", "f.csv.toml"} <= set(sorted_names.waiting)


# The folder itself, and its subfolders


def run_refused_folder(program: Program, folder: Path, *arguments: str | Path) -> str:
    """Run the folder, which must be refused and left unchanged. Return the error."""
    before = sorted(path for path in program.home.rglob("*") if "state" not in path.parts)
    paid = program.record()
    result = program.run("run-folder", folder, *arguments)
    assert result.exit_code == 2, result.output
    assert program.record() == paid
    assert sorted(path for path in program.home.rglob("*") if "state" not in path.parts) == before
    return result.stderr


def test_empty_or_missing_drop_folder_is_refused(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_sheet(program)
    monkeypatch.chdir(folder)
    for wrong in ([""], [" "], ["--adopt", ""], ["--adopt", " "], ["/"], ["nowhere"]):
        assert program.run("run-folder", *wrong).exit_code == 2
    assert [path.name for path in folder.iterdir()] == ["payroll.csv"]


PROGRAM_FILES = {
    "configuration": ("paygw.toml", sandbox_toml()),
    "configuration by another name": ("paygw.conf", sandbox_toml()),
    "key": ("merchant.key", "-----BEGIN PRIVATE KEY-----\n"),
    "key as a text": ("merchant.txt", "-----BEGIN RSA PRIVATE KEY-----\n"),
    "journal": ("old.sqlite3", "SQLite format 3\0"),
    "journal as a sheet": ("old.csv", "SQLite format 3\0"),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("what", ["home", *PROGRAM_FILES, "own configuration", "journal below"])
def test_folder_with_program_files_needs_adoption(program: Program, folder: Path, what: str) -> None:
    drop_sheet(program)
    if what in PROGRAM_FILES:
        drop_file(folder, *PROGRAM_FILES[what])
    elif what == "own configuration":
        program.config = program.config.rename(folder / "paygw.toml")
        program.config.write_text(sandbox_toml("../journal.sqlite3"))
    elif what == "journal below":
        (folder / "state").mkdir()
        program.config.write_text(sandbox_toml("drop/state/journal.sqlite3"))
    else:
        folder = program.home
        program.sheet(kenyan_rows(3))
        os.utime(program.home / "payroll.csv", OLD)
    assert "--adopt" in run_refused_folder(program, folder)
    assert program.json("run-folder", "--adopt", folder)["exit_code"] == 0
    assert program.record() == []
    own = [path for path in folder.iterdir() if path.name not in {"payroll.csv", "drop", "state"}]
    assert program.json("run-folder", folder)["states"]["paid"] == 3
    assert all(path.exists() for path in own)


def test_world_writable_adoption_marker_is_ignored(program: Program, folder: Path) -> None:
    drop_file(folder, "paygw.toml", sandbox_toml())
    marker = drop_file(folder, ".paygw-adopted", "")
    marker.chmod(0o666)
    run_refused_folder(program, folder)
    assert program.run("run-folder", "--adopt", folder).exit_code == 0
    assert stat.S_IMODE(marker.stat().st_mode) == 0o600


def test_subfolder_of_drop_folder_is_refused(program: Program, folder: Path) -> None:
    drop_sheet(program)
    assert program.json("run-folder", folder)["exit_code"] == 0
    for name in ("done", "refused"):
        run_refused_folder(program, folder / name)


@pytest.mark.share(4)
@pytest.mark.parametrize("place", ["done", "refused", "working"])
@pytest.mark.parametrize("fault", ["link", "dangling", "file", "others write", "somebody else"])
def test_unsafe_subfolder_is_never_written(program: Program, folder: Path, place: str, fault: str) -> None:
    assert program.json("run-folder", folder)["exit_code"] == 0
    drop_sheet(program)
    (sub,) = folder.glob(f"{place}*")
    sub.rmdir()
    elsewhere = program.home / "elsewhere"
    if fault == "link":
        elsewhere.mkdir()
    if fault in {"link", "dangling"}:
        sub.symlink_to(elsewhere)
    elif fault == "file":
        sub.write_text("")
    else:
        sub.mkdir()
        if fault == "others write":
            sub.chmod(0o777)
        elif os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        else:
            os.chown(sub, 12345, 12345)
    run_refused_folder(program, folder)
    assert (folder / "payroll.csv").exists()
    assert not elsewhere.exists() or not any(elsewhere.iterdir())


def test_finishing_sheet_again_changes_nothing(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_sheet(program)
    finish = ClaimedSheet.finish

    def finish_twice(claimed: ClaimedSheet, *arguments: Any, **named: Any) -> None:
        finish(claimed, *arguments, **named)
        finish(claimed, *arguments, **named)

    monkeypatch.setattr(ClaimedSheet, "finish", finish_twice)
    assert program.json("run-folder", folder)["exit_code"] == 0
    assert {"payroll.csv", "payroll.summary.json"} <= set(file_names(folder / "done"))
