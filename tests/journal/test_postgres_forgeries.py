"""Every role against every function and table of the journal in PostgreSQL, with arguments that no program makes.

After each attempt a judge looks: no row has moved, the journal replays, and whoever resumes pays each row once.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paygw_batch.cluster.database_place import DatabasePlace, WorkerJournal
from paygw_batch.core.lifecycle import TRANSITIONS
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts import Line, Said, link_hash, said_digest, text_of_line
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.states import storable
from paygw_batch.journal.tables import MOVE_LINES
from paygw_batch.journal.values import Link, MoveResult, Withdrawal, reply_sha256
from tests.support.journal_rows import AT, all_due, at, intent, new_instruction, open_sheet, outcome_of, send
from tests.support.long_part import long
from tests.support.postgres_rows import fall_silent, open_postgres, postgres_place, read_postgres
from tests.support.postgres_server import PostgresServer

ROLES = ("desk", "worker", "reader")
ALL, SENDERS, DESK, NOBODY = frozenset(ROLES), frozenset({"desk", "worker"}), frozenset({"desk"}), frozenset[str]()
MAY_CALL: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("is_alive", "is_left", "is_free", "may_decide"), ALL),
    **dict.fromkeys(("enrol", "show_life", "end_life", "join_run", "claim_rows", "ask_gate", "leave_gate"), SENDERS),
    **dict.fromkeys(("commit_facts", "answer_roll", "call_roll", "lives"), SENDERS),
    "database_life": SENDERS,
    **dict.fromkeys(("open_gate", "set_limits", "retire_host", "lock_rows"), DESK),
    **dict.fromkeys(("take_desk", "leave_desk", "hold_desk"), DESK),
    **dict.fromkeys(("accept_loss", "left_is_older"), DESK),
    **dict.fromkeys(("begin_forgetting", "forget_people", "forget_said", "forget_texts"), DESK),
    **dict.fromkeys(("forget_heard", "forget_sheet", "forget_plans"), DESK),
    **dict.fromkeys(("require_own", "require_desk", "require_roll", "retires", "is_known_dead"), NOBODY),
    **dict.fromkeys(("check_chain", "check_writer", "move_row", "hand_over"), NOBODY),
    **dict.fromkeys(("host_of", "may_name"), NOBODY),
    **dict.fromkeys(("refuse_change", "refuse_all_but_forgetting", "require_forgetting_fact"), NOBODY),
    **dict.fromkeys(("is_over", "is_being_forgotten"), NOBODY),
    "batch_of_plan": NOBODY,
}
"""Every function of the journal, and who may call it. One that is not here has no expectation, and fails."""
MAY_WRITE: Mapping[str, Mapping[str, frozenset[str]]] = {
    **{key: {"INSERT": DESK} for key in ("batch", "page", "instruction", "known", "payee_words")},
    "state": {f"INSERT ({one})": DESK for one in ("instruction", "batch", "country", "currency", "minor")},
    **{key: {"INSERT": DESK} for key in ("plan_document", "audit")},
    "notice": {
        "INSERT": DESK,
        **dict.fromkeys(
            (f"UPDATE ({one})" for one in ["content", "tries", "tried_at", "next_at", "sent_at", "problem"]), DESK
        ),
    },
    "order_id": {"INSERT": DESK, "UPDATE (instruction)": DESK},
    "run": {"INSERT": DESK, "UPDATE (is_urgent)": DESK, "UPDATE (stop_reason)": SENDERS, "UPDATE (ended_at)": SENDERS},
    **{key: {} for key in ("migration", "identity", "process", "desk", "fact", "said", "reply")},
    **{
        key: {}
        for key in ("contradiction", "move", "moved_here", "gate", "limit_change", "host", "roll_call", "roll_answer")
    },
    **{key: {} for key in ("covered", "unanswered", "newest_call", "missing_host")},
    "forgetting": {},
}
"""Every table and view of the journal, and who may write it without a function. All roles look at all of
them, but a worker not at the audit trail."""
WRITING = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
TOLD: Mapping[str, Mapping[str, Any]] = {
    "intended": {"nonce": "n", "timestamp_s": 1},
    **{key: {"by": "me", "basis": "person"} for key in ("resolved_paid", "resolved_rejected", "resolved_not_received")},
    "released": {"by": "me"},
    "replaced": {"details": '["replaced", 2, "b2"]'},
}
"""What facts say, by their kinds."""
SALT, NONCE = b"s" * 16, b"n" * 16
PAID, READY, DOUBTFUL, REJECTED, MINE_READY, MINE_IN_FLIGHT, OTHERS = 1, 4, 2, 3, 10, 11, 7
"""Rows of a batch that nobody handed over, of one that this worker sends, and one in flight of another worker."""
SAID = ("seq", "salt", *Said._fields)
REPLIES = ("seq", "head", "body")


@dataclass
class Forger:
    """A login that is a worker and nothing else, with a chain of its own, and a hand that writes any fact."""

    connection: psycopg.Connection[Any]
    worker: int
    end: Link
    owner: psycopg.Connection[Any]
    other: WorkerJournal
    given: list[dict[str, Any]] = field(default_factory=list)
    said: list[Sequence[Any]] = field(default_factory=list)

    def fetch(self, query: str, *values: object) -> list[Any]:
        cursor = self.connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def look(self, query: str, *values: object) -> list[Any]:
        return self.owner.execute(query.encode(), values or None).fetchall()

    def fact(self, instruction: int | None, kind: str, said: Said | None = None, **forged: Any) -> "Forger":
        """Add a fact that follows from the last one, as it would be for a row that is where the tables say."""
        query = """SELECT s.attempt, coalesce(s.order_id, i.client_orderid) FROM paygw.state s
            JOIN paygw.instruction i ON i.number = s.instruction WHERE i.number = %s"""
        found = self.look(query, instruction)
        attempt, order_id = found[0] if found else (0, "X")
        line: dict[str, Any] = dict.fromkeys(Line._fields) | {
            "seq": (self.given[-1]["seq"] if self.given else self.end.seq) + 1, "at": at(30),
            "kind": kind, "instruction": instruction, "attempt": attempt + (kind == "intended"), **TOLD.get(kind, {}),
        }  # fmt: skip
        if kind in {"intended", "released"}:
            line["order_id"] = order_id if kind == "intended" else f"{order_id}-r2"
        if said is not None:
            line["said_sha256"] = said_digest(SALT, said)
            self.said.append((line["seq"], SALT, *said))
        line |= forged
        told = [line[name] for name in Line._fields[:-2]]
        before: bytes = self.given[-1]["hash"] if self.given else self.end.hash
        line["hash"] = forged.get("hash", link_hash(before, text_of_line(told), line["said_sha256"]))
        self.given.append(line)
        return self

    def commit(self, replies: Sequence[Sequence[Any]] = (), **forged: Any) -> None:
        """Commit what was given, with a forged end (`s_seq`, `s_hash`) or columns of facts (`f_`), texts, replies."""
        facts, said = self.given, self.said
        self.given, self.said = [], []
        lines = [[fact[name] for name in Line._fields] for fact in facts]
        groups = (("f_", Line._fields, lines), ("d_", SAID, said), ("r_", REPLIES, replies))
        given = [given_lines(prefix, names, lines, forged) for prefix, names, lines in groups]
        end = forged.get("s_seq", self.end.seq), forged.get("s_hash", self.end.hash)
        query = "SELECT * FROM commit_facts(%s, %s, %s, %s::json, %s::json, %s::json)"
        self.fetch(query, self.worker, *end, *given)
        if facts:
            self.end = Link(facts[-1]["seq"], facts[-1]["hash"])


def given_lines(
    prefix: str, names: Sequence[str], lines: Sequence[Sequence[Any]], forged: Mapping[str, Sequence[Any] | None]
) -> str | None:
    """Return lines as the function takes them, with forged columns: one that is too short leaves its name out."""
    columns = dict(zip(names, zip(*lines, strict=True), strict=True)) if lines else {}
    replaced = {name.removeprefix(prefix): column for name, column in forged.items() if name.startswith(prefix)}
    if None in replaced.values():
        return None
    columns |= {name: tuple(column or ()) for name, column in replaced.items()}
    objects = [
        {name: column[at] for name, column in columns.items() if at < len(column)}
        for at in range(max(map(len, columns.values()), default=0))
    ]
    return json.dumps(objects, default=lambda content: f"\\x{content.hex()}")


_FUNCTIONS = """SELECT p.proname, p.oid, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t)
    FROM pg_proc p WHERE p.pronamespace = 'paygw'::regnamespace ORDER BY 1"""
_MOVED = "SELECT * FROM paygw.state ORDER BY instruction"
_KEPT = "SELECT * FROM paygw.contradiction ORDER BY fact"


@dataclass
class World:
    """A journal with rows in every state, logins of each role, and a judge."""

    place: DatabasePlace
    logins: Mapping[str, str]
    forger: Forger

    def is_as_before(self, before: Any) -> None:
        """Judge: no row has moved, nothing is kept that does not fit one, and the journal replays."""
        assert self.seen() == before
        with closing(read_postgres(self.place)) as journal:
            journal.verify()

    def seen(self) -> Any:
        return self.forger.look(_MOVED), self.forger.look(_KEPT)

    def resumed(self) -> Sequence[int]:
        """Let everybody be silent for long, have the desk send what is due in both batches, and return which rows."""
        fall_silent(self.place.server.url)
        with closing(open_postgres(self.place)) as desk:
            desk.mark_interrupted(AT)
            with closing(desk.gate()) as gate:
                gate.open()
            sent = [*send(desk, 1, OutcomeKind.PAID), *send(desk, 2, OutcomeKind.PAID)]
            desk.verify()
        return [due.number for due in sent]


def _world(place: DatabasePlace, server: PostgresServer, name: str, undo: ExitStack) -> World:
    place.give_rights()
    logins = {}
    for login in (*ROLES, "other"):
        logins[login] = f"{name}_{login}_login"
        role = "worker" if login == "other" else login
        server.execute(f"CREATE ROLE {logins[login]} LOGIN IN ROLE {name}_{role}")
    with closing(open_postgres(place)) as desk:
        open_sheet(desk, "b1", 6)
        kinds = (OutcomeKind.PAID, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED)
        for due, kind in zip(all_due(desk, 1)[:3], kinds, strict=True):
            desk.append([intent(due)])
            desk.append([outcome_of(due.number, 1, kind, at(1))])
        open_sheet(desk, "b2", [new_instruction(row, f"B-{row}") for row in range(2, 8)])
        assert desk.start_shared_run(2, waits=True) is not None
    others = replace(place, server=Server(server.url(name, user=logins["other"])))
    other = others.open_to_work("work")
    undo.callback(other.close)
    sending(other, [OTHERS])
    owner = undo.enter_context(psycopg.connect(place.server.url, autocommit=True))
    connection = undo.enter_context(psycopg.connect(server.url(name, user=logins["worker"]), autocommit=True))
    connection.execute(b"SET search_path = paygw")
    enrolled = "SELECT number, head_hash FROM enrol('here', 'boot', 1, 'forge', 'worker', 30, 1, %s)"
    ((worker, start),) = connection.execute(enrolled.encode(), (NONCE,)).fetchall()
    connection.execute("SELECT join_run(%s, 1)", (worker,))
    forger = Forger(connection, worker, Link(0, start), owner, other)
    forger.fact(MINE_IN_FLIGHT, "intended").commit()
    return World(place, logins, forger)


def sending(worker: WorkerJournal, rows: Sequence[int]) -> None:
    """Let a worker have some rows in flight."""
    assert worker.join_run() is not None
    worker.writer.append([intent(due) for due in worker.due(2, limit=100) if due.number in rows])


@pytest.fixture
def world(database: str, place: Path, postgres_server: PostgresServer) -> Iterator[World]:
    with ExitStack() as undo:
        name = database.rpartition("/")[2]
        yield _world(postgres_place(database, place), postgres_server, name, undo)


# What the catalogue says.


def test_every_function_is_callable_by_right_roles(world: World) -> None:
    found: dict[str, frozenset[str]] = {}
    for name, oid, _ in world.forger.look(_FUNCTIONS):
        query = "SELECT has_function_privilege(%s, %s::oid, 'EXECUTE')"
        may = frozenset(role for role in ROLES if world.forger.look(query, world.logins[role], oid) == [(True,)])
        found[name] = may
        assert world.forger.look(query, "public", oid) == [(False,)], f"everybody may call {name}"
    assert found == MAY_CALL


def test_every_table_is_writable_by_right_roles(world: World) -> None:
    query = """SELECT c.relname, ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
        FROM pg_class c WHERE c.relnamespace = 'paygw'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f')"""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for table, columns in world.forger.look(query):
        may = found.setdefault(table, {})
        for role in ROLES:
            login, named = world.logins[role], f"paygw.{table}"
            is_seen = (table, role) != ("audit", "worker")
            assert world.forger.look("SELECT has_table_privilege(%s, %s, 'SELECT')", login, named) == [(is_seen,)]
            for right in WRITING:
                if world.forger.look("SELECT has_table_privilege(%s, %s, %s)", login, named, right) == [(True,)]:
                    may[right] = may.get(right, NOBODY) | {role}
                    continue
                for column in columns if right in {"INSERT", "UPDATE", "REFERENCES"} else []:
                    asked = "SELECT has_column_privilege(%s, %s, %s, %s)"
                    if world.forger.look(asked, login, named, column, right) == [(True,)]:
                        may[f"{right} ({column})"] = may.get(f"{right} ({column})", NOBODY) | {role}
    assert found == MAY_WRITE
    query = "SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'paygw'::regnamespace AND c.relkind = 'S'"
    for (sequence,) in world.forger.look(query):
        for role in ROLES:
            asked = "SELECT has_sequence_privilege(%s, %s::oid, 'USAGE, UPDATE')"
            assert world.forger.look(asked, world.logins[role], sequence) == [(False,)]


def test_owner_functions_fix_path_and_accept_no_names(world: World) -> None:
    query = """SELECT p.proname, p.proconfig, p.proargtypes::oid[]::regtype[]::text[] FROM pg_proc p
        WHERE p.pronamespace = 'paygw'::regnamespace AND p.prosecdef"""
    found = world.forger.look(query)
    own_rights = {
        "is_alive",
        "is_left",
        "is_free",
        "may_decide",
        "lives",
        "left_is_older",
    }  # they look, with the rights of who asks
    assert {name for name, may in MAY_CALL.items() if may and name not in own_rights} <= {name for name, *_ in found}
    for name, settings, types in found:
        assert "search_path=paygw, pg_temp" in settings, name
        assert not {one for one in types if one.startswith("reg") or one in {"name", "oid"}}, name
    for login in world.logins.values():
        query = """SELECT has_schema_privilege(%s, 'paygw', 'CREATE'),
            has_database_privilege(%s, current_database(), 'CREATE')"""
        assert world.forger.look(query, login, login) == [(False, False)]


def test_database_and_program_share_table_of_states(world: World) -> None:
    found = world.forger.look(
        "SELECT before, kind, after, attempts, generations, is_marking, is_sending FROM paygw.move"
    )
    assert sorted(found) == sorted(MOVE_LINES)
    assert {(before, kind): after for before, kind, after, *_ in found} == dict(TRANSITIONS)


# What anybody can try.

VALUES: Mapping[str, Mapping[str, object]] = {
    "nothing": {},
    "empty": {"text": "", "bigint": 0, "integer": 0, "double precision": 0.0, "boolean": False, "bytea": b"",
              "timestamp with time zone": "-infinity", "json": "[]"},
    "huge": {"text": "x" * 20_000, "bigint": 2**63 - 1, "integer": 2**31 - 1, "double precision": 1e308,
             "boolean": True, "bytea": b"x" * 100_000, "timestamp with time zone": "infinity", "json": "[{}]"},
    "negative": {"text": "-1", "bigint": -1, "integer": -1, "double precision": -1.0, "boolean": True, "bytea": b"\0",
                 "timestamp with time zone": "2999-01-01", "json": '[{"number": -1, "instruction": -1}]'},
    "one": {"text": "1", "bigint": 1, "integer": 1, "double precision": 1.0, "boolean": True, "bytea": b"1" * 32,
            "timestamp with time zone": "2999-01-01",
            "json": '[{"number": 1, "process": 1, "seq": 1, "instruction": 1, "attempt": 1, "kind": "intended"}]'},
}  # fmt: skip
"""Arguments by their types; a type that is not here is null."""


@pytest.mark.parametrize("role", ROLES)
def test_arbitrary_function_arguments_change_no_row(world: World, postgres_server: PostgresServer, role: str) -> None:
    """Every function that there is, by every role, with arguments of every kind."""
    before = world.seen()
    name = world.place.server.url.rpartition("/")[2]
    refused, tried = 0, 0
    with psycopg.connect(postgres_server.url(name, user=world.logins[role]), autocommit=True) as connection:
        connection.execute(b"SET search_path = paygw")
        for function, _, types in world.forger.look(_FUNCTIONS):
            if role == "desk" and function in {"call_roll", "retire_host", "answer_roll"}:
                continue  # what people decide about hosts has tests of its own
            for values in VALUES.values():
                arguments = [
                    [values[one[:-2]]] if one.endswith("[]") and one[:-2] in values else values.get(one)
                    for one in types
                ]
                places = ", ".join(f"%s::{one}" for one in types)
                tried += 1
                try:
                    connection.execute(f"SELECT {function}({places})".encode(), arguments or None)
                except psycopg.Error as error:
                    refused += isinstance(error, psycopg.errors.InsufficientPrivilege)
        assert refused > len(MAY_CALL)
        assert tried >= len(VALUES) * (len(MAY_CALL) - 3)
    world.is_as_before(before)
    assert world.resumed() == [4, 5, 6, 8, 9, 10, 12]


Attempt = Callable[[Forger], Any]


def in_the_chain_of_another(forger: Forger) -> None:
    query = "SELECT number, head_seq, head_hash FROM paygw.process WHERE number = %s"
    ((forger.worker, *end),) = forger.look(query, number_of_the_other(forger))
    forger.end = Link(*end)
    forger.fact(8, "intended").commit()


def number_of_the_other(forger: Forger) -> int:
    return forger.other.writer.process


def a_reply(digest: str, body: bytes, *, is_kept: bool = True) -> Attempt:
    def attempt(forger: Forger) -> None:
        forger.fact(MINE_IN_FLIGHT, "paid", Said(reply_sha256=digest) if digest else None)
        place = forger.given[-1]
        forger.commit([(place["seq"], b"HTTP/1.1 200 OK", body)] if is_kept else [])

    return attempt


def a_text(**lists: Any) -> Attempt:
    return lambda forger: forger.fact(MINE_IN_FLIGHT, "paid", Said("a text")).commit(**lists)


def a_text_that_no_fact_names(forger: Forger) -> None:
    forger.fact(MINE_IN_FLIGHT, "paid")
    forger.said.append((forger.given[-1]["seq"], SALT, "a text", None, None))
    forger.commit()


def two_texts_of_one_fact(forger: Forger) -> None:
    forger.fact(MINE_IN_FLIGHT, "paid", Said("a text"))
    forger.said *= 2
    forger.commit()


def forged(instruction: int | None, kind: str, **more: Any) -> Attempt:
    return lambda forger: forger.fact(instruction, kind, **more).commit()


def with_lists(**lists: Any) -> Attempt:
    return lambda forger: forger.fact(MINE_READY, "intended").commit(**lists)


def call(query: str, *values: Any) -> Attempt:
    """Call a function; values that are functions are asked of the forger."""
    return lambda forger: forger.fetch(query, *(one(forger) if callable(one) else one for one in values))


def a_run_that_begins_later(forger: Forger) -> None:
    forger.fetch("SELECT join_run(%s, NULL)", forger.worker)
    forger.fact(MINE_READY, "intended").commit()


def an_old_snapshot(forger: Forger) -> None:
    forger.connection.execute(b"ROLLBACK")
    forger.connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ")
    forger.fact(MINE_READY, "intended").commit()


ENROL = "SELECT enrol('h', 'b', 1, 'c', 'worker', %s, 1, %s)"
GATE = "SELECT * FROM ask_gate(%s, 5, 10, %s, '', %s, %s, %s)"
PAGE = reply_sha256("HTTP/1.1 200 OK", b"{}")
REFUSED: Mapping[str, Attempt] = {
    "no fact at all": lambda forger: forger.commit(),
    "a paid row is sent again": forged(PAID, "intended", attempt=2),
    "a paid row was not sent": forged(PAID, "not_sent"),
    "a paid row is rejected": forged(PAID, "rejected"),
    "a row that was never sent is paid": forged(MINE_READY, "paid"),
    "a row that was never sent did not leave": forged(MINE_READY, "not_sent"),
    "an answer that lifts a hold": forged(MINE_IN_FLIGHT, "paid", source="person", finding="resolved"),
    "an interruption that lifts a hold": forged(MINE_READY, "interrupted", finding="resolved"),
    "an answer with a lost order": forged(MINE_IN_FLIGHT, "paid", source="witness"),
    "an answer with what is kept for ever": forged(MINE_IN_FLIGHT, "paid", details="{}"),
    "evidence about its own row": forged(MINE_IN_FLIGHT, "heard", source="enquiry", finding="repeated"),
    "a note about the journal": forged(None, "clock", details="{}"),
    "a row of another batch": forged(READY, "intended"),
    "another worker's row was not sent": forged(OTHERS, "not_sent"),
    "another worker's row is paid": forged(OTHERS, "paid"),
    "another worker's chain": in_the_chain_of_another,
    "a row in doubt is paid": forged(DOUBTFUL, "paid"),
    **{
        f"what a person decides: {kind}": forged(MINE_IN_FLIGHT, kind)
        for kind in ("resolved_paid", "resolved_rejected", "resolved_not_received", "released", "returned", "replaced")
    },
    "a plan is withdrawn": forged(None, "withdrawn", attempt=None, details="{}"),
    "a batch is opened": forged(None, "batch_opened", attempt=None, batch=1),
    "people are forgotten": forged(None, "batch_forgotten", attempt=None, batch=1),
    "an answer of nothing": forged(None, "paid", attempt=None),
    "a row that there is not": forged(99, "intended"),
    "a kind that there is not": forged(MINE_IN_FLIGHT, "forgiven"),
    "no kind": lambda forger: forger.fact(MINE_READY, "intended").commit(f_kind=[None]),
    "a fact of a row that is one of a batch too": forged(MINE_IN_FLIGHT, "paid", batch=1),
    "a second intent": forged(MINE_IN_FLIGHT, "intended"),
    "an attempt ahead": forged(MINE_READY, "intended", attempt=7),
    "a negative attempt": forged(MINE_READY, "intended", attempt=-1),
    "an attempt before": forged(MINE_IN_FLIGHT, "paid", attempt=0),
    "a huge attempt": forged(MINE_IN_FLIGHT, "paid", attempt=2**62),
    "no attempt": forged(MINE_READY, "intended", attempt=None),
    "two intents at once": lambda forger: (
        forger.fact(MINE_READY, "intended").fact(MINE_READY, "intended", attempt=2).commit()
    ),
    "another order id": forged(MINE_READY, "intended", order_id="ORD-2"),
    "no order id": forged(MINE_READY, "intended", order_id=None),
    "another order id for the next attempt": lambda forger: (
        forger.fact(MINE_IN_FLIGHT, "not_sent").fact(MINE_IN_FLIGHT, "intended", attempt=2, order_id="ORD-2").commit()
    ),
    "a wrong digest": forged(MINE_READY, "intended", hash=b"\1" * 32),
    "a gap in the chain": forged(MINE_READY, "intended", seq=9),
    "places that are not the chain's": lambda forger: (
        forger.fact(MINE_READY, "intended", seq=0).fact(12, "intended", seq=3).commit()
    ),
    "a time to come": forged(MINE_READY, "intended", at="2999-01-01T00:00:00.000Z"),
    "a time before the chain's": forged(MINE_READY, "intended", at="2001-01-01T00:00:00.000Z"),
    "no time": forged(MINE_READY, "intended", at="zzz"),
    "a text that no fact names": a_text_that_no_fact_names,
    "another text than the fact names": a_text(d_text=["another text"]),
    "a text under another salt": a_text(d_salt=[b"t" * 16]),
    "a text without a salt": a_text(d_salt=[b""]),
    "a text as what a customer sees": a_text(d_text=[None], d_customer_url=["a text"]),
    "a text that is missing": a_text(d_text=None),
    "a text of another fact": a_text(d_seq=[1]),
    "two texts of one fact": two_texts_of_one_fact,
    "a digest that is no digest": forged(MINE_IN_FLIGHT, "paid", said_sha256=b"x"),
    "a reply that nobody gave": a_reply("", b"{}"),
    "a reply in the place of another": a_reply(PAGE, b"{ }"),
    "a reply that is missing": a_reply(PAGE, b"{}", is_kept=False),
    "an end that is not": with_lists(s_hash=b"\1" * 32),
    "an end further on": with_lists(s_seq=99),
    "an end without a place": with_lists(s_seq=None),
    "a fact of another process": with_lists(f_process=[999]),
    "more rows than facts": with_lists(f_instruction=[MINE_READY, PAID], f_kind=["intended", "not_sent"]),
    "fewer kinds than facts": with_lists(f_kind=[]),
    "facts that are null": with_lists(f_instruction=None, f_kind=None),
    "a run that it is not at": a_run_that_begins_later,
    "an old snapshot": an_old_snapshot,
    "a life of another, ended": call("SELECT end_life(%s)", number_of_the_other),
    "a life of another, shown": call("SELECT show_life(%s)", number_of_the_other),
    "the run of another": call("SELECT join_run(%s, NULL)", number_of_the_other),
    "a claim of another": call("SELECT claim_rows(%s, '{12}', '{}', 0)", number_of_the_other),
    "the share of another": call("SELECT leave_gate(%s)", number_of_the_other),
    "intents that live a year": call(ENROL, 31536000, NONCE),
    "intents that live for ever": call(ENROL, float("inf"), NONCE),
    "intents that do not live": call(ENROL, 0, NONCE),
    "a chain without a nonce": call(ENROL, 30, b""),
    "the desk": call("SELECT take_desk(%s, '{}')", lambda forger: forger.worker),
    "the desk, let go": call("SELECT leave_desk(%s)", lambda forger: forger.worker),
    "the desk, held": call("SELECT hold_desk(%s)", lambda forger: forger.worker),
    "a sign of life in years": call("UPDATE process SET seen_at = 'infinity'"),
    "a process by hand": call("INSERT INTO process DEFAULT VALUES"),
    "a claim by hand": call("UPDATE state SET claimed_by = 1"),
    "a rest for years": call(GATE, lambda forger: forger.worker, 1e9, [], [], []),
    "negative outcomes": call(GATE, lambda forger: forger.worker, 0, ["unknown"], [""], [-9]),
    "outcomes of other lists": call(GATE, lambda forger: forger.worker, 0, ["unknown"], [], [1]),
    "the gate of another": call(GATE, number_of_the_other, 0, [], [], []),
    "a row that was never sent is interrupted": forged(MINE_READY, "interrupted"),
    "an attempt that was never made is interrupted": forged(MINE_IN_FLIGHT, "interrupted", attempt=2),
    "a host without a secret": call("SELECT answer_roll('', 'ghost', false, '{}')"),
    "a host by the name that all can read": call(
        "SELECT answer_roll((SELECT host_id || 'x' FROM host LIMIT 1), 'ghost', false, '{}')"
    ),
}  # fmt: skip
"""What a login with the role of a worker alone can try by its own connection."""


def is_refused(forger: Forger, attempt: Attempt) -> bool:
    """Make an attempt, and undo whatever it did; return whether the server refused it."""
    was = (forger.worker, forger.end)
    forger.connection.execute(b"BEGIN")
    try:
        attempt(forger)
    except psycopg.Error:
        return True
    finally:
        forger.connection.execute(b"ROLLBACK")
        forger.worker, forger.end = was
        forger.given.clear()
        forger.said.clear()
    return False


def test_forging_worker_is_refused_without_double_payment(world: World) -> None:
    before, forger = world.seen(), world.forger
    for name, attempt in REFUSED.items():
        assert is_refused(forger, attempt), name
        assert world.seen() == before, name
    world.is_as_before(before)
    assert world.resumed() == [4, 5, 6, 8, 9, 10, 12]


def test_desk_of_living_process_cannot_be_taken(world: World) -> None:
    with closing(open_postgres(world.place)) as desk:
        look, holder = world.forger.look, desk.writer.process
        enrolled = "SELECT number FROM paygw.enrol('another host', %s, 1, 'twin', 'run', 30, 1, %s)"
        ((boot,),) = look("SELECT boot FROM paygw.process WHERE number = %s", holder)
        ((twin,),) = look(enrolled, boot, NONCE)
        for dead in ([], [holder], [None], None):
            assert look("SELECT paygw.take_desk(%s, %s)", twin, dead) == [(False,)]
        assert look("SELECT process FROM paygw.desk") == [(holder,)]
        desk.withdraw(Withdrawal("1" * 64, "cleo", "{}", AT))


def test_lawful_worker_facts_are_accepted(world: World) -> None:
    """The judge is not content with refusals: the lawful half of all these goes through."""
    forger = world.forger
    forger.fact(MINE_IN_FLIGHT, "paid", Said("a text", reply_sha256=PAGE))
    forger.commit([(2, b"HTTP/1.1 200 OK", b"{}")])
    forger.fact(MINE_READY, "intended").fact(MINE_READY, "not_sent", attempt=1).commit()
    forger.fact(MINE_IN_FLIGHT, "rejected").commit()
    found = dict(forger.look("SELECT instruction, state FROM paygw.state WHERE instruction IN (10, 11)"))
    assert found == {MINE_READY: "ready", MINE_IN_FLIGHT: "paid"}
    with closing(read_postgres(world.place)) as journal:
        assert [row.message for row in journal.rows(2) if row.instruction == MINE_IN_FLIGHT] == ["a text"]
        assert [reply.reply.body for reply in journal.replies(MINE_IN_FLIGHT)] == [b"{}"]
        assert [(one.kind, one.state) for one in journal.messages(2).contradictions] == [("rejected", "paid")]
        journal.verify()
    assert world.resumed() == [4, 5, 6, 8, 9, 10, 12]


@pytest.mark.parametrize("text", ["\\ud83d\ude00", "\\\ud83d", "\ud83d\U0001f600\ude00", "\\u0000\0"])
def test_gateway_text_is_kept_with_any_escapes(world: World, text: str) -> None:
    answer = outcome_of(OTHERS, 1, OutcomeKind.PAID, message=text)
    assert [*world.forger.other.append([answer])] == [MoveResult.MOVED]
    with closing(read_postgres(world.place)) as journal:
        found = [row.message for row in journal.rows(2) if row.instruction == OTHERS]
        assert found == [storable(text).replace("\0", "?")]
        journal.verify()


def test_roll_call_waits_for_unseen_hosts_within_limit(world: World) -> None:
    """What a host wrote first can be what is lost: it is waited for. A login cannot make up hosts without end."""
    forger = world.forger
    calls = forger.look("SELECT count(*) FROM paygw.roll_call")
    missing = "SELECT count(*) FROM paygw.missing_host WHERE name = 'ghost'"
    for nth in range(70):
        forger.fetch("SELECT call_roll(%s, 'ghost')", f"{nth:032x}")
    assert forger.look("SELECT count(*) FROM paygw.roll_call") != calls
    assert forger.look(missing) == [(64,)]
    assert forger.look("SELECT stop_kind FROM paygw.gate") == [("told",)], "further ones stop all workers"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="64 other hosts"):
        forger.fetch("SELECT answer_roll(%s, 'ghost', false, '{}')", f"{70:032x}")
    with pytest.raises(psycopg.Error, match="hosts are missing"):
        forger.fact(MINE_READY, "intended").commit()
    # A person has the last word: what is no host is retired.
    for (ghost,) in forger.look("SELECT host_id FROM paygw.missing_host WHERE name = 'ghost'"):
        forger.look("SELECT paygw.retire_host(%s, 'amina')", ghost)
    assert forger.look(missing) == [(0,)]
    assert world.resumed() == [4, 5, 6, 8, 9, 10, 12]


def test_roll_call_answer_needs_host_secret(world: World) -> None:
    forger = world.forger
    ((host,), *_) = forger.fetch("SELECT host_id FROM host")
    forger.owner.execute(b"INSERT INTO paygw.roll_call SELECT number + 1, life, 'a test', false FROM paygw.newest_call")
    missing = forger.look("SELECT host_id FROM paygw.missing_host")
    assert (host,) in missing
    forger.fetch("SELECT answer_roll(%s, 'ghost', true, '{}')", host)
    assert forger.look("SELECT host_id FROM paygw.missing_host") == missing
    for session in ("on", "off"):
        forger.fetch(f"SET paygw.retires = '{session}'")
        with pytest.raises(psycopg.Error, match="hosts are missing"):
            forger.fact(MINE_READY, "intended").commit()


def test_worker_cannot_declare_standby_complete(world: World) -> None:
    life = """ALTER TABLE paygw.roll_call DISABLE TRIGGER ALL;
        UPDATE paygw.roll_call SET life = split_part(life, ' ', 1) || ' 0000000F ' || split_part(life, ' ', 3);
        ALTER TABLE paygw.roll_call ENABLE ALWAYS TRIGGER never_changed"""
    world.forger.owner.execute(life.encode())
    world.forger.fetch("SELECT answer_roll(%s, 'here', true, '{}')", "1" * 32)
    assert world.forger.look("SELECT is_waived FROM paygw.newest_call") == [(False,)]


# What an owner changed behind everybody's back.

EDITED = {
    "a paid row is ready": "UPDATE state SET state = 'ready' WHERE instruction = 1",
    "a paid row is ready, by its intent": "UPDATE state SET state = 'ready', fact = intent WHERE instruction = 1",
    "a paid row is as at first": """UPDATE state SET state = 'ready', attempt = 0, intent = NULL, first_sent = NULL,
        fact = NULL WHERE instruction = 1""",
    "a paid row is ready for another attempt": "UPDATE state SET state = 'ready', attempt = 2 WHERE instruction = 1",
    "a fact that put a row back counts for another": """UPDATE state SET state = 'ready',
        fact = (SELECT fact FROM state WHERE instruction = 3) WHERE instruction = 1""",
    "a ready row has an attempt behind it": "UPDATE state SET attempt = 1 WHERE instruction = 4",
    "a fact gone": """DELETE FROM fact WHERE instruction = 1 AND kind = 'paid';
        UPDATE state SET state = 'ready' WHERE instruction = 1""",
    "all facts gone": """DELETE FROM fact WHERE instruction = 1;
        UPDATE state SET state = 'ready' WHERE instruction = 1""",
}


@pytest.mark.parametrize("edit", EDITED)
def test_row_contradicting_its_facts_is_never_sent(world: World, edit: str) -> None:
    owner = world.forger.owner
    owner.execute(b"SET session_replication_role = origin; SET search_path = paygw")
    for table in ("state", "fact"):
        owner.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER".encode())
    owner.execute(EDITED[edit].encode())
    away = replace(world.place, known_dir=world.place.known_dir / "of another host")
    with closing(open_postgres(away)) as desk, pytest.raises(JournalCorrupt):
        desk.due(1, after_row=0, limit=100)


@pytest.mark.parametrize(
    "edit", ["DELETE FROM state WHERE instruction = 4", "UPDATE state SET state = 'paid' WHERE instruction = 4"]
)
def test_row_without_state_is_detected_and_unsent(world: World, edit: str) -> None:
    owner = world.forger.owner
    owner.execute(b"SET search_path = paygw; ALTER TABLE state DISABLE TRIGGER USER")
    owner.execute(edit.encode())
    for guard in ("never_changed", "never_emptied"):
        owner.execute(f"ALTER TABLE state ENABLE ALWAYS TRIGGER {guard}".encode())
    away = replace(world.place, known_dir=world.place.known_dir / "of another host")
    with closing(open_postgres(away)) as desk:
        assert [due.number for due in desk.due(1, after_row=0, limit=100)] == [5, 6]
        with pytest.raises(JournalCorrupt, match=r"Instruction 4 .* does not match its facts"):
            desk.verify()


# Planted: each guard of the database taken away.

OWN = "PERFORM require_own(p_process);"
REFUSALS = {
    "commit_facts": (
        *("an answer is of", "what a fact names", "facts are committed in", "a row is no longer"),
        "its chain is not where",
    ),
    "check_writer": ("a fact is about nothing", "the row was not"),
    "check_chain": ("a fact does not follow",),
    "ask_gate": ("no worker has such figures",),
    "host_of": ("no host has such a secret",),
}
"""What functions say when they refuse: without each of these, something goes through."""
TAKEN_AWAY: Sequence[tuple[str, str, str]] = (
    *((name, f"RAISE EXCEPTION '{what}", f"RAISE NOTICE '{what}") for name, all_ in REFUSALS.items() for what in all_),
    *((name, OWN, "") for name in ("end_life", "show_life", "join_run", "leave_gate", "ask_gate")),
    ("claim_rows", "me process := require_own(p_process);", "me process := NULL;"),
    ("require_own", "AND p.login = session_user", ""),
    ("commit_facts", "AND p.login = session_user", ""),
    ("check_chain", "AND l.hash = sha256(", "AND l.hash <> sha256('x' || "),
    ("check_chain", "l.process = me.number AND ", ""),
    ("check_chain", "l.seq = l.place AND ", ""),
    ("check_chain", "l.at >= l.not_before AND ", ""),
    ("check_writer", "IF is_decided OR ", "IF "),
    ("check_writer", "OR last_at >", "OR '' >"),
    ("commit_facts", "IF refused IS NOT NULL THEN", "IF false THEN"),
    ("move_row", "m.before = state.state AND", ""),
    ("move_row", "AND NEW.attempt = state.attempt + m.attempts", ""),
    ("move_row", "AND (m.attempts = 0 OR NEW.order_id", "AND (true OR NEW.order_id"),
)


@pytest.mark.parametrize("every", [8, long(1)])
def test_removing_any_forgery_guard_admits_forgery(world: World, every: int) -> None:
    """Planted bugs of the database: without any one guard an attempt of a worker is not refused."""
    owner, missed = world.forger.owner, []
    for planted in TAKEN_AWAY[::every]:
        function, right, wrong = planted
        ((text,),) = world.forger.look("SELECT pg_get_functiondef(('paygw.' || %s)::regproc)", function)
        assert right in text, f"{function} has no {right!r} any more: nothing was planted"
        owner.execute(text.replace(right, wrong).encode())
        if not all(is_refused(world.forger, attempt) for attempt in REFUSED.values()):
            missed.append(planted)
        owner.execute(text.encode())
    assert missed == list(TAKEN_AWAY[::every])
