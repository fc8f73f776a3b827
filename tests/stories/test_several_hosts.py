"""People settle and retry rows of a journal in a database, as a company with several hosts has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.settling import DECLINES
from tests.stories.drivers import Driver
from tests.support.clusters import ClusterProgram
from tests.support.people import create_sandbox
from tests.support.postgres_server import PostgresServer


@pytest.fixture
def company(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[ClusterProgram]:
    program = ClusterProgram(tmp_path, create_sandbox(tmp_path, behaviour=DECLINES).config)
    database = postgres_server.new_database()
    program.write_url(postgres_server.url(database))
    program.make_journal()
    yield program
    postgres_server.drop_database(database)


def test_rows_in_database_are_settled_and_retried(driver: Driver) -> None:
    batch = driver.pay("9006.00", "9006.10", "9001.00")
    assert driver.settle_by_statement(batch, "P-1,9006.00,KES,paid") == driver.DONE
    assert driver.agree(driver.order(batch, 3, said="rejected")) == driver.DONE
    assert driver.states(batch) == ["paid", "rejected", "rejected"]
    assert driver.agree(driver.order(batch, 4, said="retry")) == driver.DONE
    assert driver.sent()[-1] == "P-3-r2"
    assert driver.checked()["signed_orders"] == 2
