"""Every role calls every function and writes every table of the journal in PostgreSQL, with forged arguments.

After each attempt a judge checks that no row has moved, that the journal replays, and that a resumed run pays each row
once.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation, WorkerJournal
from paygw_batch.core.lifecycle import TRANSITIONS, Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.journal.facts import Line, PersonalData, line_text, link_hash, personal_data_digest
from paygw_batch.journal.port import LimitChange
from paygw_batch.journal.postgres.session import Server
from paygw_batch.journal.states import storable_text
from paygw_batch.journal.tables import MOVE_LINES
from paygw_batch.journal.values import Link, MoveResult, Withdrawal, reply_sha256
from tests.support.journal_rows import (
    AT,
    at,
    due_rows,
    intent,
    new_instruction,
    open_sheet,
    outcome_of,
    resolved,
    send,
    states,
)
from tests.support.long_part import long
from tests.support.postgres_rows import (
    execute_as_owner,
    expire_processes,
    open_postgres,
    postgres_location,
    read_postgres,
    triggers_off,
)
from tests.support.postgres_server import PostgresServer

ROLES = ("desk", "worker", "reader")
ALL, SENDERS, DESK, NOBODY = frozenset(ROLES), frozenset({"desk", "worker"}), frozenset({"desk"}), frozenset[str]()
MAY_CALL: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("is_alive", "is_left", "is_free", "may_decide"), ALL),
    **dict.fromkeys(("enrol", "show_life", "end_life", "join_run", "claim_rows", "ask_gate", "leave_gate"), SENDERS),
    **dict.fromkeys(("commit_facts", "answer_roll", "call_roll", "lives", "database_life"), SENDERS),
    **dict.fromkeys(("open_gate", "set_limits", "retire_host", "lock_rows", "accept_loss", "left_is_older"), DESK),
    **dict.fromkeys(("take_desk", "leave_desk", "hold_desk", "begin_forgetting", "forget_people"), DESK),
    **dict.fromkeys(("forget_said", "forget_texts", "forget_heard", "forget_sheet", "forget_plans"), DESK),
}
"""The roles that may call each function of the journal. Nobody may call the others."""
MAY_WRITE: Mapping[str, Mapping[str, frozenset[str]]] = {
    **{one: {"INSERT": DESK} for one in ("batch", "page", "instruction", "known", "payee_words")},
    **{one: {"INSERT": DESK} for one in ("plan_document", "audit")},
    "state": {f"INSERT ({one})": DESK for one in ("instruction", "batch", "country", "currency", "minor")},
    "notice": dict.fromkeys(
        ("INSERT", *(f"UPDATE ({one})" for one in ("content", "tries", "tried_at", "next_at", "sent_at", "problem"))),
        DESK,
    ),
    "order_id": {"INSERT": DESK, "UPDATE (instruction)": DESK},
    "run": {"INSERT": DESK, "UPDATE (is_urgent)": DESK, "UPDATE (stop_reason)": SENDERS, "UPDATE (ended_at)": SENDERS},
}
"""Who may write each table without a function. Nobody may write the others; all read all, but workers not the audit."""
TOLD: Mapping[str, Mapping[str, Any]] = {
    "intended": {"nonce": "n", "timestamp_s": 1},
    **{key: {"by": "me", "basis": "person"} for key in ("resolved_paid", "resolved_rejected", "resolved_not_received")},
    "released": {"by": "me"},
    "replaced": {"details": '["replaced", 2, "b2"]'},
}
"""The columns of facts, by kind."""
SALT, NONCE = b"s" * 16, b"n" * 16
PAID, READY, DOUBTFUL, REJECTED, MINE_READY, MINE_IN_FLIGHT, OTHERS = 1, 4, 2, 3, 10, 11, 7
"""Rows of a batch without a shared run, of one that this worker sends, and one in flight at another worker."""


@dataclass
class Forger:
    """A login with only a worker's role and its own chain, which can write any fact."""

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

    def query_rows(self, query: str, *values: object) -> list[Any]:
        return self.owner.execute(query.encode(), values or None).fetchall()

    def fact(self, instruction: int | None, kind: str, said: PersonalData | None = None, **forge: Any) -> "Forger":
        """Add a fact that follows the last one, as for a row in the state that the tables have."""
        query = """SELECT s.attempt, coalesce(s.order_id, i.client_orderid) FROM paygw.state s
            JOIN paygw.instruction i ON i.number = s.instruction WHERE i.number = %s"""
        found = self.query_rows(query, instruction)
        attempt, order_id = found[0] if found else (0, "X")
        line: dict[str, Any] = dict.fromkeys(Line._fields) | {
            "seq": (self.given[-1]["seq"] if self.given else self.end.seq) + 1, "at": at(30),
            "kind": kind, "instruction": instruction, "attempt": attempt + (kind == "intended"), **TOLD.get(kind, {}),
        }  # fmt: skip
        if kind in {"intended", "released"}:
            line["order_id"] = order_id if kind == "intended" else f"{order_id}-r2"
        if said is not None:
            line["said_sha256"] = personal_data_digest(SALT, said)
            self.said.append((line["seq"], SALT, *said))
        line |= forge
        columns = [line[name] for name in Line._fields[:-2]]
        before: bytes = self.given[-1]["hash"] if self.given else self.end.hash
        line["hash"] = forge.get("hash", link_hash(before, line_text(columns), line["said_sha256"]))
        self.given.append(line)
        return self

    def commit(self, replies: Sequence[Sequence[Any]] = (), **forge: Any) -> None:
        """Commit the facts, with a forged end (`s_seq`, `s_hash`) or columns of facts (`f_`), texts, replies."""
        facts, said = self.given, self.said
        self.given, self.said = [], []
        lines = [[fact[name] for name in Line._fields] for fact in facts]
        texts = ("seq", "salt", *PersonalData._fields)
        groups = (("f_", Line._fields, lines), ("d_", texts, said), ("r_", ("seq", "head", "body"), replies))
        given = [argument_lines(prefix, names, lines, forge) for prefix, names, lines in groups]
        end = forge.get("s_seq", self.end.seq), forge.get("s_hash", self.end.hash)
        self.fetch("SELECT * FROM commit_facts(%s, %s, %s, %s::json, %s::json, %s::json)", self.worker, *end, *given)
        if facts:
            self.end = Link(facts[-1]["seq"], facts[-1]["hash"])


def argument_lines(
    prefix: str, names: Sequence[str], lines: Sequence[Sequence[Any]], forge: Mapping[str, Sequence[Any] | None]
) -> str | None:
    """Return lines as arguments of the function, with forged columns. A column that is too short is omitted."""
    columns = dict(zip(names, zip(*lines, strict=True), strict=True)) if lines else {}
    replaced = {name.removeprefix(prefix): column for name, column in forge.items() if name.startswith(prefix)}
    if None in replaced.values():
        return None
    columns |= {name: tuple(column or ()) for name, column in replaced.items()}
    objects = [
        {name: column[at] for name, column in columns.items() if at < len(column)}
        for at in range(max(map(len, columns.values()), default=0))
    ]
    return json.dumps(objects, default=lambda content: f"\\x{content.hex()}")


@dataclass
class Scenario:
    """A scenario: a journal with rows in every state, logins of each role, and a judge."""

    location: DatabaseLocation
    logins: Mapping[str, str]
    forger: Forger

    def is_unchanged(self, before: Any) -> None:
        """Whether no row has moved, no unfit fact was recorded, and the journal replays."""
        assert self.content() == before
        with closing(read_postgres(self.location)) as journal:
            journal.verify()

    def content(self) -> Any:
        tables = ("state ORDER BY instruction", "contradiction ORDER BY fact")
        return [self.forger.query_rows(f"SELECT * FROM paygw.{table}") for table in tables]  # noqa: S608 - constants

    def resume_rows(self) -> Sequence[int]:
        """Let every process fall silent, have the deciding login send the due rows of both batches, and return them."""
        expire_processes(self.location.server.url)
        with closing(open_postgres(self.location)) as opener:
            opener.mark_interrupted(AT)
            with closing(opener.gate()) as gate:
                gate.open()
            sent = [*send(opener, 1, OutcomeKind.PAID), *send(opener, 2, OutcomeKind.PAID)]
            opener.verify()
        return [due.number for due in sent]


@pytest.fixture
def scenario(database: str, folder: Path, postgres_server: PostgresServer) -> Iterator[Scenario]:
    at_database, name = postgres_location(database, folder), database.rpartition("/")[2]
    at_database.grant_rights()
    logins = {login: f"{name}_{login}_login" for login in (*ROLES, "other")}
    for login, named in logins.items():
        postgres_server.execute(f"CREATE ROLE {named} LOGIN IN ROLE {name}_{'worker' if login == 'other' else login}")
    with closing(open_postgres(at_database)) as opener:
        open_sheet(opener, "b1", 6)
        kinds = (OutcomeKind.PAID, OutcomeKind.UNKNOWN, OutcomeKind.REJECTED)
        for due, kind in zip(due_rows(opener, 1)[:3], kinds, strict=True):
            opener.append([intent(due)])
            opener.append([outcome_of(due.number, 1, kind, at(1))])
        open_sheet(opener, "b2", [new_instruction(row, f"B-{row}") for row in range(2, 8)])
        assert opener.start_shared_run(2, can_wait=True) is not None
    others = replace(at_database, server=Server(postgres_server.url(name, user=logins["other"])))
    as_worker = psycopg.connect(postgres_server.url(name, user=logins["worker"]), autocommit=True)
    owner = psycopg.connect(database, autocommit=True)
    with owner, as_worker as connection, closing(others.open_to_work("work")) as other:
        assert other.join_run() is not None
        other.writer.append([intent(due) for due in other.due(2, limit=100) if due.number == OTHERS])
        connection.execute(b"SET search_path = paygw")
        enrolled = "SELECT number, head_hash FROM enrol('here', 'boot', 1, 'forge', 'worker', 30, 1, %s)"
        ((worker, start),) = connection.execute(enrolled.encode(), (NONCE,)).fetchall()
        connection.execute("SELECT join_run(%s, 1)", (worker,))
        forger = Forger(connection, worker, Link(0, start), owner, other)
        forger.fact(MINE_IN_FLIGHT, "intended").commit()
        yield Scenario(at_database, logins, forger)


def test_every_function_is_callable_by_right_roles(scenario: Scenario) -> None:
    query = """SELECT p.proname FROM pg_proc p
        WHERE p.pronamespace = 'paygw'::regnamespace AND has_function_privilege(%s, p.oid, 'EXECUTE')"""
    assert scenario.forger.query_rows(query, "public") == []
    may: dict[str, frozenset[str]] = {}
    for role in ROLES:
        for (name,) in scenario.forger.query_rows(query, scenario.logins[role]):
            may[name] = may.get(name, NOBODY) | {role}
    assert may == MAY_CALL


def test_every_table_is_writable_by_right_roles(scenario: Scenario) -> None:
    tables = """SELECT c.oid, c.relname AS name FROM pg_class c
        WHERE c.relnamespace = 'paygw'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f')"""
    query = f"""WITH t AS ({tables}),
        w AS (SELECT unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS may)
        SELECT name, may FROM t, w WHERE has_table_privilege(%(login)s, oid, may)
        UNION ALL SELECT name, format('%%s (%%s)', may, a.attname) FROM t JOIN pg_attribute a ON a.attrelid = oid, w
            WHERE a.attnum > 0 AND may IN ('INSERT', 'UPDATE', 'REFERENCES')
            AND NOT has_table_privilege(%(login)s, oid, may) AND has_column_privilege(%(login)s, oid, a.attnum, may)"""  # noqa: S608
    owner = scenario.forger.owner
    found: dict[str, dict[str, frozenset[str]]] = {name: {} for _, name in owner.execute(tables.encode())}
    for role in ROLES:
        for name, right in owner.execute(query.encode(), {"login": scenario.logins[role]}):
            found[name][right] = found[name].get(right, NOBODY) | {role}
    assert {name: rights.pop("SELECT") for name, rights in found.items()} == {
        name: ALL - {"worker"} if name == "audit" else ALL for name in found
    }
    assert {name: rights for name, rights in found.items() if rights} == MAY_WRITE
    query = """SELECT count(*) FILTER (WHERE has_sequence_privilege(%s, seqrelid, 'USAGE, UPDATE')), count(*) > 0
        FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid WHERE c.relnamespace = 'paygw'::regnamespace"""
    assert [scenario.forger.query_rows(query, scenario.logins[role]) for role in ROLES] == [[(0, True)]] * 3


def test_owner_functions_set_path_and_take_no_names(scenario: Scenario) -> None:
    query = """SELECT p.proname, p.proconfig, p.proargtypes::oid[]::regtype[]::text[] FROM pg_proc p
        WHERE p.pronamespace = 'paygw'::regnamespace AND p.prosecdef"""
    found = scenario.forger.query_rows(query)
    only_read = {"is_alive", "is_left", "is_free", "may_decide", "lives", "left_is_older"}  # as their caller may
    assert {name for name, may in MAY_CALL.items() if may and name not in only_read} <= {name for name, *_ in found}
    for name, settings, types in found:
        assert "search_path=paygw, pg_temp" in settings, name
        assert not {one for one in types if one.startswith("reg") or one in {"name", "oid"}}, name
    query = """SELECT has_schema_privilege(%s, 'paygw', 'CREATE'),
        has_database_privilege(%s, current_database(), 'CREATE')"""
    for login in scenario.logins.values():
        assert scenario.forger.query_rows(query, login, login) == [(False, False)]


def test_database_and_program_share_table_of_states(scenario: Scenario) -> None:
    query = "SELECT before, kind, after, attempts, generations, is_marking, is_sending FROM paygw.move"
    found = scenario.forger.query_rows(query)
    assert sorted(found) == sorted(MOVE_LINES)
    assert {(before, kind): after for before, kind, after, *_ in found} == dict(TRANSITIONS)


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
"""Arguments by type; any other type gets null."""


@pytest.mark.parametrize("role", ROLES)
def test_any_function_arguments_change_no_row(scenario: Scenario, postgres_server: PostgresServer, role: str) -> None:
    """Each role calls every function with arguments of every kind."""
    before, refused, tried = scenario.content(), 0, 0
    url = postgres_server.url(scenario.location.server.url.rpartition("/")[2], user=scenario.logins[role])
    functions = """SELECT p.proname, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t)
        FROM pg_proc p WHERE p.pronamespace = 'paygw'::regnamespace ORDER BY 1"""
    with psycopg.connect(url, autocommit=True, options="-c search_path=paygw") as connection:
        for function, types in scenario.forger.query_rows(functions):
            if role == "desk" and function in {"call_roll", "retire_host", "answer_roll"}:
                continue  # people's decisions about hosts are tested separately
            call = f"SELECT {function}({', '.join(f'%s::{one}' for one in types)})".encode()
            for values in VALUES.values():
                arguments = [[values[one[:-2]]] if one[:-2] in values else values.get(one) for one in types]
                tried += 1
                try:
                    connection.execute(call, arguments or None)
                except psycopg.Error as error:
                    refused += isinstance(error, psycopg.errors.InsufficientPrivilege)
        assert refused > len(MAY_CALL)
        assert tried >= len(VALUES) * (len(MAY_CALL) - 3)
    scenario.is_unchanged(before)
    assert scenario.resume_rows() == [4, 5, 6, 8, 9, 10, 12]


Attempt = Callable[[Forger], Any]


def use_other_chain(forger: Forger) -> None:
    query = "SELECT number, head_seq, head_hash FROM paygw.process WHERE number = %s"
    ((forger.worker, *end),) = forger.query_rows(query, use_other_number(forger))
    forger.end = Link(*end)
    forger.fact(8, "intended").commit()


def use_other_number(forger: Forger) -> int:
    return forger.other.writer.process


def with_reply(digest: str, body: bytes, *, is_recorded: bool = True) -> Attempt:
    def attempt(forger: Forger) -> None:
        forger.fact(MINE_IN_FLIGHT, "paid", PersonalData(reply_sha256=digest) if digest else None)
        forger.commit([(forger.given[-1]["seq"], b"HTTP/1.1 200 OK", body)] if is_recorded else [])

    return attempt


def with_text(**lists: Any) -> Attempt:
    return lambda forger: forger.fact(MINE_IN_FLIGHT, "paid", PersonalData("a text")).commit(**lists)


def with_unnamed_text(forger: Forger) -> None:
    forger.fact(MINE_IN_FLIGHT, "paid")
    forger.said.append((forger.given[-1]["seq"], SALT, "a text", None, None))
    forger.commit()


def with_two_texts(forger: Forger) -> None:
    forger.fact(MINE_IN_FLIGHT, "paid", PersonalData("a text"))
    forger.said *= 2
    forger.commit()


def forge(instruction: int | None, kind: str, **more: Any) -> Attempt:
    return lambda forger: forger.fact(instruction, kind, **more).commit()


def with_lists(**lists: Any) -> Attempt:
    return lambda forger: forger.fact(MINE_READY, "intended").commit(**lists)


def call(query: str, *values: Any) -> Attempt:
    """Call a function. Values that are functions get the forger."""
    return lambda forger: forger.fetch(query, *(one(forger) if callable(one) else one for one in values))


def in_later_run(forger: Forger) -> None:
    forger.fetch("SELECT join_run(%s, NULL)", forger.worker)
    forger.fact(MINE_READY, "intended").commit()


def in_old_snapshot(forger: Forger) -> None:
    forger.connection.execute(b"ROLLBACK")
    forger.connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ")
    forger.fact(MINE_READY, "intended").commit()


ENROL = "SELECT enrol('h', 'b', 1, 'c', 'worker', %s, 1, %s)"
GATE = "SELECT * FROM ask_gate(%s, 5, 10, %s, '', %s, %s, %s)"
PAGE = reply_sha256("HTTP/1.1 200 OK", b"{}")
REFUSED: Mapping[str, Attempt] = {
    "no fact at all": lambda forger: forger.commit(),
    "a paid row is sent again": forge(PAID, "intended", attempt=2),
    "a paid row was not sent": forge(PAID, "not_sent"),
    "a paid row is rejected": forge(PAID, "rejected"),
    "a row that was never sent is paid": forge(MINE_READY, "paid"),
    "a row that was never sent did not leave": forge(MINE_READY, "not_sent"),
    "an answer that lifts a hold": forge(MINE_IN_FLIGHT, "paid", source="person", finding="resolved"),
    "an interruption that lifts a hold": forge(MINE_READY, "interrupted", finding="resolved"),
    "an answer with a lost order": forge(MINE_IN_FLIGHT, "paid", source="witness"),
    "an answer with what is kept for ever": forge(MINE_IN_FLIGHT, "paid", details="{}"),
    "evidence about its own row": forge(MINE_IN_FLIGHT, "heard", source="enquiry", finding="repeated"),
    "a note about the journal": forge(None, "clock", details="{}"),
    "a row of another batch": forge(READY, "intended"),
    "another worker's row was not sent": forge(OTHERS, "not_sent"),
    "another worker's row is paid": forge(OTHERS, "paid"),
    "another worker's chain": use_other_chain,
    "a row in doubt is paid": forge(DOUBTFUL, "paid"),
    **{
        f"what a person decides: {kind}": forge(MINE_IN_FLIGHT, kind)
        for kind in ("resolved_paid", "resolved_rejected", "resolved_not_received", "released", "returned", "replaced")
    },
    "a plan is withdrawn": forge(None, "withdrawn", attempt=None, details="{}"),
    "a batch is opened": forge(None, "batch_opened", attempt=None, batch=1),
    "people are forgotten": forge(None, "batch_forgotten", attempt=None, batch=1),
    "an answer of nothing": forge(None, "paid", attempt=None),
    "a row that there is not": forge(99, "intended"),
    "a kind that there is not": forge(MINE_IN_FLIGHT, "forgiven"),
    "no kind": lambda forger: forger.fact(MINE_READY, "intended").commit(f_kind=[None]),
    "a fact of a row that is one of a batch too": forge(MINE_IN_FLIGHT, "paid", batch=1),
    "a second intent": forge(MINE_IN_FLIGHT, "intended"),
    "an attempt ahead": forge(MINE_READY, "intended", attempt=7),
    "a negative attempt": forge(MINE_READY, "intended", attempt=-1),
    "an attempt before": forge(MINE_IN_FLIGHT, "paid", attempt=0),
    "a huge attempt": forge(MINE_IN_FLIGHT, "paid", attempt=2**62),
    "no attempt": forge(MINE_READY, "intended", attempt=None),
    "two intents at once": lambda forger: (
        forger.fact(MINE_READY, "intended").fact(MINE_READY, "intended", attempt=2).commit()
    ),
    "another order id": forge(MINE_READY, "intended", order_id="ORD-2"),
    "no order id": forge(MINE_READY, "intended", order_id=None),
    "another order id for the next attempt": lambda forger: (
        forger.fact(MINE_IN_FLIGHT, "not_sent").fact(MINE_IN_FLIGHT, "intended", attempt=2, order_id="ORD-2").commit()
    ),
    "a wrong digest": forge(MINE_READY, "intended", hash=b"\1" * 32),
    "a gap in the chain": forge(MINE_READY, "intended", seq=9),
    "places that are not the chain's": lambda forger: (
        forger.fact(MINE_READY, "intended", seq=0).fact(12, "intended", seq=3).commit()
    ),
    "a time to come": forge(MINE_READY, "intended", at="2999-01-01T00:00:00.000Z"),
    "a time before the chain's": forge(MINE_READY, "intended", at="2001-01-01T00:00:00.000Z"),
    "no time": forge(MINE_READY, "intended", at="zzz"),
    "a text that no fact names": with_unnamed_text,
    "another text than the fact names": with_text(d_text=["another text"]),
    "a text under another salt": with_text(d_salt=[b"t" * 16]),
    "a text without a salt": with_text(d_salt=[b""]),
    "a text as what a customer sees": with_text(d_text=[None], d_customer_url=["a text"]),
    "a text that is missing": with_text(d_text=None),
    "a text of another fact": with_text(d_seq=[1]),
    "two texts of one fact": with_two_texts,
    "a digest that is no digest": forge(MINE_IN_FLIGHT, "paid", said_sha256=b"x"),
    "a reply that nobody gave": with_reply("", b"{}"),
    "a reply in the place of another": with_reply(PAGE, b"{ }"),
    "a reply that is missing": with_reply(PAGE, b"{}", is_recorded=False),
    "an end that is not": with_lists(s_hash=b"\1" * 32),
    "an end further on": with_lists(s_seq=99),
    "an end without a place": with_lists(s_seq=None),
    "a fact of another process": with_lists(f_process=[999]),
    "more rows than facts": with_lists(f_instruction=[MINE_READY, PAID], f_kind=["intended", "not_sent"]),
    "fewer kinds than facts": with_lists(f_kind=[]),
    "facts that are null": with_lists(f_instruction=None, f_kind=None),
    "a run that it is not at": in_later_run,
    "an old snapshot": in_old_snapshot,
    "a life of another, ended": call("SELECT end_life(%s)", use_other_number),
    "a life of another, shown": call("SELECT show_life(%s)", use_other_number),
    "the run of another": call("SELECT join_run(%s, NULL)", use_other_number),
    "a claim of another": call("SELECT claim_rows(%s, '{12}', '{}', 0)", use_other_number),
    "the share of another": call("SELECT leave_gate(%s)", use_other_number),
    "intents that live a year": call(ENROL, 31536000, NONCE),
    "intents that live for ever": call(ENROL, float("inf"), NONCE),
    "intents that do not live": call(ENROL, 0, NONCE),
    "a chain without a nonce": call(ENROL, 30, b""),
    "the decision lock": call("SELECT take_desk(%s, '{}')", lambda forger: forger.worker),
    "the decision lock, released": call("SELECT leave_desk(%s)", lambda forger: forger.worker),
    "the decision lock, held": call("SELECT hold_desk(%s)", lambda forger: forger.worker),
    "a sign of life in years": call("UPDATE process SET seen_at = 'infinity'"),
    "a process by hand": call("INSERT INTO process DEFAULT VALUES"),
    "a claim by hand": call("UPDATE state SET claimed_by = 1"),
    "a rest for years": call(GATE, lambda forger: forger.worker, 1e9, [], [], []),
    "negative outcomes": call(GATE, lambda forger: forger.worker, 0, ["unknown"], [""], [-9]),
    "outcomes of other lists": call(GATE, lambda forger: forger.worker, 0, ["unknown"], [], [1]),
    "the gate of another": call(GATE, use_other_number, 0, [], [], []),
    "a row that was never sent is interrupted": forge(MINE_READY, "interrupted"),
    "an attempt that was never made is interrupted": forge(MINE_IN_FLIGHT, "interrupted", attempt=2),
    "a host without a secret": call("SELECT answer_roll('', 'ghost', false, '{}')"),
    "a host by the name that all can read": call(
        "SELECT answer_roll((SELECT host_id || 'x' FROM host LIMIT 1), 'ghost', false, '{}')"
    ),
}  # fmt: skip
"""The attempts of a login with only the role of a worker, on its own connection."""


def is_refused(forger: Forger, attempt: Attempt) -> bool:
    """Make an attempt and roll it back; return whether the server refused it."""
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


def test_forging_worker_is_refused_without_double_payment(scenario: Scenario) -> None:
    before, forger = scenario.content(), scenario.forger
    for name, attempt in REFUSED.items():
        assert is_refused(forger, attempt), name
        assert scenario.content() == before, name
    scenario.is_unchanged(before)
    assert scenario.resume_rows() == [4, 5, 6, 8, 9, 10, 12]


def test_lock_of_live_process_cannot_be_taken(scenario: Scenario) -> None:
    with closing(open_postgres(scenario.location)) as opener:
        query_rows, holder = scenario.forger.query_rows, opener.writer.process
        enrolled = "SELECT number FROM paygw.enrol('another host', %s, 1, 'twin', 'run', 30, 1, %s)"
        ((boot,),) = query_rows("SELECT boot FROM paygw.process WHERE number = %s", holder)
        ((twin,),) = query_rows(enrolled, boot, NONCE)
        for dead in ([], [holder], [None], None):
            assert query_rows("SELECT paygw.take_desk(%s, %s)", twin, dead) == [(False,)]
        assert query_rows("SELECT process FROM paygw.desk") == [(holder,)]
        opener.withdraw(Withdrawal("1" * 64, "cleo", "{}", AT))


def test_valid_worker_facts_are_accepted(scenario: Scenario) -> None:
    """Not everything is refused: the lawful counterpart of each forgery succeeds."""
    forger = scenario.forger
    forger.fact(MINE_IN_FLIGHT, "paid", PersonalData("a text", reply_sha256=PAGE))
    forger.commit([(2, b"HTTP/1.1 200 OK", b"{}")])
    forger.fact(MINE_READY, "intended").fact(MINE_READY, "not_sent", attempt=1).commit()
    forger.fact(MINE_IN_FLIGHT, "rejected").commit()
    with closing(read_postgres(scenario.location)) as journal:
        rows = {row.instruction: row for row in journal.rows(2)}
        assert (rows[MINE_READY].state, rows[MINE_IN_FLIGHT].state) == (State.READY, State.PAID)
        assert rows[MINE_IN_FLIGHT].message == "a text"
        assert [reply.reply.body for reply in journal.replies(MINE_IN_FLIGHT)] == [b"{}"]
        assert [(one.kind, one.state) for one in journal.messages(2).contradictions] == [("rejected", "paid")]
        journal.verify()
    assert scenario.resume_rows() == [4, 5, 6, 8, 9, 10, 12]


@pytest.mark.share(2)
@pytest.mark.parametrize("text", ["\\ud83d\ude00", "\\\ud83d", "\ud83d\U0001f600\ude00", "\\u0000\0"])
def test_gateway_text_is_kept_with_any_escapes(scenario: Scenario, text: str) -> None:
    answer = outcome_of(OTHERS, 1, OutcomeKind.PAID, message=text)
    assert [*scenario.forger.other.append([answer])] == [MoveResult.MOVED]
    with closing(read_postgres(scenario.location)) as journal:
        found = [row.message for row in journal.rows(2) if row.instruction == OTHERS]
        assert found == [storable_text(text).replace("\0", "?")]
        journal.verify()


def test_login_cannot_add_unlimited_hosts_to_roll_call(scenario: Scenario) -> None:
    """A host's first commits may be lost, so the roll-call waits for it. A login cannot invent unlimited hosts."""
    forger = scenario.forger
    calls = forger.query_rows("SELECT count(*) FROM paygw.roll_call")
    missing = "SELECT host_id FROM paygw.missing_host WHERE name = 'ghost'"
    for nth in range(70):
        forger.fetch("SELECT call_roll(%s, 'ghost')", f"{nth:032x}")
    assert forger.query_rows("SELECT count(*) FROM paygw.roll_call") != calls
    ghosts = forger.query_rows(missing)
    assert len(ghosts) == 64
    assert forger.query_rows("SELECT stop_kind FROM paygw.gate") == [("told",)], "further ones stop all workers"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="64 other hosts"):
        forger.fetch("SELECT answer_roll(%s, 'ghost', false, '{}')", f"{70:032x}")
    with pytest.raises(psycopg.Error, match="hosts are missing"):
        forger.fact(MINE_READY, "intended").commit()
    for (ghost,) in ghosts:  # a person can retire an invented host
        forger.query_rows("SELECT paygw.retire_host(%s, 'amina')", ghost)
    assert forger.query_rows(missing) == []
    assert scenario.resume_rows() == [4, 5, 6, 8, 9, 10, 12]


def test_roll_call_answer_needs_host_secret(scenario: Scenario) -> None:
    forger = scenario.forger
    ((host,), *_) = forger.fetch("SELECT host_id FROM host")
    forger.owner.execute(b"INSERT INTO paygw.roll_call SELECT number + 1, life, 'a test', false FROM paygw.newest_call")
    missing = forger.query_rows("SELECT host_id FROM paygw.missing_host")
    assert (host,) in missing
    forger.fetch("SELECT answer_roll(%s, 'ghost', true, '{}')", host)
    assert forger.query_rows("SELECT host_id FROM paygw.missing_host") == missing
    for session in ("on", "off"):
        forger.fetch(f"SET paygw.retires = '{session}'")
        with pytest.raises(psycopg.Error, match="hosts are missing"):
            forger.fact(MINE_READY, "intended").commit()


def test_worker_cannot_declare_standby_complete(scenario: Scenario) -> None:
    life = "UPDATE roll_call SET life = split_part(life, ' ', 1) || ' 0000000F ' || split_part(life, ' ', 3)"
    with triggers_off(scenario.location, "roll_call"):
        execute_as_owner(scenario.location, life)
    scenario.forger.fetch("SELECT answer_roll(%s, 'here', true, '{}')", "1" * 32)
    assert scenario.forger.query_rows("SELECT is_waived FROM paygw.newest_call") == [(False,)]


EDITED = [
    "UPDATE state SET state = 'ready' WHERE instruction = 1",
    "UPDATE state SET state = 'ready', fact = intent WHERE instruction = 1",
    """UPDATE state SET state = 'ready', attempt = 0, intent = NULL, first_sent = NULL, fact = NULL
        WHERE instruction = 1""",
    "UPDATE state SET state = 'ready', attempt = 2 WHERE instruction = 1",
    "UPDATE state SET state = 'ready', fact = (SELECT fact FROM state WHERE instruction = 3) WHERE instruction = 1",
    "UPDATE state SET attempt = 1 WHERE instruction = 4",
    """DELETE FROM fact WHERE instruction = 1 AND kind = 'paid';
        UPDATE state SET state = 'ready' WHERE instruction = 1""",
    "DELETE FROM fact WHERE instruction = 1; UPDATE state SET state = 'ready' WHERE instruction = 1",
]
"""A paid row is ready, without its facts or by those of another, or a ready row has an attempt behind it."""


def edit_tables(scenario: Scenario, edit: str) -> DatabaseLocation:
    """Edit the tables as their owner, and return the journal's location for another host."""
    with triggers_off(scenario.location, "state", "fact"):
        execute_as_owner(scenario.location, *edit.split(";"))
    return replace(scenario.location, known_dir=scenario.location.known_dir / "of another host")


@pytest.mark.share(3)
@pytest.mark.parametrize("edit", EDITED)
def test_row_contradicting_its_facts_is_never_sent(scenario: Scenario, edit: str) -> None:
    with closing(open_postgres(edit_tables(scenario, edit))) as opener, pytest.raises(JournalCorrupt):
        opener.due(1, after_row=0, limit=100)


@pytest.mark.parametrize("edit", ["DELETE FROM state", "UPDATE state SET state = 'paid'"])
def test_row_without_state_is_detected_and_unsent(scenario: Scenario, edit: str) -> None:
    with closing(open_postgres(edit_tables(scenario, f"{edit} WHERE instruction = 4"))) as opener:
        assert [due.number for due in opener.due(1, after_row=0, limit=100)] == [5, 6]
        with pytest.raises(JournalCorrupt, match=r"Instruction 4 .* does not match its facts"):
            opener.verify()


REFUSALS = (
    *(("commit_facts", what) for what in ("an answer is of", "what a fact names", "facts are committed in")),
    *(("commit_facts", what) for what in ("a row is no longer", "its chain is not where")),
    *(("check_writer", "a fact is about nothing"), ("check_writer", "the row was not")),
    ("check_chain", "a fact does not follow"),
    *(("ask_gate", "no worker has such figures"), ("host_of", "no host has such a secret")),
)
"""The refusals of functions. Without any one of them, some forgery succeeds."""
TAKEN_AWAY: Sequence[tuple[str, str, str]] = (
    *((name, f"RAISE EXCEPTION '{what}", f"RAISE NOTICE '{what}") for name, what in REFUSALS),
    *((name, "PERFORM require_own(p_process);", "") for name in ("end_life", "show_life", "join_run")),
    *((name, "PERFORM require_own(p_process);", "") for name in ("leave_gate", "ask_gate")),
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
def test_removing_any_guard_allows_forgery(scenario: Scenario, every: int) -> None:
    """Planted bugs of the database: without any one guard, a worker's forgery is not refused."""
    owner, missed = scenario.forger.owner, []
    for planted in TAKEN_AWAY[::every]:
        function, right, wrong = planted
        ((text,),) = scenario.forger.query_rows("SELECT pg_get_functiondef(('paygw.' || %s)::regproc)", function)
        assert right in text, f"{function} has no {right!r} any more: nothing was planted"
        owner.execute(text.replace(right, wrong).encode())
        if not all(is_refused(scenario.forger, attempt) for attempt in REFUSED.values()):
            missed.append(planted)
        owner.execute(text.encode())
    assert missed == list(TAKEN_AWAY[::every])


As = Callable[[str], DatabaseLocation]


def check_refused(location: DatabaseLocation, *statements: str) -> None:
    """Check that the server refuses to a login some statements, and those of an owner."""
    owning = ("DROP TABLE fact", "ALTER TABLE fact DISABLE TRIGGER ALL")
    forged = "CREATE FUNCTION is_alive(integer) RETURNS boolean LANGUAGE sql AS 'SELECT false'"
    for statement in (*owning, forged, *statements):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute_as_owner(location, statement)


def test_desk_role_cannot_forge_records(as_role: As) -> None:
    desk = as_role("desk")
    assert desk.role() == "desk"
    with closing(open_postgres(desk)) as journal:
        open_sheet(journal, new=3)
        kinds = (OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)
        journal.append([intent(due) for due in due_rows(journal, 1)])
        journal.append([outcome_of(number, 1, kind) for number, kind in enumerate(kinds, start=1)])
        journal.settle([resolved(3, 1, Resolution.PAID)])
        assert journal.release(1, None, suffix=True, by="amina", at=AT) == 1
        with closing(journal.gate()) as gate:
            gate.open()
        send(journal, 1, OutcomeKind.PAID)
        assert states(journal) == [State.PAID] * 3
        journal.verify()
    assert desk.change_limits(LimitChange("amina", 5)).rate_per_s == 5
    check_refused(desk)


@pytest.mark.parametrize("role", ["worker", "reader"])
def test_worker_and_reader_cannot_decide(as_role: As, role: str) -> None:
    location, desk = as_role(role), as_role("desk")
    with closing(open_postgres(desk)) as journal:
        open_sheet(journal, new=1)
        send(journal, 1, OutcomeKind.REJECTED)
    assert location.role() == role
    for decide in (open_postgres, lambda location: location.change_limits(LimitChange("w", 5))):
        with pytest.raises(JournalError, match="does not have permission to do this"):
            decide(location)
    with closing(read_postgres(location)) as reader:
        assert reader.verify()["rejected"] == 1
    assert location.limits().stop is None
    check_refused(location)
    if role == "reader":
        jobs = ("INSERT INTO paygw_jobs.procrastinate_workers DEFAULT VALUES", "TRUNCATE paygw_jobs.paygw_result")
        check_refused(location, *jobs)
        assert location.timetable_jobs() == []
        return
    with closing(location.open_to_work("work")) as worker:
        assert not worker.may_decide()


def test_login_without_role_cannot_read(
    as_role: As, database: str, folder: Path, postgres_server: PostgresServer
) -> None:
    as_role("reader")
    assert postgres_location(database, folder).role() == "owner"
    name = database.rpartition("/")[2]
    postgres_server.execute(f"CREATE ROLE {name}_stranger LOGIN")
    stranger = postgres_location(postgres_server.url(name, user=f"{name}_stranger"), folder)
    assert stranger.role() is None
    with pytest.raises(JournalError, match="permission denied"):
        read_postgres(stranger)
