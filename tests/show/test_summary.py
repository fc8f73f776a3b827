"""Tests exit codes, exact totals and the JSON summary."""

from decimal import Decimal

import polars as pl
import pytest

from paygw_batch.show.summary import ExitCode, Summary, exit_code_for, worst_code
from paygw_batch.show.totals import amount_text, batch_totals


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ({}, 0),
        ({"paid": 3}, 0),
        ({"accepted": 1, "paid": 2}, 0),
        ({"paid": 1, "rejected": 1}, 4),
        ({"paid": 1, "invalid": 1}, 4),
        ({"paid": 1, "returned": 1}, 4),
        ({"paid": 1, "ready": 1}, 6),
        ({"rejected": 1, "ready": 1}, 6),
        ({"ready": 1, "in_doubt": 1}, 5),
        ({"in_doubt": 1, "rejected": 1, "paid": 7}, 5),
    ],
)
def test_row_states_decide_exit_code(states: dict[str, int], code: int) -> None:
    assert exit_code_for(states) == code


def test_exit_codes_rank_in_documented_order() -> None:
    assert exit_code_for({"paid": 3}, contradictions=1) == ExitCode.PERSON_NEEDED
    assert exit_code_for({"ready": 2, "rejected": 1}, interrupted=True) == ExitCode.INTERRUPTED
    assert exit_code_for({"ready": 2, "in_doubt": 1}, interrupted=True) == ExitCode.PERSON_NEEDED
    remaining = set(ExitCode)
    order = []
    while remaining:
        order.append(int(worst_code(remaining)))
        remaining.remove(ExitCode(order[-1]))
    assert order == [1, 2, 7, 8, 3, 5, 6, 130, 4, 0]


def test_totals_are_exact_and_count_every_row() -> None:
    frame = pl.DataFrame(
        {
            "country": ["KE", "KE", "KE", "UG", None],
            "currency": ["KES", "KES", "KES", "UGX", None],
            "amount": ["0.10", "0.20", "1,000", "5000", None],
            "state": ["paid", "paid", "invalid", "ready", "invalid"],
        }
    )
    counted = batch_totals(frame, {"KES": 2, "UGX": 0})
    assert counted.states == {"invalid": 2, "ready": 1, "paid": 2}
    assert counted.totals == {"KES": {"invalid": "0.00", "paid": "0.30"}, "UGX": {"ready": "5000"}}
    assert sum(line[3] for line in counted.lines) == frame.height


@pytest.mark.parametrize(
    ("amount", "minor_units", "text"),
    [("1500.5", 2, "1500.50"), ("1500", 0, "1500"), ("0", 2, "0.00"), ("1.005", 2, "1.005"), ("12.30", None, "12.3")],
)
def test_sums_use_decimals_of_their_currency(amount: str, minor_units: int | None, text: str) -> None:
    assert amount_text(Decimal(amount), minor_units) == text


def test_summary_lists_extra_keys_last() -> None:
    told = Summary(ExitCode.DONE, "done", extra={"checks": []}).as_json()
    assert list(told)[-1] == "checks"
    assert told["exit_code"] == 0
