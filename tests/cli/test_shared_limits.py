"""The limits that workers share, and two workers as real processes that keep them with a worker's permissions."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from paygw_batch.sandbox.server import SandboxApp
from tests.support.clusters import ClusterProgram, Hosts, journal_url, new_hosts, require_exit_code
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows, kill


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
    assert "16 rows (from this host's configuration)" in text.output
    assert cluster.json("verify")["exit_code"] == 0


def test_limits_command_shows_stop_reason_until_next_run(cluster: ClusterProgram) -> None:
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
    for options, sentence in ((("move",), "url is not set"), (("new", "--roles"), "has no roles")):
        refused = program.run("journal", *options)
        assert (refused.exit_code, sentence in refused.stderr) == (2, True), refused.output


def test_moved_batch_finishes_in_database(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
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


def test_doctor_shows_permissions_granted_to_roles(cluster: ClusterProgram, postgres_server: PostgresServer) -> None:
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
    assert "The role in [journal] url does not have permission to do this" in result.stderr
    assert len(cluster.record()) == 2


ROWS = 40


class ConcurrencyAtGateway:
    """The number of orders of all workers that the gateway is processing at one time."""

    now = most = 0


@pytest.fixture
def concurrency_at_gateway(monkeypatch: pytest.MonkeyPatch) -> ConcurrencyAtGateway:
    seen, answer = ConcurrencyAtGateway(), SandboxApp._answer

    async def counted(app: SandboxApp, *given: Any) -> ASGIApp:
        seen.now += 1
        seen.most = max(seen.most, seen.now)
        try:
            return await answer(app, *given)
        finally:
            seen.now -= 1

    monkeypatch.setattr(SandboxApp, "_answer", counted)
    return seen


@pytest.fixture
def hosts(
    tmp_path: Path, postgres_server: PostgresServer, concurrency_at_gateway: ConcurrencyAtGateway
) -> Iterator[Hosts]:
    assert concurrency_at_gateway.most == 0
    with new_hosts(tmp_path, postgres_server) as found:
        yield found


def test_two_workers_respect_concurrency_limit(hosts: Hosts, concurrency_at_gateway: ConcurrencyAtGateway) -> None:
    hosts.office.json("limits", "--concurrency", "2", "--rate", "500", "--by", "Amina")
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    workers = [hosts.host(name).start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    assert hosts.office.json("submit", sheet)["states"] == {"paid": ROWS}
    for process in workers:
        process.terminate()
        require_exit_code(process, 0)
    assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    assert concurrency_at_gateway.most <= 2 * 2, "each has the whole limit until it knows of the other"
    limits = hosts.office.json("limits")["limits"]
    assert (limits["workers"], limits["stop_reason"], limits["concurrency"]) == ([], None, 2)
    assert hosts.office.json("verify")["exit_code"] == 0


def test_worker_needs_only_worker_role(hosts: Hosts, postgres_server: PostgresServer) -> None:
    assert hosts.office.json("journal", "new", "--roles")["exit_code"] == 0
    name = hosts.database.rpartition("/")[2]
    postgres_server.execute(f"CREATE ROLE {name}_one LOGIN IN ROLE {name}_worker")
    host = hosts.host("one")
    host.config.write_text(host.config.read_text().replace(hosts.database, postgres_server.url(name, f"{name}_one")))
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    assert hosts.office.json("submit", sheet, "--detach")["exit_code"] == 0
    assert "worker: can send rows of started batches" in host.run("doctor").output
    for decided in (["submit", host.sheet(kenyan_rows(1))], ["limits", "--rate", "1"], ["resume"]):
        refused = host.run(*decided)
        assert (refused.exit_code, "does not have permission to do this" in refused.stderr) == (7, True), refused.output
    assert not hosts.record()
    require_exit_code(host.start("work", "--once"), 0)
    assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    taking_jobs = host.start("work")
    hosts.wait_for_workers(taking_jobs)
    more = hosts.office.sheet(kenyan_rows(5, prefix="MORE", amount="70"), "more.csv")
    assert hosts.office.json("submit", more)["states"] == {"paid": 5}
    kill(taking_jobs)
    assert hosts.office.json("verify")["exit_code"] == 0
