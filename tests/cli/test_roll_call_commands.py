"""`journal roll-call` and `journal retire` after a database was restored."""

from pathlib import Path

import pytest

from tests.support.clusters import ClusterProgram
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows


@pytest.fixture
def restored_cluster(tmp_path: Path, program: Program, postgres_server: PostgresServer) -> ClusterProgram:
    """Return a machine whose database was restored to a state before its last batch."""
    name = postgres_server.new_database()
    user = ClusterProgram(tmp_path, program.config)
    user.write_url(postgres_server.url(name))
    assert user.run("submit", user.sheet(kenyan_rows(2, prefix="OLD"), name="old.csv")).exit_code == 0
    backup = postgres_server.new_database(name)
    assert user.run("submit", user.sheet(kenyan_rows(3, amount="77.10"))).exit_code == 0
    postgres_server.drop_database(name)
    postgres_server.execute(f"ALTER DATABASE {backup} RENAME TO {name}")
    return user


def test_older_database_copy_needs_accepted_loss(restored_cluster: ClusterProgram) -> None:
    sheet = restored_cluster.sheet(kenyan_rows(3, amount="77.10"))
    sent = len(restored_cluster.record())
    for command in (("submit", sheet), ("journal", "roll-call")):
        refused = restored_cluster.run(*command)
        assert (refused.exit_code, "older copy" in refused.stderr) == (7, True), refused.output
        assert "--accept-loss" in refused.stderr
    (path,) = restored_cluster.home.rglob("known.*/*/host")
    host = path.read_text()
    lives = restored_cluster.json("journal", "retire", host, "--yes", "--by", "amina")
    assert lives["exit_code"] == 2
    unasked = restored_cluster.run("journal", "roll-call", "--accept-loss")
    assert (unasked.exit_code, "No terminal is available" in unasked.stderr) == (2, True)
    assert restored_cluster.run("journal", "roll-call", "--yes").exit_code == 2
    accepted = restored_cluster.json("journal", "roll-call", "--accept-loss", "--yes", "--by", "amina")
    assert (accepted["exit_code"], accepted["rows_in_doubt"], accepted["is_guess"]) == (0, 0, False)
    assert len(accepted["unknown_orders"]) == 3  # their batch is lost, so a person must look for them at the gateway
    assert restored_cluster.json("journal", "roll-call")["missing"] == []
    again = restored_cluster.run("submit", sheet)
    assert again.exit_code == 5, again.output
    (written,) = restored_cluster.home.glob("payroll.reconciliation.csv")
    assert written.read_text().count("was sent, but the journal lost the record of it") == 3
    assert len(restored_cluster.record()) == sent, "no order that left is paid again"
    assert restored_cluster.json("verify")["exit_code"] in {0, 5}


def test_accepted_loss_sends_only_unsent_rows(
    tmp_path: Path, program: Program, postgres_server: PostgresServer
) -> None:
    name = postgres_server.new_database()
    user = ClusterProgram(tmp_path, program.config)
    user.write_url(postgres_server.url(name))
    sheet = user.sheet(kenyan_rows(8))
    assert user.run("submit", sheet, "--first", "2").exit_code == 6
    backup = postgres_server.new_database(name)
    assert user.run("submit", sheet, "--first", "3").exit_code == 6
    postgres_server.drop_database(name)
    postgres_server.execute(f"ALTER DATABASE {backup} RENAME TO {name}")
    assert user.run("submit", sheet).exit_code == 7
    accepted = user.json("journal", "roll-call", "--accept-loss", "--yes", "--by", "amina")
    assert (accepted["exit_code"], accepted["rows_in_doubt"], accepted["unknown_orders"]) == (0, 3, [])
    assert user.run("submit", sheet).exit_code == 5
    ids = [line["client_orderid"] for line in user.record()]
    assert len(ids) == len(set(ids)) == 8
    assert user.json("verify")["exit_code"] in {0, 5}


def test_file_journal_has_no_roll_call(program: Program) -> None:
    for command in (("roll-call",), ("retire", "north", "--yes")):
        refused = program.run("journal", *command)
        assert (refused.exit_code, "no other hosts" in refused.stderr) == (2, True), refused.output
