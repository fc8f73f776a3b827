"""Opens connections to PostgreSQL, and checks that their commits are durable.

Refuses servers that do not flush to disk, poolers, clocks that differ too much, and encodings other than UTF-8.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

import psycopg
from psycopg import Connection, conninfo
from psycopg.pq import TransactionStatus

from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import ConfigurationError, InternalError, JournalCorrupt, JournalError
from paygw_batch.journal.evidence import PARTS, EvidenceLog
from paygw_batch.journal.new_batch import payee_texts
from paygw_batch.journal.tables import FILES, ON_POSTGRES, named_sql
from paygw_batch.journal.values import Identity
from paygw_batch.language import mark, say

SCHEMA = "paygw"
MAX_CLOCK_SKEW_S = 30
OLDEST_SERVER = 150_000
_DEFAULT_PORT = "5432"
IDLE_LIMIT = "5min"
"""How long a transaction may be idle. The limit is long, because a large batch is opened in one transaction."""
WORKER_IDLE_LIMIT = "5s"
"""How long a worker's transaction may be idle. A frozen worker must not keep locks that others wait for."""
_CONNECT_TIMEOUT_S = 10
_DEAD_PEER_MS = 10_000
_KEEPALIVES: Mapping[str, Any] = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""How soon each side detects that the other is gone. The server then releases the locks of a host that lost power."""
_SILENCE_LIMIT_S = 300.0
"""How long a statement may take. A network can lose a response without closing the connection."""
_LINES_PER_FETCH = 5_000
_HINT = mark("Nothing was sent. Check [journal] url and the server, then run the same command again.")
_SERVER_SETTINGS = """SELECT current_setting('server_version_num')::integer, current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), pg_is_in_recovery(), pg_backend_pid(),
    extract(epoch FROM clock_timestamp())::double precision, current_setting('server_encoding')"""

Row = tuple[Any, ...]
TIME = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a database and its configured replication."""

    url: str
    replication: str = "none"
    """How commits are replicated. `synchronous`: a standby confirms each; `asynchronous`: a standby may lag;
    `provider`: the database's provider is responsible; `none`: not at all."""
    commit_limit_s: float = 10.0
    """How long to wait for a response before treating a statement's result as unknown."""

    @property
    def location(self) -> str:
        """The address as shown to people, without a password or the default port."""
        parameters = conninfo.conninfo_to_dict(self.url)
        host, port = parameters.get("host") or "localhost", str(parameters.get("port") or "")
        name = parameters.get("dbname") or parameters.get("user") or "postgres"
        return f"{name} on {host}" if port in {"", _DEFAULT_PORT} else f"{name} on {host}:{port}"


@dataclass(frozen=True, slots=True)
class ReplicationState:
    """A server's replication: its settings for standbys and synchronous commits, and the number of standbys."""

    waits_for: str
    synchronous_commit: str
    standbys: int


def replication_state(connection: Connection[Row]) -> ReplicationState:
    """Return the server's replication state. `connection` must have the server's default settings."""
    query = """SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
        (SELECT count(*) FROM pg_stat_replication WHERE state IS NULL OR state = 'streaming')"""
    ((waits_for, synchronous_commit, standbys),) = fetch(connection, query)
    return ReplicationState(waits_for.strip(), synchronous_commit, standbys)


def check_url(url: str) -> None:
    """Raise `ConfigurationError` unless `url` is a valid database URL without a password."""
    try:
        parameters = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(say("journal.url cannot be read: {reason}.", reason=error_reason(error))) from None
    if parameters.get("password"):
        raise ConfigurationError(
            say("journal.url contains a password."),
            hint=say(
                "Keep it out of the configuration. Write it to a private file (mode 0600) and put its path in the "
                "environment variable PGPASSFILE, or use a client certificate."
            ),
        )


def connect(server: Server, *, write: bool, idle_limit: str = IDLE_LIMIT) -> Connection[Row]:
    """Open a connection with durable commits (see `Server`). Raises `JournalError` and `ConfigurationError`.

    If a transaction is idle for longer than `idle_limit`, the server ends the session and releases its locks.
    """
    check_url(server.url)
    try:
        connection = _LimitedConnection.connect(
            server.url,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name="paygw-batch",
            tcp_user_timeout=_DEAD_PEER_MS,
            **_KEEPALIVES,
        )
    except psycopg.Error as error:
        message = say(
            "The journal's database {place} cannot be reached: {reason}.",
            place=server.location,
            reason=error_reason(error),
        )
        raise JournalError(message, hint=say(_HINT)) from None
    try:
        with time_limit(connection, server.commit_limit_s):
            _configure_and_check(connection, server, idle_limit if write else None)
    except psycopg.Error as error:
        connection.close()
        message = say(
            "The database {place} cannot be used: {reason}.", place=server.location, reason=error_reason(error)
        )
        raise JournalError(message, hint=say(_HINT)) from None
    except BaseException:
        connection.close()
        raise
    return connection


class Session:
    """A connection to a server, which can be replaced if it is lost."""

    def __init__(self, server: Server, *, write: bool, idle_limit: str = IDLE_LIMIT) -> None:
        self.server = server
        self._connect = partial(connect, write=write, idle_limit=idle_limit)
        self._is_closed = False
        self.connection = self._connect(self.server)

    def reconnect(self) -> None:
        """Replace the connection with a new one. Raises `JournalError`."""
        self.connection.close()
        self.connection = self._connect(self.server)
        if self._is_closed:  # closed by another thread while this one waited for the server
            self.connection.close()

    def close(self) -> None:
        """Close the connection, including one that another thread is opening."""
        self._is_closed = True
        self.connection.close()


class _LimitedConnection(Connection[Row]):
    """A connection with a time limit per statement, because a network can lose a response."""

    limit_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for the server at most `limit_s`, or `_SILENCE_LIMIT_S` if None. Raises `psycopg.OperationalError`."""
        limit_s = _SILENCE_LIMIT_S if self.limit_s is None else self.limit_s
        try:
            return super().wait(gen, interval, limit_s if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if timeout is None and (self.limit_s is not None or error.sqlstate is None):
                self.pgconn.finish()
            raise


@contextmanager
def time_limit(connection: Connection[Row], limit_s: float | None) -> Iterator[None]:
    """Limit the time for each statement in the block. A timeout closes the connection."""
    assert isinstance(connection, _LimitedConnection)  # noqa: S101 - `connect` opens no other
    previous_limit, connection.limit_s = connection.limit_s, limit_s
    try:
        yield
    finally:
        connection.limit_s = previous_limit


def _configure_and_check(connection: Connection[Row], server: Server, idle_limit: str | None) -> None:
    connection.execute(f"SET search_path = {SCHEMA}, pg_temp")
    connection.execute("SET client_min_messages = warning")
    connection.execute("SET jit = off")
    connection.execute("; ".join(f"SET tcp_{name} = {value}" for name, value in _KEEPALIVES.items()))
    connection.execute("SET random_page_cost = 1.1")  # most statements look up single, cached rows
    for strategy in ("seqscan", "hashjoin", "mergejoin"):  # statistics may be outdated after a batch was opened
        connection.execute(f"SET enable_{strategy} = off")
    if idle_limit is not None:
        # After waiting for a row lock, a statement must see the newest version, so that commits detect moved rows.
        connection.execute("SET default_transaction_isolation = 'read committed'")
        connection.execute("SET synchronous_commit = on")
        connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (idle_limit,))
    start_s = datetime.now(UTC).timestamp()
    (settings,) = fetch(connection, _SERVER_SETTINGS)
    our_time_s = (start_s + datetime.now(UTC).timestamp()) / 2
    version, fsync, full_pages, synchronous, standbys, is_standby, pid, server_time_s, encoding = settings
    if version < OLDEST_SERVER:
        raise JournalError(
            say(
                "The server of {place} is too old. Version 15 of PostgreSQL or later is needed.", place=server.location
            ),
            hint=say("Nothing was sent. Upgrade this server, or set [journal] url to another one."),
        )
    if encoding != "UTF8":
        raise JournalError(
            say("The database {place} uses the encoding {encoding}.", place=server.location, encoding=encoding),
            hint=say("Nothing was sent. Create a database with the encoding UTF8, and set [journal] url to it."),
        )
    if pid != connection.info.backend_pid:
        raise JournalError(
            say(
                "There is a pooler between this program and {place}: another session could get its connection.",
                place=server.location,
            ),
            hint=say("Nothing was sent. Set [journal] url to the server itself, not the pooler in front of it."),
        )
    if idle_limit is None:
        return
    _check_durable(server, fsync, full_pages, synchronous, standbys, is_standby=is_standby)
    if abs(server_time_s - our_time_s) > MAX_CLOCK_SKEW_S:
        skew = {"seconds": abs(server_time_s - our_time_s), "place": server.location}
        raise JournalError(
            say("This host's clock is {seconds:.0f} seconds behind the clock of {place}.", **skew)
            if server_time_s > our_time_s
            else say("This host's clock is {seconds:.0f} seconds ahead of the clock of {place}.", **skew),
            hint=say("Nothing was sent. Set both clocks from the same time server, then try again."),
        )


def _check_durable(
    server: Server, fsync: str, full_pages: str, synchronous: str, standbys: str, *, is_standby: bool
) -> None:
    if is_standby:
        raise JournalError(
            say("{place} is a read-only standby.", place=server.location),
            hint=say("Nothing was sent. List all servers in [journal] url, with target_session_attrs=read-write."),
        )
    for name, value in (("fsync", fsync), ("full_page_writes", full_pages), ("synchronous_commit", synchronous)):
        if value != "on":
            raise JournalError(
                say(
                    "The server of {place} has {name} = {value}, so a commit could be lost and its row paid twice.",
                    place=server.location,
                    name=name,
                    value=value,
                ),
                hint=say("Nothing was sent. Set {name} = on in postgresql.conf, and restart the server.", name=name),
            )
    if server.replication == "synchronous" and not standbys.strip():
        raise JournalError(
            say(
                '[journal] replication is "synchronous", but {place} does not wait for a standby.',
                place=server.location,
            ),
            hint=say(
                "Nothing was sent. Set synchronous_standby_names on the server, or set [journal] "
                'replication to the way its data is replicated: "asynchronous", "provider" or "none".'
            ),
        )


Values = Sequence[Any] | Mapping[str, Any]
"""A statement's values: in order for `%s`, or by name for `%(name)s`."""


def fetch(connection: Connection[Row], query: str, values: Values = ()) -> list[Row]:
    """Run a statement and return all its rows. Raises `psycopg.Error`."""
    cursor = connection.execute(query.encode(), values or None)
    return cursor.fetchall() if cursor.description is not None else []


def stream_rows(connection: Connection[Row], query: str, values: Values = ()) -> Iterator[Row]:
    """Run a query in the open transaction and stream its rows."""
    # A psycopg cursor would warn if it was garbage-collected before this iterator, which closes it.
    name = f"paygw_{time.monotonic_ns()}"
    fetch(connection, f"DECLARE {name} NO SCROLL CURSOR FOR {query}", values)
    while lines := fetch(connection, f"FETCH {_LINES_PER_FETCH} FROM {name}"):
        yield from lines
    fetch(connection, f"CLOSE {name}")


@contextmanager
def translating_errors(server: Server) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.DataCorrupted as error:
        message = say("The database {place} is damaged: {reason}.", place=server.location, reason=error_reason(error))
        raise JournalCorrupt(message) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise JournalError(
            say(
                "The role in [journal] url does not have permission to do this in {place}: {reason}.",
                place=server.location,
                reason=error_reason(error),
            ),
            hint=say("Nothing was sent. To see the role's permissions, run `paygw-batch doctor`."),
        ) from None
    except psycopg.Error as error:
        message = say(
            "The journal in {place} cannot be used: {reason}.", place=server.location, reason=error_reason(error)
        )
        raise JournalError(message, hint=say(_HINT)) from None


@contextmanager
def translating_conflicts(message: str) -> Iterator[None]:
    """Convert a constraint violation to an `InternalError` with this message."""
    try:
        yield
    except psycopg.errors.IntegrityError:
        raise InternalError(message) from None


def error_reason(error: psycopg.Error) -> str:
    """Return the first line of a database error. Other lines may contain personal data."""
    text = error.diag.message_primary or str(error)
    return text.strip().partition("\n")[0].removesuffix(".") or type(error).__name__


_WORD = re.compile(r"[^\W_]+")


def replace_nul(value: str | None) -> str | None:
    """Replace NUL, which a gateway may send and PostgreSQL cannot store, with `?`."""
    return None if value is None else value.replace("\0", "?")


def search_words(texts: Iterable[str]) -> list[str]:
    """Return the distinct words in `texts`, in lower case and without accents, as in the search index."""
    decomposed = unicodedata.normalize("NFKD", " ".join(texts).casefold())
    unaccented = "".join(character for character in decomposed if not unicodedata.combining(character))
    return sorted(set(_WORD.findall(unaccented)))


def payee_search_words(fields: str | None) -> list[str]:
    """Return the search words for a payment's fields, or none if its payee was forgotten."""
    return search_words(payee_texts(fields or "{}"))


QUERIES = named_sql(__package__, FILES, PARTS, ON_POSTGRES, is_psycopg=True)
_CHUNK_SIZE = 10_000


class PostgresTables:
    """A journal's tables, accessed through the current connection."""

    def __init__(self, connection: Callable[[], Connection[Row]], identity: Identity) -> None:
        self._connection, self.identity = connection, identity

    def run(self, name: str, **values: Any) -> list[Row]:
        return fetch(self._connection(), QUERIES[name], values)

    def stream(self, name: str, **values: Any) -> Iterator[Row]:
        """Run a statement in the open transaction (or a new one) and stream its rows."""
        connection = self._connection()
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        with connection.transaction() if is_idle else nullcontext():
            yield from stream_rows(connection, QUERIES[name], values)

    def run_for_each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[Row]:
        remaining = iter(rows)
        while group := list(islice(remaining, _CHUNK_SIZE)):
            arrays = zip(columns, map(list, zip(*group, strict=True)), strict=True)
            yield from self.run(name, **dict(arrays), **values)

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        columns = {"operation": operation, "order_id": order_id, "instruction": instruction}
        self.run("add_order_id", **columns, spelling=normalise_spelling(order_id))

    def lock_rows(self, numbers: Sequence[int]) -> bool:
        """Lock instructions until the transaction ends. Returns True, because a worker may have just moved one."""
        self.run("lock_rows", numbers=list(numbers))
        return True

    def lock_documents(self) -> None:
        self.run("lock_documents")


def postgres_tables(connection: Connection[Row], identity: Identity) -> PostgresTables:
    return PostgresTables(lambda: connection, identity)


def evidence_log(connection: Connection[Row], identity: Identity) -> EvidenceLog:
    return EvidenceLog(postgres_tables(connection, identity))
