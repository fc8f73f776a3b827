"""Compares sheets with earlier payments: the findings do not depend on the store or on unrelated batches."""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.values import BatchRecord
from paygw_batch.sheet.instructions import to_pages
from paygw_batch.submit.changes import (
    CHANGED_ACCOUNT,
    NEW_PAYEE,
    PAYEE_GONE,
    UNUSUAL_AMOUNT,
    Comparison,
    compare_with_past,
)
from tests.support.journal_rows import due_rows, intent, memory_journal, new_instruction, open_sheet, outcome_of, send
from tests.support.long_part import example_count
from tests.support.tested_journal import Journal

Row = tuple[str, str, str]  # a name, an account and an amount
PEOPLE = [(f"Payee Number{n}", f"0712{n:03}{n:03}", "20000") for n in range(30)]


def frame(rows: Iterable[Row], country: str = "KE", staff: Sequence[str] = ()) -> pl.DataFrame:
    """Return rows as a frame like `Validated.rows`, with staff numbers if given."""
    lines = [
        (n, True, country, "KES", amount, name, account, None) for n, (name, account, amount) in enumerate(rows, 2)
    ]
    texts = dict.fromkeys(("country", "currency", "amount", "account_name", "account_number", "phone"), pl.String)
    found = pl.DataFrame(lines, schema={"row": pl.UInt32, "valid": pl.Boolean, **texts}, orient="row")
    return found.with_columns(staff_number=pl.Series(staff)) if staff else found


class PaidHistory:
    """A journal with batches that were sent."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def add_batch(
        self,
        name: str,
        rows: Sequence[Row],
        *,
        kind: OutcomeKind | None = OutcomeKind.PAID,
        approved: bool = False,
        staff: Sequence[str] = (),
    ) -> BatchRecord:
        number = len(self.journal.batches()) + 1
        sent_at = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T08:00:00.000Z"
        new = [
            new_instruction(row, f"{number}-{row}", amount=f"{amount}.00", phone=account)
            for row, (_, account, amount) in enumerate(rows, start=2)
        ]
        approvals = ("prepared by ada", "approved by cleo") if approved else ()
        pages = list(to_pages(frame(rows, staff=staff)))
        words: dict[str, Any] = {"opened_at": sent_at, "sheet_name": name, "approvals": approvals, "pages": pages}
        batch = open_sheet(self.journal, f"b{number}", new, **words)
        if kind is not None:
            send(self.journal, batch.number, kind, sent_at)
        return batch

    def compare(
        self,
        rows: Iterable[Row],
        *,
        against: BatchRecord | None = None,
        country: str = "KE",
        staff: Sequence[str] = (),
        sent: Collection[int] = (),
    ) -> Comparison:
        words: dict[str, Any] = {"against": against, "share": Decimal("0.1"), "minor_units": {"KES": 2}, "sent": sent}
        return compare_with_past(frame(rows, country, staff), self.journal, self.journal.batches(), **words)

    def codes(self, rows: Iterable[Row], **words: Any) -> list[str]:
        return [change.code for change in self.compare(rows, **words).changes]

    def differences(self, rows: Iterable[Row], **words: Any) -> list[tuple[str, str, str, str]]:
        return differences(self.compare(rows, **words))


@pytest.fixture
def past(journal: Journal) -> PaidHistory:
    return PaidHistory(journal)


def november() -> list[Row]:
    """Return the payroll with a changed account, a quadrupled amount, a new payee and a missing one."""
    rows = [(name, account, amount) for name, account, amount in PEOPLE[:-1]]
    rows[3] = (rows[3][0], "0712999003", rows[3][2])
    rows[4] = (rows[4][0], rows[4][1], "80000")
    return [*rows, ("Ghost Kamau", "0799000777", "15000")]


def differences(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    return [(change.code, change.name, change.before.account, change.before.amount) for change in comparison.changes]


NOVEMBER = [
    (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1], "20000.00"),
    (UNUSUAL_AMOUNT, PEOPLE[4][0], PEOPLE[4][1], "20000.00"),
    (NEW_PAYEE, "Ghost Kamau", "", ""),
    (PAYEE_GONE, PEOPLE[29][0], PEOPLE[29][1], "20000.00"),
]

BONUS = [(name, account, "500") for name, account, _ in PEOPLE]
DEPARTMENT = [(f"Other Person{n}", f"0733000{n:03}", "30000") for n in range(25)]
TINY_TO_CHANGED = [(PEOPLE[3][0], "0712999003", "10")]
TINY_TO_ALL = [(name, account if n != 3 else "0712999003", "10") for n, (name, account, _) in enumerate(PEOPLE)]
BESIDE_AT_AMOUNT = [(PEOPLE[3][0], "0712999003", "20000"), (PEOPLE[4][0], PEOPLE[4][1], "80000")]


def test_payroll_changes_are_found_across_other_batches(past: PaidHistory) -> None:
    october = past.add_batch("oct.xlsx", PEOPLE)
    for name, rows in (("bonus.csv", BONUS), ("other.csv", DEPARTMENT), ("tiny.csv", TINY_TO_CHANGED)):
        past.add_batch(name, rows)
    comparison = past.compare(november())
    assert differences(comparison) == NOVEMBER
    assert comparison.overlap is not None
    assert (comparison.overlap.batch.batch, comparison.overlap.found, comparison.people) == (october.batch, 29, 30)
    changed = comparison.changes[0]
    assert (changed.account, changed.before.sheet) == ("0712999003", "oct.xlsx")
    assert (changed.first.amount, changed.first.sheet, changed.first.at) == ("10.00", "tiny.csv", "2026-01-05")
    assert comparison.known_since[2] == "2026-01-02"
    assert comparison.known_since[5] == "2026-01-05"
    assert 31 not in comparison.known_since


def with_account(rows: Iterable[Row], account: str = "0712999003") -> list[Row]:
    return [(name, account if n == 3 else old, amount) for n, (name, old, amount) in enumerate(rows)]


SECOND = (PEOPLE[1][0], "0755000001", "3000")
REPEATED = [*PEOPLE[:5], PEOPLE[0], SECOND]
MORE_BONUS = [(name, account, "2000" if n == 7 else "500") for n, (name, account, _) in enumerate(PEOPLE)]
MOVED = (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1], "20000.00")
GHOST = ("Ghost Kamau", PEOPLE[3][1], "15000")
HISTORIES: Mapping[str, tuple[Sequence[Sequence[Row]], Sequence[Row], Sequence[tuple[str, str, str, str]]]] = {
    "a bonus hides nothing": ([PEOPLE, PEOPLE, BONUS], november(), NOVEMBER),
    "a tiny sum hides nothing": ([PEOPLE, PEOPLE, TINY_TO_CHANGED], november(), NOVEMBER),
    "tiny sums to all hide nothing": ([PEOPLE, PEOPLE, TINY_TO_ALL], november(), NOVEMBER),
    "payments beside hide nothing": ([PEOPLE, PEOPLE, BESIDE_AT_AMOUNT], november(), NOVEMBER),
    "a second payee of an account is missing": (
        [[*PEOPLE, GHOST]], with_account(PEOPLE), [MOVED, (PAYEE_GONE, *GHOST[:2], "15000.00")]),
    "a bonus is compared with the last bonus": (
        [BONUS, PEOPLE], MORE_BONUS, [(UNUSUAL_AMOUNT, PEOPLE[7][0], PEOPLE[7][1], "500.00")]),
    "a second account and a double payment are known": ([REPEATED], REPEATED, []),
    "a second account is changed": (
        [REPEATED], [*REPEATED[:-1], (SECOND[0], "0755000002", "3000")], [(CHANGED_ACCOUNT, *SECOND[:2], "3000.00")]),
    "a third payment is too much": (
        [REPEATED], [*REPEATED, PEOPLE[0]], [(UNUSUAL_AMOUNT, PEOPLE[0][0], PEOPLE[0][1], "40000.00")]),
    "a second name on an account hides no amount": (
        [PEOPLE], [*PEOPLE, ("Number Three", PEOPLE[3][1], "60000")],
        [(UNUSUAL_AMOUNT, "Number Three", PEOPLE[3][1], "20000.00")]),
    "departments are compared with their own batches": ([PEOPLE[:12], PEOPLE[12:], BONUS], PEOPLE, []),
}  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("history", HISTORIES)
def test_changes_are_found_in_each_history(past: PaidHistory, history: str) -> None:
    batches, rows, found = HISTORIES[history]
    for number, batch in enumerate(batches):
        past.add_batch(f"{number}.csv", batch)
    assert past.differences(rows) == found


def test_bonus_with_same_payment_shows_changed_account(past: PaidHistory) -> None:
    past.add_batch("oct.xlsx", PEOPLE)
    past.add_batch("beside.csv", [(PEOPLE[3][0], "0712999003", "500")])
    assert past.differences(with_account(BONUS))[0] == MOVED


def test_comparison_prefers_approved_batch(past: PaidHistory) -> None:
    past.add_batch("oct.xlsx", PEOPLE, approved=True)
    past.add_batch("blind.csv", [*november()[:20], *november()[-1:]])
    assert past.differences(november())[:2] == NOVEMBER[:2]


@pytest.mark.parametrize(
    ("stranger", "codes"), [(("Ghost Kamau", "0799000777", "15000"), [NEW_PAYEE]), (DEPARTMENT[0], [])]
)
def test_unrelated_sheet_is_compared_if_payee_is_known(past: PaidHistory, stranger: Row, codes: Sequence[str]) -> None:
    past.add_batch("oct.xlsx", PEOPLE, approved=True)
    past.add_batch("blind.csv", DEPARTMENT[:1])
    comparison = past.compare([stranger])
    assert [change.code for change in comparison.changes] == codes  # a payee of one payroll is not missing from another
    compared = comparison.overlap and (comparison.overlap.batch.sheet_name, comparison.overlap.found)
    assert compared == (None if codes else ("oct.xlsx", 0))


def test_payee_in_another_country_is_not_reported_missing(past: PaidHistory) -> None:
    october = past.add_batch("oct.xlsx", PEOPLE, approved=True)
    dakar = [(f"Awa Diop{n}", f"22177{n:07}", "150000") for n in range(3)]
    for against in (None, october):
        assert set(past.codes(dakar, country="SN", against=against)) == {NEW_PAYEE}


def test_staff_number_distinguishes_people_with_same_name(past: PaidHistory) -> None:
    twins = [("Achieng Otieno", f"071200000{n}", "20000") for n in (1, 2, 3)]
    past.add_batch("oct.xlsx", twins[:2], staff=("E1", "E2"))
    moved = [twins[0], (twins[1][0], "0712999002", "20000")]
    assert past.codes(twins[:2], staff=("E1", "E2")) == []
    changed = [(CHANGED_ACCOUNT, "Achieng Otieno", "0712000002", "20000.00")]
    assert past.differences(moved, staff=("E1", "E2")) == changed
    assert past.codes(twins, staff=("E1", "E2", "E3")) == [NEW_PAYEE]
    assert past.codes(twins) == [CHANGED_ACCOUNT]  # compared by name only


def test_missing_payees_are_reported_only_with_half_overlap(past: PaidHistory) -> None:
    past.add_batch("oct.xlsx", PEOPLE)
    assert past.codes(PEOPLE[:2]) == [PAYEE_GONE] * 28
    assert PAYEE_GONE not in past.codes([*PEOPLE[:2], *DEPARTMENT[:3]])


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", [*OutcomeKind, None])
def test_comparison_counts_rows_in_doubt_as_paid(past: PaidHistory, kind: OutcomeKind | None) -> None:
    past.add_batch("oct.xlsx", PEOPLE[:2], kind=kind)
    counts = kind in {OutcomeKind.PAID, OutcomeKind.ACCEPTED, OutcomeKind.UNKNOWN}
    assert set(past.codes(PEOPLE[:2])) == (set() if counts else {NEW_PAYEE})


def test_rejected_payee_of_paid_batch_counts_as_new(past: PaidHistory) -> None:
    due = due_rows(past.journal, past.add_batch("oct.xlsx", PEOPLE[:5], kind=None).number)
    past.journal.append([intent(row) for row in due])
    kinds = [OutcomeKind.REJECTED, *[OutcomeKind.PAID] * 4]
    past.journal.append([outcome_of(row.number, 1, kind) for row, kind in zip(due, kinds, strict=True)])
    assert past.differences(PEOPLE[:5]) == [(NEW_PAYEE, PEOPLE[0][0], "", "")]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ["  PAYEE   number3 ", "\uff30\uff41yee Number3", "payee\u00a0NUMBER3"])
def test_respelled_name_counts_as_same_person(past: PaidHistory, name: str) -> None:
    past.add_batch("oct.xlsx", PEOPLE)
    rows = [*PEOPLE[:3], (name, PEOPLE[3][1], "20000"), *PEOPLE[4:]]
    assert past.codes(rows) == []
    assert past.differences(with_account(rows)) == [(CHANGED_ACCOUNT, name, PEOPLE[3][1], "20000.00")]


def test_account_of_another_payee_counts_as_changed(past: PaidHistory) -> None:
    past.add_batch("oct.xlsx", PEOPLE)
    (changed,) = past.compare(with_account(PEOPLE, PEOPLE[9][1])).changes
    assert (changed.code, changed.name, changed.before.account) == (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1])
    assert changed.shared_with == PEOPLE[9][0]


def test_rows_sent_before_are_not_listed(past: PaidHistory) -> None:
    past.add_batch("oct.xlsx", PEOPLE)
    rows = [*november(), ("Ghost Kamau", "0799000777", "50"), ("Another Ghost", "0799000778", "70")]
    changes = past.compare(rows, sent={5, 31, 33}).changes  # not the second row of a ghost, who is still new
    assert [(change.code, change.row, change.amount) for change in changes] == [
        (UNUSUAL_AMOUNT, 6, "80000.00"),
        (NEW_PAYEE, 32, "50.00"),
        (PAYEE_GONE, 0, ""),
    ]


def test_chosen_comparison_batch_only_adds_findings(past: PaidHistory) -> None:
    name, account, amount = PEOPLE[5]
    september = past.add_batch("sep.xlsx", [*PEOPLE[:5], (name, "0755000005", amount), *PEOPLE[6:]])
    past.add_batch("oct.xlsx", PEOPLE, approved=True)
    without, named = past.differences(november()), past.differences(november(), against=september)
    assert set(without) < set(named)
    assert (CHANGED_ACCOUNT, name, "0755000005", "20000.00") in named
    beside = past.add_batch("beside.csv", [(name, PEOPLE[9][1], "10"), (name, "0755000005", "10")])
    doubled = [*PEOPLE[:5], (name, account, str(2 * Decimal(amount))), *PEOPLE[6:9], *PEOPLE[10:]]
    assert set(past.differences(doubled)) < set(past.differences(doubled, against=beside))


def test_overlap_shows_less_than_half_paid_before(past: PaidHistory) -> None:
    first = past.compare(PEOPLE[:2])
    assert (first.overlap, {change.code for change in first.changes}) == (None, {NEW_PAYEE})
    past.add_batch("oct.xlsx", PEOPLE[:10])
    comparison = past.compare(PEOPLE)
    assert comparison.overlap is not None
    assert (comparison.overlap.found, comparison.people, comparison.overlap.paid_before) == (10, 30, 10)


@settings(max_examples=example_count(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["10", "500", "20000", "80000"]), st.integers(1, 40)), max_size=5
    ),
    st.integers(0, 10_000),
    st.booleans(),
)
def test_other_batches_do_not_change_findings(others: Sequence[tuple[int, str, int]], seed: int, bonus: bool) -> None:
    batches: list[list[Row]] = [PEOPLE, PEOPLE]
    rng = random.Random(seed)  # noqa: S311 (made-up batches)
    for at, amount, people in others:
        rows = [(f"Stranger {rng.randrange(50)}", f"0733{rng.randrange(50):06}", amount) for _ in range(people)]
        batches.insert(min(at, len(batches)), rows)
    if bonus:
        batches.insert(rng.randrange(len(batches) + 1), BONUS)
    past = PaidHistory(memory_journal())
    for number, rows in enumerate(batches):
        past.add_batch(f"{number}.csv", rows)
    assert past.differences(november()) == NOVEMBER
