"""The gateway's status words in scenarios, and their meanings."""

from paygw_batch.core.outcome import OutcomeKind

WORDS = {
    "approved": OutcomeKind.PAID,
    "processing": OutcomeKind.ACCEPTED,
    "declined": OutcomeKind.REJECTED,
    "error": OutcomeKind.REJECTED,
}
MEANS = {word: kind.value for word, kind in WORDS.items()}
"""The shown state of a row for each believed status word."""
