"""One run of a batch in PostgreSQL: workers, a concurrent run, and a person, in a seeded order.

The SQL functions, claims, commits and the decision lock are the real ones. The dice, the clock and the judge are ours.
The judge reads what was sent, and the tables.
"""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof
from paygw_batch.core.lifecycle import Concluded, Resolution, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import JournalError, JournalTooOld
from paygw_batch.gateway.message import SendGuard
from paygw_batch.journal.postgres import session, workers
from paygw_batch.journal.postgres.fact_writer import FactWriter, StagedFacts
from paygw_batch.journal.postgres.postgres_journal import PostgresEngineJournal, PostgresJournal
from paygw_batch.journal.postgres.workers import Heartbeat
from paygw_batch.journal.values import DueRow, Entry, MoveResult
from tests.promise.campaign.judge import Broken
from tests.promise.cluster.baton import (
    COMMIT,
    Actor,
    ActorDied,
    Fate,
    PacedConnection,
    Stage,
    Statement,
    connect_unpaced,
    current_actor,
)
from tests.promise.cluster.company import HOSTS
from tests.support.journal_rows import AT, intent, open_sheet, outcome_of, resolved
from tests.support.postgres_rows import execute_as_owner, open_postgres, postgres_location
from tests.support.postgres_server import PostgresServer

J = TypeVar("J", bound=PostgresJournal)
ROWS, WINDOW = 8, 2
INTENT_LIVES_S = 600.0  # longer than any run, so that intents age only by the dice
STEPS = 250  # the number of steps with trouble. Then everything ends in order.
CHANCE_OF_A_FREEZE, CHANCE_OF_A_FREEZE_AT_DEPARTURE = 0.015, 0.5
CHANCES, CHANCES_AT_COMMIT = (0.03, 0.03), (0.05, 0.1)
"""The chances that an actor dies, and that it loses its connection."""
PAUSES_S = (250.0, 400.0, 3_600.0)  # less than half the lifetime of an intent, less than all of it, and more
WORDS = {"approved": OutcomeKind.PAID}
_MOVES = """SELECT count(*) FILTER (WHERE attempt = %(attempt)s AND kind = 'intended'),
    count(*) FILTER (WHERE attempt = %(attempt)s AND kind = 'interrupted'),
    count(*) FILTER (WHERE kind IN ('released', 'resolved_not_received'))
    FROM fact f WHERE instruction = %(number)s AND NOT EXISTS (SELECT FROM contradiction c WHERE c.fact = f.number)"""
_DOUBTS = """SELECT i.process, count(*) FROM fact f
    JOIN fact i ON (i.instruction, i.attempt, i.kind) = (f.instruction, f.attempt, 'intended')
    WHERE f.kind = 'interrupted' GROUP BY 1"""
_AGE = "UPDATE process SET seen_at = seen_at - make_interval(secs => %s) WHERE number = %s AND ended_at IS NULL"


PlayTally = Counter[str]
"""The totals of a series of runs. `late` are commits that arrived after their connections were lost."""


class PlayedSigns(Heartbeat):
    """Sends no heartbeats, so that a process lives on its commits alone."""

    def __init__(self, server: session.Server, number: int, intent_lives_s: float) -> None:
        if (actor := current_actor()) is not None:
            actor.process = number
        super().__init__(server, number, intent_lives_s)

    def _report_regularly(self) -> None:
        return


FIRST_PID = 10_000_000  # a process number that no real system has


def _host_here(here: str = socket.gethostname()) -> str:
    actor = current_actor()
    return here if actor is None else actor.host


class Scenario:
    """A database with one batch, hosts, processes, a gateway with its record, and a judge."""

    def __init__(self, url: str, home: Path, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - dice
        self.places = {}
        for host in HOSTS:
            (home / host).mkdir(mode=0o700)
            self.places[host] = postgres_location(url, home / host, intent_lives_s=INTENT_LIVES_S)
        self.stage = Stage(url)
        self.sent: list[tuple[int, int]] = []
        self.trail: list[str] = []
        self.played = PlayTally(lives=1)
        self._frozen_until: dict[Actor, int] = {}

    # The processes.

    def process_id(self) -> int:
        actor = current_actor()
        return os.getpid() if actor is None else FIRST_PID + self.stage.actors.index(actor)

    def has_ended(self, pid: int) -> bool:
        return self.stage.actors[pid - FIRST_PID].is_dead

    def _enter(self, name: str, story: Callable[[Actor], None]) -> Actor:
        self.played["processes"] += 1
        seed = self.rng.randrange(1 << 30)
        return self.stage.enter(f"{name} {self.played['processes']}", story, seed)

    def worker(self, actor: Actor) -> None:
        with self._used(self._place_of(actor).open_to_work("worker")) as journal:
            for _ in range(2):
                if journal.join_run() is None:
                    return
                with journal.open_engine_journal() as given:
                    self._pay(actor, given)
                journal.leave_run()

    def run(self, actor: Actor) -> None:
        """Act like `submit` and `resume`: take the decision lock, put rows in flight in doubt, and pay."""
        with self._used(self._place_of(actor).open_to_write(actor.name)) as journal:
            journal.mark_interrupted(AT)
            with journal.open_engine_journal() as given:
                self._pay(actor, given)

    def person(self, actor: Actor) -> None:
        """Settle rows in doubt, release rejected ones, record the gateway's evidence, and hand over."""
        with self._used(self._place_of(actor).open_to_write(actor.name)) as journal:
            for _ in range(actor.rng.randrange(2, 6)):
                self._act(journal, actor.rng)
            journal.start_shared_run(1, can_wait=True)

    def late(self, commit: Statement) -> None:
        self.played["late"] += 1
        server = self.places[HOSTS[0]].server
        with suppress(psycopg.OperationalError), closing(session.connect(server, write=True)) as connection:
            try:
                connection.execute(*commit)
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith("PW") or error.sqlstate == "PW010":
                    raise

    def _place_of(self, actor: Actor) -> DatabaseLocation:
        actor.host = actor.rng.choice(HOSTS)
        return self.places[actor.host]

    @staticmethod
    @contextmanager
    def _used(journal: J) -> Iterator[J]:
        try:
            yield journal
        except ActorDied:
            journal.writer._guarded.close()  # a process that ends closes its files and its connection
            journal.writer._guarded.session.close()
            raise
        except BaseException:
            journal.close()
            raise
        journal.close()

    def _pay(self, actor: Actor, journal: PostgresEngineJournal) -> None:
        done: list[Entry] = []
        while True:
            due = journal._next_page(1, WINDOW)
            entries = [*done, *(intent(due_row) for due_row in due)]
            if not entries:
                return
            actor.sending = {due_row.number for due_row in due}
            handed_in_s = actor.clock_s
            moved = zip(due, journal._append(entries)[len(done) :], strict=True)
            done = list(self._sent(actor, moved, lambda: journal.may_send(actor.clock_s - handed_in_s)))  # noqa: B023 (used at once)

    def _sent(self, actor: Actor, moved: Any, may_send: SendGuard) -> Iterator[Entry]:
        for due, result in moved:
            if result is MoveResult.MOVED:
                actor.stop_at(f"before row {due.number} leaves")
                if not may_send():
                    yield outcome_of(due.number, due.standing.attempt + 1, OutcomeKind.NOT_SENT)
                    actor.sending.discard(due.number)
                    continue
                self._arrives(due)
                kind = actor.rng.choice([OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN])
                yield outcome_of(due.number, due.standing.attempt + 1, kind)
            actor.sending.discard(due.number)

    def _arrives(self, due: DueRow) -> None:
        """Record an order at the gateway, and judge it at once."""
        number, attempt = due.number, due.standing.attempt + 1
        if (number, attempt) in self.sent:
            raise Broken(f"row {number}, attempt {attempt}, was sent twice")
        with psycopg.connect(self.places[HOSTS[0]].server.url, options="-c search_path=paygw") as judge:
            values = {"number": number, "attempt": attempt}
            ((intents, given_up, cleared),) = judge.execute(_MOVES.encode(), values).fetchall()
        if intents != 1:
            raise Broken(f"row {number}, attempt {attempt}, was sent without an intent")
        if given_up:
            raise Broken(f"row {number}, attempt {attempt}, was sent when another process had put it in doubt")
        self.sent.append((number, attempt))
        if sum(request == number for request, _ in self.sent) > 1 + cleared:
            raise Broken(f"row {number} was sent again, and no person cleared it")

    def _act(self, journal: PostgresJournal, rng: Random) -> None:
        still = {number for actor in self.stage.living() for number in actor.sending}
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
            self.played["releases"] += released

    # The trouble.

    def trouble(self) -> None:
        """Move actors in a random order, and let them die, freeze, and lose their connections."""
        for step in range(STEPS):
            self._new_lives()
            movable = self.stage.movable()
            if not movable:
                self.stage.settle()  # the server ends a deadlock
                continue
            # If all wait for a lock of a frozen actor, it thaws sooner.
            thawed = [actor for actor in movable if self._frozen_until.get(actor, 0) <= step] or movable
            actor, dice = self.rng.choice(thawed), self.rng.random()
            if dice < (CHANCE_OF_A_FREEZE_AT_DEPARTURE if "leaves" in actor.place else CHANCE_OF_A_FREEZE):
                self._slow_down(actor)
                # Long enough for another process to put a frozen process's rows in doubt.
                self._frozen_until[actor] = step + self.rng.randrange(80)
                continue
            dies, loses = CHANCES_AT_COMMIT if COMMIT in actor.place else CHANCES
            fate = Fate.DIE if dice < dies else Fate.LOSE_CONNECTION if dice < dies + loses else Fate.GO_ON
            self._move(actor, fate)

    def _new_lives(self) -> None:
        if self.played["processes"] < 14 and len(self.stage.living()) < 4 and self.rng.random() < 0.1:
            story = self.rng.choice([self.worker, self.worker, self.run, self.person, self.person])
            self._enter(story.__name__, story)

    def _move(self, actor: Actor, fate: Fate) -> None:
        self.trail.append(f"{actor.name} {fate.value} {actor.place}")
        self.played["steps"] += 1
        is_sending = "leaves" in actor.place or actor.place == "the start"
        if fate is Fate.LOSE_CONNECTION and is_sending:
            fate = Fate.GO_ON
        self.played["deaths"] += fate is Fate.DIE
        self.played["lost_connections"] += fate is Fate.LOSE_CONNECTION
        self.stage.move(actor, fate)
        commit, actor.late = actor.late, None
        if commit is not None and self.rng.random() < 0.5:
            self._enter("late commit", lambda _: self.late(commit))
        self._check(actor)

    def _check(self, actor: Actor) -> None:
        if not actor.is_done:
            return
        if actor.is_dead:  # its own machine knows at once
            if self.rng.random() < 0.5:
                self._age_heartbeat(actor, PAUSES_S[-1])
        elif actor.error is not None:
            if not isinstance(actor.error, JournalError) or isinstance(actor.error, JournalTooOld):
                raise actor.error
            self.trail.append(f"{actor.name} ended: {actor.error}")
            if "taken over" in str(actor.error) and not actor.hurts:
                raise Broken(f"the desk of {actor.name} was taken over while it lived")
            if "deadlock" in str(actor.error):
                raise Broken(f"{actor.name}: {actor.error}")

    def _slow_down(self, actor: Actor) -> None:
        if actor.place == "the start":
            return
        pause_s, is_frozen = self.rng.choice(PAUSES_S), self.rng.random() < 0.6
        if is_frozen and not self._age_heartbeat(actor, pause_s):
            return
        actor.clock_s += pause_s if is_frozen else PAUSES_S[-1]
        actor.hurts += is_frozen
        self.played["freezes"] += is_frozen
        self.trail.append(f"{actor.name} {f'freezes for {pause_s:.0f} s' if is_frozen else 'is slow'}, {actor.place}")

    def _age_heartbeat(self, actor: Actor, seconds: float) -> bool:
        try:
            self.stage.look(_AGE, (seconds, actor.process))
        except psycopg.errors.LockNotAvailable:  # it has just sent a heartbeat
            return False
        return True

    # The end.

    def calm(self) -> None:
        while self.stage.living():
            if movable := self.stage.movable():
                self._move(self.rng.choice(movable), Fate.GO_ON)
            else:
                self.stage.settle()  # the server ends a deadlock
        for actor in self.stage.actors:
            self._age_heartbeat(actor, PAUSES_S[-1])
        last = self._enter("last run", self.run)
        while not last.is_done:
            self._move(last, Fate.GO_ON)
        if last.error is not None:
            raise last.error

    def judge(self) -> None:
        """Compare the tables with the record, after everything has ended."""
        doubts = dict(self.stage.look(_DOUBTS))
        for actor in self.stage.actors:
            hurts = max(actor.hurts, actor.error is not None)
            if (count := doubts.get(actor.process, 0)) > WINDOW * hurts:
                raise Broken(f"{count} rows of {actor.name} came in doubt, and it was hurt {hurts} times")
        query_rows = self.stage.look(
            """SELECT instruction, state, attempt, EXISTS (SELECT FROM unanswered e WHERE e.instruction = s.instruction)
            FROM state s ORDER BY 1"""
        )
        latest = dict(sorted(self.sent))
        for number, state, attempt, is_held in query_rows:
            if state in {"in_flight", "ready"} and not (state == "ready" and is_held):
                raise Broken(f"row {number} is {state} at the end")
            if attempt < latest.get(number, 0):
                raise Broken(f"row {number} was sent as attempt {latest[number]}, and the journal ends at {attempt}")
        if len(query_rows) != ROWS:
            raise Broken(f"{len(query_rows)} rows of {ROWS} are left")
        self.stage.look("ALTER TABLE fact ENABLE ALWAYS TRIGGER never_changed")  # see `make_batch`
        with TemporaryDirectory() as elsewhere:
            location = postgres_location(self.places[HOSTS[0]].server.url, Path(elsewhere))
            with closing(location.open_to_read()) as reader:
                counts = reader.verify()
        if counts["instructions"] != ROWS:
            raise Broken(f"the journal verifies {counts['instructions']} rows of {ROWS}")
        self.played["sent"], self.played["interrupted"] = len(self.sent), sum(doubts.values())


@dataclass(frozen=True)
class ProtocolBug:
    """A planted bug: SQL for the database, and replaced parts of the program."""

    sql: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Functions of the database, with the replaced texts."""
    statements: tuple[str, ...] = ()
    patches: tuple[tuple[str, Any], ...] = ()


NOTHING = ProtocolBug()


def play(server: PostgresServer, template: str, seed: int, bug: ProtocolBug = NOTHING) -> PlayTally:
    """Play one run. Raises `Broken`, with the seed and the trail, if the promise is broken."""
    name = server.new_database(template)
    scenario = None
    with TemporaryDirectory(prefix="paygw-cluster-") as directory, pytest.MonkeyPatch.context() as patching:
        try:
            _plant(server.url(name), bug, patching)  # a bug that cannot be planted is not found
            try:
                scenario = Scenario(server.url(name), Path(directory), seed)
                patching.setattr(workers, "os", SimpleNamespace(**{**vars(os), "getpid": scenario.process_id}))
                patching.setattr(workers, "has_ended", scenario.has_ended)
                scenario.trouble()
                scenario.calm()
                scenario.judge()
            except Exception as broken:
                trail = "\n  ".join([] if scenario is None else scenario.trail[-60:])
                raise Broken(f"seed {seed}: {type(broken).__name__}: {broken}\n  {trail}") from broken
        finally:
            if scenario is not None:
                scenario.stage.end()
            server.drop_database(name)
            for actor in [] if scenario is None else scenario.stage.actors:
                actor.join()
    return scenario.played


def make_batch(server: PostgresServer, template: str, home: Path) -> str:
    name = server.new_database(template)
    location = postgres_location(server.url(name), home)
    with closing(open_postgres(location)) as journal:
        open_sheet(journal, new=ROWS)
        journal.start_shared_run(1, can_wait=True)
    execute_as_owner(
        location,
        "ALTER TABLE fact DISABLE TRIGGER never_changed",  # intents must age
        "ALTER TABLE process DISABLE TRIGGER end_is_final",
        "UPDATE host SET seen_at = seen_at - interval '31 days'",  # the roll-call does not wait for its creator
        "UPDATE process SET seen_at = seen_at - interval '31 days'",
        "ALTER TABLE process ENABLE ALWAYS TRIGGER end_is_final",
    )
    return name


def _plant(url: str, bug: ProtocolBug, patching: pytest.MonkeyPatch) -> None:
    patching.setattr(session, "connect", connect_unpaced)
    patching.setattr(session, "_LimitedConnection", PacedConnection)
    patching.setattr(workers, "Heartbeat", PlayedSigns)
    patching.setattr(socket, "gethostname", _host_here)
    for path, value in bug.patches:
        patching.setattr(path, value)
    plant_sql(url, bug)


def plant_sql(url: str, bug: ProtocolBug) -> None:
    with psycopg.connect(url, autocommit=True, options="-c search_path=paygw") as connection:
        for function, edits in bug.sql.items():
            ((text,),) = connection.execute("SELECT pg_get_functiondef(%s::regproc)", (function,)).fetchall()
            for right, wrong in edits.items():
                if right not in text:
                    raise LookupError(f"{function} has no {right!r} any more: nothing was planted")
                text = text.replace(right, wrong)
            connection.execute(text.encode())
        for statement in bug.statements:
            connection.execute(statement.encode())


_WRITER = "paygw_batch.journal.postgres.fact_writer"
_NOT_MISSED = (("paygw_batch.journal.postgres.verify._EXPECTED_UNIQUE", [("order_id_pkey",), ("run_unfinished",)]),)
_WRONG_CLAIM = {
    "m.before = state.state AND": "(m.attempts = 1 OR m.before = state.state) AND",
    "NEW.attempt = state.attempt + m.attempts": "(m.attempts = 1 OR NEW.attempt = state.attempt)",
    "(m.attempts = 0 OR NEW.order_id =": "(true OR NEW.order_id =",
}
"""An intent moves its row in any state."""
_REFUSAL = "THEN\n            RAISE EXCEPTION 'a row is no longer where"
_NOT_REFUSED = {
    f"IF cardinality(refused) > 0 {_REFUSAL}": f"IF false {_REFUSAL}",
    "IF refused IS NOT NULL THEN": "IF false THEN",
    "OR (me.run IS NULL AND": "OR (false AND",
}
"""Intents are kept in any state of their rows, whoever holds the decision lock."""
_GUARD = "IF FOUND THEN\n            RAISE EXCEPTION 'an answer is of"
_ANSWERS_OF_OTHERS = {_GUARD: _GUARD.replace("FOUND", "false")}
"""Without this guard of the database, a bug of the program can make another process's row ready again."""
NO_INDEX = "DROP INDEX fact_one_intent"

NO_CLAIM = ProtocolBug(sql={"commit_facts": _NOT_REFUSED, "move_row": _WRONG_CLAIM})


def _treat_as_unsent() -> Concluded:
    return Concluded(Outcome(OutcomeKind.NOT_SENT, "planted"))


def _take_all_rows(_writer: FactWriter, staged: StagedFacts) -> list[tuple[int, int, str, bool]]:
    return [(seq, 0, "", True) for seq in range(staged.before.seq + 1, staged.end.seq + 1)]


BUGS: Mapping[str, ProtocolBug] = {
    "an intent leaves however old it is": ProtocolBug(patches=((f"{_WRITER}.FactWriter.may_send", lambda *_: True),)),
    "rows in flight are put back": ProtocolBug(
        sql={"commit_facts": _ANSWERS_OF_OTHERS}, patches=((f"{_WRITER}.Interrupted", _treat_as_unsent),)
    ),
    "no unique index, no refusal, and a wrong claim": ProtocolBug(
        sql=NO_CLAIM.sql, statements=(NO_INDEX,), patches=_NOT_MISSED
    ),
    "an answer that is lost is taken for a commit": ProtocolBug(
        patches=(
            (f"{_WRITER}.FactWriter._is_committed", lambda *_: True),
            (f"{_WRITER}.FactWriter._find_added_facts", _take_all_rows),
        )
    ),
    "a commit is no sign of life": ProtocolBug(sql={"commit_facts": {", seen_at = clock_timestamp()": ""}}),
    "rows in flight are never left": ProtocolBug(sql={"is_left": {"NOT is_alive(p_process)": "false"}}),
    "the decision lock of the living is taken": ProtocolBug(sql={"take_desk": {"AND is_alive(holder)": "AND false"}}),
}
