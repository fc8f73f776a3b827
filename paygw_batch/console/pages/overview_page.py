"""The overview: first the payouts that need this person, then all of them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from starlette.responses import Response

from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.batch_status import ListedBatch, listed_batch
from paygw_batch.compose.actions.follow_payout import BEING_SENT, running_now
from paygw_batch.compose.actions.payout_folder import all_folders
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.console.pages.approval_page import stage_of
from paygw_batch.console.pages.document_signing import has_approved
from paygw_batch.console.pages.settling.open_orders import OpenOrder, open_orders
from paygw_batch.console.permissions import Act
from paygw_batch.console.state_words import STATES_SHOWN
from paygw_batch.console.visits import Visit
from paygw_batch.core.lifecycle import State
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.journal import BatchRecord
from paygw_batch.language import mark, say, say_count
from paygw_batch.report.batch_states import counted_once, totals_of

PAYOUTS_A_PAGE = 50
_NEXT: Mapping[str, str] = {
    "mending": mark("Check the sheet"),
    "to_sign": mark("Check what will be paid"),
    "to_approve": mark("A second person approves"),
    "approved": mark("Start the payout"),
    "failed": mark("Start the payout again"),
    "starting": mark("Starting"),
}


@dataclass(frozen=True, slots=True)
class NeededAct:
    """Something that waits for the person who looks: where it is, and why."""

    path: str
    name: str
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True)
class PreparedPayout:
    """A payout in preparation: where it is, who uploaded it, and the next step. `stage` is as `stage_of` has it."""

    path: str
    name: str
    by: str
    at: str
    stage: str
    next: str
    sent_back: str
    has_approved: bool


@dataclass(frozen=True, slots=True)
class _Line:
    """A payout in the list."""

    record: BatchRecord
    counts: Mapping[str, int]


def overview(visit: Visit) -> Response:
    """Show the payouts that need this person, and the newest ones."""
    is_running = running_now(visit.console.settings) is not None
    with journal_to_plan_with(visit.console.settings) as journal:
        records = list(journal.batches())
        before = visit.query_number("before") or len(records) + 1
        shown = [record for record in records if record.number < before][-PAYOUTS_A_PAGE:]
        now = utc_now()
        listed = [listed_batch(journal, record, now) for record in reversed(shown)]
        notes = journal.notes if hasattr(journal, "notes") else ()
    prepared = list(_prepared(visit, {record.batch for record in records}))
    orders = open_orders(visit)
    lines = [_Line(one.record, _counts(one, is_running=is_running)) for one in listed]
    totals = _totals(listed)
    return visit.page(
        "overview.html",
        needing=[*_needing_preparation(visit, prepared), *_needing_orders(orders), *_needing(visit, lines)],
        prepared=prepared,
        orders=orders,
        payouts=lines,
        older=shown[0].number if shown and shown[0].number > records[0].number else None,
        newer=min(before + PAYOUTS_A_PAGE, len(records) + 1) if before <= len(records) else None,
        totals=totals,
        states=[name for name in STATES_SHOWN if any(name in sums for sums in totals.values())],
        notes=notes,
    )


def _prepared(visit: Visit, opened: Collection[str]) -> Iterator[PreparedPayout]:
    """Yield the payouts in preparation that the journal does not have yet, the newest first."""
    folders = (one for one in all_folders(visit.console.directory) if (one.checked or {}).get("batch") not in opened)
    for found in islice(folders, PAYOUTS_A_PAGE):
        uploaded, stage = found.uploaded, stage_of(visit, found)
        page = "" if stage == "mending" else "/plan"
        yield PreparedPayout(
            f"/sheets/{found.number}{page}",
            uploaded.name,
            uploaded.by,
            uploaded.at,
            stage,
            say(_NEXT[stage]),
            uploaded.sent_back,
            found.plan is not None and has_approved(visit, found.plan),
        )


def _needing_preparation(visit: Visit, prepared: Sequence[PreparedPayout]) -> Iterator[NeededAct]:
    """Yield the payouts in preparation that wait for this very person."""
    for one in prepared:
        is_own = visit.may(Act.MEND, one.by)
        if one.stage == "to_approve" and visit.may(Act.APPROVE, one.by) and not one.has_approved:
            yield NeededAct(one.path, one.name, [say("{by} asks for your approval.", by=one.by)])
        elif one.sent_back and is_own and one.stage in {"mending", "to_sign"}:
            yield NeededAct(one.path, one.name, [say("Sent back by {who}", who=one.sent_back)])
        elif one.stage in {"approved", "failed"} and visit.may(Act.START):
            yield NeededAct(one.path, one.name, [say("Approved: it can be started.")])


def _needing_orders(orders: Sequence[OpenOrder]) -> Iterator[NeededAct]:
    """Yield the orders about rows that wait for this very person."""
    for one in orders:
        if one.needs:
            yield NeededAct(one.path, one.name, [one.needs])


def _counts(one: ListedBatch, *, is_running: bool) -> Mapping[str, int]:
    """Return how many rows are in each state, in the order of the pages."""
    counts = Counter(one.states)
    if is_running:
        sending = sum(tally.count for tally in one.tallies if tally.state is State.IN_FLIGHT)
        counts["in_doubt"] -= sending
        counts[BEING_SENT] += sending
    return {name: counts[name] for name in STATES_SHOWN if counts[name]}


def _totals(listed: Sequence[ListedBatch]) -> Mapping[str, Mapping[str, str]]:
    """Return the sums of all payouts that are shown: a row that two of them cover counts once."""
    once = counted_once((tally for one in listed for tally in one.tallies), (t for one in listed for t in one.known))
    return totals_of(once, minor_units_by_currency())


def _needing(visit: Visit, lines: Sequence[_Line]) -> Iterator[NeededAct]:
    if not visit.may(Act.SETTLE):
        return
    for line in lines:
        sentences = list(_sentences(line.counts))
        if sentences:
            yield NeededAct(f"/payouts/{line.record.batch}", line.record.sheet_name, sentences)


def _sentences(counts: Mapping[str, int]) -> Iterator[str]:
    if count := counts.get("in_doubt"):
        yield say_count(count, "{count:,} in doubt: ask the gateway what became of them.")
    if count := counts.get("rejected"):
        yield say_count(count, "{count:,} rejected: decide whether to try again.")
    if count := counts.get("returned"):
        yield say_count(count, "{count:,} came back: find out why.")
