"""What tests of several folders share: an environment without the user's settings, a key, and a PostgreSQL server."""

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

from paygw_batch.extras import is_there
from tests.support import long_part

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer

OF_THE_TESTS = {"PAYGW_CHROMIUM", "PAYGW_TEST_POSTGRES", long_part.EXAMPLES, long_part.UNTIL}
for _name in [*os.environ]:
    # Whoever followed the README has exported PAYGW_CONFIG, perhaps PAYGW_LANG: the program under test must not see it.
    if _name.startswith(("PAYGW_", "XDG_")) and _name not in OF_THE_TESTS:
        del os.environ[_name]


SLOW = (
    *(
        "tests/promise/campaign/",
        "tests/promise/cluster/",
        "tests/pins/",
        "tests/promise/simulation/",
        "_stories.py",
        "_story.py",
    ),
    *("test_checkout", "test_crashes", "test_journal_new", "test_listen_proofs", "test_postgres_commands"),
    *("test_settling", "test_shares", "test_timetable", "test_workers"),
)
"""Parts of the names of tests that take seconds each, most of them waiting for processes."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each property its share of examples: in every check the same ones, so that none is red by chance.

    No time is asserted: the machine may have much else to do.
    """
    long_part.choose(config.getoption("markexpr"))
    settings.register_profile("busy", deadline=None, max_examples=long_part.share_of(100))
    settings.register_profile("check", settings.get_profile("busy"), derandomize=True, database=None)
    settings.load_profile("check" if long_part.is_check() else "busy")
    gc.disable()  # what is collected is there to stay: searching it for garbage again and again is a sixth of the time


def pytest_collection_finish() -> None:
    """Leave what was imported and collected alone from now on: no search for garbage goes through it any more."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to the long part what a mark `share` does not leave to every check."""
    if (mark := item.get_closest_marker("share")) is not None and long_part.is_left_out(item, *mark.args):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin no test after the time that the run was given."""
    long_part.skip_when_time_is_over()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin the part of each worker with its share of what takes long: at the end it would run beside idle cores.

    xdist gives each worker an equal part of the order; who is done takes over from the end of another's part.
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
    """The server that all tests of a session share, over all workers of xdist."""
    from tests.support.postgres_server import shared_server  # noqa: PLC0415 - few tests need it

    base = tmp_path_factory.getbasetemp()
    with shared_server(base if worker_id == "master" else base.parent) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give what has no home of its own one that ends with the tests: the journals of a user's home stop a later run."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_sandbox_key() -> Iterator[None]:
    """The sandbox's throw-away key is made once for all homes, and read once: its prime numbers are not tested."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.MonkeyPatch.context() as patching:
        if is_there("sandbox"):  # not where the core is tested alone
            patching.setattr("paygw_batch.sandbox.throw_away_key.generate_private_key", lambda **_: key)
        # The library proves at each reading that the numbers are prime: a tenth of what the tests of commands took.
        patching.setattr("paygw_batch.gateway.signing.key.load_pem_private_key", cache(load_pem_private_key))
        yield
