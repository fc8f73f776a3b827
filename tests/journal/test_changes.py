"""A sheet beside the payments before it: the same findings on each store, for any order and number of other batches."""

import random
from collections.abc import Iterable, Sequence
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.values import BatchRecord
from paygw_batch.sheet.instructions import to_pages
from paygw_batch.submit.changes import AMOUNT_OFF, CHANGED_ACCOUNT, GONE, NEW_PAYEE, Comparison, compare_with_past
from tests.support.journal_rows import all_due, intent, memory, new_instruction, open_sheet, outcome_of, send
from tests.support.long_part import share_of
from tests.support.tested_journal import Journal

Row = tuple[str, str, str]
"""Name, account, amount."""
PEOPLE = [(f"Payee Number{n}", f"0712{n:03}{n:03}", "20000") for n in range(30)]


def frame(rows: Iterable[Row], country: str = "KE", staff: Sequence[str] = ()) -> pl.DataFrame:
    """Return rows as `Validated.rows` has them, with staff numbers if there are any."""
    lines = [
        (row, True, country, "KES", amount, name, account, None)
        for row, (name, account, amount) in enumerate(rows, start=2)
    ]
    columns = ("row", "valid", "country", "currency", "amount", "account_name", "account_number", "phone")
    schema = dict.fromkeys(columns, pl.String) | {"row": pl.UInt32, "valid": pl.Boolean}
    made = pl.DataFrame(lines, schema=schema, orient="row")
    return made.with_columns(staff_number=pl.Series(staff)) if staff else made


class Past:
    """Batches that a journal has opened and sent."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.opened: list[BatchRecord] = []

    def paid(
        self,
        name: str,
        rows: Sequence[Row],
        *,
        kind: OutcomeKind | None = OutcomeKind.PAID,
        approved: bool = False,
        staff: Sequence[str] = (),
    ) -> BatchRecord:
        number = len(self.opened) + 1
        day = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T08:00:00.000Z"
        new = [
            new_instruction(row, f"{number}-{row}", amount=f"{amount}.00", phone=account)
            for row, (_, account, amount) in enumerate(rows, start=2)
        ]
        batch = open_sheet(
            self.journal,
            f"b{number}",
            new,
            pages=list(to_pages(frame(rows, staff=staff))),
            opened_at=day,
            sheet_name=name,
            approvals=("prepared by ada", "approved by cleo") if approved else (),
        )
        if kind is not None:
            send(self.journal, batch.number, kind, day)
        self.opened.append(batch)
        return batch

    def beside(
        self, rows: Iterable[Row], *, against: BatchRecord | None = None, country: str = "KE", staff: Sequence[str] = ()
    ) -> Comparison:
        return compare_with_past(
            frame(rows, country, staff),
            self.journal,
            self.journal.batches(),
            against=against,
            share=Decimal("0.1"),
            minor_units={"KES": 2},
        )


@pytest.fixture
def past(journal: Journal) -> Past:
    return Past(journal)


def november() -> list[Row]:
    """The payroll with an account changed in the middle, four times an amount, and a stranger; one is missing."""
    rows = [(name, account, amount) for name, account, amount in PEOPLE[:-1]]
    rows[3] = (rows[3][0], "0712999003", rows[3][2])
    rows[4] = (rows[4][0], rows[4][1], "80000")
    return [*rows, ("Ghost Kamau", "0799000777", "15000")]


def differences(found: Comparison) -> list[tuple[str, str, str, str]]:
    return [(one.code, one.name, one.before.account, one.before.amount) for one in found.changes]


NOVEMBER = [
    (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1], "20000.00"),
    (AMOUNT_OFF, PEOPLE[4][0], PEOPLE[4][1], "20000.00"),
    (NEW_PAYEE, "Ghost Kamau", "", ""),
    (GONE, PEOPLE[29][0], PEOPLE[29][1], "20000.00"),
]

BONUS = [(name, account, "500") for name, account, _ in PEOPLE]
DEPARTMENT = [(f"Other Person{n}", f"0733000{n:03}", "30000") for n in range(25)]
TINY_TO_CHANGED = [(PEOPLE[3][0], "0712999003", "10")]
TINY_TO_ALL = [(name, account if n != 3 else "0712999003", "10") for n, (name, account, _) in enumerate(PEOPLE)]
BESIDE_AT_AMOUNT = [(PEOPLE[3][0], "0712999003", "20000"), (PEOPLE[4][0], PEOPLE[4][1], "80000")]


def test_payroll_shows_all_changes_despite_batches_between(past: Past) -> None:
    october = past.paid("oct.xlsx", PEOPLE)
    for name, rows in (("bonus.csv", BONUS), ("other.csv", DEPARTMENT), ("tiny.csv", TINY_TO_CHANGED)):
        past.paid(name, rows)
    found = past.beside(november())
    assert differences(found) == NOVEMBER
    assert found.overlap is not None
    assert (found.overlap.batch.batch, found.overlap.found, found.people) == (october.batch, 29, 30)
    changed = found.changes[0]
    assert (changed.account, changed.before.sheet) == ("0712999003", "oct.xlsx")
    assert (changed.first.amount, changed.first.sheet, changed.first.at) == ("10.00", "tiny.csv", "2026-01-05")
    assert found.known_since[2] == "2026-01-02"
    assert found.known_since[5] == "2026-01-05"
    assert 31 not in found.known_since


@pytest.mark.parametrize(
    "beside", [BONUS, TINY_TO_CHANGED, TINY_TO_ALL, BESIDE_AT_AMOUNT], ids=["bonus", "tiny", "tiny to all", "beside"]
)
def test_small_batch_hides_no_changed_account_or_amount(past: Past, beside: Sequence[Row]) -> None:
    past.paid("sep.xlsx", PEOPLE)
    past.paid("oct.xlsx", PEOPLE)
    past.paid("beside.csv", beside)
    assert differences(past.beside(november())) == NOVEMBER


def test_bonus_with_equal_payment_shows_changed_account(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE)
    past.paid("beside.csv", [(PEOPLE[3][0], "0712999003", "500")])
    rows = [(name, "0712999003" if n == 3 else account, "500") for n, (name, account, _) in enumerate(PEOPLE)]
    assert differences(past.beside(rows))[0] == (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1], "20000.00")


def test_comparison_prefers_approved_batch(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE, approved=True)
    past.paid("blind.csv", [*november()[:20], *november()[-1:]])
    found = differences(past.beside(november()))
    assert found[:2] == NOVEMBER[:2]


@pytest.mark.parametrize(
    ("stranger", "codes"), [(("Ghost Kamau", "0799000777", "15000"), [NEW_PAYEE]), (DEPARTMENT[0], [])]
)
def test_unrelated_sheet_is_compared_only_with_known_payee(past: Past, stranger: Row, codes: Sequence[str]) -> None:
    past.paid("oct.xlsx", PEOPLE, approved=True)
    past.paid("blind.csv", DEPARTMENT[:1])
    found = past.beside([stranger])
    assert [one.code for one in found.changes] == codes  # who else was paid is not missing from another payroll
    compared = found.overlap and (found.overlap.batch.sheet_name, found.overlap.found)
    assert compared == (None if codes else ("oct.xlsx", 0))


def test_payee_of_other_country_is_not_missing(past: Past) -> None:
    october = past.paid("oct.xlsx", PEOPLE, approved=True)
    dakar = [(f"Awa Diop{n}", f"22177{n:07}", "150000") for n in range(3)]
    assert {one.code for one in past.beside(dakar, country="SN").changes} == {NEW_PAYEE}
    assert {one.code for one in past.beside(dakar, against=october, country="SN").changes} == {NEW_PAYEE}


def test_staff_number_distinguishes_people_of_same_name(past: Past) -> None:
    twins = [("Achieng Otieno", "0712000001", "20000"), ("Achieng Otieno", "0712000002", "20000")]
    past.paid("oct.xlsx", twins, staff=("E1", "E2"))
    moved = [twins[0], (twins[1][0], "0712999002", "20000")]
    assert past.beside(twins, staff=("E1", "E2")).changes == []
    assert differences(past.beside(moved, staff=("E1", "E2"))) == [
        (CHANGED_ACCOUNT, "Achieng Otieno", "0712000002", "20000.00")
    ]
    newcomer = [*twins, ("Achieng Otieno", "0712000003", "20000")]
    assert [one.code for one in past.beside(newcomer, staff=("E1", "E2", "E3")).changes] == [NEW_PAYEE]
    assert [one.code for one in past.beside(newcomer).changes] == [CHANGED_ACCOUNT]  # by the name alone


def test_missing_payees_need_half_overlap(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE)
    assert [one.code for one in past.beside(PEOPLE[:2]).changes] == [GONE] * 28
    assert GONE not in {one.code for one in past.beside([*PEOPLE[:2], *DEPARTMENT[:3]]).changes}


def test_second_payee_of_abandoned_account_is_missing(past: Past) -> None:
    past.paid("oct.xlsx", [*PEOPLE, ("Ghost Kamau", PEOPLE[3][1], "15000")])
    rows = [(name, "0712999003" if n == 3 else account, amount) for n, (name, account, amount) in enumerate(PEOPLE)]
    assert differences(past.beside(rows)) == [
        (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1], "20000.00"),
        (GONE, "Ghost Kamau", PEOPLE[3][1], "15000.00"),
    ]


def test_a_bonus_is_compared_with_the_last_bonus(past: Past) -> None:
    past.paid("bonus.csv", BONUS)
    past.paid("oct.xlsx", PEOPLE)
    more = [(name, account, "2000" if n == 7 else "500") for n, (name, account, _) in enumerate(PEOPLE)]
    assert differences(past.beside(more)) == [(AMOUNT_OFF, PEOPLE[7][0], PEOPLE[7][1], "500.00")]


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        (OutcomeKind.PAID, True),
        (OutcomeKind.ACCEPTED, True),
        (OutcomeKind.UNKNOWN, True),
        (OutcomeKind.REJECTED, False),
        (None, False),
    ],
)
def test_comparison_counts_doubtful_rows_as_paid(past: Past, kind: OutcomeKind | None, counts: bool) -> None:
    past.paid("oct.xlsx", PEOPLE[:2], kind=kind)
    codes = {one.code for one in past.beside(PEOPLE[:2]).changes}
    assert codes == (set() if counts else {NEW_PAYEE})


def test_rejected_payee_of_paid_batch_counts_as_new(past: Past) -> None:
    batch = past.paid("oct.xlsx", PEOPLE[:5], kind=None)
    due = list(all_due(past.journal, batch.number))
    past.journal.append([intent(one) for one in due])
    kinds = [OutcomeKind.REJECTED, *[OutcomeKind.PAID] * 4]
    past.journal.append([outcome_of(one.number, 1, kind) for one, kind in zip(due, kinds, strict=True)])
    assert differences(past.beside(PEOPLE[:5])) == [(NEW_PAYEE, PEOPLE[0][0], "", "")]


@pytest.mark.parametrize("name", ["  PAYEE   number3 ", "\uff30\uff41yee Number3", "payee\u00a0NUMBER3"])
def test_respelled_name_counts_as_same_person(past: Past, name: str) -> None:
    past.paid("oct.xlsx", PEOPLE)
    rows = [*PEOPLE[:3], (name, PEOPLE[3][1], "20000"), *PEOPLE[4:]]
    assert past.beside(rows).changes == []
    rows[3] = (name, "0712999003", "20000")
    assert differences(past.beside(rows)) == [(CHANGED_ACCOUNT, name, PEOPLE[3][1], "20000.00")]


def test_account_of_other_payee_counts_as_changed(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE)
    rows: list[Row] = list(PEOPLE)
    rows[3] = (PEOPLE[3][0], PEOPLE[9][1], "20000")
    (changed,) = past.beside(rows).changes
    assert (changed.code, changed.name, changed.before.account) == (CHANGED_ACCOUNT, PEOPLE[3][0], PEOPLE[3][1])
    assert changed.shared_with == PEOPLE[9][0]


def test_second_account_and_double_payment_are_known(past: Past) -> None:
    twice = [*PEOPLE[:5], PEOPLE[0], (PEOPLE[1][0], "0755000001", "3000")]
    past.paid("oct.xlsx", twice)
    assert past.beside(twice).changes == []
    other = [*twice[:-1], (PEOPLE[1][0], "0755000002", "3000")]
    assert differences(past.beside(other)) == [(CHANGED_ACCOUNT, PEOPLE[1][0], "0755000001", "3000.00")]
    assert differences(past.beside([*twice, PEOPLE[0]])) == [(AMOUNT_OFF, PEOPLE[0][0], PEOPLE[0][1], "40000.00")]


def test_second_name_on_account_hides_no_amount(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE)
    rows = [*PEOPLE, ("Payee Numberthree", PEOPLE[3][1], "60000")]
    assert differences(past.beside(rows)) == [(AMOUNT_OFF, "Payee Numberthree", PEOPLE[3][1], "20000.00")]


def test_departments_are_compared_with_their_own_batches(past: Past) -> None:
    past.paid("x.csv", PEOPLE[:12])
    past.paid("y.csv", PEOPLE[12:])
    past.paid("bonus.csv", BONUS)
    assert past.beside(PEOPLE).changes == []


def test_naming_comparison_batch_only_adds_findings(past: Past) -> None:
    september = past.paid("sep.xlsx", [*PEOPLE[:5], (PEOPLE[5][0], "0755000005", "20000"), *PEOPLE[6:]])
    past.paid("oct.xlsx", PEOPLE)
    without, named = past.beside(november()), past.beside(november(), against=september)
    assert set(differences(without)) < set(differences(named))
    assert (CHANGED_ACCOUNT, PEOPLE[5][0], "0755000005", "20000.00") in differences(named)


def test_naming_comparison_batch_hides_no_finding(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE, approved=True)
    name, account, amount = PEOPLE[5]
    beside = past.paid("beside.csv", [(name, PEOPLE[9][1], "10"), (name, "0755000005", "10")])
    doubled = [*PEOPLE[:5], (name, account, str(2 * Decimal(amount))), *PEOPLE[6:9], *PEOPLE[10:]]
    without, named = past.beside(doubled), past.beside(doubled, against=beside)
    assert set(differences(without)) < set(differences(named))


def test_overlap_shows_less_than_half_paid_before(past: Past) -> None:
    past.paid("oct.xlsx", PEOPLE[:10])
    found = past.beside(PEOPLE)
    assert found.overlap is not None
    assert (found.overlap.found, found.people, found.overlap.paid_before) == (10, 30, 10)


def test_first_run_has_new_payees_without_overlap(past: Past) -> None:
    found = past.beside(PEOPLE[:2])
    assert (found.overlap, {one.code for one in found.changes}) == (None, {NEW_PAYEE})


OTHERS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["10", "500", "20000", "80000"]), st.integers(1, 40)), max_size=5
)


@settings(max_examples=share_of(40), deadline=None)
@given(others=OTHERS, seed=st.integers(0, 10_000), bonus=st.booleans())
def test_unrelated_batches_change_no_finding(others: Sequence[tuple[int, str, int]], seed: int, bonus: bool) -> None:
    batches: list[tuple[str, list[Row]]] = [("sep.xlsx", PEOPLE), ("oct.xlsx", PEOPLE)]
    chance = random.Random(seed)  # noqa: S311 (made-up batches)
    for place, (at, amount, people) in enumerate(others):
        rows = [(f"Stranger {chance.randrange(50)}", f"0733{chance.randrange(50):06}", amount) for _ in range(people)]
        batches.insert(min(at, len(batches)), (f"other{place}.csv", rows))
    if bonus:
        batches.insert(chance.randrange(len(batches) + 1), ("bonus.csv", BONUS))
    past = Past(memory())
    for name, rows in batches:
        past.paid(name, rows)
    assert differences(past.beside(november())) == NOVEMBER
