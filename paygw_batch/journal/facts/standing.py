"""Where an instruction is, as a deed needs it before it moves it, and the rules that look at nothing else. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paygw_batch.core.batch import attempt_order_id
from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.errors import JournalCorrupt
from paygw_batch.language import say

PROVEN_STATEMENT = "proven_statement"
"""The error code of a row that a proven statement calls rejected. This lifts its quarantine; its mark stays."""


class _States(dict[str, State]):
    """The states by their words; a CHECK in a table would do the same, at 3 us a write."""

    def __missing__(self, word: str) -> State:
        """Refuse a word that we never write."""
        raise JournalCorrupt(say("An instruction has an unknown state: {state!r}.", state=str(word)[:20]))


STATES: Mapping[str, State] = _States({state.value: state for state in State})


class RowStanding(NamedTuple):
    """An instruction about to move. `order_id` is that of its next attempt; `quarantined_since`: as in `Clash`."""

    number: int
    client_orderid: str
    order_id: str
    standing: Standing
    quarantined_since: str | None


def row_standing(columns: Sequence[Any]) -> RowStanding:
    """Return the standing that a line of the statement `standings` holds."""
    number, client_orderid, order_id, state, attempt, generation, duplicate_of, since = columns
    return RowStanding(
        number, client_orderid, order_id, Standing(STATES[state], attempt, generation, duplicate_of), since
    )


def storable(text: str) -> str:
    """Return `text` with `?` for each character that UTF-8 cannot encode (half a surrogate pair, odd file names)."""
    return text.encode("utf-8", "replace").decode()


def amendable(state: State, possible_duplicate_of: int | None) -> bool:
    """Whether an amended row may replace the payment: it is rejected, or no attempt of it can have been paid.

    A row that a person called not received is neither: it may have been paid all the same. For a row that a person
    called rejected, the quarantine must be over as well: `is_in_quarantine`.
    """
    return state is State.REJECTED or (state is State.READY and possible_duplicate_of is None)


def next_order_id(row: RowStanding, *, suffix: bool, is_used: Callable[[str], bool]) -> str:
    """Return the order id of a released row's next attempt: the same again, or the next suffix that was never used."""
    if not suffix:
        return row.order_id
    generation = row.standing.generation + 1
    while is_used(attempt_order_id(row.client_orderid, generation)):
        generation += 1
    return attempt_order_id(row.client_orderid, generation)
