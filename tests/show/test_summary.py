"""Tests exit codes, exact totals, the JSON summary and the next steps for batches and rows."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import State
from paygw_batch.countries.load import load_operation
from paygw_batch.engine.quarantine import Quarantine
from paygw_batch.journal import BatchRecord, RowState
from paygw_batch.show.next_step import RowStep, batch_steps, describe_step, next_step, state_step
from paygw_batch.show.summary import ExitCode, exit_code_for, worst_code
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


RESUME = "To send the rows that have not been sent yet, run `paygw-batch resume B`."
DOUBT = """Rows in doubt may have been paid and are never sent again automatically. To see what to do about each, run \
`paygw-batch status B`."""


@pytest.mark.parametrize(
    ("states", "interrupted", "steps"),
    [
        ({"paid": 3}, False, []),
        ({"ready": 2, "paid": 1}, False, [RESUME]),
        ({"ready": 2, "paid": 1}, True, ["Interrupted: run the same command again to continue."]),
        ({"in_doubt": 1, "rejected": 4}, False, [DOUBT, "To retry rejected rows, run `paygw-batch retry B`."]),
    ],
)
def test_batch_state_determines_next_steps(states: dict[str, int], interrupted: bool, steps: list[str]) -> None:
    assert list(batch_steps(states, "B", contradictions=0, waiting=0, interrupted=interrupted)) == steps


@pytest.mark.parametrize(
    ("state", "by_person", "left_h", "step", "has_to_wait"),
    [
        (State.IN_DOUBT, False, 1, RowStep.RESOLVE_DOUBT, True),
        (State.IN_DOUBT, False, 25, RowStep.RESOLVE_DOUBT, False),
        (State.ACCEPTED, False, 1, None, False),
        (State.ACCEPTED, False, 25, RowStep.RESOLVE_ACCEPTED, False),
        (State.REJECTED, True, 1, RowStep.RETRY_AFTER_PERSON, True),
        (State.REJECTED, False, 25, RowStep.RETRY, False),
        (State.RETURNED, False, 25, RowStep.PAY_AGAIN, False),
        (State.PAID, False, 25, None, False),
    ],
)
def test_row_state_determines_next_step(
    state: State, by_person: bool, left_h: int, step: RowStep | None, has_to_wait: bool
) -> None:
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    sent_at = timestamp(now - timedelta(hours=left_h))
    sent: tuple[Any, ...] = ("PAY-1", *[None] * 7, sent_at, sent_at, sent_at, sent_at if by_person else None)
    row = RowState(2, 1, 1, "PAY-1", "KE", "KES", 150050, state, 1, *sent)
    next_action = next_step(row, batch="abc", verb="pay", quarantine=Quarantine(24), now=now)
    assert (next_action and next_action.kind) == step
    if next_action is not None:
        assert bool(next_action.not_before) is has_to_wait
        assert describe_step(next_action)


@pytest.mark.parametrize(
    ("name", "reference", "options"),
    [("pay.xlsx", "", ""), ("pay.xlsx [May pay]", "R 1", " --worksheet 'May pay' --reference 'R 1'")],
)
def test_amending_command_has_options_of_sheet(name: str, reference: str, options: str) -> None:
    batch = BatchRecord(1, "B", "payout", name, "", 2, 0, "", "/srv/pay.xlsx", reference)
    command = state_step(State.REJECTED, batch, load_operation("payout"), first_row=2).commands[-1]
    assert command == f"paygw-batch submit /srv/pay.xlsx{options} --amend"
