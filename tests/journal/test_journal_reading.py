"""Queries about the rows of a batch return only matching rows, up to the limit, once each, in every store."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Finding, Proof, SignedOrder
from paygw_batch.core.lifecycle import Concluded, FactKind, Intended, Resolution, Resolved, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.journal import states
from paygw_batch.journal.values import (
    AttemptReply,
    BatchRecord,
    Entry,
    Hold,
    KnownRow,
    RowState,
    StateTally,
    StoredReply,
    TallyKind,
    reply_sha256,
)
from tests.support.journal_rows import (
    AT,
    arrival,
    at,
    due_rows,
    file_location,
    intent,
    memory_journal,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    resolved,
    row_of,
    send,
)
from tests.support.tested_journal import Journal

WORDS = {"approved": OutcomeKind.PAID}


def send_outcomes(journal: Journal, *kinds: tuple[OutcomeKind, int], **words: object) -> None:
    """Open a batch, and send a row for each (outcome, minute)."""
    open_sheet(journal, new=len(kinds))
    for due, (kind, minute) in zip(due_rows(journal, 1), kinds, strict=True):
        journal.append([intent(due, at(minute)), outcome_of(due.number, 1, kind, at(minute), **words)])


def row_numbers(found: Sequence[RowState]) -> list[int]:
    return [one.row for one in found]


ACCEPTED_LATER = [
    *((OutcomeKind.ACCEPTED, 1), (OutcomeKind.ACCEPTED, 5), (OutcomeKind.PAID, 6)),
    *((OutcomeKind.PAID, 7), (OutcomeKind.PAID, 8), (OutcomeKind.ACCEPTED, 9)),
]


def test_accepted_rows_are_filtered_by_sending_time(journal: Journal) -> None:
    send_outcomes(journal, *ACCEPTED_LATER)
    wanted = {State.ACCEPTED, State.IN_DOUBT}
    for until, found in ((at(0), []), (at(1), [2]), (at(4), [2]), (at(5), [2, 3]), (at(9), [2, 3, 7])):
        assert row_numbers(list(journal.rows(1, states=wanted, accepted_until=until))) == found
        named = journal.rows(1, states=wanted, numbers=[2, 3, 5, 7], accepted_until=until)
        assert row_numbers(list(named)) == found
        (paid,) = (tally for tally in journal.tallies(1, accepted_until=until) if tally.state is State.PAID)
        assert paid.count == 3
        accepted = [tally for tally in journal.tallies(1, accepted_until=until) if tally.state is State.ACCEPTED]
        assert [(one.count, one.minor) for one in accepted] == ([(len(found), 150050 * len(found))] if found else [])
    rows = journal.rows(1, states={State.ACCEPTED, State.PAID}, numbers=[7, 4], accepted_until=at(1))
    assert row_numbers(list(rows)) == [4]


@pytest.mark.share(4)
@pytest.mark.parametrize("common", [1, 20_000])
def test_rows_respect_limit_without_repeats(journal: Journal, monkeypatch: pytest.MonkeyPatch, common: int) -> None:
    monkeypatch.setattr(states, "_SCAN_FROM_ROWS", common)
    send_outcomes(journal, *ACCEPTED_LATER)
    assert row_numbers(list(journal.rows(1, limit=2))) == [2, 3]
    assert row_numbers(list(journal.rows(1, after=3, limit=2))) == [4, 5]
    assert row_numbers(list(journal.rows(1, after=5))) == [6, 7]
    paid = {State.PAID}
    assert row_numbers(list(journal.rows(1, states=paid, limit=2))) == [4, 5]
    assert row_numbers(list(journal.rows(1, states=paid, after=4, limit=2))) == [5, 6]
    assert row_numbers(list(journal.rows(1, states={State.ACCEPTED, *paid}, after=2, limit=2))) == [3, 4]
    assert row_numbers(list(journal.rows(1, numbers=[7, 4, 4, 2, 99], limit=2))) == [2, 4]
    assert row_numbers(list(journal.rows(1, states=paid, numbers=[7, 6, 4], after=4))) == [6]
    assert row_numbers(list(journal.rows(1, states={State.READY}, limit=2))) == []


def test_known_rows_are_tallied_separately(journal: Journal) -> None:
    send_outcomes(journal, (OutcomeKind.PAID, 1), (OutcomeKind.UNKNOWN, 2))
    known = [KnownRow(2, 1, State.PAID), KnownRow(3, 2, State.IN_DOUBT)]
    open_sheet(journal, "b2", [new_instruction(4, "NEW", amount="10.00")], known=known, opened_at=at(3))
    tallies = [StateTally("KE", "KES", state, 1, 150050) for state in (State.IN_DOUBT, State.PAID)]
    assert list(journal.tallies(2, kind=TallyKind.KNOWN)) == tallies
    assert list(journal.tallies(1, kind=TallyKind.KNOWN)) == []
    assert list(journal.tallies(2)) == [*tallies, StateTally("KE", "KES", State.READY, 1, 1000)]


def test_held_row_shows_latest_evidence(journal: Journal) -> None:
    open_sheet(journal, new=2)
    for number in (1, 2):
        claim = Claim("ORD-3", "1500.50", "KES", "approved", proof=Proof.PROVEN)
        one = Evidence(EvidenceSource.ENQUIRY, claim, "{}", number)
        assert list(journal.record_evidence([one], WORDS, at=at(number))) == [Finding.CONTRADICTING]
    (latest,) = (hold.number for hold in journal.holds(1).values())
    assert dict(journal.holds(1)) == {3: Hold(latest, EvidenceSource.ENQUIRY, "paid", at(2))}
    assert latest == journal.head().seq - 1, "how far was judged comes last"
    assert [(tally.count, tally.minor) for tally in journal.tallies(1, kind=TallyKind.DUE)] == [(1, 150050)]
    assert [due.row for due in due_rows(journal, 1)] == [2]


def test_journal_returns_signed_orders_of_batch_in_order(journal: Journal) -> None:
    open_sheet(journal, new=1)
    open_sheet(journal, "b2", [new_instruction(2, "OTHER")])
    for batch, text in (("b1", "one"), ("b2", "two"), ("b1", "three")):
        journal.settle([], order=SignedOrder(batch, text, at(1)))
    assert list(journal.signed_orders("b1")) == ["one", "three"]
    assert list(journal.signed_orders("b2")) == ["two"]
    assert list(journal.signed_orders()) == []


def test_journal_returns_payment_page_of_latest_attempt(journal: Journal) -> None:
    send_outcomes(journal, (OutcomeKind.REJECTED, 1), (OutcomeKind.ACCEPTED, 2), customer_url="https://pay.example/1")
    assert dict(journal.customer_urls(1)) == {2: "https://pay.example/1", 3: "https://pay.example/1"}
    journal.release(1, None, suffix=True, by="amina", at=at(3))
    (due,) = due_rows(journal, 1)
    journal.append([intent(due, at(4))])
    assert dict(journal.customer_urls(1)) == {3: "https://pay.example/1"}
    later = outcome_of(due.number, 2, OutcomeKind.ACCEPTED, at(5), customer_url="https://pay.example/2")
    journal.append([later])
    assert dict(journal.customer_urls(1)) == {2: "https://pay.example/2", 3: "https://pay.example/1"}
    assert journal.customer_urls(7) == {}


def test_raw_replies_are_stored_by_attempt(journal: Journal) -> None:
    open_sheet(journal, new=2)
    first, _ = due_rows(journal, 1)
    replies = [StoredReply("HTTP/1.1 200 OK", b"{}"), StoredReply("HTTP/1.1 500 Error", b"<html>")]
    for attempt, reply in enumerate(replies, start=1):
        (due, *_) = due_rows(journal, 1)
        assert due.number == first.number
        kind = OutcomeKind.REJECTED if attempt == 1 else OutcomeKind.UNKNOWN
        digest = reply_sha256(reply.head, reply.body)
        outcome = outcome_of(due.number, attempt, kind, at(attempt), reply_sha256=digest)
        journal.append([intent(due, at(attempt)), replace(outcome, reply=reply)])
        if attempt == 1:
            journal.release(1, [2], suffix=True, by="amina", at=at(1))
    assert list(journal.replies(first.number)) == [AttemptReply(n, at(n), replies[n - 1]) for n in (1, 2)]
    assert list(journal.replies(2)) == []
    assert journal.verify()["in_doubt"] == 1


def test_processing_notifications_stops_at_row_in_flight(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        send_outcomes(journal, *[(OutcomeKind.ACCEPTED, 1)] * 3)
        open_sheet(journal, "b2", [new_instruction(2, "FLYING")], opened_at=at(2))
        (flying,) = due_rows(journal, 2)
        journal.append([intent(flying, at(3))])
        with file_location(place).open_note_recorder() as keep:
            keep([arrival(order_id) for order_id in ("ORD-2", "ORD-3", "FLYING", "ORD-4")])
        assert journal.process_arrivals(WORDS, at=at(4), at_most=1) == {Finding.MOVED: 2}
        assert journal.process_arrivals(WORDS, at=at(4)) == {}
        assert [row.state for row in journal.rows(1)] == [State.PAID, State.PAID, State.ACCEPTED]
        assert row_of(journal, 1, 2).updated_at == at(4)
        journal.append([outcome_of(flying.number, 1, OutcomeKind.UNKNOWN, at(5))])
        assert journal.process_arrivals(WORDS, at=at(6)) == {Finding.MOVED: 2}
        assert {row.state for batch in (1, 2) for row in journal.rows(batch)} == {State.PAID}
        assert journal.verify()["notifications_waiting"] == 0


def test_unknown_batch_has_no_content() -> None:
    journal = memory_journal()
    assert (list(journal.rows(1)), list(journal.tallies(1)), list(journal.pages(1))) == ([], [], [])
    assert list(journal.rows(1, states={State.PAID})) == []


# The history of people's acts.
def open_first_batch(journal: Journal) -> BatchRecord:
    return open_sheet(journal, by="ada", approvals=("prepared by ada", "approved by ben"))


def conclude_row(journal: Journal, batch: BatchRecord, row: int, kind: OutcomeKind, minute: int) -> int:
    row_state = row_of(journal, batch.number, row)
    number = row_state.instruction
    order_id = next(due.order_id for due in journal.due(batch.number, after_row=row - 1, limit=1))
    attempt = row_state.attempt + 1
    journal.append([Entry(number, attempt, Intended(order_id, "n" * 32, 1, None), at(minute))])
    journal.append([Entry(number, attempt, Concluded(Outcome(kind)), at(minute))])
    return number


def test_history_lists_actions_in_order(journal: Journal) -> None:
    batch = open_first_batch(journal)
    doubtful = conclude_row(journal, batch, 2, OutcomeKind.UNKNOWN, 1)
    conclude_row(journal, batch, 3, OutcomeKind.REJECTED, 2)
    conclude_row(journal, batch, 4, OutcomeKind.PAID, 3)
    journal.append([Entry(doubtful, 1, Resolved(Resolution.PAID, "ticket 1", "cleo"), at(4))])
    journal.release(batch.number, [3], suffix=True, by="dan", at=at(5))
    histories = [
        (entry.at, entry.kind, entry.row, entry.attempt, entry.by, render_record(entry.said))
        for entry in journal.history(batch.number)
    ]
    assert histories == [
        (AT, "opened", None, None, "ada", "3 rows of payroll.csv"),
        (AT, "approved", None, None, "", "prepared by ada"),
        (AT, "approved", None, None, "", "approved by ben"),
        (at(4), "resolved_paid", 2, 1, "cleo", "ticket 1"),
        (at(5), "released", 3, 1, "dan", "next attempt as ORD-3-r2"),
    ]
    journal.verify()


def test_action_on_shared_row_appears_in_both_histories(journal: Journal) -> None:
    open_sheet(journal, new=2)
    send(journal, 1, OutcomeKind.REJECTED)
    open_sheet(journal, "b2", [new_instruction(2, "NEW")], known=[KnownRow(7, 2, State.REJECTED)])
    journal.release(2, [7], suffix=False, by="dan", at=at(5))
    histories = [[(entry.kind, entry.row) for entry in journal.history(batch)] for batch in (1, 2)]
    assert histories == [[("opened", None), ("released", 3)], [("opened", None), ("released", 7)]]


def test_history_index_excludes_only_run_facts() -> None:
    indexed = {kind for kind in FactKind if "rel" <= kind < "s"}
    of_a_run = {FactKind.INTENDED, FactKind.INTERRUPTED, *(FactKind(kind.value) for kind in OutcomeKind)}
    assert indexed == set(FactKind) - of_a_run


def count_steps(ask: Callable[[Journal], object], rows: int) -> int:
    """Return the number of steps, in hundreds, of a query on a batch of `rows` rows with two in doubt."""
    step_count = 0

    def count_step() -> bool:
        nonlocal step_count
        step_count += 1
        return False

    with closing(memory_journal()) as journal:
        open_sheet(journal, new=[new_instruction(row) for row in range(2, rows)])
        send(journal, 1, OutcomeKind.PAID)
        open_sheet(journal, "b2", new=[new_instruction(row, f"NEW-{row}") for row in (2, 3)])
        send(journal, 2, OutcomeKind.UNKNOWN)
        journal.settle([resolved(row_of(journal, 2, 2).instruction, 1, Resolution.PAID, at(4))])
        journal._connection.set_progress_handler(count_step, 100)
        ask(journal)
        journal._connection.set_progress_handler(None)
    return step_count


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "ask",
    [
        lambda journal: row_of(journal, 1, 3),
        lambda journal: list(journal.rows(1, after=2, limit=5)),
        lambda journal: list(journal.rows(1, numbers=[3, 4], states={State.PAID})),
        lambda journal: list(journal.rows(1, states={State.IN_DOUBT})),
        lambda journal: journal.history(1),
        lambda journal: journal.history(2),
        lambda journal: journal.customer_urls(2),
    ],
    ids=["row", "page", "rows in a state", "in doubt", "deeds", "deeds of a small batch", "pages to pay"],
)
def test_query_cost_does_not_depend_on_batch_size(ask: Callable[[Journal], object]) -> None:
    assert count_steps(ask, 4000) <= count_steps(ask, 40) + 2
