"""Maps the state of an instruction to the state that a person is shown."""

from paygw_batch.core.lifecycle import State
from paygw_batch.language import mark_all, mark_count, number, say, say_count

INVALID = "invalid"
"""The state of a row with defects: it is not an instruction, and the state machine does not know it."""

STATES = (INVALID, "ready", "in_flight", "in_doubt", "accepted", "paid", "rejected", "returned")
"""The states a row can be shown in, as the interface lists them; `in_flight` is one whose process lives."""

SHOWN_IN_DOUBT = frozenset({State.IN_DOUBT, State.IN_FLIGHT})
"""The states that a person is shown as in doubt (see `shown_state`)."""


_COUNTED = {
    INVALID: mark_count("{count:,} invalid"),
    "ready": mark_count("{count:,} ready"),
    "in_flight": mark_count("{count:,} in flight"),
    "in_doubt": mark_count("{count:,} in doubt"),
    "accepted": mark_count("{count:,} accepted"),
    "paid": mark_count("{count:,} paid"),
    "rejected": mark_count("{count:,} rejected"),
    "returned": mark_count("{count:,} returned"),
}
_SAID = mark_all(
    "invalid",
    "ready",
    "in doubt",
    "in flight",
    "accepted",
    "paid",
    "rejected",
    "returned",
    "replaced",
    "held",
    "in_doubt",
    "in_flight",
    "not sent",
    "unknown",
    "not received",
    "payout",
    "payin",
)
"""The words of all states, for the catalogue."""


def state_words(state: str) -> str:
    """Return a state, or another word of our codes, as people say it."""
    return say(state.replace("_", " "))


def counted_state(count: int, state: str) -> str:
    """Return the number of rows in a state, as people say it: `3 in doubt`."""
    template = _COUNTED.get(state)
    return f"{number(count)} {state_words(state)}" if template is None else say_count(count, template)


_FINDINGS = {
    "moved": mark_count("{count:,} moved"),
    "repeated": mark_count("{count:,} repeated"),
    "late": mark_count("{count:,} late"),
    "contradicting": mark_count("{count:,} contradicting"),
    "to_confirm": mark_count("{count:,} to confirm"),
    "ambiguous": mark_count("{count:,} ambiguous"),
}


def counted_finding(count: int, finding: str) -> str:
    """Return the number of the gateway's messages with a finding, as people say it: `2 contradicting`."""
    template = _FINDINGS.get(finding)
    return f"{number(count)} {state_words(finding)}" if template is None else say_count(count, template)


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
