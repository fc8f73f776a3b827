"""Lets several actors use one database, one statement at a time, in a seeded order.

Each actor is a thread that stops before and after each statement. There it continues, dies, or loses its connection,
with or without the statement. An actor whose statement waits for another actor's lock is recognised by the database's
own view of locks, so nothing depends on time.
"""

import threading
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from paygw_batch.journal.postgres import session
from tests.support.patience import PATIENCE_S

_LOOK_EVERY_S = 0.003
_PASSED = (
    *("to_regclass", "FROM migration", "FROM identity", "FROM moved_here", "database_life()"),
    *("SELECT number, pid FROM process", "SELECT number, hash FROM fact", "SELECT f.by, f.agreement"),
)
"""Statements that only read. Nothing can go wrong there that cannot go wrong before or after."""
COMMIT = "SELECT * FROM commit_facts"
_local = threading.local()
Statement = tuple[bytes, Any]  # a statement and its values


class Fate(Enum):
    GO_ON = "goes on"
    DIE = "dies"
    LOSE_CONNECTION = "loses its connection"


class ActorDied(BaseException):
    """The process is dead. The program never catches this."""


class Actor:
    def __init__(self, name: str, story: Callable[["Actor"], None], seed: int) -> None:
        self.name = name
        self.rng = Random(seed)  # noqa: S311 - dice
        self.place = "the start"
        self.clock_s = 0.0
        self.pid = 0  # the server's process behind its connection
        self.host = ""
        self.process = 0  # the number of its process in the database
        self.is_done = self.is_dead = self.is_connecting = False
        self.hurts = 0  # the number of times it died, was frozen, or lost a connection
        self.sending: set[int] = set()  # the rows that it may still send
        self.late: Statement | None = None
        """A commit whose connection was lost before it arrived, and that can still arrive."""
        self.error: BaseException | None = None
        self._fate = Fate.GO_ON
        self._go, self.arrived = threading.Event(), threading.Event()
        self._story = story
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        _local.actor = self
        try:
            self.stop_at("the start")
            self._story(self)
        except ActorDied:
            self.is_dead = True
        except BaseException as error:  # noqa: BLE001 - whoever plays decides whether it may be
            self.error = error
        finally:
            self.is_done = True
            self.sending.clear()
            self.arrived.set()

    def stop_at(self, place: str) -> Fate:
        if self.is_dead:
            raise ActorDied
        self.place = place
        self.arrived.set()
        self._go.wait()
        self._go.clear()
        if self._fate is Fate.DIE:
            self.is_dead = True
            raise ActorDied
        return self._fate

    def move(self, fate: Fate) -> None:
        self._fate = fate
        self.hurts += fate is not Fate.GO_ON
        self.arrived.clear()
        self._go.set()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} hangs at {self.place}"


class PacedServerCursor(psycopg.ServerCursor[Any]):
    """A server-side cursor that is closed even if its actor dies or loses its connection meanwhile."""

    def close(self) -> None:
        try:
            super().close()
        except BaseException:
            psycopg.Cursor.close(self)
            raise


class PacedConnection(session._LimitedConnection):
    _about = ""
    _commit: Statement | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.server_cursor_factory = PacedServerCursor

    def execute(self, query: Any, params: Any = None, **more: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        self._about = " ".join(text.split())[:60]
        is_commit = self._about.startswith(COMMIT) and self.info.transaction_status is TransactionStatus.IDLE
        self._commit = (text.encode(), params) if is_commit else None
        return super().execute(text.encode(), params, **more)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Stop, run the statement, and stop again."""
        actor = current_actor()
        if actor is None or actor.is_connecting or any(one in self._about for one in _PASSED):
            return super().wait(gen, interval, timeout)
        actor.pid = self.info.backend_pid
        about, self._about = self._about or "begin or end", ""
        commit, self._commit = self._commit, None
        self._stopped(actor, f"before {about}", commit)
        result = super().wait(gen, interval, timeout)
        self._stopped(actor, f"after {about}")
        return result

    def _stopped(self, actor: Actor, place: str, commit: Statement | None = None) -> None:
        try:
            fate = actor.stop_at(place)
        except ActorDied:
            self.pgconn.finish()
            actor.late = commit
            raise
        if fate is Fate.LOSE_CONNECTION:
            self.pgconn.finish()
            actor.late = commit
            raise psycopg.OperationalError("the connection is lost")


def current_actor() -> Actor | None:
    return getattr(_local, "actor", None)


def connect_unpaced(server: session.Server, *, write: bool, **_limits: str) -> Any:
    """Open a connection without stops, whose transaction has no time limit: an actor may stop for any time."""
    actor = current_actor()
    if actor is None:
        return _connect(server, write=write)
    actor.is_connecting = True
    try:
        return _connect(server, write=write)
    finally:
        actor.is_connecting = False


_connect = session.connect


class Stage:
    def __init__(self, url: str) -> None:
        self.actors: list[Actor] = []
        self.looking = psycopg.connect(url, autocommit=True, options="-c search_path=paygw -c lock_timeout=50ms")

    def enter(self, name: str, story: Callable[[Actor], None], seed: int) -> Actor:
        actor = Actor(name, story, seed)
        self.actors.append(actor)
        self.settle()
        return actor

    def movable(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.arrived.is_set() and not actor.is_done]

    def living(self) -> list[Actor]:
        """Return the actors that have not ended, including those that wait for a lock."""
        return [actor for actor in self.actors if not actor.is_done]

    def move(self, actor: Actor, fate: Fate) -> None:
        actor.move(fate)
        self.settle()

    def settle(self) -> None:
        """Wait until each actor has stopped, has ended, or waits for a lock."""
        has_moved = True
        while has_moved:
            has_moved = False
            for actor in self.living():
                if not actor.arrived.is_set():
                    has_moved |= self._arrives(actor)

    def _arrives(self, actor: Actor) -> bool:
        waited_s = 0.0
        while not actor.arrived.wait(_LOOK_EVERY_S):
            if self.look("SELECT cardinality(pg_blocking_pids(%s)) > 0", (actor.pid,)) == [(True,)]:
                return False
            waited_s += _LOOK_EVERY_S
            assert waited_s < PATIENCE_S, f"{actor.name} hangs after {actor.place}"
        return True

    def look(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        cursor = self.looking.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def end(self) -> None:
        self.looking.close()
        for actor in self.living():
            if actor.arrived.is_set():
                actor.move(Fate.DIE)
