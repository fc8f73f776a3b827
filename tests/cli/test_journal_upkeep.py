"""Tables of another version, and databases that were restored: refusals, upgrades and roll calls."""

from contextlib import closing

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.journal.postgres import schema
from paygw_batch.opening.open_journal import database_location
from paygw_batch.settings.configuration import load_settings
from tests.support.clusters import ClusterProgram, journal_url
from tests.support.postgres_server import PostgresServer
from tests.support.program import kenyan_rows

MADE_UP = "CREATE TABLE remark (number bigint PRIMARY KEY, said text NOT NULL); ALTER TABLE page ADD COLUMN about text;"
"""A migration that a later version of the tables could add."""


def upgrade_program(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = (*schema.scripts(), MADE_UP)
    monkeypatch.setattr(schema, "scripts", lambda: scripts)


def cluster_database(user: ClusterProgram) -> DatabaseLocation:
    location = database_location(load_settings(user.config, environ=user.environ))
    assert location is not None
    return location


def test_old_tables_are_refused_until_upgraded(cluster: ClusterProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.json("submit", cluster.sheet(kenyan_rows(2)))["states"] == {"paid": 2}
    upgrade_program(monkeypatch)
    more = cluster.sheet(kenyan_rows(2, prefix="MORE", amount="700.00"), "more.csv")
    for command in (("submit", more), ("status",), ("work", "--once"), ("verify",)):
        refused = cluster.run(*command)
        assert (refused.exit_code, "from an older version of this program" in refused.stderr) == (7, True), command
        assert "`paygw-batch journal upgrade`" in refused.stderr
    assert len(cluster.record()) == 2
    assert cluster.json("journal", "upgrade")["tables"] == {"before": 1, "now": 2}
    assert "already" in cluster.json("journal", "upgrade")["message"]
    assert cluster.json("submit", more)["states"] == {"paid": 2}
    assert cluster.json("verify")["exit_code"] == 0


def test_upgrade_is_refused_during_run(cluster: ClusterProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    with closing(cluster_database(cluster).open_to_work("work")):
        upgrade_program(monkeypatch)
        refused = cluster.run("journal", "upgrade")
        assert (refused.exit_code, "A process is using the journal" in refused.stderr) == (7, True)
        assert "work, process" in refused.stderr
    assert cluster.json("journal", "upgrade")["tables"] == {"before": 1, "now": 2}


def test_only_owner_can_upgrade_tables(cluster: ClusterProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    desk = cluster_database(cluster).grant_rights()[-1]
    owner, login = journal_url(cluster), f"{desk}_login"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login} LOGIN IN ROLE {desk}".encode())
    upgrade_program(monkeypatch)
    cluster.write_url(owner.replace("paygw@", f"{login}@"))
    refused = cluster.run("journal", "upgrade")
    assert (refused.exit_code, "does not own the tables" in refused.stderr) == (7, True)
    cluster.write_url(owner)
    assert cluster.run("journal", "upgrade").exit_code == 0
    with psycopg.connect(owner.replace("paygw@", f"{login}@")) as connection:
        assert connection.execute("SELECT count(*) FROM paygw.remark").fetchall() == [(0,)]


def test_older_database_copy_requires_accepting_loss(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
    """The database was restored to a state before its last batch."""
    name = journal_url(cluster).rpartition("/")[2]
    assert cluster.run("submit", cluster.sheet(kenyan_rows(2, prefix="OLD"), name="old.csv")).exit_code == 0
    backup = postgres_server.new_database(name)
    sheet = cluster.sheet(kenyan_rows(3, amount="77.10"))
    assert cluster.run("submit", sheet).exit_code == 0
    postgres_server.drop_database(name)
    postgres_server.execute(f"ALTER DATABASE {backup} RENAME TO {name}")
    sent = len(cluster.record())
    for command in (("submit", sheet), ("journal", "roll-call")):
        refused = cluster.run(*command)
        assert (refused.exit_code, "older copy" in refused.stderr) == (7, True), refused.output
        assert "--accept-loss" in refused.stderr
    (host,) = (path.read_text() for path in cluster.home.rglob("known.*/*/host"))
    assert cluster.json("journal", "retire", host, "--yes", "--by", "amina")["exit_code"] == 2, "it lives"
    unasked = cluster.run("journal", "roll-call", "--accept-loss")
    assert (unasked.exit_code, "No terminal is available" in unasked.stderr) == (2, True)
    assert cluster.run("journal", "roll-call", "--yes").exit_code == 2
    accepted = cluster.json("journal", "roll-call", "--accept-loss", "--yes", "--by", "amina")
    assert (accepted["exit_code"], accepted["rows_in_doubt"], accepted["is_guess"]) == (0, 0, False)
    assert len(accepted["unknown_orders"]) == 3  # their batch is lost, so a person must look for them at the gateway
    assert cluster.json("journal", "roll-call")["missing"] == []
    assert cluster.run("submit", sheet).exit_code == 5
    (written,) = cluster.home.glob("payroll.reconciliation.csv")
    assert written.read_text().count("was sent, but the journal has lost the record of this") == 3
    assert len(cluster.record()) == sent, "no order that left is paid again"
    assert cluster.json("verify")["exit_code"] in {0, 5}
