"""Tables of an older or newer version: refusals, and the upgrade by their owner."""

from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from paygw_batch.cluster.database_place import DatabasePlace
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.postgres import schema
from paygw_batch.opening.open_journal import database_location
from paygw_batch.settings.configuration import load_settings
from tests.support.clusters import ClusterProgram, journal_url
from tests.support.journal_rows import intent, open_sheet
from tests.support.postgres_rows import expire_processes, open_postgres
from tests.support.program import Program, kenyan_rows

MADE_UP = "CREATE TABLE remark (number bigint PRIMARY KEY, said text NOT NULL); ALTER TABLE page ADD COLUMN about text;"
"""A migration that a later version of the tables could add."""

NewerProgram = Callable[[], None]


@pytest.fixture
def upgrade_program(monkeypatch: pytest.MonkeyPatch) -> NewerProgram:
    """Return a function that makes the program a later version."""
    scripts = (*schema.scripts(), MADE_UP)
    return lambda: monkeypatch.setattr(schema, "scripts", lambda: scripts)


def database_place(user: ClusterProgram) -> DatabasePlace:
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
        assert "were made by an older version of this program" in refused.stderr
        assert "`paygw-batch journal upgrade`" in refused.stderr
    assert len(cluster.record()) == 2
    brought_up = cluster.json("journal", "upgrade")
    assert brought_up["tables"] == {"before": 1, "now": 2}
    assert "already" in cluster.json("journal", "upgrade")["message"]
    assert cluster.json("submit", more)["states"] == {"paid": 2}
    assert cluster.json("verify")["exit_code"] == 0


def test_newer_tables_are_refused_by_every_command(cluster: ClusterProgram) -> None:
    assert cluster.json("submit", cluster.sheet(kenyan_rows(1)))["states"] == {"paid": 1}
    with psycopg.connect(journal_url(cluster), autocommit=True) as connection:
        connection.execute("INSERT INTO paygw.migration VALUES (2, '')")
    more = cluster.sheet(kenyan_rows(2, prefix="MORE", amount="700.00"), "more.csv")
    for command in (("submit", more), ("status",), ("work", "--once"), ("journal", "upgrade"), ("journal", "new")):
        refused = cluster.run(*command)
        assert refused.exit_code == 7, (command, refused.stderr)
        assert "newer version of this program" in refused.stderr, command
    assert len(cluster.record()) == 1


def test_upgrade_is_refused_while_process_works(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    with closing(database_place(cluster).open_to_work("work")):
        upgrade_program()
        refused = cluster.run("journal", "upgrade")
        assert refused.exit_code == 7
        assert "A process is using the journal" in refused.stderr
        assert "work, process" in refused.stderr
    assert cluster.json("journal", "upgrade")["tables"] == {"before": 1, "now": 2}


def test_frozen_process_sends_nothing_after_upgrade(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    place = database_place(cluster)
    with closing(open_postgres(place)) as frozen:
        open_sheet(frozen, "b2")
        row, *_ = frozen.due(2, limit=1)
        expire_processes(journal_url(cluster))
        upgrade_program()
        assert cluster.json("journal", "upgrade")["tables"] == {"before": 1, "now": 2}
        with pytest.raises(JournalUnwritable, match="newer version of the program"):
            frozen.append([intent(row)])


def test_only_owner_upgrades_tables_and_roles_may_read(cluster: ClusterProgram, upgrade_program: NewerProgram) -> None:
    cluster.run("submit", cluster.sheet(kenyan_rows(1)))
    desk = database_place(cluster).grant_rights()[-1]
    owner, login = journal_url(cluster), f"{desk}_login"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login} LOGIN IN ROLE {desk}".encode())
    upgrade_program()
    cluster.write_url(owner.replace("paygw@", f"{login}@"))
    refused = cluster.run("journal", "upgrade")
    assert refused.exit_code == 7
    assert "does not own the tables" in refused.stderr
    cluster.write_url(owner)
    assert cluster.run("journal", "upgrade").exit_code == 0
    with psycopg.connect(owner.replace("paygw@", f"{login}@")) as connection:
        assert connection.execute("SELECT count(*) FROM paygw.remark").fetchall() == [(0,)]


def test_upgrade_command_refuses_file_journal(program: Program) -> None:
    refused = program.run("journal", "upgrade")
    assert refused.exit_code == 2
    assert "next command that writes to it" in refused.stderr
