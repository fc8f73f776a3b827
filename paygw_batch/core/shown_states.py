"""Maps the state of an instruction to the state that a person is shown."""

from paygw_batch.core.lifecycle import State

INVALID = "invalid"
"""The state of a row with defects: it is no instruction, and the state machine does not know it."""

STATES = (INVALID, "ready", "in_doubt", "accepted", "paid", "rejected", "returned")
"""The states a row can be shown in, as the interface lists them."""

SHOWN_IN_DOUBT = frozenset({State.IN_DOUBT, State.IN_FLIGHT})
"""The states that a person is shown as in doubt (see `shown_state`)."""


def shown_state(state: State) -> str:
    """Return the state a person is shown for an instruction.

    A row in flight is in doubt to everyone outside its run; a replaced row is no longer part of its batch.
    """
    match state:
        case State.IN_FLIGHT:
            return State.IN_DOUBT
        case State.REPLACED:
            return INVALID
        case _:
            return state
