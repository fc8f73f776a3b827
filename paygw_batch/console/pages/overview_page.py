"""The overview page, which lists tasks and payouts, and the search for payments."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

from starlette.responses import Response

from paygw_batch.clock import utc_now
from paygw_batch.console.pages.agreement import ListedAgreement, Stage, build_list_entry, read_progress
from paygw_batch.console.pages.orders import open_orders
from paygw_batch.console.pages.payout_page import remittance_response
from paygw_batch.console.pages.plan_page import PlanAgreement
from paygw_batch.console.payout_folder import UploadedSheet, payout_folders, uploads_by_batch
from paygw_batch.console.permissions import Action
from paygw_batch.console.rendering import SHOWN_STATES, local_date, page_links
from paygw_batch.console.visits import Visit
from paygw_batch.core.shown_states import display_state
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.show.batch_status import (
    ListedBatch,
    exclude_replaced,
    listed_batch,
    parse_payment_search,
    sum_batch_tallies,
    sums_by_currency,
    sums_by_state,
)
from paygw_batch.show.remittance import build_payee, paid_payouts

_MIN_SEARCH_LENGTH = 2
SHOWN_PAYMENTS = 100
"""Maximum number of payments on a page. If more match, the person must type more of the name."""


def search_payees(visit: Visit) -> Response:
    search_text = visit.query("text").strip()
    payments = _search_payments(visit, search_text)
    shown = payments[:SHOWN_PAYMENTS]
    return visit.page(
        "payee.html",
        search_text=search_text,
        is_asked=len(search_text) >= _MIN_SEARCH_LENGTH,
        has_more=len(payments) > SHOWN_PAYMENTS,
        payments=[(build_payee(row.form, row.fields), display_state(row.state), row) for row in shown],
        # There is an advice only if all matches are payments to the same paid person.
        has_advice=bool(_payouts_to_single_payee(payments)),
    )


def download_payee_advice(visit: Visit) -> Response:
    """Return the remittance advice for the payee found. Raises `UsageError` unless exactly one paid payee matches."""
    search_text = visit.query("text").strip()
    payments = _payouts_to_single_payee(_search_payments(visit, search_text))
    if not payments:
        raise UsageError(
            say("The search must match exactly one paid person."),
            hint=say("Enter an account or phone number, or an order id."),
        )
    return remittance_response(visit, [payments])


def _search_payments(visit: Visit, search_text: str) -> Sequence[FoundPayment]:
    if len(search_text) < _MIN_SEARCH_LENGTH:
        return []
    search = parse_payment_search(search_text, [rule.numbers for rule in visit.console.rules.values()])
    with journal_for_planning(visit.console.settings) as journal:
        return journal.find_payments(search, limit=SHOWN_PAYMENTS + 1)


def _payouts_to_single_payee(payments: Sequence[FoundPayment]) -> Sequence[FoundPayment]:
    """Return the paid payouts if all `payments` are to the same person, otherwise none."""
    people = {build_payee(payment.form, payment.fields).person for payment in payments}
    return paid_payouts(payments) if len(people) == 1 else []


PAYOUTS_PER_PAGE = 50
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Task:
    """A task for the visitor. `people` and `sums` are the number of people and the amounts concerned."""

    path: str
    name: str
    sentences: Sequence[str]
    at: str
    people: int
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ListedPayout:
    """A payout in the list. `by` is its maker, or empty if it was not prepared in the console."""

    record: BatchRecord
    name: str
    by: str
    counts: Mapping[str, int]
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Search:
    """A search for payouts by words in their name or their maker's name, by date, and by state."""

    words: str
    since: str
    until: str
    state: str

    @classmethod
    def from_query(cls, visit: Visit) -> "Search":
        dates = [visit.query(name) for name in ("since", "until")]
        since, until = (date if _DATE.fullmatch(date) else "" for date in dates)
        state = visit.query("state")
        return cls(visit.query("words").strip(), since, until, state if state in SHOWN_STATES else "")

    @property
    def has_criteria(self) -> bool:
        return any((self.words, self.since, self.until, self.state))

    def matches(self, record: BatchRecord, uploaded: UploadedSheet | None) -> bool:
        """Return whether a payout matches the words and dates. Ignores the state."""
        texts = [record.sheet_name, *([] if uploaded is None else [uploaded.display_name, uploaded.by])]
        has_words = all(any(word in text.casefold() for text in texts) for word in self.words.casefold().split())
        date = local_date(record.opened_at)
        return has_words and (not self.since or date >= self.since) and (not self.until or date <= self.until)


def show_overview(visit: Visit) -> Response:
    with journal_for_planning(visit.console.settings) as journal:
        records = list(journal.batches())
        before = visit.query_number("before") or len(records) + 1
        uploads, search, now = uploads_by_batch(visit.console.directory), Search.from_query(visit), utc_now()
        earlier_records = (record for record in reversed(records) if record.number < before)
        matches = (record for record in earlier_records if search.matches(record, uploads.get(record.batch)))
        found = (listed_batch(journal, record, now) for record in matches)
        in_state = (batch for batch in found if not search.state or search.state in _state_counts(batch))
        batches = list(islice(in_state, PAYOUTS_PER_PAGE))
        notes = journal.notes if hasattr(journal, "notes") else ()
        prepared = list(_payouts_in_preparation(visit, journal, {record.batch for record in records}))
    orders = open_orders(visit)
    payouts = [_build_listed_payout(batch, uploads.get(batch.record.batch)) for batch in batches]
    tasks = [
        Task(entry.path, entry.name, [entry.visitor_request], entry.at, entry.people, entry.sums)
        for entry in (*prepared, *orders)
        if entry.visitor_request
    ]
    totals = sums_by_state(sum_batch_tallies(batches))
    newer_before = min(before + PAYOUTS_PER_PAGE, len(records) + 1) if before <= len(records) else None
    has_older = len(batches) == PAYOUTS_PER_PAGE and batches[-1].record.number > records[0].number
    older_before = batches[-1].record.number if has_older else None
    return visit.page(
        "overview.html",
        attention_items=[*tasks, *_payout_tasks(visit, payouts)],
        prepared=prepared,
        orders=orders,
        payouts=payouts,
        search=search,
        pages=page_links(
            "before", {say("Newer payouts"): newer_before, say("Older payouts"): older_before}, **asdict(search)
        ),
        totals=totals,
        states=[name for name in SHOWN_STATES if any(name in sums for sums in totals.values())],
        notes=notes,
    )


def _build_listed_payout(batch: ListedBatch, uploaded: UploadedSheet | None) -> ListedPayout:
    name, by = (batch.record.sheet_name, "") if uploaded is None else (uploaded.display_name, uploaded.by)
    return ListedPayout(batch.record, name, by, _state_counts(batch), sums_by_currency(exclude_replaced(batch.tallies)))


def _payouts_in_preparation(visit: Visit, journal: JournalReader, opened: Collection[str]) -> Iterator[ListedAgreement]:
    folders = (folder for folder in payout_folders(visit.console.directory) if folder.batch_and_upload[0] not in opened)
    for folder in islice(folders, PAYOUTS_PER_PAGE):
        agreement, uploaded = PlanAgreement(visit, folder), folder.uploaded
        progress = read_progress(journal, agreement)
        if progress.stage is not Stage.DONE:  # Otherwise it has just been opened.
            entry = build_list_entry(agreement, progress, uploaded.display_name, uploaded.at)
            content = None if agreement.document is None else agreement.document.content
            yield entry if content is None else replace(entry, people=content.rows, sums=content.totals)


def _state_counts(batch: ListedBatch) -> Mapping[str, int]:
    return {name: batch.states[name] for name in SHOWN_STATES if batch.states.get(name)}


def _payout_tasks(visit: Visit, payouts: Sequence[ListedPayout]) -> Iterator[Task]:
    if not visit.may(Action.SETTLE):
        return
    for payout in payouts:
        sentences = list(_task_sentences(payout.counts))
        if sentences:
            record = payout.record
            yield Task(f"/payouts/{record.batch}", payout.name, sentences, record.opened_at, record.rows, payout.sums)


def _task_sentences(counts: Mapping[str, int]) -> Iterator[str]:
    if count := counts.get("in_doubt"):
        yield say_count(
            count,
            "{count:,} in doubt: ask the gateway what happened to it.",
            "{count:,} in doubt: ask the gateway what happened to them.",
        )
    if count := counts.get("rejected"):
        yield say_count(count, "{count:,} rejected: decide whether to retry.")
    if count := counts.get("returned"):
        yield say_count(count, "{count:,} returned: find out why the money came back.")
