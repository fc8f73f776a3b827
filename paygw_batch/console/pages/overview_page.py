"""The overview, with the payouts that need this person and then all payouts, and the search for payments."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

from starlette.responses import Response

from paygw_batch.clock import utc_now
from paygw_batch.console.pages.agreement import ListedAgreement, Stage, listed, progress_of
from paygw_batch.console.pages.orders import open_orders
from paygw_batch.console.pages.payout_page import remittance_advice
from paygw_batch.console.pages.plan_page import PlanAgreement
from paygw_batch.console.payout_folder import UploadedSheet, all_folders, uploads_by_batch
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import STATES_SHOWN, day_of, page_links
from paygw_batch.console.visits import Visit
from paygw_batch.core.shown_states import shown_state
from paygw_batch.errors import UsageError
from paygw_batch.journal import BatchRecord, FoundPayment, JournalReader
from paygw_batch.language import say, say_count
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.show.batch_status import (
    ListedBatch,
    listed_batch,
    payment_search,
    sums_by_currency,
    tallies_once,
    to_be_paid,
    totals_of,
)
from paygw_batch.show.remittance import paid_out, payee_of

_SHORTEST = 2
SHOWN_PAYMENTS = 100
"""The maximum number of payments on a page. With more matches, a person must type more of the name."""


def find_payee(visit: Visit) -> Response:
    typed = visit.query("text").strip()
    payments = _payments(visit, typed)
    return visit.page(
        "payee.html",
        typed=typed,
        is_asked=len(typed) >= _SHORTEST,
        has_more=len(payments) > SHOWN_PAYMENTS,
        found=[(payee_of(row.form, row.fields), shown_state(row.state), row) for row in payments[:SHOWN_PAYMENTS]],
        # A remittance advice can be made only if exactly one person was found, and was paid.
        has_advice=bool(_paid_to_one(payments)),
    )


def payee_advice(visit: Visit) -> Response:
    """Return the remittance advice for the only person that a text matches. Raises `UsageError` for several people."""
    typed = visit.query("text").strip()
    paid = _paid_to_one(_payments(visit, typed))
    if not paid:
        raise UsageError(
            say("The text matches no one who was paid, or several people."),
            hint=say("Write the number or the order id."),
        )
    return remittance_advice([paid])


def _payments(visit: Visit, typed: str) -> Sequence[FoundPayment]:
    if len(typed) < _SHORTEST:
        return []
    search = payment_search(typed, [rule.numbers for rule in visit.console.rules.values()])
    with journal_for_planning(visit.console.settings) as journal:
        return journal.find_payments(search, limit=SHOWN_PAYMENTS + 1)


def _paid_to_one(payments: Sequence[FoundPayment]) -> Sequence[FoundPayment]:
    """Return the paid payouts to the only person found; empty if several people were found."""
    people = {payee_of(payment.form, payment.fields).person for payment in payments}
    return paid_out(payments) if len(people) == 1 else []


PAYOUTS_A_PAGE = 50
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class NeededAct:
    """A task for the person at the page: an address, the reasons, since when, and how much for how many people."""

    path: str
    name: str
    sentences: Sequence[str]
    at: str
    people: int
    sums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ListedPayout:
    """A payout in the list. `by` prepared it on these pages; empty if it was prepared elsewhere."""

    record: BatchRecord
    name: str
    by: str
    counts: Mapping[str, int]
    sums: Mapping[str, str]
    """The sums of its rows, by currency."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for payouts, by words of the name or of the person who prepared it, by days, and by a state."""

    words: str
    since: str
    until: str
    state: str

    @classmethod
    def of(cls, visit: Visit) -> "Search":
        """Return the search in the query of a request."""
        days = [visit.query(name) for name in ("since", "until")]
        since, until = (day if _DAY.fullmatch(day) else "" for day in days)
        state = visit.query("state")
        return cls(visit.query("words").strip(), since, until, state if state in STATES_SHOWN else "")

    @property
    def is_any(self) -> bool:
        """Whether there are any search criteria."""
        return any((self.words, self.since, self.until, self.state))

    def has_record(self, record: BatchRecord, uploaded: UploadedSheet | None) -> bool:
        """Return whether a payout matches the words and the days. The state needs a count, and is checked later."""
        texts = [record.sheet_name, *([] if uploaded is None else [uploaded.called, uploaded.by])]
        has_words = all(any(word in text.casefold() for text in texts) for word in self.words.casefold().split())
        day = day_of(record.opened_at)
        return has_words and (not self.since or day >= self.since) and (not self.until or day <= self.until)


def overview(visit: Visit) -> Response:
    with journal_for_planning(visit.console.settings) as journal:
        records = list(journal.batches())
        before = visit.query_number("before") or len(records) + 1
        uploads, search, now = uploads_by_batch(visit.console.directory), Search.of(visit), utc_now()
        batches = []
        for record in reversed(records):
            if record.number >= before or not search.has_record(record, uploads.get(record.batch)):
                continue
            batch = listed_batch(journal, record, now)
            if not search.state or _counts(batch).get(search.state):
                batches.append(batch)
            if len(batches) == PAYOUTS_A_PAGE:
                break
        shown = [batch.record for batch in reversed(batches)]
        notes = journal.notes if hasattr(journal, "notes") else ()
        prepared = list(_prepared(visit, journal, {record.batch for record in records}))
    orders = open_orders(visit)
    lines = [_line(batch, uploads.get(batch.record.batch)) for batch in batches]
    waiting = [
        NeededAct(line.path, line.name, [line.needs], line.at, line.people, line.sums)
        for line in (*prepared, *orders)
        if line.needs
    ]
    totals = totals_of(tallies_once(batches))
    return visit.page(
        "overview.html",
        needing=[*waiting, *_needing(visit, lines)],
        prepared=prepared,
        orders=orders,
        payouts=lines,
        search=search,
        pages=page_links(
            "before",
            {
                say("Newer payouts"): min(before + PAYOUTS_A_PAGE, len(records) + 1)
                if before <= len(records)
                else None,
                say("Older payouts"): shown[0].number
                if len(shown) == PAYOUTS_A_PAGE and shown[0].number > records[0].number
                else None,
            },
            **asdict(search),
        ),
        totals=totals,
        states=[name for name in STATES_SHOWN if any(name in sums for sums in totals.values())],
        notes=notes,
    )


def _line(batch: ListedBatch, uploaded: UploadedSheet | None) -> ListedPayout:
    name, by = (batch.record.sheet_name, "") if uploaded is None else (uploaded.called, uploaded.by)
    return ListedPayout(batch.record, name, by, _counts(batch), sums_by_currency(to_be_paid(batch.tallies)))


def _prepared(visit: Visit, journal: JournalReader, opened: Collection[str]) -> Iterator[ListedAgreement]:
    """Yield the payouts in preparation that are not in the journal yet, the newest first."""
    folders = (folder for folder in all_folders(visit.console.directory) if folder.named_by_batch[0] not in opened)
    for folder in islice(folders, PAYOUTS_A_PAGE):
        agreement, uploaded = PlanAgreement(visit, folder), folder.uploaded
        progress = progress_of(journal, agreement)
        if progress.stage is not Stage.DONE:  # a payout that is done has been opened meanwhile
            line = listed(agreement, progress, uploaded.called, uploaded.at)
            content = None if agreement.document is None else agreement.document.content
            yield line if content is None else replace(line, people=content.rows, sums=content.totals)


def _counts(batch: ListedBatch) -> Mapping[str, int]:
    """Return the number of rows in each state, in the order in which the pages show states."""
    return {name: batch.states[name] for name in STATES_SHOWN if batch.states.get(name)}


def _needing(visit: Visit, lines: Sequence[ListedPayout]) -> Iterator[NeededAct]:
    if not visit.may(Act.SETTLE):
        return
    for line in lines:
        sentences = list(_sentences(line.counts))
        if sentences:
            record = line.record
            yield NeededAct(f"/payouts/{record.batch}", line.name, sentences, record.opened_at, record.rows, line.sums)


def _sentences(counts: Mapping[str, int]) -> Iterator[str]:
    if count := counts.get("in_doubt"):
        yield say_count(
            count,
            "{count:,} in doubt: ask the gateway what happened to it.",
            "{count:,} in doubt: ask the gateway what happened to them.",
        )
    if count := counts.get("rejected"):
        yield say_count(count, "{count:,} rejected: decide whether to try again.")
    if count := counts.get("returned"):
        yield say_count(count, "{count:,} returned: find out why the money came back.")
