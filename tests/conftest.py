"""Fixtures that isolate tests from the user's settings, and provide a sandbox key and a PostgreSQL server."""

import gc
import os
from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import settings

from paygw_batch.extras import has_extra
from tests.support import long_part

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer

OF_THE_TESTS = {"PAYGW_CHROMIUM", "PAYGW_TEST_POSTGRES", long_part.EXAMPLES, long_part.UNTIL}
for _name in [*os.environ]:
    # A user who followed the README has exported PAYGW_CONFIG, which must not affect the program under test.
    if _name.startswith(("PAYGW_", "XDG_")) and _name not in OF_THE_TESTS:
        del os.environ[_name]


SLOW = (
    *("tests/promise/campaign/", "tests/promise/cluster/", "tests/promise/simulation/", "tests/pins/"),
    *("_stories.py", "_story.py"),
    *("test_checkout", "test_crashes", "test_journal_new", "test_listen", "test_postgres_commands"),
    *("test_settling", "test_shares", "test_timetable", "test_workers"),
)
"""Parts of the names of tests that take seconds each, mostly waiting for processes."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each hypothesis property its share of examples, without a time limit.

    Checks use the same examples each time, so that no check fails by chance. No deadline is set, because other work may
    slow the machine down.
    """
    long_part.store_mark_expression(config.getoption("markexpr"))
    settings.register_profile("busy", deadline=None, max_examples=long_part.example_count(100))
    settings.register_profile("check", settings.get_profile("busy"), derandomize=True, database=None)
    settings.load_profile("check" if long_part.is_check() else "busy")
    gc.disable()  # collected tests are never freed, and scanning them takes a sixth of the time


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collection from now on."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark a case as `long` if its `share` mark excludes it from the regular check."""
    if (mark := item.get_closest_marker("share")) is not None and long_part.is_left_out(item, *mark.args):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    long_part.skip_when_time_is_over()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start each worker with its share of the slow tests, so that no core is idle at the end.

    xdist gives each worker an equal part of the order. A worker that finishes early takes tests from the end of another
    worker's part.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    slow, others = deque[pytest.Item](), deque[pytest.Item]()
    for item in items:
        (slow if any(part in item.nodeid for part in SLOW) else others).append(item)
    files = [list(group) for _, group in groupby(slow, key=lambda item: item.path)]
    total = len(items)
    items.clear()
    for worker in range(workers):
        size = (total - len(items)) // (workers - worker)
        own = [item for file in files[worker::workers] for item in file]
        items += own + [others.popleft() for _ in range(min(len(others), max(size - len(own), 0)))]
    items += others


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator["PostgresServer"]:
    """Return the PostgreSQL server that all tests of a session share, across all xdist workers."""
    from tests.support.postgres_server import shared_server  # noqa: PLC0415 - few tests need it

    base = tmp_path_factory.getbasetemp()
    with shared_server(base if worker_id == "master" else base.parent) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests without a home a temporary one, because journals in a user's home would stop a later run."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_sandbox_key() -> Iterator[None]:
    """Create and read the sandbox's temporary key only once for all homes. Its primes are not tested."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.MonkeyPatch.context() as patching:
        if has_extra("sandbox"):  # the core is also tested without the sandbox
            patching.setattr("paygw_batch.sandbox.throw_away_key.generate_private_key", lambda **_: key)
        # The library proves at each load that the numbers are prime, which took a tenth of the commands' tests.
        patching.setattr("paygw_batch.gateway.signing.key.load_pem_private_key", cache(load_pem_private_key))
        yield
