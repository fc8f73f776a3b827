"""How what the tables hold becomes values."""

from collections.abc import Mapping, Sequence
from typing import Any

from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.journal.progress import Progress

STATES: Mapping[str, State] = {state.value: state for state in State}

PROGRESS = """order_id, state, attempt, generation, possible_duplicate_of, inherited_attempts, sent_orderid, purpose,
    gateway_status, gateway_reference, http_status, error_code, message, intended_at, first_sent_at, updated_at"""
"""The columns of the view `progress` that `progress_of` reads, in its order."""


def progress_of(columns: Sequence[Any]) -> Progress:
    """Return the progress that the columns `PROGRESS` hold."""
    order_id, state, attempt, generation, duplicate_of, *evidence = columns
    return Progress(order_id, Standing(STATES[state], attempt, generation, duplicate_of), *evidence)
