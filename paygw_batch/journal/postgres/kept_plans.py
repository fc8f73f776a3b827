"""Keeps every version of the plans that wait for approvals; nothing is ever changed or removed."""

import psycopg
from psycopg import Connection

from paygw_batch.journal.postgres.session import Row, fetch
from paygw_batch.journal.values import KeptPlan

_NEWEST = """SELECT plan, version, code, content FROM plan_document WHERE code = %s
    ORDER BY plan DESC, version DESC LIMIT 1"""

_OF_PAYMENTS = """SELECT * FROM (
        SELECT DISTINCT ON (plan) plan, version, code, content FROM plan_document WHERE payments = %s
        ORDER BY plan DESC, version DESC
    ) p ORDER BY plan DESC"""


def newest_plan(connection: Connection[Row], code: str) -> KeptPlan | None:
    """Return the latest version of the newest plan with this code, or None."""
    found = fetch(connection, _NEWEST, (code,))
    return KeptPlan(*found[0]) if found else None


def plans_of_payments(connection: Connection[Row], payments: str) -> list[KeptPlan]:
    """Return the plans of these payments in their latest versions, newest first."""
    return [KeptPlan(*columns) for columns in fetch(connection, _OF_PAYMENTS, (payments,))]


def keep_plan(
    connection: Connection[Row], code: str, content: str, before: KeptPlan | None, *, payments: str = ""
) -> bool:
    """Keep a new plan, or the version after `before`; False if somebody else was faster."""
    plan, version = "(SELECT coalesce(max(plan), 0) + 1 FROM plan_document)", 1
    if before is not None:
        plan, version = str(before.number), before.version + 1
    query = f"INSERT INTO plan_document (plan, version, code, payments, content) VALUES ({plan}, %s, %s, %s, %s)"  # noqa: S608 - ours
    try:
        with connection.transaction():
            fetch(connection, query, (version, code, payments, content))
    except psycopg.errors.UniqueViolation:
        return False
    return True
