"""Journals are created on purpose: no other journal, state directory, path or copy pays anyone twice."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.api import Payouts
from paygw_batch.errors import JournalMissing, JournalNotAdopted
from tests.cli.conversing import converse
from tests.cli.paying import LoopbackGateway, run_gateway
from tests.support.program import SAMPLES, Program, kenyan_rows, sandbox_toml

PAID = [f"PAY-{n}" for n in range(1, 6)]


@pytest.fixture
def gateway(program: Program) -> Iterator[LoopbackGateway]:
    with run_gateway(program) as at:
        yield at


@pytest.fixture
def paid_sheet(program: Program, gateway: LoopbackGateway) -> Path:
    """Pay a sheet of five rows with a journal that was created for it."""
    program.make_journal()
    sheet = program.sheet(kenyan_rows(5))
    summary = program.json("submit", sheet)
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 5})
    assert sorted(gateway.orders()) == PAID
    return sheet


def journal_id(program: Program) -> str:
    (entry,) = (program.home / "state" / "paygw-batch" / "journals").glob("*/journal.json")
    return entry.parent.name


def run_refused(program: Program, *arguments: str | Path, **environ: str) -> str:
    """Run a command that must exit with 7. Return its error, which the JSON repeats."""
    result, summary = program.run(*arguments, config=True, **environ), program.json(*arguments, **environ)
    assert result.exit_code == summary["exit_code"] == 7, (arguments, result.output)
    assert summary["message"] in result.stderr
    return result.stderr


def test_another_journal_or_state_directory_sends_nothing(
    program: Program, gateway: LoopbackGateway, paid_sheet: Path
) -> None:
    known = journal_id(program)
    other_path = program.home / "other" / "journal.sqlite3"

    program.config.write_text(gateway.configuration(host="localhost", journal="second.sqlite3"))
    error_output = run_refused(program, "submit", paid_sheet)
    assert f"There is no journal at {program.home}/second.sqlite3." in error_output
    assert f"lists another journal of the same merchant: {known} at {program.journal}." in error_output
    assert "paygw-batch journal new" in error_output

    program.config.write_text(gateway.configuration(journal="other/journal.sqlite3"))
    assert f"{known} at {program.journal}" in run_refused(program, "submit", paid_sheet)

    program.config.write_text(gateway.configuration())
    assert f"{known} at {program.journal}" in run_refused(program, "--journal", other_path, "submit", paid_sheet)

    elsewhere = str(program.home / "another-account")
    error_output = run_refused(program, "submit", paid_sheet, XDG_STATE_HOME=elsewhere)
    assert f"does not list the journal {program.journal} ({known})" in error_output
    assert "paygw-batch journal adopt" in error_output

    assert sorted(gateway.orders()) == PAID
    assert not other_path.parent.exists()


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", "{sheet}"],
        ["submit", "{sheet}", "--dry-run"],
        ["collect", str(SAMPLES / "collections-mixed.csv"), "--dry-run"],
        ["resume", "abc"],
        ["retry", "abc"],
        ["refresh", "abc"],
        ["resolve", "row", "abc", "2", "--as", "paid", "--evidence", "a statement"],
        ["status"],
        ["reconcile", "abc", "--out", "out.csv"],
        ["verify"],
        ["run-folder", "{home}/drop"],
        ["backup", "copy.sqlite3"],
        ["listen", "--port", "0"],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[2:3]),
)
def test_commands_report_missing_journal(program: Program, gateway: LoopbackGateway, arguments: list[str]) -> None:
    sheet = program.sheet(kenyan_rows(1))
    text = gateway.configuration(server_callback_url='"http://127.0.0.1:9/paygw/{token}"')
    more = '\n[status_enquiry]\nprofile = "paynet-v4"\n[notifications]\ntoken_file = "token.txt"\n'
    program.config.write_text(text + more)
    (program.home / "token.txt").write_text("t" * 40)
    (program.home / "token.txt").chmod(0o600)
    (program.home / "drop").mkdir()
    command = [argument.format(sheet=sheet, home=program.home) for argument in arguments]
    error_output = run_refused(program, *command)
    assert f"There is no journal at {program.journal}." in error_output
    assert "paygw-batch journal new" in error_output
    assert (program.journal.exists(), gateway.orders()) == (False, [])


FILE_REFUSALS = {
    "The journal is a file, but workers": ["work", "work --once", "submit pay.csv --detach", "submit pay.csv --urgent"],
    "The journal is a file": ["workers", "limits", "limits --rate 5"],
    "only one host": ["journal roll-call", "journal retire north --yes"],
    "next command that writes to it": ["journal upgrade"],
    "--rate must be": [f"limits --rate {rate}" for rate in ("nan", "inf", "-1", "1e-9")],
    "url is not set": ["journal move"],
    "has no roles": ["journal new --roles"],
}


def test_file_journal_refuses_commands_of_databases(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.sheet(kenyan_rows(1), "pay.csv")
    monkeypatch.chdir(program.home)
    for said, commands in FILE_REFUSALS.items():
        for command in commands:
            refused = program.run(*command.split())
            assert (refused.exit_code, said in refused.stderr) == (2, True), (command, refused.output)
    assert program.record() == []


@pytest.mark.usefixtures("gateway")
def test_doctor_reports_missing_journal(program: Program) -> None:
    assert program.run("validate", program.sheet(kenyan_rows(1))).exit_code == 0
    doctor = program.json("doctor")
    (found,) = [check for check in doctor["checks"] if check["check"] == "journal"]
    assert (doctor["exit_code"], found["state"]) == (7, "wrong")
    assert "To create one, run `paygw-batch journal new`." in found["found"]
    program.make_journal()
    assert program.run("doctor").exit_code == 0


def test_new_journal_must_name_newest_existing_journal(program: Program, gateway: LoopbackGateway) -> None:
    assert "does not list a journal" in run_refused(program, "journal", "new", "--beside", "0" * 32)
    summary = program.json("journal", "new")
    assert (summary["exit_code"], summary["journal"]["path"]) == (0, str(program.journal))
    assert summary["journal"]["id"] == journal_id(program)
    assert "already" in run_refused(program, "journal", "new")
    first, second, third = summary["journal"]["id"], program.home / "second.sqlite3", program.home / "third.sqlite3"
    for host in ("localhost", "127.0.0.2", "[::1]", "127.0.0.1"):
        program.config.write_text(gateway.configuration(host=host))
        error_output = run_refused(program, "--journal", second, "journal", "new")
        assert "This merchant already has a journal." in error_output
        assert f"{first} at {program.journal}" in error_output
        assert f"journal new --beside {first}" in error_output
    assert not second.exists()
    newer = program.json("--journal", second, "journal", "new", "--beside", first)["journal"]["id"]
    error_output = run_refused(program, "--journal", third, "journal", "new", "--beside", first)
    assert f"{first} at {program.journal}, {newer} at {second}" in error_output
    assert program.run("--journal", third, "journal", "new", "--beside", newer).exit_code == 0


def test_endpoints_of_merchant_share_journal(program: Program, gateway: LoopbackGateway, paid_sheet: Path) -> None:
    text = gateway.configuration()
    for change in ({"host": "LocalHost"}, {"endpoint_id": '"77"'}):
        program.config.write_text(gateway.configuration(**change))
        summary = program.json("submit", paid_sheet)
        assert (summary["exit_code"], summary["known"], summary["sent_this_run"]) == (0, 5, 0)
    more = program.sheet(kenyan_rows(6), "more.csv")
    assert program.json("submit", more)["sent_this_run"] == 1
    (row,) = program.json("status", more)["needs_person"]
    assert (row["client_orderid"], row["state"], row["endpoint_id"]) == ("PAY-6", "rejected", "77")
    program.config.write_text(text)
    assert program.json("retry", more)["states"] == {"paid": 6}
    assert sorted(gateway.orders()) == [*PAID, "PAY-6-r2"]


def test_adopted_journal_works_with_new_gateway_host(
    program: Program, gateway: LoopbackGateway, paid_sheet: Path
) -> None:
    known = journal_id(program)
    text = gateway.configuration().replace(f"http://127.0.0.1:{gateway.port}", "https://gateway.invalid")
    program.config.write_text(text)
    error_output = run_refused(program, "submit", paid_sheet)
    assert "same merchant at another gateway host" in error_output
    assert "paygw-batch journal adopt" in error_output
    program.config.write_text(text.replace('"journal.sqlite3"', '"second.sqlite3"'))
    assert known in run_refused(program, "submit", paid_sheet)
    assert known in run_refused(program, "journal", "new")
    program.config.write_text(text.replace('consumer_key = "', 'consumer_key = "another-'))
    assert "belongs to another merchant" in run_refused(program, "submit", paid_sheet)

    program.config.write_text(text)
    assert program.run("journal", "adopt", "--yes").exit_code == 0
    assert program.run("status").exit_code == 0
    program.config.write_text(gateway.configuration())
    assert program.json("submit", paid_sheet)["sent_this_run"] == 0
    assert sorted(gateway.orders()) == PAID


def test_lost_journal_needs_confirmation(program: Program, gateway: LoopbackGateway, paid_sheet: Path) -> None:
    known = journal_id(program)
    for file in program.home.glob("journal.sqlite3*"):
        file.rename(file.with_name(f"lost-{file.name}"))
    for arguments in (("submit", paid_sheet), ("journal", "new")):
        assert f"journal new --beside {known}" in run_refused(program, *arguments)
    assert known in run_refused(program, "--journal", program.home / "second.sqlite3", "journal", "new")
    assert sorted(gateway.orders()) == PAID
    assert program.run("journal", "new", "--beside", known).exit_code == 0
    assert program.run("status").exit_code == 0
    lost = program.home / "lost-journal.sqlite3"
    assert "does not list" in run_refused(program, "--journal", lost, "submit", paid_sheet)
    assert sorted(gateway.orders()) == PAID


@pytest.mark.usefixtures("gateway")
def test_simultaneous_journal_new_creates_one_journal(program: Program) -> None:
    started = [program.start("--json", "--journal", program.home / f"{n}.sqlite3", "journal", "new") for n in range(4)]
    summaries = [json.loads(process.communicate()[0]) for process in started]
    assert sorted(summary["exit_code"] for summary in summaries) == [0, 7, 7, 7]
    (journal_created,) = (summary["journal"]["id"] for summary in summaries if summary["exit_code"] == 0)
    assert all(journal_created in summary["message"] for summary in summaries)
    assert len(list(program.home.glob("?.sqlite3"))) == 1


def test_incomplete_or_unusable_configuration_creates_no_journal(program: Program) -> None:
    program.config.write_text('[journal]\npath = "journal.sqlite3"\n')
    result = program.run("journal", "new")
    missing = "gateway.base_url, gateway.endpoint_id, gateway.consumer_key"
    assert (result.exit_code, missing in result.stderr) == (2, True)
    program.config.write_text(sandbox_toml(base_url='"https://gateway.example/paynet/api/v4"'))
    assert program.run("journal", "new").exit_code == 2
    assert not program.journal.exists()


def test_sandbox_journal_is_not_registered(program: Program) -> None:
    assert program.json("submit", program.sheet(kenyan_rows(1)))["exit_code"] == 0
    assert not (program.home / "state").exists()
    assert "already" in run_refused(program, "journal", "new")


@pytest.fixture
def older_copy(program: Program, gateway: LoopbackGateway) -> Path:
    """Return a copy of the journal from before the sheet was paid."""
    program.make_journal()
    copy = program.home / "older.sqlite3"
    assert program.run("backup", copy).exit_code == 0
    assert program.json("submit", program.sheet(kenyan_rows(5)))["exit_code"] == 0
    assert sorted(gateway.orders()) == PAID
    return copy


def test_older_copy_with_new_state_directory_sends_nothing(
    program: Program, gateway: LoopbackGateway, older_copy: Path
) -> None:
    for file in program.home.glob("journal.sqlite3*"):
        file.rename(file.with_name(f"renamed-{file.name}"))
    older_copy.rename(program.journal)
    fresh = str(program.home / "fresh")
    sheet, folder = program.home / "payroll.csv", program.home / "drop"
    folder.mkdir()
    for arguments in (("submit", sheet), ("submit", sheet, "--dry-run"), ("resume", "abc"), ("run-folder", folder)):
        assert "does not list the journal" in run_refused(program, *arguments, XDG_STATE_HOME=fresh)
    looked = program.run("status", XDG_STATE_HOME=fresh)
    note = "Note: This user's state directory does not list the journal"
    assert (looked.exit_code, note in looked.stdout) == (0, True)
    assert program.run("verify", XDG_STATE_HOME=fresh).exit_code == 0
    assert sorted(gateway.orders()) == PAID


def test_adopted_older_copy_pays_nothing_twice(program: Program, gateway: LoopbackGateway, older_copy: Path) -> None:
    assert "still exists" in run_refused(program, "--journal", older_copy, "journal", "adopt", "--yes")
    program.journal.rename(program.home / "renamed.sqlite3")
    sheet = program.home / "payroll.csv"
    assert "this is an older copy" in run_refused(program, "--journal", older_copy, "submit", sheet)
    adopted = program.json("--journal", older_copy, "journal", "adopt", "--yes")
    assert adopted["lost_commits"] > 0
    assert (adopted["rows_in_doubt"], adopted["unknown_orders"]) == (0, PAID)  # it does not know their batch
    submitted = program.json("--journal", older_copy, "submit", sheet)
    assert (submitted["sent_this_run"], submitted["states"]) == (0, {"ready": 5})
    assert sorted(gateway.orders()) == PAID


def test_adoption_needs_yes_and_is_recorded(program: Program, gateway: LoopbackGateway, paid_sheet: Path) -> None:
    fresh = str(program.home / "fresh")
    unasked = program.run("journal", "adopt", XDG_STATE_HOME=fresh)
    assert (unasked.exit_code, "confirm with --yes" in unasked.stderr) == (2, True)
    assert "does not list" in run_refused(program, "submit", paid_sheet, XDG_STATE_HOME=fresh)
    adopted = program.json("journal", "adopt", "--yes", "--by", "Amina", XDG_STATE_HOME=fresh)
    about = adopted["journal"]
    assert (about["path"], about["batches"], about["rows_ready"]) == (str(program.journal), 1, 0)
    assert about["last_fact"] > 5
    assert about["last_fact_at"].endswith("Z")
    assert adopted["message"].startswith("Amina (login ")
    summary = program.json("submit", paid_sheet, XDG_STATE_HOME=fresh)
    assert (summary["exit_code"], summary["sent_this_run"]) == (0, 0)
    assert program.json("verify", XDG_STATE_HOME=fresh)["exit_code"] == 0
    again = program.json("journal", "adopt", XDG_STATE_HOME=fresh)
    nothing = f"Nothing to adopt: runs on this computer already use {program.journal}."
    assert (again["exit_code"], again["message"]) == (0, nothing)
    assert adopters(program.journal) == ["Amina"]
    assert sorted(gateway.orders()) == PAID


@pytest.mark.share(2)
@pytest.mark.parametrize(("answer", "exit_code"), [("y", 0), ("n", 7), ("", 7)])
def test_adoption_at_terminal_needs_confirmation(
    program: Program, gateway: LoopbackGateway, paid_sheet: Path, answer: str, exit_code: int
) -> None:
    (program.home / "state").rename(program.home / "of another account")
    shown, code = converse(program, "journal", "adopt", answers=[("[y/N]", answer)])
    assert (code, "is the newest remaining copy of the journal" in shown) == (exit_code, True), shown
    assert program.run("submit", paid_sheet).exit_code == exit_code
    assert any(adopters(program.journal)) is (exit_code == 0)
    assert sorted(gateway.orders()) == PAID


def adopters(journal: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
        return [by.split(" (login")[0] for (by,) in connection.execute("SELECT by FROM fact WHERE kind = 'adopted'")]


def test_api_creates_no_journal(program: Program, gateway: LoopbackGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", program.environ["XDG_STATE_HOME"])
    payouts = Payouts(program.config, environ=program.environ)
    sheet = program.sheet(kenyan_rows(1))
    with pytest.raises(JournalMissing, match="There is no journal at"), payouts.submit(sheet):
        pass
    with pytest.raises(JournalMissing):
        payouts.batches()
    program.make_journal()
    monkeypatch.setenv("XDG_STATE_HOME", str(program.home / "another-account"))
    with pytest.raises(JournalNotAdopted), payouts.submit(sheet):
        pass
    assert gateway.orders() == []
