"""The gateway's words in the simulated world, and what they mean."""

from paygw_batch.core.outcome import OutcomeKind

WORDS = {
    "approved": OutcomeKind.PAID,
    "processing": OutcomeKind.ACCEPTED,
    "declined": OutcomeKind.REJECTED,
    "error": OutcomeKind.REJECTED,
}
MEANS = {word: kind.value for word, kind in WORDS.items()}
"""How a row is shown of which a word is believed."""
