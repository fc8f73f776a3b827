"""The progress of a run that nobody watches."""

from paygw_batch.core.outcome import Outcome
from paygw_batch.journal import Due


class Silent:
    """Progress that shows nothing."""

    def started(self, due: int) -> None:
        """Nothing to show."""

    def concluded(self, due: Due, outcome: Outcome) -> None:
        """Nothing to show."""

    def note(self, sentence: str) -> None:
        """Nothing to show."""
