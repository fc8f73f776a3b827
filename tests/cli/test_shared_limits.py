"""The limits that workers share, and moving a journal to a database, from the command line."""

from tests.cli.stopped import wait_for_record
from tests.support.clusters import ClusterProgram, journal_url, slow_down_sandbox
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows


def test_limits_command_sets_and_shows_limits(cluster: ClusterProgram) -> None:
    cluster.json("submit", cluster.sheet(kenyan_rows(1), name="first.csv"))
    limits = cluster.json("limits")["limits"]
    assert (limits["rate_per_s"], limits["concurrency"], limits["set_by"]) == (None, None, None)
    assert limits["configured"]["concurrency"] == 16
    changed = cluster.json("limits", "--rate", "1000", "--concurrency", "2", "--by", "Amina")["limits"]
    assert (changed["rate_per_s"], changed["concurrency"]) == (1000, 2)
    assert changed["set_by"].startswith("Amina (login ")
    assert cluster.json("submit", cluster.sheet(kenyan_rows(12)))["states"] == {"paid": 12}
    limits = cluster.json("limits")["limits"]
    assert (limits["concurrency"], limits["workers"], limits["stop_reason"]) == (2, [], None)
    text = cluster.run("limits", "--as-configured", "--by", "Amina")
    assert "16 rows (configured here; not set)" in text.output
    assert cluster.json("verify")["exit_code"] == 0


def test_limits_show_stop_reason_until_next_run(cluster: ClusterProgram) -> None:
    sheet = cluster.sheet(kenyan_rows(30, amount="9006"))
    assert cluster.json("submit", sheet)["exit_code"] == 5
    stopped = cluster.json("limits")["limits"]
    assert stopped["stop_reason"] == "5 consecutive rows ended in doubt."
    assert "stopped since" in cluster.run("limits").output
    assert cluster.json("resume")["states"]["in_doubt"] == 10


def test_limits_command_is_refused_with_file_journal(program: Program) -> None:
    for arguments in (["limits"], ["limits", "--rate", "5"]):
        refused = program.run(*arguments)
        assert (refused.exit_code, "The journal is a file" in refused.stderr) == (2, True), refused.output
    for wrong in ("nan", "inf", "-1", "1e-9"):
        refused = program.run("limits", "--rate", wrong)
        assert (refused.exit_code, "--rate must be" in refused.stderr) == (2, True), refused.output
    refused = program.run("journal", "move")
    assert (refused.exit_code, "names no database" in refused.stderr) == (2, True), refused.output


def test_batch_started_in_file_finishes_in_database(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
    with_database = cluster.config.read_text()
    file = cluster.home / "state" / "old" / "journal.sqlite3"
    file.parent.mkdir(mode=0o700, parents=True)
    url = journal_url(cluster)
    with_file = with_database.replace(f'url = "{url}"', f'path = "{file}"')
    assert with_file != with_database
    cluster.config.write_text(with_file)
    sheet = cluster.sheet(kenyan_rows(8))
    assert cluster.json("submit", sheet, "--first", "3")["states"] == {"paid": 3, "ready": 5}
    cluster.config.write_text(with_database)
    told = cluster.json("journal", "move", file, "--by", "Amina")
    assert told["exit_code"] == 0, told
    told = told["journal"]
    assert told["path"] == postgres_server.url(url.rpartition("/")[2]).replace("paygw@", "")
    assert cluster.json("verify")["exit_code"] == 0
    assert cluster.json("submit", sheet)["states"] == {"paid": 8}
    assert len(cluster.record()) == 8
    cluster.config.write_text(with_file)
    for arguments in (["submit", sheet], ["status"], ["verify"], ["resume"]):
        refused = cluster.run(*arguments)
        assert (refused.exit_code, "was moved to the database" in refused.stderr) == (7, True), refused.output
    assert len(cluster.record()) == 8


def test_roles_get_rights_shown_by_doctor(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
    name = journal_url(cluster).rpartition("/")[2]
    summary = cluster.json("journal", "new", "--roles")
    assert summary["roles"] == [f"{name}_reader", f"{name}_worker", f"{name}_desk"]
    assert cluster.json("journal", "new", "--roles")["exit_code"] == 0
    assert cluster.run("journal", "new").exit_code == 7
    for role, rights in (("desk", "can open batches"), ("reader", "can read")):
        login = f"{name}_{role}_login"
        postgres_server.execute(f"CREATE ROLE {login} LOGIN IN ROLE {name}_{role}")
        cluster.write_url(postgres_server.url(name, user=login))
        assert rights in cluster.run("doctor").output
        result = cluster.run("submit", cluster.sheet(kenyan_rows(2)))
        assert result.exit_code == (0 if role == "desk" else 7), result.output
    assert "The role of [journal] url is not allowed to do this" in result.stderr
    assert len(cluster.record()) == 2


def test_journal_in_file_has_no_roles(program: Program) -> None:
    refused = program.run("journal", "new", "--roles")
    assert (refused.exit_code, "has no roles" in refused.stderr) == (2, True), refused.output


def test_limits_can_change_during_run(cluster: ClusterProgram) -> None:
    slow_down_sandbox(cluster, delay_s=0.05)  # the run must outlast the start of a command on a busy machine
    sheet = cluster.sheet(kenyan_rows(800))
    process = cluster.start("submit", sheet)
    wait_for_record(cluster, 3, process)
    changed = cluster.json("limits", "--concurrency", "1")["limits"]
    assert changed["concurrency"] == 1
    assert [(worker["pid"], worker["in_flight"] <= 16) for worker in changed["workers"]] == [(process.pid, True)]
    cluster.json("limits", "--concurrency", "32")
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, stderr
    assert len(cluster.record()) == 800
