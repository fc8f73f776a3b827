"""Keeps plans that wait for approvals, version by version; nothing is ever changed or removed."""

import psycopg
from psycopg import Connection

from paygw_batch.journal.kept_plan import KeptPlan
from paygw_batch.journal.postgres.session import Row, fetch

_NEWEST = """SELECT plan, version, code, content FROM plan_document WHERE code = %s
    ORDER BY plan DESC, version DESC LIMIT 1"""


def newest_plan(connection: Connection[Row], code: str) -> KeptPlan | None:
    """Return the newest plan with this code, as it is now; None where there is none."""
    found = fetch(connection, _NEWEST, (code,))
    return KeptPlan(*found[0]) if found else None


def keep_plan(connection: Connection[Row], code: str, content: str, before: KeptPlan | None) -> bool:
    """Keep a new plan, or the next version of the one `before`; False where somebody was faster."""
    plan, version = "(SELECT coalesce(max(plan), 0) + 1 FROM plan_document)", 1
    if before is not None:
        plan, version = str(before.number), before.version + 1
    query = f"INSERT INTO plan_document (plan, version, code, content) VALUES ({plan}, %s, %s, %s)"  # noqa: S608 - ours
    try:
        fetch(connection, query, (version, code, content))
    except psycopg.errors.UniqueViolation:
        return False
    return True
