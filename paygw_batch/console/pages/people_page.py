"""People, keys, health and the audit trail: to read only. The configuration file alone changes them."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.actions.follow_payout import running_now
from paygw_batch.console.members import Member
from paygw_batch.console.rendering import Page, PageLink, page_links
from paygw_batch.console.visits import Visit
from paygw_batch.errors import PaygwError
from paygw_batch.journal import AuditEntry, LockHolder
from paygw_batch.language import mark_all, say
from paygw_batch.wiring.journal import journal_for_planning, newest_entries

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
    "download sample",
    "download marked",
    "download people",
    "mend",
    "mend kind",
    "leave out",
    "repeats meant",
    "remove sheet",
    "sign",
    "sign again",
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
    "sign order again",
    "agree to order",
    "send order back",
    "take order back",
    "carry order out",
    "download reconciliation",
    "remittance advice",
)
"""The words of the audit trail, which is English, for the catalogue."""
RESULTS_NOTED = mark_all("done", "refused")


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """The journal as the page shows it. `ahead_s` is its clock beside the gateway's; None: not known."""

    journal_id: str
    facts: int
    newest_time: str | None
    ahead_s: float | None


@dataclass(frozen=True, slots=True)
class PeopleAndHealthPage(Page):
    """People, keys, the health of the program, and its audit trail."""

    template: ClassVar[str] = "people.html"

    members: Sequence[tuple[Member, Sequence[str]]]
    """Each person with the fingerprints of the keys."""
    needed: int
    expires_h: float
    endpoint: str
    journal: JournalHealth | None
    """None if there is no journal that can be read."""
    running: LockHolder | None
    entries: Sequence[AuditEntry]
    pages: Sequence[PageLink]
    trouble: str
    """Why the audit trail cannot be read."""


def people_and_health(visit: Visit) -> Response:
    """Show who may do which act, with the fingerprints of their keys, and how the program is."""
    console, settings = visit.console, visit.console.settings
    keys: dict[Member, list[str]] = defaultdict(list)
    for key, owner in console.access.keys.items():
        keys[owner].append(key.fingerprint)
    before = visit.query_number("before") or None
    entries: list[AuditEntry] = []
    trouble = ""
    try:
        entries = list(newest_entries(settings, before=before, limit=ENTRIES_A_PAGE))
    except PaygwError as error:
        trouble = error.message
    health = None
    with suppress(PaygwError), journal_for_planning(settings) as journal:
        head = journal.head()
        health = JournalHealth(
            head.journal_id, head.seq, head.newest_time, None if head.clock is None else head.clock.ahead_s
        )
    return visit.page(
        PeopleAndHealthPage(
            members=[(one, sorted(keys[one])) for one in console.members],
            needed=settings.approval.needed,
            expires_h=settings.approval.expires_h,
            endpoint=settings.endpoint(),
            journal=health,
            running=running_now(settings),
            entries=entries,
            pages=page_links(
                "before",
                {say("Older entries"): entries[-1].number if len(entries) == ENTRIES_A_PAGE else None},
            ),
            trouble=trouble,
        )
    )
