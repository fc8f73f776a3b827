"""People, keys, health and the audit trail: to read only. The configuration file alone changes them."""

from contextlib import suppress

from starlette.responses import Response

from paygw_batch.compose.actions.audit import newest_entries
from paygw_batch.compose.actions.follow_payout import running_now
from paygw_batch.compose.approvals import required_policy
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.console.visits import Visit
from paygw_batch.errors import PaygwError
from paygw_batch.journal import AuditEntry
from paygw_batch.language import mark_all

ENTRIES_A_PAGE = 50
ACTS_NOTED = mark_all(
    "sign in",
    "sign out",
    "use passkey",
    "choose person",
    "choose language",
    "make a passkey",
    "take invitation",
    "upload",
    "upload again",
    "choose reading",
    "state totals",
    "download template",
    "download marked",
    "mend",
    "mend kind",
    "leave out",
    "repeats meant",
    "remove sheet",
    "sign",
    "approve payout",
    "send back",
    "start",
    "pause",
    "continue payout",
    "settle row",
    "choose rejected",
    "download questions",
    "upload statement",
    "use statement",
    "remove statement",
    "sign order",
    "agree to order",
    "send order back",
    "take order back",
    "carry order out",
    "download reconciliation",
    "remittance advice",
)
"""The words of the audit trail, which is English, for the catalogue."""
RESULTS_NOTED = mark_all("done", "refused")


def people_and_health(visit: Visit) -> Response:
    """Show who may do which act, with the fingerprints of their keys, and how the program is."""
    console, settings = visit.console, visit.console.settings
    people = {person.name: person for person in required_policy(settings).people.listed}
    before = visit.query_number("before") or None
    entries: list[AuditEntry] = []
    trouble = ""
    try:
        entries = list(newest_entries(settings, before=before, limit=ENTRIES_A_PAGE))
    except PaygwError as error:
        trouble = error.message
    head = None
    with suppress(PaygwError), journal_to_plan_with(settings) as journal:
        head = journal.head()
    return visit.page(
        "people.html",
        members=[
            (one, sorted(key.fingerprint for key in people[one.name].keys) if one.name in people else [])
            for one in console.members
        ],
        needed=settings.approval.needed,
        expires_h=settings.approval.expires_h,
        endpoint=settings.endpoint(),
        head=head,
        running=running_now(settings),
        entries=entries,
        older=entries[-1].number if len(entries) == ENTRIES_A_PAGE else None,
        trouble=trouble,
    )
