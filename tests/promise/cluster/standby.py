"""A standby of a test's own server, by `pg_basebackup`: it follows, lags where it was stopped, and takes over."""

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
from tests.support.postgres_server import BIN, PostgresServer, as_other_user, new_home, used, watch


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A standby that follows; gone afterwards."""
    home = new_home()
    if os.geteuid() == 0:
        shutil.chown(home, "nobody")
    copied = ["-D", str(home / "data"), "-h", "127.0.0.1", "-p", str(primary.port), "-U", "paygw", "-X", "stream"]
    try:
        subprocess.run(
            [*as_other_user(), str(BIN / "pg_basebackup"), *copied, "-R", "-c", "fast", "--no-sync"],
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            cwd="/",
            check=True,
        )
        standby = PostgresServer(home, free_port())
        with used(home):
            watch(home)
            standby.start()
            try:
                yield standby
            finally:
                with suppress(AssertionError):
                    standby.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def both(first: PostgresServer, second: PostgresServer) -> str:
    """Return the address that names two servers: whichever can be written is used."""
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    return f"postgresql://paygw@{hosts}/postgres?target_session_attrs=read-write"


def until(server: PostgresServer, query: str) -> None:
    """Wait until a question to the server is answered with true."""
    give_up_s = time.monotonic() + PATIENCE_S
    with psycopg.connect(server.url(), autocommit=True) as connection:
        while connection.execute(query.encode()).fetchall() != [(True,)]:
            assert time.monotonic() < give_up_s, query
            time.sleep(0.01)


def caught_up(primary: PostgresServer) -> None:
    """Wait until the one standby has everything."""
    until(primary, "SELECT bool_or(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication")


def synchronous(server: PostgresServer, names: str) -> None:
    """Let every commit wait for a standby of these names (empty: for none)."""
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    server.execute("SELECT pg_reload_conf()")
    until(server, f"SELECT current_setting('synchronous_standby_names') = '{names}'")


def no_standby_answers(server: PostgresServer) -> None:
    """Let every commit wait for a standby that is not there, and return when they do.

    A commit asks the checkpointer's word and not the setting, and the checkpointer may read the setting later.
    """
    synchronous(server, "ghost")
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
