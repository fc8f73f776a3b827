"""Two workers as real processes share the limits, and each needs only a worker's permissions."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from paygw_batch.sandbox.server import SandboxApp
from tests.support.clusters import Hosts, new_hosts, require_exit_code
from tests.support.postgres_server import PostgresServer
from tests.support.program import kenyan_rows, kill

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


def send_with_two_workers(hosts: Hosts) -> None:
    """Send a batch with two workers that are alive when it begins, and check the gateway's record."""
    sheet = hosts.office.sheet(kenyan_rows(ROWS))
    workers = [hosts.host(name).start("work") for name in ("one", "two")]
    hosts.wait_for_workers(*workers)
    assert hosts.office.json("submit", sheet)["states"] == {"paid": ROWS}
    for process in workers:
        process.terminate()
        require_exit_code(process, 0)
    assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})


def test_two_workers_respect_limits_set_by_person(hosts: Hosts, concurrency_at_gateway: ConcurrencyAtGateway) -> None:
    hosts.office.json("limits", "--concurrency", "2", "--rate", "500", "--by", "Amina")
    send_with_two_workers(hosts)
    assert concurrency_at_gateway.most <= 2 * 2, "each has the whole limit until it knows of the other"
    limits = hosts.office.json("limits")["limits"]
    assert (limits["workers"], limits["stop_reason"], limits["concurrency"]) == ([], None, 2)
    assert hosts.office.json("verify")["exit_code"] == 0


def test_two_workers_respect_configured_concurrency(hosts: Hosts, concurrency_at_gateway: ConcurrencyAtGateway) -> None:
    send_with_two_workers(hosts)
    assert concurrency_at_gateway.most <= 2 * 4, "each is configured with 4"


def test_worker_needs_only_rights_of_worker_role(hosts: Hosts, postgres_server: PostgresServer) -> None:
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
        assert (refused.exit_code, "is not allowed to do this" in refused.stderr) == (7, True), refused.output
    assert not hosts.record()
    require_exit_code(host.start("work", "--once"), 0)
    assert hosts.record() == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    taking_jobs = host.start("work")
    hosts.wait_for_workers(taking_jobs)
    more = hosts.office.sheet(kenyan_rows(5, prefix="MORE", amount="70"), "more.csv")
    assert hosts.office.json("submit", more)["states"] == {"paid": 5}
    kill(taking_jobs)
    assert hosts.office.json("verify")["exit_code"] == 0
