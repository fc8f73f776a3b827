"""The pages of a payout during and after its run: progress, totals, rows, the history of a row, and downloads."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.responses import Response

from paygw_batch.console.pages.orders import open_orders, signed_order_pages
from paygw_batch.console.pages.plan_page import signed_plan_page
from paygw_batch.console.rendering import STATES_SHOWN, day_in_zone, pages_after, state_word, when
from paygw_batch.console.start_run import pause_run, run_shown, start_run, started_run
from paygw_batch.console.visits import (
    FILE_TYPES,
    PageNotFound,
    PageOutdated,
    Visit,
    file_to_take_away,
    made_once,
    payout_at,
    required_ending,
)
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import INVALID, agreed_by, code_of, deed_words, name_in, recorded
from paygw_batch.errors import UsageError
from paygw_batch.files import write_whole
from paygw_batch.journal import BatchRecord, FoundPayment, HistoryEntry, JournalReader, make_directory
from paygw_batch.language import language, mark, mark_all, say, say_count
from paygw_batch.opening.given_sheet import minor_units_of
from paygw_batch.settle.kept_documents import kept_orders
from paygw_batch.settle.row_order import RowOrder
from paygw_batch.settle.settle_rows import SettleChoice, settle_choices
from paygw_batch.show.batch_status import (
    FollowedBatch,
    FollowedRowHistory,
    followed_batch,
    followed_row,
    followed_rows,
)
from paygw_batch.show.next_step import HELD_FOR_OFFICERS, NextStep, RowStep
from paygw_batch.show.remittance import advices_of_batch, paid_out, remittance_page
from paygw_batch.show.report_page import Reader
from paygw_batch.submit.results import write_results

ROWS_A_PAGE = 25
_SIGNED: Mapping[str, str] = {"prepared": mark("Prepared"), "approved": mark("Approved")}
MAX_DEEDS = 50
"""The maximum number of people's actions on a page. The newest actions are shown."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event in the history of a payout or a row, in the words of the pages. `by` is empty if no person did it.

    `reply` is the gateway's raw answer. `order` is the digest of the signed order behind the event, and `page` the
    address of that order. If an order did the same to several rows, `rows` is their number and `row` is None.
    """

    at: str
    what: str
    said: str = ""
    by: str = ""
    row: int | None = None
    attempt: int | None = None
    reply: str = ""
    order: str = ""
    page: str = ""
    rows: int = 1


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A person's next step for a row, in the words of the pages."""

    heading: str
    sentences: Sequence[str]
    is_urgent: bool


@dataclass(frozen=True, slots=True)
class ShownRun:
    """The run of a payout, and the actions on it. A form contains `name`, so that it is about the run on its page."""

    name: str
    is_running: bool
    waits_for: str
    can_pause: bool
    can_continue: bool


def payout(visit: Visit) -> Response:
    with payout_at(visit) as (journal, record):
        followed = _followed(visit, journal, record, is_poll=False)
        live, deeds = _live(visit, journal, followed), _deeds(journal, record)
        plan_page = signed_plan_page(visit, journal, record.batch)
    orders, pages = open_orders(visit, record.batch), signed_order_pages(visit, record.batch)
    history = [replace(deed, page=pages.get(deed.order, "")) for deed in deeds[-MAX_DEEDS:]]
    return visit.page("payout.html", **live, history=history, orders=orders, plan_page=plan_page)


def progress(visit: Visit) -> Response:
    """Show the changing part of a payout. Answers 204 if nothing has changed since the browser's last request."""
    if visit.query("seen") == visit.console.counts.seen(visit.path("batch"), language()):
        return Response(status_code=204)
    with payout_at(visit) as (journal, record):
        followed = _followed(visit, journal, record, is_poll=True)
        seen = _seen(visit, followed)
        visit.console.counts.note_seen(visit.path("batch"), language(), seen)
        if visit.query("seen") == seen:
            return Response(status_code=204)
        live = _live(visit, journal, followed)
    answer = visit.page("payout_live.html", **live)
    answer.headers["x-seen"] = live["seen"]
    return answer


def row(visit: Visit) -> Response:
    record, story, choices = row_at(visit)
    number = story.followed.standing.row
    return visit.page(
        "row.html",
        record=record,
        followed=story.followed,
        advice=None if story.step is None else _shown_step(story.step),
        happened=sorted(_happened(visit, story), key=lambda event: event.at),
        orders=[order for order in open_orders(visit, record.batch) if number in order.rows],
        can_settle=bool(choices),
    )


def row_at(visit: Visit) -> tuple[BatchRecord, FollowedRowHistory, Sequence[SettleChoice]]:
    """Return the payout and the row in an address, and the outcomes with which the row may be settled.

    Raises `PageNotFound` if there is no such row.
    """
    settings = visit.console.settings
    with payout_at(visit) as (journal, record):
        try:
            story = followed_row(settings, journal, record, int(visit.path("row")))
        except UsageError as error:
            raise PageNotFound(error.message) from None
        if story.followed.state == State.IN_FLIGHT:
            return record, story, []
        return record, story, settle_choices(settings, journal, record, story.followed.standing)


def _followed(visit: Visit, journal: JournalReader, record: BatchRecord, *, is_poll: bool) -> FollowedBatch:
    count = partial(visit.console.counts.tallies, journal, record, is_poll=is_poll)
    return followed_batch(visit.console.settings, journal, record, count)


def _seen(visit: Visit, followed: FollowedBatch) -> str:
    """Return a value that changes whenever the page of a payout changes."""
    text = repr((sorted(followed.counts.items()), sorted(followed.sums.items()), _run(visit, followed)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _live(visit: Visit, journal: JournalReader, followed: FollowedBatch) -> Mapping[str, Any]:
    """Return the values for the part of a payout's page that changes during a run."""
    wanted, after = visit.query("state"), visit.query_number("after")
    try:
        rows = followed_rows(
            visit.console.settings, journal, followed.record, state=wanted, after=after, limit=ROWS_A_PAGE + 1
        )
    except UsageError as error:
        raise PageNotFound(error.message) from None
    counts, run = followed.counts, _run(visit, followed)
    return {
        "followed": followed,
        "run": run,
        "is_finished": not (counts.get("ready") or counts.get(State.IN_FLIGHT) or run.waits_for),
        "pace": _pace(visit, followed),
        "bar": list(_bar(followed)),
        "summed_states": [
            name for name in STATES_SHOWN if name in {"paid", "ready"} or any(name in s for s in followed.sums.values())
        ],
        "wanted": wanted,
        "after": after,
        "rows": rows[:ROWS_A_PAGE],
        "pages": pages_after(
            after, rows[ROWS_A_PAGE - 1].standing.row if len(rows) > ROWS_A_PAGE else 0, "rows", state=wanted
        ),
        "seen": _seen(visit, followed),
    }


def _run(visit: Visit, followed: FollowedBatch) -> ShownRun:
    """Return whether a payout is running or waiting, and whether it can be paused or continued."""
    run = started_run(visit.console.runs, followed.record.batch)
    is_alive, is_left = run is not None and run.is_alive, bool(followed.counts.get("ready"))
    holder = None if followed.running is None else followed.running.pid
    is_running = followed.is_sending or (run is not None and is_alive and is_left and holder == run.pid)
    waits = ""
    if is_alive and is_left and not is_running:
        waits = (
            say("The run is starting.")
            if followed.running is None
            else say("Another payout is running. This one continues when it finishes.")
        )
    elif is_alive and not is_running:
        # Every row has an answer, but a run that is to retry some rows may not have released them yet.
        waits = say("The run is starting, or writing its files.")
    return ShownRun(
        name=run_shown(run),
        is_running=is_running,
        waits_for=waits,
        can_pause=is_alive and is_left,
        can_continue=is_left and not is_alive and not is_running,
    )


def pause(visit: Visit) -> Response:
    """Pause the run that the page showed. Raises `PageOutdated` if another run was started since."""
    batch, shown = _known_batch(visit), visit.form.get("run", "")
    run = pause_run(visit.console.runs, batch, shown)
    if run_shown(run) != shown:
        raise PageOutdated(say("{name} continued this payout since this page was opened.", name=run.by))
    return visit.go_to(f"/payouts/{batch}")


def continue_payout(visit: Visit) -> Response:
    """Start a run for the unsent rows of a payout. Raises `PageOutdated` if the page did not show the last run."""
    batch, console = _known_batch(visit), visit.console
    runs = console.runs
    with made_once(f"continue {batch}"):
        run = started_run(runs, batch)
        if run_shown(run) != visit.form.get("run"):
            if run is None:
                raise PageOutdated
            if run.by != visit.member.name:
                raise PageOutdated(say("{name} continued this payout since this page was opened.", name=run.by))
            return visit.go_to(f"/payouts/{batch}")
        with payout_at(visit) as (journal, record):
            counts = followed_batch(console.settings, journal, record).counts
        if not counts.get("ready"):
            raise PageOutdated(say("Every row of this payout was sent since this page was opened."))
        make_directory(console.directory)
        command = [*console.program, "--json", "resume", batch, "--wait", "--force"]
        command += ["--out", str(runs / f"{batch}.reconciliation.csv")]
        start_run(runs, batch, command, by=visit.member.name, environ=visit.environ)
    return visit.go_to(f"/payouts/{batch}")


def _known_batch(visit: Visit) -> str:
    with payout_at(visit) as (_journal, record):
        return record.batch


def _pace(visit: Visit, followed: FollowedBatch) -> str:
    """Return a sentence about the rate of a run and the remaining time; empty if nothing is being sent."""
    rate = visit.console.counts.rate(followed.record.batch, followed.answered)
    if rate <= 0 or not followed.is_sending:
        return ""
    left_s = (followed.payable - followed.answered) / rate
    if left_s < _MINUTE_S:
        left = say_count(max(1, round(left_s)), "{count:,} second", "{count:,} seconds")
    elif left_s < _HOUR_S:
        left = say_count(round(left_s / 60), "{count:,} minute", "{count:,} minutes")
    else:
        left = say_count(round(left_s / 3600), "{count:,} hour", "{count:,} hours")
    shown = f"{rate:.0f}" if rate >= _FAST else f"{rate:.1f}"
    return say("About {rate} rows a second; about {left} left.", rate=shown, left=left)


_MINUTE_S, _HOUR_S = 90, 5400
"""The seconds from which a time is shown in minutes, and in hours."""
_FAST = 10


def _bar(followed: FollowedBatch) -> Iterator[tuple[str, float, float]]:
    """Yield state, start and width of each part of the bar, in thousandths. Every part is wide enough to be seen."""
    start = 0.0
    for name in STATES_SHOWN:
        count = followed.counts.get(name, 0)
        if count and name != INVALID:
            width = max(count * 1000 / max(followed.payable, 1), 2.0)
            yield name, round(start, 2), round(width, 2)
            start += width


def _deeds(journal: JournalReader, record: BatchRecord) -> Sequence[Happened]:
    """Return the actions of people on a payout, the oldest first. An order that does one thing to many rows is one."""
    reasons = dict[tuple[str, int | None], str]()
    for order in kept_orders(journal, record.batch):
        digest, rows = order.digest(), order.content.rows if isinstance(order, RowOrder) else []
        reasons |= {(digest, row.row): row.said for row in rows}
    alike: dict[Any, list[Happened]] = {}
    for number, entry in enumerate(journal.history(record.number)):
        deed = _deed(entry, reasons.get((entry.order, entry.row)))
        alike.setdefault((entry.order, deed.what, deed.said) if entry.order else number, []).append(deed)
    return [
        first if not others else replace(first, row=None, rows=1 + len(others)) for first, *others in alike.values()
    ]


def _deed(entry: HistoryEntry, reason: str | None = None) -> Happened:
    """Return an action of a person in the words of the pages, without the login, plan and batch of the entry."""
    deed, at, by = deed_words(entry.kind), entry.at, name_in(entry.by)
    words = reason or recorded(entry.said, is_for_officers=True)
    if (agreed := agreed_by(entry.by)) is not None:
        asked, approved = agreed
        words = say(
            "asked for by {asked}, approved by {approved}: {words}", asked=asked, approved=approved, words=words
        )
    match code_of(entry.said):
        case "prepared" | "approved" as code, [name, signed_at, *_]:
            deed, at, by, words = say(_SIGNED[code]), signed_at, name, ""
        case _:
            pass
    return Happened(at, deed, words, by, entry.row, entry.attempt, order=entry.order)


def _deed_told(entry: HistoryEntry) -> tuple[str, str, str, str]:
    deed = _deed(entry)
    return when(deed.at), deed.what, deed.by, deed.said


def _happened(visit: Visit, story: FollowedRowHistory) -> Iterator[Happened]:
    standing = story.followed.standing
    if standing.first_sent_at and standing.first_sent_at != standing.intended_at:
        yield Happened(standing.first_sent_at, say("First sent"))
    if standing.intended_at:
        order = say("order {order}", order=standing.sent_orderid or "")
        yield Happened(standing.intended_at, say("Sent"), order, attempt=standing.attempt)
    for reply in story.replies:
        # An auditor sees only the last digits of accounts, but a raw reply can repeat a whole account number.
        text = "" if visit.member.is_masked else f"{reply.reply.head}\n\n{reply.reply.body.decode(errors='replace')}"
        yield Happened(reply.at, say("The gateway answered"), attempt=reply.attempt, reply=text)
    yield from map(_deed, story.history)
    if standing.updated_at and not any(entry.at == standing.updated_at for entry in story.history):
        word = recorded(standing.message or "", is_for_officers=True) or standing.gateway_status or ""
        yield Happened(standing.updated_at, state_word(story.followed.state), word, attempt=standing.attempt)


_STEPS: Mapping[RowStep, tuple[str, ...]] = {
    RowStep.RESOLVE_HELD: (
        mark("Do not pay this another way"),
        HELD_FOR_OFFICERS,
        mark("Ask the gateway what happened to order {order}."),
    ),
    RowStep.RESOLVE_DOUBT: mark_all(
        "Do not pay this another way",
        "A request was sent, but no clear answer came back. The row may have been paid.",
        "Ask the gateway what happened to order {order}.",
    ),
    RowStep.RESOLVE_ACCEPTED: mark_all("The gateway hasn't given a final answer yet", "Ask about order {order}."),
    RowStep.WAIT_FOR_RUN: mark_all("On its way", "A run is sending it now, or has just ended."),
    RowStep.RETRY_AFTER_PERSON: mark_all(
        "Make sure before you try again",
        "Only a person's word says that it was rejected. It may have been paid anyway.",
    ),
    RowStep.RETRY: mark_all(
        "Nothing was paid",
        "The gateway's answer is final. If the row can succeed now, try it again; if not, correct the sheet.",
    ),
    RowStep.SEND: mark_all("Not sent yet", "The next run sends it."),
    RowStep.PAY_ANEW: mark_all(
        "The money came back", "Find out why, and pay it under another order id in a new sheet."
    ),
}
"""The heading and the sentences of each step for a row."""


def _shown_step(step: NextStep) -> ShownStep:
    """Return the next step for a row in the words of the pages."""
    row, marked = step.row, step.row.possible_duplicate_of
    heading, *sentences = (say(text, order=row.sent_orderid or row.client_orderid) for text in _STEPS[step.step])
    is_urgent = step.step not in {RowStep.WAIT_FOR_RUN, RowStep.SEND}
    if step.step is RowStep.SEND and marked is not None:
        sentences.append(
            say("The row may repeat attempt {attempt}. First make sure that it was not paid.", attempt=marked)
        )
        is_urgent = True
    return ShownStep(heading, sentences, is_urgent)


def download_reconciliation(visit: Visit) -> Response:
    ending = required_ending(visit.path("ending"), *FILE_TYPES)

    minor_units, quarantine_h = minor_units_of(visit.console.rules), visit.console.settings.submission.quarantine_h
    reader = Reader(when, _deed_told, is_operator=False)

    def write(path: Path) -> str:
        out, report = (None, path) if ending == "html" else (path, None)
        with payout_at(visit) as (journal, record):
            write_results(
                journal, record, minor_units, out=out, report=report, quarantine_h=quarantine_h, reader=reader
            )
        return f"{Path(record.sheet_name).stem}.reconciliation.{ending}"

    return file_to_take_away(visit, ending, write)


def row_advice(visit: Visit) -> Response:
    """Return the remittance advice for one row. Raises `PageNotFound` unless the row is a paid payout."""
    with payout_at(visit) as (journal, record):
        paid = paid_out(list(journal.payments(record.number, [int(visit.path("row"))]).values()))
    if not paid or not paid[0].fields:  # without fields the person was forgotten
        raise PageNotFound(say("This row is not paid, or the person was forgotten."))
    return remittance_advice([paid])


def remittance_advice(people: Sequence[Sequence[FoundPayment]]) -> Response:
    """Return the page of remittance advices for these people as a download."""
    headers = {"content-disposition": 'attachment; filename="remittance-advice.html"'}
    page = remittance_page(people, day_in_zone)
    return Response(page, media_type=FILE_TYPES["html"], headers=headers)


def download_advices(visit: Visit) -> Response:
    """Return the remittance advices of a payout as a download, with a page for each person."""

    def write(path: Path) -> str:
        with payout_at(visit) as (journal, record):
            write_whole(path, advices_of_batch(journal, record, day_in_zone).encode())
        return f"{Path(record.sheet_name).stem}.advices.html"

    return file_to_take_away(visit, "html", write)
