"""The Python API with workers: it starts them, follows them row by row, and stops them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from paygw_batch.api import Conclusion, Finished, Payouts
from paygw_batch.submit import background_run
from tests.support.clusters import Hosts, new_hosts
from tests.support.postgres_server import PostgresServer
from tests.support.program import HEADING, kenyan_rows, kill

ROWS = 60


@pytest.fixture
def hosts(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Hosts]:
    with new_hosts(tmp_path, postgres_server) as results:
        yield results


def people() -> pl.DataFrame:
    return pl.DataFrame([line.split(",") for line in kenyan_rows(ROWS)], schema=HEADING.split(","), orient="row")


def test_run_on_workers_returns_every_outcome(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_run, "MAX_WAITING_OUTCOMES", 10)
    worker = hosts.host("one").start("work")
    hosts.wait_for_workers(worker)
    payouts = Payouts(hosts.office.config, environ=hosts.office.environ)
    with payouts.submit(people(), name="staff") as run:
        outcomes = list(run)
    assert isinstance(run.result, Finished)
    assert (run.result.conclusion, run.result.states) == (Conclusion.DONE, {"paid": ROWS})
    assert set(run.counts) == {"paid"}  # the first rows may be paid before the count
    assert Counter(item.client_orderid for item in outcomes) == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    assert {(item.kind, item.payee, item.amount) for item in outcomes} == {("paid", "Jane Wanjiku", "1500.50")}
    assert hosts.ask("SELECT DISTINCT p.kind FROM paygw.process p JOIN paygw.fact f ON f.process = p.number "
                     "WHERE f.instruction IS NOT NULL") == [("worker",)]  # fmt: skip
    kill(worker)


def test_leaving_run_context_stops_workers(hosts: Hosts) -> None:
    worker = hosts.host("one").start("work")
    hosts.wait_for_workers(worker)
    payouts = Payouts(hosts.office.config, environ=hosts.office.environ)
    with payouts.submit(people(), name="staff") as run:
        pass
    assert isinstance(run.result, Finished)
    assert run.result.conclusion in {Conclusion.INTERRUPTED, Conclusion.DONE}
    assert hosts.ask("SELECT count(*) FROM paygw.run WHERE ended_at IS NULL") == [(0,)]
    assert payouts.resume(run.result.batch).__enter__().wait().to_dict()["states"] == {"paid": ROWS}
    assert set(hosts.record().values()) == {1}
    kill(worker)
