"""The limits over all workers, and the move of a journal to a database, from the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.stopped import wait_for_record
from tests.support.clusters import ClusterProgram, slow, url_of
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows


@pytest.fixture
def in_database(tmp_path: Path, program: Program, postgres_server: PostgresServer) -> Iterator[ClusterProgram]:
    name = postgres_server.new_database()
    user = ClusterProgram(tmp_path, program.config)
    user.write_url(postgres_server.url(name))
    yield user
    postgres_server.drop_database(name)


def test_limits_are_set_shown_and_kept(in_database: ClusterProgram) -> None:
    in_database.json("submit", in_database.sheet(kenyan_rows(1), name="first.csv"))
    shown = in_database.json("limits")["limits"]
    assert (shown["rate_per_s"], shown["concurrency"], shown["set_by"]) == (None, None, None)
    assert shown["configured"]["concurrency"] == 16
    changed = in_database.json("limits", "--rate", "1000", "--concurrency", "2", "--by", "Amina")["limits"]
    assert (changed["rate_per_s"], changed["concurrency"]) == (1000, 2)
    assert changed["set_by"].startswith("Amina (login ")
    assert in_database.json("submit", in_database.sheet(kenyan_rows(12)))["states"] == {"paid": 12}
    shown = in_database.json("limits")["limits"]
    assert (shown["concurrency"], shown["workers"], shown["stop_reason"]) == (2, [], None)
    text = in_database.run("limits", "--as-configured", "--by", "Amina")
    assert "16 rows (configured here; not set)" in text.output
    assert in_database.json("verify")["exit_code"] == 0


def test_stopped_run_tells_reason_and_next_lifts_stop(in_database: ClusterProgram) -> None:
    sheet = in_database.sheet(kenyan_rows(30, amount="9006"))
    assert in_database.json("submit", sheet)["exit_code"] == 5
    stopped = in_database.json("limits")["limits"]
    assert stopped["stop_reason"] == "5 rows in a row ended in doubt."
    assert "stopped since" in in_database.run("limits").output
    assert in_database.json("resume")["states"]["in_doubt"] == 10


def test_limits_command_is_refused_with_file_journal(program: Program) -> None:
    for arguments in (["limits"], ["limits", "--rate", "5"]):
        refused = program.run(*arguments)
        assert (refused.exit_code, "The journal is a file" in refused.stderr) == (2, True), refused.output
    for wrong in ("nan", "inf", "-1", "1e-9"):
        refused = program.run("limits", "--rate", wrong)
        assert (refused.exit_code, "--rate must be" in refused.stderr) == (2, True), refused.output
    refused = program.run("journal", "move")
    assert (refused.exit_code, "names no database" in refused.stderr) == (2, True), refused.output


def test_batch_begun_in_file_ends_in_database(in_database: ClusterProgram, postgres_server: PostgresServer) -> None:
    with_database = in_database.config.read_text()
    file = in_database.home / "state" / "old" / "journal.sqlite3"
    file.parent.mkdir(mode=0o700, parents=True)
    url = url_of(in_database)
    with_file = with_database.replace(f'url = "{url}"', f'path = "{file}"')
    assert with_file != with_database
    in_database.config.write_text(with_file)
    sheet = in_database.sheet(kenyan_rows(8))
    assert in_database.json("submit", sheet, "--first", "3")["states"] == {"paid": 3, "ready": 5}
    in_database.config.write_text(with_database)
    told = in_database.json("journal", "move", file, "--by", "Amina")
    assert told["exit_code"] == 0, told
    told = told["journal"]
    assert told["path"] == postgres_server.url(url.rpartition("/")[2]).replace("paygw@", "")
    assert in_database.json("verify")["exit_code"] == 0
    assert in_database.json("submit", sheet)["states"] == {"paid": 8}
    assert len(in_database.record()) == 8
    in_database.config.write_text(with_file)
    for arguments in (["submit", sheet], ["status"], ["verify"], ["resume"]):
        refused = in_database.run(*arguments)
        assert (refused.exit_code, "was moved to the database" in refused.stderr) == (7, True), refused.output
    assert len(in_database.record()) == 8


def test_roles_get_rights_and_doctor_names_role(in_database: ClusterProgram, postgres_server: PostgresServer) -> None:
    name = url_of(in_database).rpartition("/")[2]
    made = in_database.json("journal", "new", "--roles")
    assert made["roles"] == [f"{name}_reader", f"{name}_worker", f"{name}_desk"]
    assert in_database.json("journal", "new", "--roles")["exit_code"] == 0
    assert in_database.run("journal", "new").exit_code == 7
    for role, rights in (("desk", "can open batches"), ("reader", "can look")):
        login = f"{name}_{role}_login"
        postgres_server.execute(f"CREATE ROLE {login} LOGIN IN ROLE {name}_{role}")
        in_database.write_url(postgres_server.url(name, user=login))
        assert rights in in_database.run("doctor").output
        result = in_database.run("submit", in_database.sheet(kenyan_rows(2)))
        assert result.exit_code == (0 if role == "desk" else 7), result.output
    assert "The role of [journal] url is not allowed to do this" in result.stderr
    assert len(in_database.record()) == 2


def test_a_journal_in_a_file_has_no_roles(program: Program) -> None:
    refused = program.run("journal", "new", "--roles")
    assert (refused.exit_code, "has no roles" in refused.stderr) == (2, True), refused.output


def test_limits_can_change_during_run(in_database: ClusterProgram) -> None:
    slow(in_database, delay_s=0.05)  # the run must outlast the start of a command on a busy machine
    sheet = in_database.sheet(kenyan_rows(800))
    process = in_database.start("submit", sheet)
    wait_for_record(in_database, 3, process)
    changed = in_database.json("limits", "--concurrency", "1")["limits"]
    assert changed["concurrency"] == 1
    assert [(one["pid"], one["in_flight"] <= 16) for one in changed["workers"]] == [(process.pid, True)]
    in_database.json("limits", "--concurrency", "32")
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, stderr
    assert len(in_database.record()) == 800
