"""Names the states of rows by the words and signs of the pages. Never by colour alone."""

from collections.abc import Mapping
from types import MappingProxyType

from paygw_batch.compose.actions.follow_payout import BEING_SENT
from paygw_batch.core.shown_states import INVALID
from paygw_batch.language import mark_all, say

_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "paid": ("✓", *mark_all("Paid", "the gateway's final yes")),
        "accepted": ("…", *mark_all("With the gateway", "taken; its final word is awaited")),
        "rejected": ("✕", *mark_all("Rejected", "the gateway's final no; no money left")),
        "returned": ("↩", *mark_all("Came back", "paid, and the money came back")),
        "in_doubt": ("?", *mark_all("In doubt", "may have been paid; never sent again without evidence")),
        BEING_SENT: ("→", *mark_all("Being sent", "on the way to the gateway now")),
        "ready": ("○", *mark_all("Not sent yet", "nothing has left for these people")),
        INVALID: ("-", *mark_all("Left out", "not part of this payout")),
    }
)
"""State -> sign, word, meaning; in the order in which they are shown."""
STATES_SHOWN = tuple(_WORDS)


def sign(state: str) -> str:
    """Return the sign of a state."""
    return _WORDS[state][0]


def word(state: str) -> str:
    """Return the name of a state."""
    return say(_WORDS[state][1])


def meaning(state: str) -> str:
    """Return the meaning of a state, in a few words."""
    return say(_WORDS[state][2])
