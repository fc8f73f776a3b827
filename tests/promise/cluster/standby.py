"""A standby of a test's own server, by `pg_basebackup`: it follows, lags, and takes over."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres_server import (
    BIN,
    PostgresServer,
    as_unprivileged_user,
    new_home,
    start_watcher,
    using_server,
)


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Yield a standby that follows, and remove it afterwards."""
    home = new_home()
    if os.geteuid() == 0:
        shutil.chown(home, "nobody")
    copied = ["-D", str(home / "data"), "-h", "127.0.0.1", "-p", str(primary.port), "-U", "paygw", "-X", "stream"]
    try:
        subprocess.run(
            [*as_unprivileged_user(), str(BIN / "pg_basebackup"), *copied, "-R", "-c", "fast", "--no-sync"],
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            cwd="/",
            check=True,
        )
        standby = PostgresServer(home, free_port())
        with using_server(home):
            start_watcher(home)
            standby.start()
            try:
                yield standby
            finally:
                with suppress(AssertionError):
                    standby.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def either_server_url(first: PostgresServer, second: PostgresServer) -> str:
    """Return the URL that names two servers: the writable one is used."""
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    return f"postgresql://paygw@{hosts}/postgres?target_session_attrs=read-write"


def until(server: PostgresServer, query: str) -> None:
    """Wait until a query returns true."""
    give_up_s = time.monotonic() + PATIENCE_S
    with psycopg.connect(server.url(), autocommit=True) as connection:
        while connection.execute(query.encode()).fetchall() != [(True,)]:
            assert time.monotonic() < give_up_s, query
            time.sleep(0.01)


def wait_until_caught_up(primary: PostgresServer) -> None:
    """Wait until the standby has everything."""
    until(primary, "SELECT bool_or(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication")


def wait_for_standby(server: PostgresServer, names: str) -> None:
    """Let every commit wait for a standby of these names, or for none."""
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    server.execute("SELECT pg_reload_conf()")
    until(server, f"SELECT current_setting('synchronous_standby_names') = '{names}'")


def block_commits(server: PostgresServer) -> None:
    """Let every commit wait for a missing standby, and return when they do.

    Commits ask the checkpointer, which may read the setting later.
    """
    wait_for_standby(server, "ghost")
    give_up_s = time.monotonic() + PATIENCE_S
    with psycopg.connect(server.url(), autocommit=True) as one, psycopg.connect(server.url(), autocommit=True) as other:
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        while True:
            commit = threading.Thread(target=one.execute, args=("SELECT pg_logical_emit_message(true, '', '')",))
            commit.start()
            while commit.is_alive():
                assert time.monotonic() < give_up_s
                if other.execute(cancel, (one.info.backend_pid,)).fetchall():
                    commit.join()
                    return
                time.sleep(0.01)
