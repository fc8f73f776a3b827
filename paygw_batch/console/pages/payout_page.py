"""One payout while it runs and after it: progress, totals, rows by page; and one row with its story."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from starlette.responses import Response

from paygw_batch.compose.actions.follow_payout import (
    BEING_SENT,
    FollowedBatch,
    FollowedRowHistory,
    followed_batch,
    followed_row,
    followed_rows,
)
from paygw_batch.compose.actions.settle_rows import settle_choices
from paygw_batch.compose.actions.start_run import pause_run, start_run, started_run
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.console.pages.preparing import RUNS
from paygw_batch.console.pages.settling.open_orders import open_orders
from paygw_batch.console.rendering import masked
from paygw_batch.console.state_words import STATES_SHOWN
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.core.recorded_words import recorded
from paygw_batch.core.shown_states import INVALID
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, HistoryEntry, JournalReader, make_directory
from paygw_batch.language import mark, say
from paygw_batch.report.next_step import NextStep, RowStep

ROWS_A_PAGE = 25
_DEEDS: Mapping[str, str] = {
    "opened": mark("Started"),
    "approved": mark("Prepared or approved"),
    "resolved_paid": mark("Settled as paid"),
    "resolved_rejected": mark("Settled as rejected"),
    "resolved_not_received": mark("Settled as never received"),
    "released": mark("To be tried again"),
    "returned": mark("Came back"),
    "replaced": mark("Replaced by another payout"),
}
MOST_DEEDS = 50
"""How many acts of people a page shows: the newest."""


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An act of a person, in the words of the pages."""

    what: str
    at: str
    by: str
    said: str
    row: int | None


@dataclass(frozen=True, slots=True)
class _Happened:
    at: str
    what: str
    attempt: int | None
    said: str
    reply: str = ""


@dataclass(frozen=True, slots=True)
class _Advice:
    heading: str
    sentences: Sequence[str]
    is_urgent: bool = True


def payout(visit: Visit) -> Response:
    """Show a payout."""
    with journal_to_plan_with(visit.console.settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        followed = _followed(visit, journal, record, is_poll=False)
        shown = _shown(visit, journal, followed)
        history = [_deed(entry) for entry in journal.history(record.number)[-MOST_DEEDS:]]
    files = [
        ("csv", "CSV"),
        *([("xlsx", say("Workbook"))] if find_spec("xlsxwriter") else []),
        ("html", say("Page to print")),
    ]
    orders = open_orders(visit, record.batch)
    return visit.page("payout.html", history=history, files=files, orders=orders, **shown)


def progress(visit: Visit) -> Response:
    """Show the part of a payout that moves; nothing (204) while it has not moved since the browser's last look."""
    with journal_to_plan_with(visit.console.settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        followed = _followed(visit, journal, record, is_poll=True)
        if visit.query("seen") == _seen(visit, followed):
            return Response(status_code=204)
        shown = _shown(visit, journal, followed)
    answer = visit.page("payout_live.html", **shown)
    answer.headers["x-seen"] = shown["seen"]
    return answer


def row(visit: Visit) -> Response:
    """Show one row of a payout."""
    with journal_to_plan_with(visit.console.settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        try:
            story = followed_row(visit.console.settings, journal, record, int(visit.path("row")))
        except UsageError as error:
            raise PageNotFound(error.message) from None
        standing, is_sent = story.followed.standing, story.followed.state != BEING_SENT
        choices = settle_choices(visit.console.settings, journal, record, standing) if is_sent else []
    return visit.page(
        "row.html",
        record=record,
        followed=story.followed,
        standing=standing,
        advice=None if story.step is None else _advice(story.step),
        happened=sorted(_happened(visit, story), key=lambda one: one.at),
        account=account_filter(visit),
        orders=[one for one in open_orders(visit, record.batch) if standing.row in one.rows],
        can_settle=bool(choices),
    )


def payout_record(journal: JournalReader, batch: str) -> BatchRecord:
    """Return the batch of an address. Raises `PageNotFound` where there is none."""
    found = next((record for record in journal.batches() if record.batch == batch), None)
    if found is None:
        raise PageNotFound(say("There is no such payout."))
    return found


def account_filter(visit: Visit) -> Any:
    """Return how an account is shown to this person: whole, or its last digits."""
    return masked if visit.member.is_masked else str


def _followed(visit: Visit, journal: JournalReader, record: BatchRecord, *, is_poll: bool) -> FollowedBatch:
    tallies = visit.console.counts.tallies(journal, record, is_poll=is_poll)
    return followed_batch(visit.console.settings, journal, record, tallies)


def _seen(visit: Visit, followed: FollowedBatch) -> str:
    """Return a text that is the same while nothing that the page shows has changed."""
    text = repr((sorted(followed.counts.items()), sorted(followed.sums.items()), _run(visit, followed)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(visit: Visit, journal: JournalReader, followed: FollowedBatch) -> dict[str, Any]:
    wanted, after = visit.query("state"), visit.query_number("after")
    try:
        rows = followed_rows(
            visit.console.settings, journal, followed.record, state=wanted, after=after, limit=ROWS_A_PAGE + 1
        )
    except UsageError as error:
        raise PageNotFound(error.message) from None
    counts = followed.counts
    return {
        "followed": followed,
        **_run(visit, followed),
        "is_finished": not counts.get("ready") and not counts.get(BEING_SENT),
        "bar": list(_bar(followed)),
        "shown_states": STATES_SHOWN,
        "summed_states": [
            name for name in STATES_SHOWN if name in {"paid", "ready"} or any(name in s for s in followed.sums.values())
        ],
        "filter_states": [name for name in STATES_SHOWN if name != INVALID],
        "wanted": wanted,
        "after": after,
        "rows": rows[:ROWS_A_PAGE],
        "next_after": rows[ROWS_A_PAGE - 1].standing.row if len(rows) > ROWS_A_PAGE else 0,
        "seen": _seen(visit, followed),
        "account": account_filter(visit),
    }


def _run(visit: Visit, followed: FollowedBatch) -> dict[str, Any]:
    """Return whether a payout is running or waits, and whether it can be paused or continued."""
    run = started_run(visit.console.directory / RUNS, followed.record.batch)
    is_alive, is_left = run is not None and run.is_alive, bool(followed.counts.get("ready"))
    holder = None if followed.running is None else followed.running.pid
    is_running = followed.is_sending or (run is not None and is_alive and is_left and holder == run.pid)
    waits = ""
    if is_alive and is_left and not is_running:
        waits = (
            say("The run is starting.")
            if followed.running is None
            else say("Another payout is running. This one goes on after it.")
        )
    return {
        "is_running": is_running,
        "waits_for": waits,
        "can_pause": is_alive and is_left,
        "can_continue": is_left and not is_alive and not is_running,
    }


def pause(visit: Visit) -> Response:
    """Have the run of a payout send nothing new."""
    batch = _known_batch(visit)
    pause_run(visit.console.directory / RUNS, batch)
    return visit.go_to(f"/payouts/{batch}")


def continue_payout(visit: Visit) -> Response:
    """Send the rows of a payout that are not sent yet, in another process."""
    batch, console = _known_batch(visit), visit.console
    make_directory(console.directory)
    out = console.directory / RUNS / f"{batch}.reconciliation.csv"
    command = [*console.program, "--json", "resume", batch, "--wait", "--force", "--out", str(out)]
    start_run(console.directory / RUNS, batch, command, by=visit.member.name, environ=visit.environ)
    return visit.go_to(f"/payouts/{batch}")


def _known_batch(visit: Visit) -> str:
    with journal_to_plan_with(visit.console.settings) as journal:
        return payout_record(journal, visit.path("batch")).batch


def _bar(followed: FollowedBatch) -> Iterator[tuple[str, float, float]]:
    """Yield state, start and width of each part of the bar, in thousandths. No part is too thin to be seen."""
    start = 0.0
    for name in STATES_SHOWN:
        count = followed.counts.get(name, 0)
        if count and name != INVALID:
            width = max(count * 1000 / max(followed.payable, 1), 2.0)
            yield name, round(start, 2), round(width, 2)
            start += width


def _deed(entry: HistoryEntry) -> ShownEntry:
    return ShownEntry(say(_DEEDS.get(entry.kind, entry.kind)), entry.at, entry.by, recorded(entry.said), entry.row)


def _happened(visit: Visit, story: FollowedRowHistory) -> Iterator[_Happened]:
    standing = story.followed.standing
    if standing.first_sent_at and standing.first_sent_at != standing.intended_at:
        yield _Happened(standing.first_sent_at, say("First sent"), None, "")
    if standing.intended_at:
        yield _Happened(
            standing.intended_at, say("Sent"), standing.attempt, say("order {order}", order=standing.sent_orderid or "")
        )
    for reply in story.replies:
        # An auditor sees accounts by their last digits, and a raw reply can repeat one.
        text = "" if visit.member.is_masked else f"{reply.reply.head}\n\n{reply.reply.body.decode(errors='replace')}"
        yield _Happened(reply.at, say("The gateway answered"), reply.attempt, "", text)
    for entry in story.history:
        yield _Happened(
            entry.at,
            say(_DEEDS.get(entry.kind, entry.kind)),
            entry.attempt,
            f"{entry.by}: {recorded(entry.said)}" if entry.by else recorded(entry.said),
        )
    if standing.updated_at and not any(entry.at == standing.updated_at for entry in story.history):
        word = recorded(standing.message or "") or standing.gateway_status or ""
        yield _Happened(standing.updated_at, say(_OUTCOMES.get(story.followed.state, _CHANGED)), standing.attempt, word)


_CHANGED = mark("Changed")
_OUTCOMES: Mapping[str, str] = {
    "paid": mark("Paid"),
    "accepted": mark("Taken by the gateway"),
    "rejected": mark("Rejected"),
    "returned": mark("Came back"),
    "in_doubt": mark("No clear answer"),
    "ready": mark("Not sent"),
    BEING_SENT: mark("On its way"),
}


def _advice(step: NextStep) -> _Advice:
    """Return the next step about a row in the words of the pages."""
    row = step.row
    order = row.sent_orderid or row.client_orderid
    match step.step:
        case RowStep.RESOLVE_HELD:
            return _Advice(
                say("Do not pay this another way"),
                [
                    say("A message of the gateway speaks against sending this row, and no run sends it."),
                    say("Ask the gateway what became of order {order}.", order=order),
                ],
            )
        case RowStep.RESOLVE_DOUBT:
            return _Advice(
                say("Do not pay this another way"),
                [
                    say("A request left, and no clear answer came back: it may have been paid."),
                    say("Ask the gateway what became of order {order}.", order=order),
                ],
            )
        case RowStep.RESOLVE_ACCEPTED:
            return _Advice(
                say("The gateway has not said its final word"), [say("Ask after order {order}.", order=order)]
            )
        case RowStep.WAIT_FOR_RUN:
            return _Advice(say("On its way"), [say("A run is sending it now, or has just ended.")], is_urgent=False)
        case RowStep.RETRY_AFTER_PERSON:
            return _Advice(
                say("Make sure before you try again"),
                [say("A person's word alone says that it was rejected: it may have been paid all the same.")],
            )
        case RowStep.RETRY:
            return _Advice(
                say("Nothing was paid"),
                [say("The gateway's answer is final. If it can succeed now, try it again; if not, correct the sheet.")],
            )
        case RowStep.SEND:
            marked = row.possible_duplicate_of
            again = [] if marked is None else [say("It may repeat attempt {attempt}: be sure.", attempt=marked)]
            return _Advice(say("Not sent yet"), [say("The next run sends it."), *again], is_urgent=bool(again))
        case RowStep.PAY_ANEW:
            return _Advice(
                say("The money came back"), [say("Find out why, and pay it under another order id in a new sheet.")]
            )
