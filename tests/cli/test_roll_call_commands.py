"""`journal roll-call` and `journal retire`, as a person runs them after a database was restored."""

from pathlib import Path

import pytest

from tests.cli.program import Program, kenyan_rows
from tests.cli.test_postgres_commands import ClusterProgram
from tests.journal.postgres_server import PostgresServer


@pytest.fixture
def restored(tmp_path: Path, program: Program, postgres_server: PostgresServer) -> ClusterProgram:
    """A machine whose database went back to before its last batch."""
    name = postgres_server.new_database()
    user = ClusterProgram(tmp_path, program.config)
    user.write_url(postgres_server.url(name))
    assert user.run("submit", user.sheet(kenyan_rows(2, prefix="OLD"), name="old.csv")).exit_code == 0
    backup = postgres_server.new_database(name)
    assert user.run("submit", user.sheet(kenyan_rows(3, amount="77.10"))).exit_code == 0
    postgres_server.drop_database(name)
    postgres_server.execute(f"ALTER DATABASE {backup} RENAME TO {name}")
    return user


def test_the_host_that_sent_more_is_named_and_retired_by_a_person(restored: ClusterProgram) -> None:
    sheet = restored.sheet(kenyan_rows(3, amount="77.10"))
    sent = len(restored.record())
    for command in (("submit", sheet), ("journal", "roll-call")):
        refused = restored.run(*command)
        assert (refused.exit_code, "older copy" in refused.stderr) == (7, True), refused.output
        assert "journal retire" in refused.stderr
    (path,) = restored.home.rglob("*.pg-host")
    host = path.read_text()
    unasked = restored.run("journal", "retire", host)
    assert (unasked.exit_code, "Nobody can be asked" in unasked.stderr) == (2, True)
    retired = restored.json("journal", "retire", host, "--yes", "--by", "amina")
    assert (retired["exit_code"], retired["rows_in_doubt"]) == (0, 0)
    assert restored.json("journal", "roll-call")["missing"] == []
    assert len(restored.record()) == sent
    assert restored.json("verify")["exit_code"] == 0


def test_a_journal_in_a_file_has_no_roll_call(program: Program) -> None:
    for command in (("roll-call",), ("retire", "north", "--yes")):
        refused = program.run("journal", *command)
        assert (refused.exit_code, "no other hosts" in refused.stderr) == (2, True), refused.output
