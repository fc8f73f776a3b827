"""Databases that cannot be used: one sentence and a hint at the command line."""

from collections.abc import Callable

import psycopg
import pytest

from tests.support.clusters import ClusterProgram, journal_url
from tests.support.program import kenyan_rows

WITHOUT_RIGHTS, READER, WORKER = "stranger", "reader", "worker"
As = Callable[[str], None]


@pytest.fixture
def use_role(cluster: ClusterProgram) -> As:
    """Configure a login with the role. The login without permissions has no role at all."""
    assert cluster.run("submit", cluster.sheet(kenyan_rows(2))).exit_code == 0
    assert cluster.run("journal", "new", "--roles").exit_code == 0
    owner = journal_url(cluster)
    database = owner.rpartition("/")[2]

    def to(role: str) -> None:
        member = "" if role == WITHOUT_RIGHTS else f" IN ROLE {database}_{role}"
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {database}_{role}_login LOGIN{member}".encode())
        cluster.write_url(owner.replace("paygw@", f"{database}_{role}_login@"))

    return to


def write_new_sheet(user: ClusterProgram) -> str:
    return str(user.sheet(kenyan_rows(2, prefix="MORE", amount="700.00"), "more.csv"))


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        (WITHOUT_RIGHTS, [], ["submit", "work", "status", "resolve", "retry", "limits", "find", "verify"]),
        (READER, ["status", "find", "verify"], ["submit", "work", "resolve", "retry", "limits"]),
        (WORKER, ["work", "status"], ["submit", "resolve", "retry", "limits"]),
    ],
)
def test_database_role_cannot_run_commands_beyond_rights(
    cluster: ClusterProgram, use_role: As, role: str, may: list[str], may_not: list[str]
) -> None:
    batch = cluster.json("status")["batches"][0]["batch"]
    more = write_new_sheet(cluster)
    commands = {
        "submit": ["submit", more],
        "work": ["work", "--once"],
        "status": ["status", batch],
        "resolve": ["resolve", "row", batch, "2", "--as", "paid", "--evidence", "ticket 7", "--by", "amina"],
        "retry": ["retry", batch],
        "limits": ["limits", "--rate", "5", "--by", "amina"],
        "find": ["find", "PAY-1"],
        "verify": ["verify"],
    }
    use_role(role)
    for command in may:
        assert cluster.run(*commands[command]).exit_code == 0, command
    for command in may_not:
        refused = cluster.run(*commands[command])
        assert refused.exit_code == 7, (command, refused.stderr)
        assert "The role of [journal] url is not allowed to do this in" in refused.stderr, (command, refused.stderr)
        assert "`paygw-batch doctor` shows that role's permissions" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert len(cluster.record()) == 2


@pytest.mark.parametrize("command", ["submit", "work", "status", "resolve"])
def test_unreachable_database_error_is_in_french(cluster: ClusterProgram, command: str) -> None:
    messages = {
        "submit": [write_new_sheet(cluster)],
        "work": ["--once"],
        "status": [],
        "resolve": ["row", "b", "2", "--as", "paid", "--evidence", "ticket 7", "--by", "amina"],
    }
    cluster.write_url("postgresql://paygw@127.0.0.1:1/nothing")
    refused = cluster.run("--lang", "fr", command, *messages[command])
    assert refused.exit_code == 7
    assert "La base de données du journal, nothing on 127.0.0.1:1, est injoignable" in refused.stderr
    assert "Rien n'a été envoyé. Vérifiez [journal] url et le serveur" in refused.stderr
