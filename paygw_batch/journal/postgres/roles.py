"""Gives rights to the roles of a journal, and says which of them a session has.

A role is a group without a login, named after the database: NAME_worker sends, NAME_desk also opens, releases, settles
and sets limits, NAME_reader looks. Logins are members of them. The owner of the tables needs none.
"""

from collections.abc import Mapping
from enum import StrEnum

from psycopg import Connection, sql

from paygw_batch.journal.port import JOBS_SCHEMA
from paygw_batch.journal.postgres.session import SCHEMA, Row, fetch


class JournalRole(StrEnum):
    """The rights that a session has in the database of a journal."""

    OWNER = "owner"
    DESK = "desk"
    WORKER = "worker"
    READER = "reader"


_TAKEN_BACK = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL TABLES IN SCHEMA {jobs} FROM {role}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {jobs} FROM {role}",
)
"""Rights are given again each time: a role keeps none that it had by an earlier version."""
_EVERYBODY = (
    "GRANT USAGE ON SCHEMA {schema}, {jobs} TO {role}",
    "GRANT SELECT ON ALL TABLES IN SCHEMA {schema}, {jobs} TO {role}",
)
_WORKERS = (
    *_EVERYBODY,
    "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {jobs} TO {role}",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {jobs} TO {role}",
    "GRANT UPDATE (stop_reason, ended_at) ON run TO {role}",
    "GRANT EXECUTE ON FUNCTION enrol, show_life, end_life, join_run, claim_rows, ask_gate, leave_gate TO {role}",
    "GRANT EXECUTE ON FUNCTION commit_facts TO {role}",
    "GRANT EXECUTE ON FUNCTION database_life, answer_roll, call_roll, lives TO {role}",
)
_RIGHTS: Mapping[JournalRole, tuple[str, ...]] = {
    JournalRole.READER: (*_EVERYBODY, "GRANT EXECUTE ON FUNCTION is_alive, is_left, is_free, may_decide TO {role}"),
    JournalRole.WORKER: (
        *_WORKERS,
        "GRANT EXECUTE ON FUNCTION is_alive, is_left, is_free, may_decide TO {role}",
        "REVOKE SELECT ON audit FROM {role}",
    ),
    JournalRole.DESK: (
        *_WORKERS,
        "GRANT INSERT ON batch, page, instruction, known, order_id, payee_words TO {role}",
        "GRANT INSERT (instruction, batch, country, currency, minor) ON state TO {role}",
        "GRANT INSERT ON run TO {role}",
        "GRANT UPDATE (is_urgent) ON run TO {role}",
        "GRANT INSERT ON plan_document, audit TO {role}",
        "GRANT INSERT, UPDATE (content, tries, tried_at, next_at, sent_at, problem) ON notice TO {role}",
        "GRANT UPDATE (instruction) ON order_id TO {role}",
        "GRANT EXECUTE ON FUNCTION is_alive, is_left, is_free, may_decide TO {role}",
        "GRANT EXECUTE ON FUNCTION open_gate, set_limits, retire_host TO {role}",
        "GRANT EXECUTE ON FUNCTION take_desk, leave_desk, hold_desk, lock_rows, accept_loss, left_is_older TO {role}",
        "GRANT EXECUTE ON FUNCTION begin_forgetting, forget_people, forget_said TO {role}",
        "GRANT EXECUTE ON FUNCTION forget_texts, forget_heard, forget_sheet, forget_plans TO {role}",
    ),
}


def give_rights(connection: Connection[Row]) -> list[str]:
    """Make the roles where they are missing, and give each its rights; return their names."""
    names = []
    with connection.transaction():
        fetch(connection, "SELECT pg_advisory_xact_lock(7021)")  # as `make_tables` does
        for role, rights in _RIGHTS.items():
            name = _name(connection, role)
            if not fetch(connection, "SELECT FROM pg_roles WHERE rolname = %s", (name,)):
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name)))
            for right in (*_TAKEN_BACK, *rights):
                names_of = {"schema": SCHEMA, "jobs": JOBS_SCHEMA, "role": name}
                given = sql.SQL(right).format(**{key: sql.Identifier(one) for key, one in names_of.items()})
                connection.execute(given)
            names.append(name)
    return names


def has_rights(connection: Connection[Row]) -> bool:
    """Whether roles have rights on this journal."""
    query = "SELECT has_schema_privilege(oid, %s, 'USAGE') FROM pg_roles WHERE rolname = %s"
    return fetch(connection, query, (SCHEMA, _name(connection, JournalRole.DESK))) == [(True,)]


def role_of(connection: Connection[Row]) -> JournalRole | None:
    """Return the rights of this session; None if it has none of them."""
    query = """SELECT pg_has_role(current_user, nspowner, 'MEMBER') FROM pg_namespace WHERE nspname = %s"""
    if fetch(connection, query, (SCHEMA,)) == [(True,)]:
        return JournalRole.OWNER
    query = "SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = %s"
    for role in (JournalRole.DESK, JournalRole.WORKER, JournalRole.READER):
        if fetch(connection, query, (_name(connection, role),)) == [(True,)]:
            return role
    return None


def _name(connection: Connection[Row], role: JournalRole) -> str:
    ((database,),) = fetch(connection, "SELECT current_database()")
    return f"{database}_{role.value}"
