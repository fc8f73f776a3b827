"""Tables of another version, and databases that were restored: refusals, upgrades and roll calls."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.postgres import schema
from paygw_batch.opening.open_journal import database_location
from paygw_batch.settings.configuration import load_settings
from tests.support.clusters import ClusterProgram, journal_url
from tests.support.journal_rows import intent, open_sheet
from tests.support.postgres_rows import expire_processes, open_postgres
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows

MADE_UP = "CREATE TABLE remark (number bigint PRIMARY KEY, said text NOT NULL); ALTER TABLE page ADD COLUMN about text;"
"""A migration that a later version of the tables could add."""

NewerProgram = Callable[[], None]


@pytest.fixture
def upgrade_program(monkeypatch: pytest.MonkeyPatch) -> NewerProgram:
    """Return a function that makes the program a later version."""
    scripts = (*schema.scripts(), MADE_UP)
    return lambda: monkeypatch.setattr(schema, "scripts", lambda: scripts)


def cluster_database(user: ClusterProgram) -> DatabaseLocation:
    place = database_location(load_settings(user.config, environ=user.environ))
    assert place is not None
    return place


def test_old_tables_are_refused_until_upgraded(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    assert cluster.json("submit", cluster.sheet(kenyan_rows(2)))["states"] == {"paid": 2}
    upgrade_program()
    more = cluster.sheet(kenyan_rows(2, prefix="MORE", amount="700.00"), "more.csv")
    for command in (("submit", more), ("status",), ("work", "--once"), ("verify",)):
        refused = cluster.run(*command)
        assert refused.exit_code == 7, refused.stderr
        assert "are from an older version of this program" in refused.stderr
        assert "`paygw-batch journal upgrade`" in refused.stderr
    assert len(cluster.record()) == 2
    brought_up = cluster.json("journal", "upgrade")
    assert brought_up["tables"] == {"before": 1, "now": 2}
    assert "already" in cluster.json("journal", "upgrade")["message"]
    assert cluster.json("submit", more)["states"] == {"paid": 2}
    assert cluster.json("verify")["exit_code"] == 0


def test_upgrade_is_refused_during_run(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    with closing(cluster_database(cluster).open_to_work("work")):
        upgrade_program()
        refused = cluster.run("journal", "upgrade")
        assert (refused.exit_code, "A process is using the journal" in refused.stderr) == (7, True)
        assert "work, process" in refused.stderr
    assert cluster.json("journal", "upgrade")["tables"] == {"before": 1, "now": 2}


def test_frozen_process_sends_nothing_after_upgrade(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    place = cluster_database(cluster)
    with closing(open_postgres(place)) as frozen:
        open_sheet(frozen, "b2")
        row, *_ = frozen.due(2, limit=1)
        expire_processes(journal_url(cluster))
        upgrade_program()
        assert cluster.json("journal", "upgrade")["tables"] == {"before": 1, "now": 2}
        with pytest.raises(JournalUnwritable, match="newer version of the program"):
            frozen.append([intent(row)])


def test_only_owner_can_upgrade_tables(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    desk = cluster_database(cluster).grant_rights()[-1]
    owner, login = journal_url(cluster), f"{desk}_login"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login} LOGIN IN ROLE {desk}".encode())
    upgrade_program()
    cluster.write_url(owner.replace("paygw@", f"{login}@"))
    refused = cluster.run("journal", "upgrade")
    assert (refused.exit_code, "does not own the tables" in refused.stderr) == (7, True)
    cluster.write_url(owner)
    assert cluster.run("journal", "upgrade").exit_code == 0
    with psycopg.connect(owner.replace("paygw@", f"{login}@")) as connection:
        assert connection.execute("SELECT count(*) FROM paygw.remark").fetchall() == [(0,)]


def test_file_journal_needs_no_upgrade(program: Program) -> None:
    refused = program.run("journal", "upgrade")
    assert (refused.exit_code, "next command that writes to it" in refused.stderr) == (2, True)


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


def test_older_database_copy_requires_accepting_loss(restored_cluster: ClusterProgram) -> None:
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


def test_file_journal_has_no_roll_call(program: Program) -> None:
    for command in (("roll-call",), ("retire", "north", "--yes")):
        refused = program.run("journal", *command)
        assert (refused.exit_code, "only one host" in refused.stderr) == (2, True), refused.output
