"""No output overwrites a file that is not its own: exit code 2, and nothing is changed."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import MachineCache
from tests.cli.sheets import write_workbook
from tests.support.approving import key, policy
from tests.support.program import Program, kenyan_rows, read_csv, sandbox_toml

FOREIGN = "who,what\nme,my own notes\n"


def file_contents(program: Program) -> dict[Path, bytes]:
    kept = [path for path in program.home.rglob("*") if path.is_file() and not path.name.endswith(("-shm", ".lock"))]
    return {path: path.read_bytes() for path in kept}


def run_refused(program: Program, *arguments: str | Path) -> str:
    """Run a command that must be refused before it reads or sends anything. Return the error."""
    before = file_contents(program)
    result = program.run(*arguments)
    assert result.exit_code == 2, result.output
    assert file_contents(program) == before
    return result.stderr


def prepare_payment(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home).replace('KES = "1000"', 'KES = "100000000"'))
    program.sheet(kenyan_rows(2))
    assert program.json("submit", program.home / "payroll.csv")["exit_code"] == 0


@pytest.fixture
def paid(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_payment)


WRITERS: dict[str, tuple[str, ...]] = {
    "submit": ("submit", "{home}/payroll.csv", "--out", "{out}"),
    "collect": ("collect", "{home}/payroll.csv", "--out", "{out}"),
    "resume": ("resume", "{home}/payroll.csv", "--out", "{out}"),
    "retry": ("retry", "{home}/payroll.csv", "--out", "{out}"),
    "reconcile": ("reconcile", "{home}/payroll.csv", "--out", "{out}"),
    "report": ("reconcile", "{home}/payroll.csv", "--out", "{home}/again.csv", "--report", "{out}"),
    "validate": ("validate", "{home}/payroll.csv", "--rejects", "{out}"),
    "status": ("status", "{home}/payroll.csv", "--in-doubt", "--out", "{out}"),
    "plan": ("plan", "{home}/payroll.csv", "--out", "{out}", "--key", "{home}/ada.pem"),
    "template": ("template", "KE", "--out", "{out}"),
    "backup": ("backup", "{out}"),
}


def build_command(program: Program, writer: str, out: Path) -> list[str]:
    return [word.format(home=program.home, out=out) for word in WRITERS[writer]]


@pytest.mark.parametrize("writer", WRITERS)
def test_outputs_never_overwrite_sheet(paid: Program, writer: str) -> None:
    sheet = paid.home / "payroll.csv"
    if writer == "plan":  # the file of a plan must end in .json
        (paid.home / "payroll.json").hardlink_to(sheet)
        sheet = paid.home / "payroll.json"
    for force in ([],) if writer in {"template", "backup"} else ([], ["--force"]):
        assert "Error: " in run_refused(paid, *build_command(paid, writer, sheet), *force)


def test_output_option_refuses_path_of_sheet(paid: Program) -> None:
    home, sheet = paid.home, paid.home / "payroll.csv"
    (home / "deep").mkdir()
    (home / "folder").symlink_to(home, target_is_directory=True)
    (home / "hard.csv").hardlink_to(sheet)
    (home / "symbolic.csv").symlink_to(sheet)
    for name in ("payroll.csv", "deep/../payroll.csv", "hard.csv", "symbolic.csv", "folder/payroll.csv"):
        for command in (("submit", sheet, "--out"), ("validate", sheet, "--rejects")):
            assert "would overwrite the sheet" in run_refused(paid, *command, f"{home}/{name}", "--force"), name


@pytest.mark.share(3)
@pytest.mark.parametrize("writer", ["report", "backup"])  # their files may have any name
@pytest.mark.parametrize(
    "name",
    [
        *("journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm", "journal.sqlite3-journal", "paygw.toml"),
        *("journal.sqlite3.lock", "JOURNAL.sqlite3-WAL", "known.journal.sqlite3/new", "state/paygw-batch/journals/new"),
        *("sandbox-merchant.pem", "sandbox-record.csv", "sandbox-record-payin.csv", "sandbox-callbacks.csv"),
    ],
)
def test_outputs_never_overwrite_journal_files(paid: Program, writer: str, name: str) -> None:
    (paid.home / "state" / "paygw-batch").mkdir(parents=True, exist_ok=True)
    force = ["--force"] if writer == "report" else []
    assert "would overwrite" in run_refused(paid, *build_command(paid, writer, paid.home / name), *force)
    assert paid.json("verify")["exit_code"] == 0


@pytest.mark.parametrize("name", ["signing.pem", "passphrase.txt", "ca.pem", "token.txt", "maker.pem"])
def test_outputs_never_overwrite_keys_or_secrets(paid: Program, name: str) -> None:
    for one in ("signing.pem", "passphrase.txt", "ca.pem", "token.txt"):
        (paid.home / one).write_text("secret")
    key(paid.home, "maker")
    lines = 'private_key = "signing.pem"\nprivate_key_passphrase_file = "passphrase.txt"\nca_bundle = "ca.pem"'
    configured = paid.config.read_text().replace("[gateway]", f"[gateway]\n{lines}")
    paid.config.write_text(f'{configured}\n[notifications]\ntoken_file = "token.txt"\n')
    if name == "maker.pem":
        (paid.home / "maker.json").hardlink_to(paid.home / name)
        arguments = ["plan", "payroll.csv", "--out", f"{paid.home}/maker.json", "--key", f"{paid.home}/{name}"]
    else:
        arguments = build_command(paid, "report", paid.home / name)
    assert "would overwrite" in run_refused(paid, *arguments, "--force")


@pytest.mark.share(3)
@pytest.mark.parametrize("writer", [name for name in WRITERS if name not in {"template", "backup", "collect", "plan"}])
def test_only_force_replaces_unrelated_file(paid: Program, writer: str) -> None:
    out = paid.home / "notes.csv"
    out.write_text(FOREIGN)
    assert "this program did not write it" in run_refused(paid, *build_command(paid, writer, out))
    if writer == "validate":
        sheet = paid.home / "payroll.csv"
        sheet.write_text(sheet.read_text().replace("KES", "XXX"))
    paid.run(*build_command(paid, writer, out), "--force")
    assert out.read_text() != FOREIGN


def test_template_and_backup_never_replace_file(paid: Program) -> None:
    out = paid.home / "notes.csv"
    for content in (FOREIGN, ""):
        out.write_text(content)
        for writer in ("template", "backup"):
            assert "already exists" in run_refused(paid, *build_command(paid, writer, out))


@pytest.mark.share(3)
@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet"])
def test_every_run_replaces_its_own_output(paid: Program, ending: str) -> None:
    home, sheet, bad = paid.home, paid.home / "payroll.csv", paid.sheet(kenyan_rows(1, amount="-1"), "bad.csv")
    out, questions = home / f"out.{ending}", home / f"questions.{ending}"
    for _ in range(2):
        assert paid.json("submit", sheet)["exit_code"] == 0
        assert paid.json("submit", sheet, "--out", out)["exit_code"] == 0
        assert paid.json("reconcile", sheet, "--out", out, "--report", home / "page.html")["exit_code"] == 0
        assert paid.run("status", sheet, "--in-doubt", "--out", questions).exit_code == 0
        assert paid.run("validate", bad, "--rejects", home / f"rejects.{ending}").exit_code == 3
        assert paid.run("plan", sheet, "--out", home / "payroll.plan.json", "--key", home / "ada.pem").exit_code == 0
    assert "this program did not write it" in run_refused(paid, "validate", bad, "--rejects", out)
    assert "this program did not write it" in run_refused(paid, "reconcile", sheet, "--out", questions)


def test_annotated_workbook_is_replaced_by_newer(paid: Program) -> None:
    bad = write_workbook(paid.home / "bad.xlsx", Pay=kenyan_rows(2, amount="-5"))
    for _ in range(2):
        assert paid.run("validate", bad, "--rejects", paid.home / "copy.xlsx").exit_code == 3
    refusal = run_refused(paid, "validate", paid.home / "payroll.csv", "--rejects", bad)
    assert "this program did not write it" in refusal


def test_resaved_reconciliation_and_empty_file_are_replaced(paid: Program) -> None:
    resaved, fresh = paid.home / "payroll.reconciliation.csv", paid.home / "fresh.csv"
    resaved.write_text("\ufeff" + resaved.read_text().replace(",", ";").replace("\n", "\r\n"))
    fresh.touch()
    for out in (resaved, fresh):
        assert paid.json("submit", paid.home / "payroll.csv", "--out", out)["exit_code"] == 0
        assert len(read_csv(out)) == 2


def test_unrelated_reconciliation_file_stops_run_before_sending(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(1))
    (program.home / "payroll.reconciliation.csv").write_text(FOREIGN)
    assert "The reconciliation " in run_refused(program, "submit", sheet)
    assert (program.record(), program.journal.exists()) == ([], False)
    assert program.json("submit", sheet, "--force")["exit_code"] == 0


def test_two_outputs_cannot_share_file(paid: Program) -> None:
    both = ("--out", "x.csv", "--report", Path.cwd() / "x.csv")
    assert "are the same file" in run_refused(paid, "reconcile", paid.home / "payroll.csv", *both)


@pytest.mark.parametrize(
    ("command", "key_of", "target"),
    [
        (("submit", "payroll.csv"), "log", "payroll.csv"),
        (("submit", "payroll.csv"), "metrics", "journal.sqlite3"),
        (("submit", "payroll.csv"), "metrics", "notes.txt"),
        (("resume",), "log", "paygw.toml"),
        (("resume",), "log", "notes.txt"),
        (("retry", "payroll.csv"), "metrics", "sandbox-merchant.pem"),
        (("run-folder", "."), "log", "journal.sqlite3-wal"),
        (("run-folder", "."), "metrics", "notes.txt"),
    ],
)
def test_log_and_metrics_cannot_overwrite_protected_files(
    paid: Program, command: tuple[str, ...], key_of: str, target: str
) -> None:
    (paid.home / "notes.txt").write_text(FOREIGN)
    paid.config.write_text(paid.config.read_text() + f'\n[reporting]\n{key_of} = "{target}"\n')
    arguments = [str(paid.home / word) if word in {".", "payroll.csv"} else word for word in command]
    assert f"reporting.{key_of}" in run_refused(paid, *arguments)


def test_existing_log_and_metrics_files_are_updated(paid: Program) -> None:
    paid.config.write_text(f'{paid.config.read_text()}\n[reporting]\nlog = "run.log"\nmetrics = "run.prom"\n')
    for _ in range(2):
        assert paid.json("submit", paid.home / "payroll.csv")["exit_code"] == 0
    assert len((paid.home / "run.log").read_text().splitlines()) >= 4


def prepare_pages(program: Program) -> None:
    """Set up a machine with defaults, whose journal and page folders are in the program's own directory."""
    program.config.write_text(re.sub(r"(?ms)^\[journal\].*?(?=^\[)", "", sandbox_toml()))
    sheet = program.sheet(kenyan_rows(1))
    batch = program.json("submit", sheet)["batch"]
    console = console_folder(program)
    for number in ("0" * 16, "1" * 16):
        (console / number / "sheet").mkdir(parents=True)
        shutil.copy(sheet, console / number / "sheet")
        for name in ("upload.json", "plan.json", "mending.json"):
            (console / number / name).write_text("{}")
    (console / "runs").mkdir()
    (console / "runs" / f"{batch}.json").write_text("{}")


def console_folder(program: Program) -> Path:
    (journal,) = (program.home / "state" / "paygw-batch").glob("*/journal.sqlite3")
    return journal.with_name("console")


@pytest.fixture
def pages(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_pages)


def test_console_run_writes_results_into_its_folder(pages: Program) -> None:
    console = console_folder(pages)
    sheet, out = console / ("0" * 16) / "sheet" / "payroll.csv", console / ("0" * 16) / "payroll.reconciliation.csv"
    summary = pages.json("submit", sheet, "--out", out, "--force")
    assert (summary["exit_code"], len(read_csv(out))) == (0, 1)
    for command in ("resume", "retry"):
        by_batch = console / "runs" / f"{summary['batch']}.reconciliation.csv"
        by_batch.unlink(missing_ok=True)
        assert pages.json(command, summary["batch"], "--out", by_batch)["exit_code"] == 0
        assert len(read_csv(by_batch)) == 1


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "place",
    [
        *("{first}/other.reconciliation.csv", "{first}/payroll.csv", "{first}/sheet/new.csv", "{first}/rows.parquet"),
        *("{second}/payroll.reconciliation.csv", "{console}/payroll.reconciliation.csv", "{console}/../new.csv"),
        *("{console}/runs/payroll.reconciliation.csv", "{console}/runs/{batch}.reconciliation.csv"),
        *("{console}/orders.csv", "{console}/../../new.csv", "{first}/link/payroll.reconciliation.csv"),
    ],
)
@pytest.mark.parametrize("sheet", ["{first}/sheet/payroll.csv", "{home}/0000000000000000/sheet/payroll.csv"])
def test_console_run_refuses_outputs_outside_its_folder(pages: Program, sheet: str, place: str) -> None:
    console = console_folder(pages)
    places = {"home": pages.home, "console": console, "first": console / ("0" * 16), "second": console / ("1" * 16)}
    (places["first"] / "link").symlink_to(places["second"], target_is_directory=True)
    own = pages.home / ("0" * 16) / "sheet" / "payroll.csv"
    own.parent.mkdir(parents=True)
    shutil.copy(pages.home / "payroll.csv", own)
    batch = pages.json("status")["batches"][0]["batch"]
    out = place.format(batch=batch, **places)
    refusal = run_refused(pages, "submit", sheet.format(**places), "--out", out, "--force")
    assert "would overwrite a file in the program's own directory" in refusal


@pytest.mark.parametrize("writer", ["reconcile", "status", "resume", "retry", "validate", "report", "backup"])
def test_command_line_cannot_write_into_console_directory(pages: Program, writer: str) -> None:
    console = console_folder(pages)
    shutil.copy(console / ("0" * 16) / "sheet" / "payroll.csv", pages.home)
    for out in (console / ("0" * 16) / "payroll.reconciliation.csv", console / "runs" / "payroll.reconciliation.csv"):
        refusal = run_refused(pages, *build_command(pages, writer, out))
        assert "would overwrite a file in the program's own directory" in refusal


def test_symbolic_link_as_results_file_is_refused(pages: Program) -> None:
    folder = console_folder(pages) / ("0" * 16)
    out = folder / "payroll.reconciliation.csv"
    out.symlink_to(folder / "plan.json")
    command = ("submit", folder / "sheet" / "payroll.csv", "--out", out, "--force")
    assert "would overwrite" in run_refused(pages, *command)
