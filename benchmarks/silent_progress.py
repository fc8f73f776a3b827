"""The progress of an unattended run."""

from paygw_batch.core.outcome import Outcome
from paygw_batch.journal import DueRow


class SilentProgress:
    """Progress that shows nothing."""

    def set_total(self, due: int) -> None:
        """Ignore the start of a row."""

    def record_outcome(self, due: DueRow, outcome: Outcome) -> None:
        """Ignore the outcome of a row."""

    def echo(self, sentence: str) -> None:
        """Ignore a note."""
