"""One life of a batch in PostgreSQL: workers, a run that takes over, and a person, in an order that a seed decides.

What plays is what ships: the SQL functions, the leases, the commits, the desk. Ours are the dice, the clock, and the
judge, who reads what was sent, and the tables by himself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import getsource
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import HolderKind, JournalError, JournalWentBack
from paygw_batch.gateway.message import MayLeave
from paygw_batch.journal.guards.location import make_directory
from paygw_batch.journal.opening import database_place
from paygw_batch.journal.opening.database_place import DatabasePlace
from paygw_batch.journal.postgres import session
from paygw_batch.journal.postgres.leasing import chain_writer, leases
from paygw_batch.journal.postgres.leasing.chain_writer import ChainWriter
from paygw_batch.journal.postgres.leasing.chunk_journal import ChunkJournal
from paygw_batch.journal.postgres.leasing.guarded_session import GuardedSession
from paygw_batch.journal.postgres.leasing.host_files import LeftOfProcess
from paygw_batch.journal.postgres.leasing.leases import Heartbeat, HeldLeases
from paygw_batch.journal.postgres.leasing.roll_call import RollCall
from paygw_batch.journal.postgres.migrations import identity_in
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.postgres.tables import PostgresTables
from paygw_batch.journal.states import due_rows
from paygw_batch.journal.values import Due, Entry, MoveResult
from tests.cluster.baton import Actor, Died, Fate, PacedConnection, Stage, actor_here, connect_unpaced
from tests.journal.journal_rows import AT, intent, open_sheet, outcome_of, resolved
from tests.journal.postgres_rows import postgres_place
from tests.journal.postgres_server import PostgresServer

ROWS, CHUNK_ROWS, WINDOW = 8, 3, 2
STEPS = 250
"""How long there is trouble; then everything ends in order."""
MAX_PROCESSES = 14
CHANCE_OF_A_FREEZE, CHANCE_OF_A_FREEZE_AT_DEPARTURE = 0.015, 0.5
MAX_STEPS_FROZEN = 80
"""Long enough for another process to take over what a frozen one was about to send."""
WORDS = {"approved": OutcomeKind.PAID}
HOSTS = ("north", "south")
_MOVED = "SELECT count(*) FROM fact f WHERE NOT EXISTS (SELECT FROM contradiction c WHERE c.fact = f.number) AND "
_CLEARED = f"{_MOVED} f.instruction = %s AND f.kind IN ('released', 'resolved_not_received')"
_INTENDED = f"{_MOVED} f.instruction = %s AND f.attempt = %s AND f.kind = 'intended'"
_GIVEN_UP = f"{_MOVED} f.instruction = %s AND f.attempt = %s AND f.kind = 'interrupted'"
_FOREIGN = """SELECT f.instruction FROM fact f JOIN segment g ON g.number = f.segment JOIN chunk c ON c.number = g.chain
    WHERE f.kind = 'interrupted' AND f.instruction NOT BETWEEN c.first AND c.last"""


class Broken(AssertionError):
    """The promise was broken."""


@dataclass
class Played:
    """What a series of lives came to."""

    lives: int = 0
    processes: int = 0
    deaths: int = 0
    lost_connections: int = 0
    freezes: int = 0
    sent: int = 0
    interrupted: int = 0
    releases: int = 0
    steps: int = 0

    def add(self, other: "Played") -> None:
        """Count another series as well."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class PlayedHeartbeat(Heartbeat):
    """A heartbeat whose clock is the stage's, and that lives on its owner's commits alone."""

    def __init__(self, server: session.Server, worker: int, lease_s: float) -> None:
        actor = actor_here()
        super().__init__(server, worker, lease_s, lambda: actor.clock_s)

    def _beat_on(self) -> None:
        return


class World:
    """A database with one batch, hosts, processes, a gateway that keeps a record, and a judge."""

    def __init__(self, url: str, home: Path, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - dice
        self.places = {}
        for host in HOSTS:
            (home / host).mkdir(mode=0o700)
            self.places[host] = self._place(url, home / host)
        self.stage = Stage(url)
        self.sent: list[tuple[int, int]] = []
        self.trail: list[str] = []
        self.played = Played(lives=1)
        self._workers: dict[Actor, int] = {}
        self._frozen_until: dict[Actor, int] = {}

    @staticmethod
    def _place(url: str, home: Path) -> DatabasePlace:
        return postgres_place(url, home, chunk_rows=CHUNK_ROWS, lease_s=600.0)

    # The processes.

    def _enter(self, name: str, story: Callable[[Actor], None]) -> Actor:
        self.played.processes += 1
        seed = self.rng.randrange(1 << 30)
        return self.stage.enter(f"{name} {self.played.processes}", story, seed)

    def worker(self, actor: Actor) -> None:
        """Pay from chunks that are free, without the desk."""
        place = self.places[actor.rng.choice(HOSTS)]
        with ExitStack() as undo:
            opened = session.Session(place.server, write=True)
            undo.callback(opened.close)
            undo.enter_context(session.translating_errors(place.server))
            identity = identity_in(opened.connection, place.server)
            folder = place.known.folder(identity.journal_id)
            make_directory(folder)
            roll = RollCall(place.server, folder)
            roll.answer(opened.connection)
            number = leases.enrol(opened.connection, command="worker", kind=HolderKind.RUN, lease_s=place.lease_s)
            self._workers[actor] = number
            heartbeat = PlayedHeartbeat(place.server, number, place.lease_s)
            left = LeftOfProcess(folder, roll.life, now=AT, command="worker")
            guarded = GuardedSession(opened, identity, left, roll)
            writer = ChainWriter(guarded, HeldLeases(number, None), heartbeat)
            try:
                self._pay(actor, writer)
            except Died:
                guarded.close()  # a process that ends lets go of its files
                raise
            except BaseException:
                writer.close()
                raise
            writer.close()

    def run(self, actor: Actor) -> None:
        """Do what `submit` and `resume` do: take the desk, conclude what the dead left, pay."""
        with self._opened(actor) as journal:
            journal.mark_interrupted(AT)
            self._pay(actor, journal.writer)

    def person(self, actor: Actor) -> None:
        """Settle rows that are in doubt, release rejected ones, take in what the gateway says."""
        with self._opened(actor) as journal:
            for _ in range(actor.rng.randrange(2, 6)):
                self._deed(journal, actor.rng)

    @contextmanager
    def _opened(self, actor: Actor) -> Iterator[PostgresJournal]:
        place = self.places[actor.rng.choice(HOSTS)]
        journal = place.open_to_write(actor.name)
        self._workers[actor] = journal.writer._held.worker
        try:
            yield journal
        except Died:
            journal.writer._guarded.close()  # a process that ends lets go of its files
            raise
        except BaseException:
            journal.close()
            raise
        journal.close()

    def _pay(self, actor: Actor, writer: ChainWriter) -> None:
        journal = ChunkJournal(_OnlyWriter(writer), writer)
        done: list[Entry] = []
        try:
            while True:
                due = journal._leased(1, WINDOW)
                entries = [*done, *(intent(one) for one in due)]
                if not entries:
                    return
                actor.claims = {one.number for one in due}
                handed_in_s = actor.clock_s
                results = writer.append(entries)
                moved = zip(due, results[len(done) :], strict=True)
                done = list(self._sent(actor, moved, lambda: journal.may_leave(actor.clock_s - handed_in_s)))  # noqa: B023 (used at once)
        finally:
            journal.close()
            if writer.has_lost and not actor.was_hurt:
                raise Broken(f"a lease of {actor.name} was taken over while it lived")

    def _sent(self, actor: Actor, moved: Any, may_leave: MayLeave) -> Iterator[Entry]:
        for due, result in moved:
            if result is MoveResult.MOVED:
                actor.stop_at(f"before row {due.number} leaves")
                if not may_leave():
                    yield outcome_of(due.number, due.standing.attempt + 1, OutcomeKind.NOT_SENT)
                    actor.claims.discard(due.number)
                    continue
                self._arrives(due)
                kind = actor.rng.choice([OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN])
                yield outcome_of(due.number, due.standing.attempt + 1, kind)
            actor.claims.discard(due.number)

    def _arrives(self, due: Due) -> None:
        """The gateway gets an order: the judge looks at once."""
        number, attempt = due.number, due.standing.attempt + 1
        if (number, attempt) in self.sent:
            raise Broken(f"row {number}, attempt {attempt}, was sent twice")
        with psycopg.connect(self.places[HOSTS[0]].server.url, options="-c search_path=paygw") as judge:
            if judge.execute(_INTENDED.encode(), (number, attempt)).fetchall() != [(1,)]:
                raise Broken(f"row {number}, attempt {attempt}, was sent without an intent")
            if judge.execute(_GIVEN_UP.encode(), (number, attempt)).fetchall() != [(0,)]:
                raise Broken(f"row {number}, attempt {attempt}, was sent when another process had put it in doubt")
            cleared = judge.execute(_CLEARED.encode(), (number,)).fetchall()[0][0]
        self.sent.append((number, attempt))
        if sum(one == number for one, _ in self.sent) > 1 + cleared:
            raise Broken(f"row {number} was sent again, and no person cleared it")

    def _deed(self, journal: PostgresJournal, rng: Random) -> None:
        still = {number for actor in self.stage.living() for number in actor.claims}
        rows = [row for row in journal.rows(1, states=set(State) - {State.READY}) if row.instruction not in still]
        doubtful = [row for row in rows if row.state is State.IN_DOUBT]
        sent = [row for row in rows if any(number == row.instruction for number, _ in self.sent)]
        if doubtful and rng.random() < 0.8:
            row = rng.choice(doubtful)
            journal.settle([resolved(row.instruction, row.attempt, rng.choice(list(Resolution)))])
        if sent and rng.random() < 0.3:
            row = rng.choice(sent)
            claim = Claim(row.sent_orderid, "1500.50", "KES", "approved", None, Proof.PROVEN, is_current=True)
            journal.record_evidence([Evidence(EvidenceSource.STATEMENT, claim, "a statement")], WORDS, at=AT)
        rejected = [row.row for row in rows if row.state is State.REJECTED]
        if rejected and rng.random() < 0.8:
            suffix = rng.random() < 0.5
            released = journal.release(1, rejected[:2], suffix=suffix, by="amina", at=AT, cutoff="9")
            self.played.releases += released

    # The trouble.

    def trouble(self) -> None:
        """Move actors in an order of the dice, and let them die, freeze, and lose their connections."""
        for step in range(STEPS):
            self._new_lives()
            movable = self.stage.movable()
            if not movable:
                self.stage.settle()  # a deadlock: the server ends it
                continue
            # All wait for what a frozen one has locked: then it thaws sooner.
            thawed = [actor for actor in movable if self._frozen_until.get(actor, 0) <= step] or movable
            actor, dice = self.rng.choice(thawed), self.rng.random()
            if dice < (CHANCE_OF_A_FREEZE_AT_DEPARTURE if "leaves" in actor.place else CHANCE_OF_A_FREEZE):
                self._freeze(actor)
                self._frozen_until[actor] = step + self.rng.randrange(MAX_STEPS_FROZEN)
                continue
            fate = Fate.DIE if dice < 0.03 else Fate.LOSE_CONNECTION if dice < 0.06 else Fate.GO_ON
            self._move(actor, fate)

    def _new_lives(self) -> None:
        if self.played.processes < MAX_PROCESSES and len(self.stage.living()) < 4 and self.rng.random() < 0.1:
            story = self.rng.choice([self.worker, self.worker, self.run, self.person, self.person])
            self._enter(story.__name__, story)

    def _move(self, actor: Actor, fate: Fate) -> None:
        self.trail.append(f"{actor.name} {fate.value} {actor.place}")
        self.played.steps += 1
        is_sending = "leaves" in actor.place or actor.place == "the start"
        if fate is Fate.LOSE_CONNECTION and is_sending:
            fate = Fate.GO_ON
        self.played.deaths += fate is Fate.DIE
        self.played.lost_connections += fate is Fate.LOSE_CONNECTION
        self.stage.move(actor, fate)
        self._check(actor)

    def _check(self, actor: Actor) -> None:
        if not actor.is_done:
            return
        if actor.is_dead:
            self._silent(actor)
        elif actor.error is not None:
            is_told = isinstance(actor.error, JournalError) and not isinstance(actor.error, JournalWentBack)
            if not is_told:
                raise actor.error
            self.trail.append(f"{actor.name} ended: {actor.error}")
            if "taken over" in str(actor.error) and not actor.was_hurt:
                raise Broken(f"the desk of {actor.name} was taken over while it lived")
            if "deadlock" in str(actor.error):
                raise Broken(f"{actor.name}: {actor.error}")

    def _freeze(self, actor: Actor) -> None:
        """Let an actor be silent for longer than its lease, and go on later."""
        if actor.place != "the start" and self._silent(actor):
            actor.clock_s += 3_600
            actor.was_hurt = True
            self.played.freezes += 1
            self.trail.append(f"{actor.name} freezes {actor.place}")

    def _silent(self, actor: Actor) -> bool:
        number = self._workers.get(actor, 0)
        try:
            self.stage.look("UPDATE worker SET seen_at = seen_at - interval '1 hour' WHERE number = %s", (number,))
        except psycopg.errors.LockNotAvailable:  # it has just shown that it lives
            return False
        return True

    # The end.

    def calm(self) -> None:
        """Let everybody end in order, then pay the rest, by runs that nothing befalls."""
        while self.stage.living():
            if movable := self.stage.movable():
                self._move(self.rng.choice(movable), Fate.GO_ON)
            else:
                self.stage.settle()  # a deadlock: the server ends it
        self.stage.look("UPDATE worker SET seen_at = seen_at - interval '1 hour'")
        last = self._enter("last run", self.run)
        while not last.is_done:
            self._move(last, Fate.GO_ON)
        if last.error is not None:
            raise last.error

    def judge(self) -> None:
        """Hold the tables to the record, once everything has ended."""
        hurt = sum(actor.was_hurt or actor.error is not None for actor in self.stage.actors)
        ((interrupted,),) = self.stage.look("SELECT count(*) FROM fact WHERE kind = 'interrupted'")
        if interrupted > WINDOW * hurt:
            raise Broken(f"{interrupted} rows came in doubt by {hurt} processes that were hurt")
        if foreign := self.stage.look(_FOREIGN):
            raise Broken(f"row {foreign[0][0]} was put in doubt by a lease of another chunk")
        found = self.stage.look(
            """SELECT s.instruction, s.state, s.attempt,
                EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)
            FROM state s ORDER BY 1"""
        )
        latest = dict(sorted(self.sent))
        for number, state, attempt, is_held in found:
            if state in {"in_flight", "ready"} and not (state == "ready" and is_held):
                raise Broken(f"row {number} is {state} at the end")
            if attempt < latest.get(number, 0):
                raise Broken(f"row {number} was sent as attempt {latest[number]}, and the journal ends at {attempt}")
        if len(found) != ROWS:
            raise Broken(f"{len(found)} rows of {ROWS} are left")
        with TemporaryDirectory() as elsewhere:
            place = postgres_place(self.places[HOSTS[0]].server.url, Path(elsewhere))
            reader = place.open_to_read()
            try:
                counts = reader.verify()
            finally:
                reader.close()
        if counts["instructions"] != ROWS:
            raise Broken(f"the journal verifies {counts['instructions']} rows of {ROWS}")
        self.played.sent, self.played.interrupted = len(self.sent), interrupted

    def close(self) -> None:
        """End what is left."""
        self.stage.end()


class _OnlyWriter:
    """The journal of a worker that takes no notifications in."""

    def __init__(self, writer: ChainWriter) -> None:
        self._writer = writer
        self._tables = PostgresTables(lambda: writer._guarded.connection, writer._guarded._identity)
        self.append = writer.append

    def due_leased(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return the next rows of a batch that may be sent."""
        return self._writer.ask(lambda _: due_rows(self._tables, batch, after_row, limit))

    def due_of_chunk(self, batch: int, chunk: int) -> Sequence[Due]:
        """Is not asked: no run is shared."""
        raise NotImplementedError

    def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Any]:
        """Take in nothing."""
        del words, at
        return Counter()


@dataclass(frozen=True)
class ProtocolBug:
    """A planted bug: SQL run on the database, texts of statements replaced, and parts of the program."""

    sql: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Functions of the database, with the texts in them that are replaced."""
    statements: tuple[str, ...] = ()
    rewritten: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[tuple[str, Any], ...] = ()


NOTHING = ProtocolBug()


def play(server: PostgresServer, template: str, seed: int, bug: ProtocolBug = NOTHING) -> Played:
    """Play one life; raise `Broken`, with the seed and the trail, where the promise is broken."""
    name = server.new_database(template)
    world = None
    with TemporaryDirectory(prefix="paygw-cluster-") as directory, pytest.MonkeyPatch.context() as patching:
        try:
            _plant(server.url(name), bug, patching)  # one that cannot be planted any more is not found
            try:
                world = World(server.url(name), Path(directory), seed)
                world.trouble()
                world.calm()
                world.judge()
            except Exception as broken:
                trail = "\n  ".join([] if world is None else world.trail[-60:])
                raise Broken(f"seed {seed}: {type(broken).__name__}: {broken}\n  {trail}") from broken
        finally:
            if world is not None:
                world.close()
            server.drop_database(name)
            for actor in [] if world is None else world.stage.actors:
                actor.join()
    return world.played


def make_batch(server: PostgresServer, template: str, home: Path) -> str:
    """Return a database to play in, again and again as a copy: a journal with one batch that is open."""
    name = server.new_database(template)
    journal = postgres_place(server.url(name), home, chunk_rows=CHUNK_ROWS).open_to_write("a test")
    open_sheet(journal, new=ROWS)
    journal.close()
    with psycopg.connect(server.url(name), autocommit=True, options="-c search_path=paygw") as connection:
        for table in ("host", "worker"):  # who made it is not asked for in the roll-call
            connection.execute(f"UPDATE {table} SET seen_at = seen_at - interval '31 days'".encode())  # noqa: S608 - ours
    return name


def _plant(url: str, bug: ProtocolBug, patching: pytest.MonkeyPatch) -> None:
    patching.setattr(session, "connect", connect_unpaced)
    patching.setattr(session, "_LimitedConnection", PacedConnection)
    for right in bug.rewritten:
        if right not in getsource(chain_writer):
            raise LookupError(f"the program has no {right!r} any more: nothing was planted")
    patching.setattr(PacedConnection, "rewritten", bug.rewritten)
    patching.setattr(database_place, "Heartbeat", PlayedHeartbeat)
    for path, value in bug.patches:
        patching.setattr(path, value)
    plant_sql(url, bug)


def plant_sql(url: str, bug: ProtocolBug) -> None:
    """Change the functions of a database as a bug says."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        for function, edits in bug.sql.items():
            ((text,),) = connection.execute("SELECT pg_get_functiondef(%s::regproc)", (function,)).fetchall()
            for right, wrong in edits.items():
                if right not in text:
                    raise LookupError(f"{function} has no {right!r} any more: nothing was planted")
                text = text.replace(right, wrong)
            connection.execute(text.encode())
        for statement in bug.statements:
            connection.execute(statement.encode())
