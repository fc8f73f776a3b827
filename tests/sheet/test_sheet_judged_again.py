"""A corrected sheet of which only the changed rows are judged has exactly the results of a whole check."""

from dataclasses import replace
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paygw_batch.core.batch import ControlTotals
from paygw_batch.countries.load import load_rules
from paygw_batch.countries.rules import OperatorTerms, Rules
from paygw_batch.sheet.check import judge
from paygw_batch.sheet.check.judge_again import JudgeMemory
from paygw_batch.sheet.check.mending import CellEdit, Mending, RowLeftOut, mended_sheet
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.findings import as_defects
from paygw_batch.sheet.model import Sheet, Validated
from tests.long_part import share_of
from tests.sheet.sheet_values import KENYAN, TANZANIAN, of_rows

RULES: Rules = load_rules(
    "payout",
    {
        "KE": OperatorTerms(purpose="WALLET-KE"),
        "TZ": OperatorTerms(purpose="WALLET-TZ"),
        "UG": OperatorTerms(purpose="WALLET-UG"),
    },
)
VALUES = {
    "client_orderid": ("A", "B", "a", "C-1", None, "x" * 200),
    "country": ("KE", "TZ", "ke ", "Total", None),
    "currency": ("KES", None, "USD"),
    "amount": ("10", "10.00", "250.5", "abc", "1,000", None),
    "account_name": ("Joan Otieno", "Otieno, Joan", "OK", "12", None),
    "account_number": ("254712345678", "0712345678", "254733111222", "7", None),
    "remark": ("", "Total", "ok", None),
}
"""Few values of each column: rows repeat each other, and stop doing so."""
CELL = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name])))
ROW = st.tuples(
    st.sampled_from([KENYAN, TANZANIAN]), st.dictionaries(st.sampled_from(sorted(VALUES)), st.integers(0, 5))
)
STEP = st.lists(st.tuples(st.integers(0, 7), CELL), max_size=3)


def made(rows: list[tuple[dict[str, str | None], dict[str, int]]]) -> Sheet:
    """Return a sheet whose rows have their own order ids, but where a value is drawn; one row is bad in the file."""
    lines = [
        {
            **dict.fromkeys([*KENYAN, *TANZANIAN, *VALUES]),
            **base,
            "client_orderid": f"O-{at}",
            **{name: VALUES[name][place % len(VALUES[name])] for name, place in drawn.items()},
        }
        for at, (base, drawn) in enumerate(rows)
    ]
    sheet = of_rows(*lines)
    of_file = as_defects([(2, "amount", "1E+5", "amount.cut", "The file has lost digits.")])
    return replace(sheet, defects=of_file)


def corrected(sheet: Sheet, mending: Mending, step: list[tuple[int, tuple[str, str | None]]]) -> Mending:
    """Return the corrections with more: cells, among them those taken back, and rows left out by turns."""
    frame, edits = sheet.frame, {(one.row, one.column): one for one in mending.edits}
    out = {one.row: one for one in mending.left_out}
    for place, (column, text) in step:
        row = int(frame["row"][place % frame.height])
        was = frame[column][place % frame.height]
        if place == 7:
            out.pop(row, None) or out.update({row: RowLeftOut(row, "Ada", "")})
        edits.pop((row, column), None)
        if was != text:
            edits[row, column] = CellEdit(row, column, was, text, "Ada", "")
    return Mending(sheet.sha256, tuple(edits.values()), tuple(out.values()))


def results(found: Validated) -> tuple[object, ...]:
    """Return everything that a check decides, as values that can be compared."""
    totals: ControlTotals = found.totals
    return (
        found.batch,
        found.height,
        found.payable,
        totals,
        *(frame.to_dicts() for frame in (found.defects, found.warnings, found.rows, found.instructions)),
        *(kinds.kinds().to_dicts() for kinds in (found.defects_found, found.warnings_found)),
        found.counts.sort("country", "currency", "valid").to_dicts(),
        found.held,
    )


@pytest.mark.long
@settings(max_examples=share_of(60))
@given(st.lists(ROW, min_size=1, max_size=8), st.lists(STEP, min_size=1, max_size=5), st.booleans())
def test_each_correction_has_the_results_of_a_whole_check(
    rows: list[tuple[dict[str, str | None], dict[str, int]]],
    steps: list[list[tuple[int, tuple[str, str | None]]]],
    derive: bool,
) -> None:
    sheet, memory = made(rows), JudgeMemory()
    if derive:
        frame = sheet.frame.drop("client_orderid")
        sheet = of_rows(*frame.drop("row").to_dicts())
    columns = set(sheet.frame.columns)
    reference = "payroll-11" if derive else None
    validate(sheet, RULES, reference=reference, memory=memory)
    mending = Mending(sheet.sha256)
    for step in steps:
        mending = corrected(sheet, mending, [one for one in step if one[1][0] in columns])
        mended = mended_sheet(sheet, mending)
        again = validate(mended, RULES, reference=reference, memory=memory)
        assert results(again) == results(validate(mended, RULES, reference=reference))


def test_rows_that_have_not_changed_are_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell of a thousand rows: one row goes through the checks."""
    rows = [{**KENYAN, "client_orderid": f"O-{at}", "account_number": f"2547{at:08d}"} for at in range(1000)]
    sheet, memory, judged = of_rows(*rows), JudgeMemory(), list[int]()
    validate(sheet, RULES, memory=memory)
    real = judge.Judge.piece

    def counting(self: judge.Judge, raw: pl.DataFrame, refused: pl.Series) -> judge.Judged:
        judged.append(raw.height)
        return real(self, raw, refused)

    edit = CellEdit(500, "amount", KENYAN["amount"], "abc", "Ada", "")
    mended = mended_sheet(sheet, Mending(sheet.sha256, (edit,)))
    monkeypatch.setattr(judge.Judge, "piece", counting)
    assert validate(mended, RULES, memory=memory).payable == 999
    assert judged == [1]


def test_other_rules_judge_every_row_again() -> None:
    sheet, memory = of_rows(KENYAN), JudgeMemory()
    validate(sheet, RULES, memory=memory)
    strict = load_rules("payout", {"KE": OperatorTerms(purpose="WALLET-KE", max_amount=Decimal(1))})
    assert validate(sheet, strict, memory=memory).payable == 0
