"""Names the states of rows by the words and signs of the pages. Never by colour alone."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.compose.actions.follow_payout import BEING_SENT
from paygw_batch.core.shown_states import INVALID

_WORDS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "paid": ("✓", "Paid", "the gateway's final yes"),
        "accepted": ("…", "With the gateway", "taken; its final word is awaited"),
        "rejected": ("✕", "Rejected", "the gateway's final no; no money left"),
        "returned": ("↩", "Came back", "paid, and the money came back"),
        "in_doubt": ("?", "In doubt", "may have been paid; never sent again without evidence"),
        BEING_SENT: ("→", "Being sent", "on the way to the gateway now"),
        "ready": ("○", "Not sent yet", "nothing has left for these people"),
        INVALID: ("-", "Left out", "not part of this payout"),
    }
)
"""State -> sign, word, meaning; in the order in which they are shown."""
STATES_SHOWN = tuple(_WORDS)


def sign(state: str) -> str:
    """Return the sign of a state."""
    return _WORDS[state][0]


def word(state: str) -> str:
    """Return the name of a state."""
    return _WORDS[state][1]


def meaning(state: str) -> str:
    """Return the meaning of a state, in a few words."""
    return _WORDS[state][2]
